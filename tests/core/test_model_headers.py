"""Networks in GGUF and safetensors files against counts by hand; hostile headers and configurations."""

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.networks.gguf_header import TYPES, bytes_of
from gguf_files import model_file
from model_files import BERT, RESNET, calls, configured, labelled, llama, product_flops, read, size


def llama_tensors(
    layers: int, hidden: int, keys: int, between: int, words: int
) -> dict[str, tuple[str, tuple[int, ...]]]:
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {
        "token_embd.weight": ("Q6_K", (hidden, words)), "output_norm.weight": ("F32", (hidden,)),
    }  # fmt: skip
    for layer in range(layers):
        sizes = {"attn_q": (hidden, hidden), "attn_k": (hidden, keys), "attn_v": (hidden, keys),
                 "attn_output": (hidden, hidden), "ffn_gate": (hidden, between), "ffn_up": (hidden, between),
                 "ffn_down": (between, hidden)}  # fmt: skip
        tensors |= {f"blk.{layer}.{name}.weight": ("Q4_0", shape) for name, shape in sizes.items()}
        tensors |= {f"blk.{layer}.{name}.weight": ("F32", (hidden,)) for name in ("attn_norm", "ffn_norm")}
    return tensors


NUMBERS: dict[str, int | list[int]] = {
    "block_count": 2, "embedding_length": 512, "attention.head_count": 8, "attention.head_count_kv": [2, 2],
    "feed_forward_length": 1024, "rope.dimension_count": 64,
}  # fmt: skip


def test_a_gguf_file_of_a_llama(tmp_path: Path) -> None:
    path = model_file(tmp_path, llama_tensors(2, 512, 128, 1024, 2048), numbers=NUMBERS)
    prompt, one = read(path, prompt=16, depth=300).steps
    layers = 2 * (2 * 512 * 512 + 2 * 512 * 128 + 3 * 512 * 1024)
    assert product_flops(prompt) == 2 * (16 * layers + 2048 * 512)
    assert calls(one, "qgemm") == {
        "512x1x512 q4_0": 4, "128x1x512 q4_0": 4, "1024x1x512 q4_0": 4, "512x1x1024 q4_0": 2, "2048x1x512 q6_k": 1,
    }  # fmt: skip
    assert calls(one, "attention") == {"8/2,1,300,64 causal kv=float16": 2}
    assert calls(prompt, "rows") == {
        "16x512 rms_norm_weight": 4, "1x512 rms_norm_weight": 1, "16x512 rope heads=8": 2, "16x128 rope heads=2": 2,
        "16x1024 swiglu": 2,
    }  # fmt: skip
    network = read(path, depth=300)
    assert network.weight_bytes == layers * 18 // 32 + 2048 * 512 * 210 // 256 + 5 * 512 * 4
    assert network.cache_bytes == 2 * 300 * 2 * 2 * 64 * 2
    assert not network.notes


def test_experts_windows_and_sinks_of_gguf_files(tmp_path: Path) -> None:
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {
        "blk.0.ffn_gate_exps.weight": ("MXFP4", (512, 1024, 32)),
        "blk.0.ffn_up_exps.weight": ("MXFP4", (512, 1024, 32)),
        "blk.0.ffn_down_exps.weight": ("MXFP4", (1024, 512, 32)),
        "blk.0.ffn_gate_inp.weight": ("F32", (512, 32)),
        "blk.0.attn_q.weight": ("Q8_0", (512, 512)),
        "blk.1.attn_q.weight": ("Q8_0", (512, 512)),
        "blk.0.attn_sinks.weight": ("F32", (8,)),
        "blk.0.attn_q_norm.weight": ("F32", (64,)),
        "blk.0.post_attention_norm.weight": ("F32", (512,)),
    }
    numbers = {**NUMBERS, "attention.sliding_window": 128, "expert_feed_forward_length": 1024}
    path = model_file(tmp_path, tensors, used=4, architecture="gpt-oss", numbers=numbers)
    (step,) = read(path, depth=200).steps
    assert calls(step, "qgemm") == {"1024x4x512 mxfp4 experts=32": 2, "512x4x1024 mxfp4 experts=32": 1,
                                     "512x1x512 q8_0": 2}  # fmt: skip
    assert calls(step, "gemm") == {"1x32x512 nt constant=b": 1}
    rows = calls(step, "rows")
    assert rows["8x64 rms_norm_weight"] == rows["1x32 softmax"] == 1
    assert labelled(step, "clamped silu with a gate").calls == 2
    assert calls(step, "attention") == {
        "8/2,1,200,64 causal sinks kv=float16": 1, "8/2,1,200,64 causal sinks kv=float16 window=128": 1,
    }  # fmt: skip
    assert labelled(step, "sorting by experts").problem is None


def test_what_a_gguf_file_has_without_kernels_is_listed(tmp_path: Path) -> None:
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {
        "blk.0.ssm_conv1d.weight": ("F32", (4, 1024)), "blk.0.ssm_in.weight": ("IQ4_XS", (512, 2048)),
        "blk.0.ffn_up.weight": ("I8", (512, 1024)),
    }  # fmt: skip
    network = read(model_file(tmp_path, tensors, architecture="mamba", numbers=NUMBERS), depth=10)
    (step,) = network.steps
    assert labelled(step, "ssm_conv1d").family == "" and size(labelled(step, "ssm_in")) == "2048x1x512 q4_k"
    assert labelled(step, "ffn_up in I8").flops == 2 * 512 * 1024
    assert network.notes == (
        "q4_k stands for IQ4_XS", "blk.0.ffn_up.weight: there are no kernels for I8",
        "not counted: the scans of state-space layers",
    )  # fmt: skip
    assert calls(step, "attention") == {}


def test_bytes_of_types_are_those_of_the_gguf_package() -> None:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    for number, name in TYPES.items():
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(number)]
        assert bytes_of(name, 512) == 512 // block * size, name


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({}, "llama.block_count, embedding_length and attention.head_count are missing"),
        ({**NUMBERS, "attention.head_count": 2**31}, "attention.head_count is"),
        ({**NUMBERS, "attention.head_count_kv": [-5, -7]}, "attention.head_count_kv is"),
    ],
)
def test_hostile_values_of_gguf_files(numbers: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"model.gguf: .*{message}"):
        read(model_file(tmp_path, llama_tensors(1, 512, 128, 1024, 2048), numbers=numbers), depth=10)


# safetensors


def safetensors_file(path: Path, tensors: Mapping[str, tuple[str, Sequence[int]]]) -> Path:
    header = {
        name: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]} for name, (dtype, shape) in tensors.items()
    }
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    return path


def test_headers_tell_the_type_and_are_compared(tmp_path: Path) -> None:
    config = llama(64, 1, 4, 2, 128, 1000, tie_word_embeddings=True)
    (tmp_path / "config.json").write_text(json.dumps(config))
    sizes = {"q_proj": (64, 64), "k_proj": (32, 64), "v_proj": (32, 64), "o_proj": (64, 64), "gate_proj": (128, 64),
             "up_proj": (128, 64), "down_proj": (64, 128)}  # fmt: skip
    tensors = {f"model.layers.0.{name}.weight": ("F16", shape) for name, shape in sizes.items()}
    path = safetensors_file(tmp_path / "model-1.safetensors", tensors)
    safetensors_file(tmp_path / "model-2.safetensors", {"model.embed_tokens.weight": ("F16", (1000, 64))})
    network = read(tmp_path, depth=100)
    weights = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64
    assert (network.notes, network.weight_bytes) == ((), 2 * (weights + 64000))
    assert size(labelled(network.steps[0], "gate")) == "1x128x64 nt float16 constant=b"
    assert read(path, depth=100).weight_bytes == 2 * weights
    del tensors["model.layers.0.up_proj.weight"]
    safetensors_file(path, tensors)
    assert read(tmp_path, depth=100).notes == ("the files have 2 tensors of 64 x 128, the configuration has 3",)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "ends within its header"),
        (struct.pack("<Q", 2**60), "has a header of 1152921504606846976 bytes"),
        (struct.pack("<Q", 100) + b"{}", "ends within its header"),
        (struct.pack("<Q", 2) + b"[]", "must be an object"),
        (struct.pack("<Q", 5) + b"{nope", "not JSON"),
        (struct.pack("<Q", 200_000) + b"[" * 200_000, "nested too deeply"),
        (struct.pack("<Q", 34) + b'{"a":{"dtype":"F16","shape":[-1]}}', "data_offsets is missing"),
        (struct.pack("<Q", 55) + b'{"a":{"dtype":"F16","shape":[-1],"data_offsets":[0,1]}}', "is not a shape"),
        (struct.pack("<Q", 55) + b'{"a":{"dtype":"F16","shape":"xy","data_offsets":[0,1]}}', "is not a shape"),
    ],
)
def test_hostile_safetensors(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=f"model.safetensors: .*{message}"):
        read(path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("[]", "must be an object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"model_type": "unheard"}', "unknown model_type 'unheard'"),
        ('{"model_type": 7}', "unknown model_type ''"),
        ('{"model_type": "llama"}', "hidden_size is missing"),
        (json.dumps({**BERT, "hidden_size": -4}), "hidden_size is '-4'"),
        (json.dumps({**BERT, "hidden_size": 1e30}), "hidden_size is '1e"),
        (json.dumps({**BERT, "hidden_size": True}), "hidden_size is 'True'"),
        (json.dumps({**BERT, "num_hidden_layers": 0}), "num_hidden_layers is '0'"),
        (json.dumps({**RESNET, "depths": [1] * 100}), "depths must be a list"),
        (json.dumps({**RESNET, "hidden_sizes": [2**40]}), "hidden_sizes is '1099511627776'"),
        (json.dumps({"model_type": "gemma3", "text_config": 3}), "has no text_config"),
        ('{"model_type": "llama", "model_type": "bert"}', "occurs twice"),
    ],
)
def test_hostile_configurations(config: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(UsageError, match=f"config.json: .*{message}"):
        read(tmp_path, depth=1)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"model\.pt: not a model file"):
        read(tmp_path / "model.pt")
    with pytest.raises(UsageError, match=r"config.json: cannot be read"):
        read(tmp_path)
    with pytest.raises(UsageError, match=r"model.onnx: cannot be read"):
        read(tmp_path / "model.onnx")


def test_several_sequences_at_once(tmp_path: Path) -> None:
    (step,) = configured(tmp_path, llama(2048, 16, 32, 8, 8192, 128256), depth=100, batch=4).steps
    assert calls(step, "attention") == {"32/8,1,100,64 batch=4 causal": 16}
    assert size(labelled(step, "output")) == "4x128256x2048 nt constant=b" and step.amount == 4
    path = model_file(tmp_path, llama_tensors(2, 512, 128, 1024, 2048), numbers=NUMBERS)
    (quantised,) = read(path, depth=100, batch=4).steps
    assert size(labelled(quantised, "output")) == "2048x4x512 q6_k"
    assert size(labelled(quantised, "attn_q")) == "512x4x512 q4_0"


def test_latent_attention_of_gguf_files(tmp_path: Path) -> None:
    """As DeepSeek has it: a matrix for each head, and one head of keys and values for all."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {
        "blk.0.attn_q_b.weight": ("Q8_0", (1536, 16 * 192)), "blk.0.attn_k_b.weight": ("Q8_0", (128, 512, 16)),
        "blk.0.attn_v_b.weight": ("F16", (512, 128, 16)), "blk.0.attn_kv_a_norm.weight": ("F32", (512,)),
        "blk.0.ffn_up.weight": ("F32", (512,)),
    }  # fmt: skip
    numbers = {**NUMBERS, "attention.head_count": 16, "attention.head_count_kv": 1, "attention.key_length": 576,
               "attention.value_length": 512}  # fmt: skip
    path = model_file(tmp_path, tensors, used=2, architecture="deepseek2", numbers=numbers)
    (step,) = read(path, depth=100).steps
    assert labelled(step, "attn_k_b").flops == 2 * 16 * 128 * 512 == labelled(step, "attn_v_b").flops
    assert calls(step, "attention") == {"16/1,1,100,576/512 causal kv=float16": 1}
    assert size(labelled(step, "attn_kv_a_norm")) == "1x512 rms_norm_weight"
