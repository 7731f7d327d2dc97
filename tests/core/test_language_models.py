"""Products of language models against published totals, and headers of GGUF files, good and hostile."""

import json
import os
import struct
from collections import Counter
from pathlib import Path
from typing import cast

import pytest
from gguf import GGMLQuantizationType

from autotune.errors import UsageError
from autotune.kernels.qgemm import QGemmProblem
from autotune.kernels.shapes import merge, parse_shapes, read_shapes
from autotune.model.trial import Request
from autotune.networks.gguf import gguf_products
from autotune.networks.gguf_header import MAX_ITEMS, TYPES, read_header
from autotune.networks.presets import MIXES, MODELS, PRESETS, STEPS, preset, products
from autotune.service.cli.jobs import lines_of_shapes
from core.test_scripts import load
from factories import Run
from gguf_files import SMALL, model_file

PARAMETERS = {
    "llama-3.2-1b": 1_235_814_400 - 33 * 2048,
    "llama-3.2-3b": 3_212_749_824 - 57 * 3072,
    "qwen3-0.6b": 596_049_920 - 28 * (2 * 1024 + 256) - 1024,
    "qwen3-1.7b": 1_720_574_976 - 28 * (2 * 2048 + 256) - 2048,
    "qwen3-4b": 4_022_468_096 - 36 * (2 * 2560 + 256) - 2560,
    "gemma-3-1b": 999_885_952 - 26 * (4 * 1152 + 512) - 1152,
    "phi-4-mini": 3_836_021_760 - 65 * 3072,
    # Without embeddings, biases, sinks, routers and norms.
    "gpt-oss-20b": 20_914_757_184
    - 201088 * 2880
    - 24 * (4096 + 2 * 512 + 2880 + 64 + 32 * 2881 + 32 * (5760 + 2880) + 2 * 2880)
    - 2880,
}
"""Published parameters without those of norms: all others are weights of one product, the embeddings of the last."""


def products_of(requests: list[Request]) -> list[tuple[QGemmProblem, int, str]]:
    assert all(isinstance(request.problem, QGemmProblem) for request in requests)
    return [(cast("QGemmProblem", request.problem), request.calls, request.label) for request in requests]


@pytest.mark.parametrize("name", [name for name, entry in PRESETS.items() if entry.group and not entry.has_depth])
def test_presets_multiply_by_every_published_weight(name: str) -> None:
    found = products_of(preset(name))
    weights = sum(calls * problem.m * problem.k * problem.experts for problem, calls, _ in found)
    assert weights == PARAMETERS[PRESETS[name].group]
    tokens = next(count for step, count in STEPS.items() if name.endswith(step))
    assert [(problem.n, calls) for problem, calls, label in found if label == "output"] == [(1, 1)]
    counts = {problem.n for problem, _, label in found if label not in ("", "output")}
    assert counts == ({tokens, 4 * tokens} if "gpt-oss" in name else {tokens})


def test_there_is_a_preset_of_each_model_format_and_step() -> None:
    assert sum(bool(entry.group) for entry in PRESETS.values() if not entry.has_depth) == 7 * 3 * 3 + 3
    assert "phi-4-mini-q4_k_m-prefill-512" in PRESETS and "llama-1b-decode" in PRESETS


def test_presets_of_attention_by_depth() -> None:
    def calls(name: str, depth: int = 0) -> dict[str, int]:
        return {request.problem.label: request.calls for request in preset(name, depth)}

    assert calls("llama-3.2-1b-decode", 8192) == {"32/8,1,8192,64 causal kv=float16": 16}
    assert calls("llama-3.2-1b-prefill-128", 1000) == {"32/8,128,1000,64 causal kv=float16": 16}
    assert calls("qwen3-4b-prefill-512") == {"32/8,512,512,128 causal kv=float16": 36}
    gemma = calls("gemma-3-1b-decode")
    assert gemma["4/1,1,4096,256 causal kv=float16"] == 4
    assert gemma["4/1,1,4096,256 causal kv=float16 window=512"] == 22
    assert set(calls("gpt-oss-20b-decode").values()) == {12} and all(
        "sinks" in one for one in calls("gpt-oss-20b-decode")
    )
    assert sum(entry.has_depth for entry in PRESETS.values()) == len(MODELS) * len(STEPS)
    with pytest.raises(UsageError, match="has no cache of a depth"):
        preset("llama-3.2-1b-q4_0-decode", 100)


@pytest.mark.parametrize(("name", "file_bytes"), [("q4_k_m", 807_694_464), ("q8_0", 1_321_082_528)])
def test_bytes_of_llama_as_in_published_files(name: str, file_bytes: int) -> None:
    """The rest of the files is 7.8 MB of vocabulary and norms in float32."""
    requests = products_of(preset(f"llama-3.2-1b-{name}-decode"))
    found = sum(calls * problem.weight_bytes for problem, calls, _ in requests)
    assert 7.5e6 < file_bytes - found < 8.5e6


def test_formats_by_the_rules_of_llama_cpp() -> None:
    def formats(name: str) -> Counter[tuple[str, str]]:
        model, _, mix = name.partition(" ")
        (chosen,) = (one for one in MODELS if one.name == model)
        return Counter((label, problem.weights) for problem, _, label in products_of(list(products(chosen, mix, 1))))

    llama = formats("llama-3.2-1b q4_k_m")
    assert (llama["value", "q6_k"], llama["value", "q4_k"], llama["down", "q6_k"], llama["query", "q4_k"]) == (
        8,
        8,
        8,
        16,
    )
    assert llama["output", "q6_k"] == formats("llama-3.2-1b q4_0")["output", "q6_k"] == 1
    assert formats("llama-3.2-1b q8_0")["output", "q8_0"] == 1
    gemma = formats("gemma-3-1b q4_k_m")  # 1152 is no multiple of 256
    assert gemma["query", "q8_0"] == gemma["attention output", "q4_k"] == 26
    assert gemma["down", "q6_k"] + gemma["down", "q4_k"] == 26 and gemma["output", "q8_0"] == 1
    assert formats("phi-4-mini q4_k_m")["query, key, value", "q6_k"] == 32
    oss = formats("gpt-oss-20b mxfp4")
    assert oss["gate", "mxfp4"] == oss["down", "mxfp4"] == oss["query", "q8_0"] == 24
    assert set(MIXES) == {"q4_0", "q4_k_m", "q8_0"}


# GGUF files


def test_products_of_a_gguf_file(tmp_path: Path) -> None:
    path = model_file(tmp_path, SMALL)
    requests, notes = gguf_products(path, 16)
    assert [(one.problem.label, one.calls, one.label) for one in merge(requests)] == [
        ("256x16x256 q4_0", 2, "attn_q"),
        ("64x16x256 q8_0", 1, "attn_v"),
        ("256x32x512 mxfp4 experts=8", 1, "ffn_down_exps"),
        ("16x8x256 nt constant=b", 1, "ffn_gate_inp"),
        ("512x16x256 q6_k", 2, "ffn_up"),
        ("1000x1x256 q6_k", 1, "output"),
    ]
    assert notes == ["1 tensors: gemm in float32 stands for F32", "2 tensors: q6_k stands for Q5_0"]
    quantised = [one for one in merge(requests) if isinstance(one.problem, QGemmProblem)]
    assert parse_shapes(lines_of_shapes(path, 16), "lines", QGemmProblem) == quantised
    with_output = model_file(tmp_path, {**SMALL, "output.weight": ("Q8_0", (256, 1000))})
    assert gguf_products(with_output, 1)[0][-1].problem.label == "1000x1x256 q8_0"


def test_types_are_those_of_the_gguf_package() -> None:
    assert {number: GGMLQuantizationType(number).name.lower() for number in TYPES} == TYPES


def test_commands_take_gguf_files(tmp_path: Path, run: Run) -> None:
    path = model_file(tmp_path, SMALL)
    shown = run(["presets", str(path), "--tokens", "16"])
    assert "256x32x512 mxfp4 experts=8 |     1 | ffn_down_exps" in shown.out
    assert "note: 2 tensors: q6_k stands for Q5_0" in shown.err
    (listed,) = json.loads(run(["presets", str(path), "--json"]).out).values()
    assert [entry["problem"]["n"] for entry in listed] == [1, 1, 2, 8, 1, 1]


@pytest.mark.parametrize(
    ("kind", "shape", "label", "tokens"),
    [
        ("F16", (256, 128), "16x128x256 nt float16 constant=b", 16),
        ("BF16", (256, 128), "16x128x256 nt constant=b", 16),
        ("F16", (256, 128, 8), "4x128x256 nt batch=8 float16 constant=b", 16),
        ("F16", (256, 128, 8), "1x128x256 nt batch=2 float16 constant=b", 1),
        ("Q4_1", (256, 128), "128x16x256 q6_k", 16),
        ("Q5_0", (96, 128), "128x16x96 q8_0", 16),
        ("IQ2_XXS", (256, 128), "128x16x256 q4_k", 16),
    ],
)
def test_a_type_without_kernels_is_multiplied_in_the_next_larger_one(
    tmp_path: Path, kind: str, shape: tuple[int, ...], label: str, tokens: int
) -> None:
    requests, notes = gguf_products(model_file(tmp_path, {"blk.0.ffn_up.weight": (kind, shape)}), tokens)
    assert [one.problem.label for one in requests] == [label]
    assert len(notes) == 1 and notes[0].endswith(f"stands for {kind}")


def test_a_gguf_file_without_products(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no products"):
        gguf_products(model_file(tmp_path, {"blk.0.attn_norm.weight": ("F32", (256,))}), 1)
    with pytest.raises(UsageError, match="cannot be read"):
        gguf_products(tmp_path / "none.gguf", 1)
    with pytest.raises(UsageError, match=r"is not text|is larger than|no shapes|not a shape"):
        read_shapes(model_file(tmp_path, SMALL))  # only the commands look at names


def test_every_part_of_a_header_is_refused(tmp_path: Path) -> None:
    path = model_file(tmp_path, SMALL)
    whole = path.read_bytes().rstrip(b"\0")
    read_header(path)
    for end in range(len(whole) - 16):
        path.write_bytes(whole[:end])
        with pytest.raises(UsageError, match=r"ends within its header|is no GGUF file"):
            read_header(path)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def header(tensors: int = 0, values: int = 0, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values) + rest


def tensor(name: bytes = b"blk.0.x.weight", shape: tuple[int, ...] = (32, 4), kind: int = 2) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, 0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is no GGUF file"),
        (b"GGML" + bytes(100), "is no GGUF file"),
        (header(version=1), "of version 1"),
        (header(version=3 << 24), "big-endian"),
        (header(tensors=2**40), "tells of 1099511627776 tensors"),
        (header(values=2**63), "values"),
        (header(values=1, rest=struct.pack("<Q", 2**62)), "the name of a value has"),
        (header(values=1, rest=text(b"a") + struct.pack("<IQ", 8, 2**62)), "ends within its header"),
        (header(values=1, rest=text(b"a") + struct.pack("<I", 77)), "unknown type 77"),
        (header(values=1, rest=text(b"a") + struct.pack("<IIQ", 9, 4, MAX_ITEMS + 1)), "items in an array"),
        (header(values=1, rest=text(b"a") + struct.pack("<IIQ", 9, 4, MAX_ITEMS)), "ends within its header"),
        (header(values=1, rest=text(b"a") + struct.pack("<IIQ", 9, 9, 1)), "array of the unknown type 9"),
        (header(values=1, rest=text(b"\xff") + struct.pack("<IB", 0, 1)), "is not text"),
        (header(values=1, rest=text(b"x.expert_used_count") + struct.pack("<Ii", 5, -1)), "tells that -1 experts"),
        (header(tensors=1, rest=text(b"x" * 65)), "the name of a tensor has 65 bytes"),
        (header(tensors=1, rest=tensor(b"a\x1b[2J")), r"the name of a tensor is 'a\\x1b"),
        (header(tensors=1, rest=tensor(shape=())), "has 0 axes"),
        (header(tensors=1, rest=tensor(shape=(1,) * 5)), "has 5 axes"),
        (header(tensors=1, rest=tensor(shape=(32, 0))), r"has shape \(32, 0\)"),
        (header(tensors=1, rest=tensor(shape=(2**41, 1))), "has shape"),
        (header(tensors=2, rest=2 * tensor()), "two tensors of one name"),
        (header(tensors=1, rest=tensor(shape=(33, 4))), "k must be a multiple of 32"),
        (header(tensors=1, rest=tensor(shape=(2**32, 2**32))), "more than 2147483647 elements"),
        (header(tensors=1, rest=tensor(kind=99)), "no kernels for TYPE 99"),
        (header(), "no weights of layers"),
    ],
)
def test_hostile_headers(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=f"model.gguf: .*{message}|{message}") as refused:
        gguf_products(path, 1)
    assert str(path) in refused.value.message


def test_a_model_from_a_pipe_is_refused_with_a_reason() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(UsageError, match=r"cannot be read: (?!None)\w"):
            read_header(Path(f"/proc/self/fd/{reading}"))
    finally:
        os.close(reading)
        os.close(writing)


def test_operations_on_rows_are_those_of_all_layers() -> None:
    model = next(model for model in MODELS if model.name == "llama-3.2-1b")
    rows = load("bench_step").rows
    assert sum(one.calls for one in rows(model, 1)) == 5 * model.stack.layers + 1
    assert [one.problem.label for one in rows(model, 16)][-1] == "1x2048 rms_norm_add_weight"
