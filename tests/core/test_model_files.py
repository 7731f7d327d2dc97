"""Networks of published configurations against counts by hand."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from model_files import BERT, RESNET, calls, configured, convolution_weights, labelled, llama, product_flops, size


@dataclass(frozen=True, kw_only=True)
class Published:
    """A decoder as it was published; `vectors` are its parameters that are no matrices but that of the vocabulary."""

    config: dict[str, Any]
    parameters: int
    vectors: int
    attention: dict[str, int]
    """Of one token with 1000 in the cache."""
    unused: int = 0
    """Parameters of the experts that a token does not use."""
    is_tied: bool = False
    rows: dict[str, int] = field(default_factory=dict)


DECODERS = {
    "Llama-3.2-1B": Published(
        config=llama(2048, 16, 32, 8, 8192, 128256, head_dim=64, tie_word_embeddings=True),
        parameters=1_235_814_400, vectors=33 * 2048, attention={"32/8,1,1000,64 causal": 16}, is_tied=True,
        rows={"1x2048 rms_norm_weight": 33, "1x8192 swiglu": 16, "1x2048 rope_halves heads=32": 16,
              "1x512 rope_halves heads=8": 16},
    ),
    "Granite-3.0-2B": Published(
        config=llama(2048, 40, 32, 8, 8192, 49155, model_type="granite", tie_word_embeddings=True),
        parameters=2_533_531_648, vectors=81 * 2048, attention={"32/8,1,1000,64 causal": 40}, is_tied=True,
    ),
    "Command-R": Published(
        config=llama(8192, 40, 64, 64, 22528, 256000, model_type="cohere"),
        parameters=34_980_831_232, vectors=41 * 8192, attention={"64,1,1000,128 causal": 40}, is_tied=True,
        rows={"1x8192 layer_norm": 41, "1x22528 swiglu": 40, "1x8192 rope heads=64": 80},
    ),
    "Llama-2-7B": Published(
        config=llama(4096, 32, 32, 32, 11008, 32000, torch_dtype="float16"),
        parameters=6_738_415_616, vectors=65 * 4096, attention={"32,1,1000,128 causal float16": 32},
    ),
    "Mistral-7B-v0.1": Published(
        config=llama(4096, 32, 32, 8, 14336, 32000, model_type="mistral", sliding_window=512),
        parameters=7_241_732_096, vectors=65 * 4096, attention={"32/8,1,1000,128 causal window=512": 32},
    ),
    "Mixtral-8x7B": Published(
        config=llama(4096, 32, 32, 8, 14336, 32000, model_type="mixtral", num_local_experts=8, num_experts_per_tok=2),
        parameters=46_702_792_704, vectors=65 * 4096, attention={"32/8,1,1000,128 causal": 32},
        unused=32 * 6 * 3 * 4096 * 14336,
        rows={"1x4096 rms_norm_weight": 65, "1x8 softmax": 32, "2x14336 swiglu": 32,
              "1x4096 rope_halves heads=32": 32, "1x1024 rope_halves heads=8": 32},
    ),
    "Qwen2-0.5B": Published(
        config=llama(896, 24, 14, 2, 4864, 151936, model_type="qwen2", tie_word_embeddings=True, sliding_window=32768,
                     use_sliding_window=False),
        parameters=494_032_768, vectors=49 * 896 + 24 * (896 + 2 * 128), is_tied=True,
        attention={"14/2,1,1000,64 causal": 24},
    ),
    "Qwen3-0.6B": Published(
        config=llama(1024, 28, 16, 8, 3072, 151936, model_type="qwen3", head_dim=128, tie_word_embeddings=True),
        parameters=596_049_920, vectors=28 * (2 * 1024 + 256) + 1024, is_tied=True,
        attention={"16/8,1,1000,128 causal": 28},
        rows={"1x1024 rms_norm_weight": 57, "16x128 rms_norm_weight": 28, "8x128 rms_norm_weight": 28,
              "1x3072 swiglu": 28, "1x2048 rope_halves heads=16": 28, "1x1024 rope_halves heads=8": 28},
    ),
    "Qwen3-30B-A3B": Published(
        config=llama(2048, 48, 32, 4, 6144, 151936, model_type="qwen3_moe", head_dim=128, num_experts=128,
                     num_experts_per_tok=8, moe_intermediate_size=768),
        parameters=30_532_122_624, vectors=48 * (2 * 2048 + 256) + 2048, unused=48 * 120 * 3 * 2048 * 768,
        attention={"32/4,1,1000,128 causal": 48},
    ),
    "gpt-oss-20B": Published(
        config=llama(2880, 24, 64, 8, 2880, 201088, model_type="gpt_oss", head_dim=64, num_local_experts=32,
                     num_experts_per_tok=4, sliding_window=128, quantization_config={"quant_method": "mxfp4"},
                     layer_types=["sliding_attention", "full_attention"] * 12),
        parameters=20_914_757_184,
        vectors=24 * (4096 + 2 * 512 + 2880 + 64 + 32 + 32 * (5760 + 2880) + 2 * 2880) + 2880,
        unused=24 * 28 * 3 * 2880 * 2880,
        attention={"64/8,1,1000,64 causal sinks": 12, "64/8,1,1000,64 causal sinks window=128": 12},
    ),
    "Qwen1.5-MoE-A2.7B": Published(
        config=llama(2048, 24, 16, 16, 5632, 151936, model_type="qwen2_moe", num_experts=60, num_experts_per_tok=4,
                     moe_intermediate_size=1408, shared_expert_intermediate_size=5632, sliding_window=32768),
        parameters=14_315_784_192, vectors=49 * 2048 + 24 * (3 * 2048 + 2048), unused=24 * 56 * 3 * 2048 * 1408,
        attention={"16,1,1000,128 causal": 24},
    ),
    "Gemma-2B": Published(
        config=llama(2048, 18, 8, 1, 16384, 256000, model_type="gemma", head_dim=256),
        parameters=2_506_172_416, vectors=37 * 2048, is_tied=True, attention={"8/1,1,1000,256 causal": 18},
    ),
    "Gemma-2-2B": Published(
        config=llama(2304, 26, 8, 4, 9216, 256000, model_type="gemma2", head_dim=256, sliding_window=512,
                     attn_logit_softcapping=50.0),
        parameters=2_614_341_888, vectors=26 * 4 * 2304 + 2304, is_tied=True,
        attention={"8/4,1,1000,256 causal capped": 13, "8/4,1,1000,256 causal capped window=512": 13},
    ),
    "Gemma-3-1B": Published(
        config=llama(1152, 26, 4, 1, 6912, 262144, model_type="gemma3_text", head_dim=256, sliding_window=512),
        parameters=999_885_952, vectors=26 * (4 * 1152 + 512) + 1152, is_tied=True,
        attention={"4/1,1,1000,256 causal": 4, "4/1,1,1000,256 causal window=512": 22},
    ),
    "Phi-3-mini": Published(
        config=llama(3072, 32, 32, 32, 8192, 32064, model_type="phi3"),
        parameters=3_821_079_552, vectors=65 * 3072, attention={"32,1,1000,96 causal": 32},
        rows={"1x3072 rms_norm_weight": 65, "1x8192 swiglu_halves": 32, "1x3072 rope_halves heads=32": 64},
    ),
    "Phi-2": Published(
        config=llama(2560, 32, 32, 32, 10240, 51200, model_type="phi", partial_rotary_factor=0.4),
        parameters=2_779_683_840, vectors=32 * (2 * 2560 + 4 * 2560 + 10240 + 2560) + 2 * 2560 + 51200,
        attention={"32,1,1000,80 causal": 32}, rows={"1x2560 layer_norm": 33},
    ),
    "GPT-2": Published(
        config={"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257},
        parameters=124_439_808, vectors=1024 * 768 + 12 * (4 * 768 + 2304 + 768 + 3072 + 768) + 2 * 768, is_tied=True,
        attention={"12,1,1000,64 causal": 12}, rows={"1x768 layer_norm": 25},
    ),
    "OPT-125M": Published(
        config={"model_type": "opt", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
                "ffn_dim": 3072, "vocab_size": 50272},
        parameters=125_239_296, vectors=2050 * 768 + 12 * (4 * 768 + 4 * 768 + 3072 + 768) + 2 * 768, is_tied=True,
        attention={"12,1,1000,64 causal": 12}, rows={"1x768 layer_norm": 25},
    ),
    "Pythia-160M": Published(
        config=llama(768, 12, 12, 12, 3072, 50304, model_type="gpt_neox", rotary_pct=0.25),
        parameters=162_322_944, vectors=12 * (4 * 768 + 2304 + 768 + 3072 + 768) + 2 * 768,
        attention={"12,1,1000,64 causal": 12}, rows={"1x768 layer_norm": 25},
    ),
    "StarCoder2-3B": Published(
        config=llama(3072, 30, 24, 2, 12288, 49152, model_type="starcoder2", sliding_window=4096),
        parameters=3_030_371_328, vectors=30 * (4 * 3072 + 3072 + 512 + 3072 + 12288 + 3072) + 2 * 3072, is_tied=True,
        attention={"24/2,1,1000,128 causal": 30},
    ),
    "OLMo-2-1B": Published(
        config=llama(2048, 16, 16, 16, 8192, 100352, model_type="olmo2"),
        parameters=1_484_916_736, vectors=16 * 4 * 2048 + 2048, attention={"16,1,1000,128 causal": 16},
    ),
    "StableLM-2-1.6B": Published(
        config=llama(2048, 24, 32, 32, 5632, 100352, model_type="stablelm", partial_rotary_factor=0.25),
        parameters=1_644_515_328, vectors=24 * (4 * 2048 + 3 * 2048) + 2 * 2048, attention={"32,1,1000,64 causal": 24},
        rows={"1x2048 layer_norm": 49, "1x5632 swiglu": 24},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_multiply_by_every_published_parameter(name: str, tmp_path: Path) -> None:
    model = DECODERS[name]
    (step,) = configured(tmp_path, model.config, depth=1000).steps
    embeddings = model.config["vocab_size"] * model.config.get("hidden_size", model.config.get("n_embd"))
    matrices = model.parameters - model.vectors - (0 if model.is_tied else embeddings)
    assert product_flops(step) == 2 * (matrices - model.unused)
    assert calls(step, "attention") == model.attention
    if model.rows:
        assert calls(step, "rows") == model.rows


def test_a_prompt_reads_all_tokens_and_has_one_output(tmp_path: Path) -> None:
    read_128, one = configured(tmp_path, DECODERS["Llama-3.2-1B"].config, prompt=128, depth=1000).steps
    layers = 16 * (2048 * 2048 * 2 + 2 * 512 * 2048 + 3 * 2048 * 8192)
    assert product_flops(read_128) == 2 * (128 * layers + 128256 * 2048)
    assert product_flops(one) == 2 * (layers + 128256 * 2048)
    assert calls(read_128, "attention") == {"32/8,128,128,64 causal": 16}
    assert size(labelled(read_128, "query")) == "128x2048x2048 nt constant=b"
    assert labelled(read_128, "query").calls == 32  # with the products after attention
    assert (read_128.amount, read_128.units, one.amount) == (128, "tokens", 1)
    # Three reads and one write of a prompt's rows, four bytes each, in two additions of each layer.
    assert labelled(read_128, "add").bytes_moved == 32 * 128 * 2048 * 3 * 4


def test_memory_of_a_network(tmp_path: Path) -> None:
    network = configured(tmp_path, {**DECODERS["Llama-2-7B"].config, "torch_dtype": "float16"}, depth=4096)
    assert network.weight_bytes == 2 * (6_738_415_616 - 65 * 4096)
    assert network.cache_bytes == 2 * 32 * 32 * 128 * 4096 * 2
    gemma = configured(tmp_path, DECODERS["Gemma-3-1B"].config, depth=4096)
    assert gemma.cache_bytes == 4 * 2 * 256 * (4 * 4096 + 22 * 512)


def test_weights_of_four_bits_are_quantised_products(tmp_path: Path) -> None:
    method = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
    (step,) = configured(tmp_path, {**DECODERS["Llama-2-7B"].config, "quantization_config": method}, depth=10).steps
    assert calls(step, "qgemm") == {
        "4096x1x4096 int4z-g128": 128, "11008x1x4096 int4z-g128": 64, "4096x1x11008 int4z-g128": 32,
    }  # fmt: skip
    assert calls(step, "gemm") == {"1x32000x4096 nt float16 constant=b": 1}
    other = {"quant_method": "hqq", "bits": 3}
    network = configured(tmp_path, {**DECODERS["Llama-2-7B"].config, "quantization_config": other}, depth=10)
    assert network.notes == ("float16 stands for weights quantised by hqq",)


ENCODERS = {
    "BERT": (BERT, 109_482_240 - (30522 + 512 + 2) * 768 - 25 * 2 * 768 - 12 * (5 * 768 + 3072) - 768, 1),
    "RoBERTa": ({**BERT, "model_type": "roberta", "vocab_size": 50265},
                124_645_632 - (50265 + 514 + 1) * 768 - 25 * 2 * 768 - 12 * (5 * 768 + 3072) - 768, 1),
    "DistilBERT": ({"model_type": "distilbert", "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072,
                    "vocab_size": 30522},
                   66_362_880 - (30522 + 512) * 768 - 13 * 2 * 768 - 6 * (5 * 768 + 3072), 0),
}  # fmt: skip
"""A configuration, its published parameters that are matrices, and how many poolers these include."""


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_of_text(name: str, tmp_path: Path) -> None:
    config, matrices, poolers = ENCODERS[name]
    (step,) = configured(tmp_path, config, prompt=128, batch=4).steps
    assert product_flops(step) == 2 * (512 * (matrices - poolers * 768**2) + 4 * poolers * 768**2)
    layers = 6 if name == "DistilBERT" else 12
    assert calls(step, "attention") == {"12,128,128,64 batch=4": layers}
    assert calls(step, "rows") == {"512x768 layer_norm": 2 * layers + 1}
    assert (step.amount, labelled(step, "gelu").problem) == (512, None)


VIT = {
    "model_type": "vit", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 224,
    "intermediate_size": 3072, "patch_size": 16, "id2label": {str(n): "" for n in range(1000)},
}  # fmt: skip


def test_a_vision_transformer(tmp_path: Path) -> None:
    (step,) = configured(tmp_path, VIT, batch=2).steps
    layers = 12 * (4 * 768**2 + 2 * 768 * 3072)
    vectors = 768 + 197 * 768 + 768 + 12 * (4 * 768 + 3072 + 768 + 4 * 768) + 2 * 768 + 1000
    assert layers + 768 * 3 * 16**2 + 768 * 1000 + vectors == 86_567_656  # as published
    assert product_flops(step) == 2 * (2 * 197 * layers + 2 * 768 * 1000)
    assert calls(step, "conv") == {"2,224,224,3,768,16x16 stride=16 layout=nchw bias": 1}
    assert calls(step, "attention") == {"12,197,197,64 batch=2": 12}
    (larger,) = configured(tmp_path, VIT, image=(384, 512)).steps
    assert calls(larger, "attention") == {f"12,{24 * 32 + 1},{24 * 32 + 1},64": 12}
    with pytest.raises(UsageError, match="has no patch of 16x16"):
        configured(tmp_path, VIT, image=(8, 8))


def test_whisper_hears_once_and_writes_tokens(tmp_path: Path) -> None:
    config = {
        "model_type": "whisper", "d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "num_mel_bins": 80,
        "encoder_attention_heads": 6, "decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536,
        "vocab_size": 51865, "max_source_positions": 1500,
    }  # fmt: skip
    encoder, decoder = configured(tmp_path, config, depth=100).steps
    d = 384
    matrices = 4 * (4 * d * d + 8 * d * d) + 4 * (8 * d * d + 8 * d * d) + 51865 * d
    vectors = 1948 * d + 3 * 80 * d + 3 * d * d + 2 * d + 4 * (3 * d + 4 * d + 5 * d) + 4 * (6 * d + 6 * d + 5 * d)
    assert matrices + vectors + 4 * d == 37_760_640  # as published
    assert product_flops(encoder) == 2 * 1500 * (4 * 12 * d * d + 4 * 2 * d * d)
    assert product_flops(decoder) == 2 * (4 * (6 * d * d + 8 * d * d) + 51865 * d)
    assert calls(encoder, "conv") == {
        "1,1,3000,80,384,1x3 pad=0:1:0:1 layout=nchw bias": 1,
        "1,1,3000,384,384,1x3 stride=1x2 pad=0:1:0:1 layout=nchw bias": 1,
    }
    assert calls(decoder, "attention") == {"6,1,100,64 causal": 4, "6,1,1500,64": 4}
    assert (encoder.amount, encoder.units) == (1, "windows")


@pytest.mark.parametrize("gate", ["relu", "gated-gelu"])
def test_t5(gate: str, tmp_path: Path) -> None:
    config = {
        "model_type": "t5", "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8,
        "vocab_size": 32128, "feed_forward_proj": gate,
    }  # fmt: skip
    encoder, decoder = configured(tmp_path, config, prompt=64, depth=20).steps
    feed_forward = (3 if gate == "gated-gelu" else 2) * 512 * 2048
    if gate == "relu":
        layers = 6 * (4 * 512 * 512 + feed_forward) + 6 * (8 * 512 * 512 + feed_forward)
        assert layers + 32128 * 512 + 2 * 32 * 8 + 32 * 512 == 60_506_624  # as published
    assert product_flops(encoder) == 2 * 64 * (6 * (4 * 512 * 512 + feed_forward) + 6 * 2 * 512 * 512)
    assert product_flops(decoder) == 2 * (6 * (6 * 512 * 512 + feed_forward) + 32128 * 512)
    assert calls(decoder, "attention") == {"8,1,20,64 causal mask": 6, "8,1,64,64": 6}
    assert calls(decoder, "rows") == {"1x512 rms_norm_weight": 19}


@pytest.mark.parametrize(
    ("config", "published", "norms", "multiply_adds"),
    [
        (RESNET, 25_557_032, 26_560, 4_089_184_256),
        ({**RESNET, "layer_type": "basic", "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]},
         11_689_512, 4_800, 1_814_073_344),
    ],
)  # fmt: skip
def test_resnets(config: dict[str, Any], published: int, norms: int, multiply_adds: int, tmp_path: Path) -> None:
    (step,) = configured(tmp_path, config).steps
    width = config["hidden_sizes"][-1]
    assert convolution_weights(step) == published - 2 * norms - 1000 * (width + 1)
    assert sum(one.flops for one in step.operations if one.family in ("conv", "gemm")) == 2 * multiply_adds
    assert "1,224,224,3,64,7x7 stride=2 pad=3 layout=nchw bias relu" in calls(step, "conv")
    assert calls(step, "reduce") == {f"{width}x49 mean": 1}
    assert sum(calls(step, "conv").values()) == {512: 20, 2048: 53}[width]


def test_mobilenets(tmp_path: Path) -> None:
    labels = {"id2label": {str(n): "" for n in range(1000)}}
    (second,) = configured(tmp_path, {"model_type": "mobilenet_v2", "depth_multiplier": 1.0, **labels}).steps
    assert convolution_weights(second) == 3_504_872 - 2 * 17_056 - 1000 * 1281  # as published, less norms
    assert sum(one.flops for one in second.operations if one.family in ("conv", "gemm")) == 2 * 300_774_272
    shapes = calls(second, "conv")
    assert shapes["1,224,224,3,32,3x3 stride=2 pad=0:0:1:1 layout=nchw bias relu6"] == 1
    assert shapes["1,14,14,384,384,3x3 pad=1 groups=384 layout=nchw bias relu6"] == 4
    assert sum(shapes.values()) == 52 and labelled(second, "add").calls == 10
    (first,) = configured(tmp_path, {"model_type": "mobilenet_v1", "depth_multiplier": 1.0, **labels}).steps
    assert convolution_weights(first) == 4_231_976 - 2 * 10_944 - 1000 * 1025  # as published, less norms
    assert sum(one.flops for one in first.operations if one.family in ("conv", "gemm")) == 2 * 568_740_352
