"""Networks of files and configurations, and counts of what they do."""

import json
from pathlib import Path
from typing import Any

from autotune.kernels import find_family
from autotune.model.problem import Problem
from autotune.model.trial import Provenance, Verdict, Winner
from autotune.networks import Network, Operation, Step, Workload, read_network

BERT: dict[str, Any] = {
    "model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "vocab_size": 30522,
}  # fmt: skip

RESNET: dict[str, Any] = {
    "model_type": "resnet", "num_channels": 3, "embedding_size": 64, "hidden_sizes": [256, 512, 1024, 2048],
    "depths": [3, 4, 6, 3], "layer_type": "bottleneck", "id2label": {str(n): "" for n in range(1000)},
}  # fmt: skip


def read(path: Path, **workload: Any) -> Network:
    return read_network(path, Workload(**workload))


def configured(folder: Path, members: dict[str, Any], **workload: Any) -> Network:
    (folder / "config.json").write_text(json.dumps(members))
    return read(folder, **workload)


def product_flops(step: Step) -> int:
    return sum(one.flops for one in step.operations if one.family in ("gemm", "qgemm"))


def calls(step: Step, family: str) -> dict[str, int]:
    """How often each size of a family occurs; convolutions in the form in which they are asked for."""
    return {size(one): one.calls for one in step.operations if one.family == family}


def size(one: Operation) -> str:
    return one.shape if one.problem is None or one.family == "conv" else one.problem.label


def labelled(step: Step, label: str) -> Operation:
    (found,) = (one for one in step.operations if label in one.label.split(", "))
    return found


def llama(hidden: int, layers: int, heads: int, keys: int, between: int, words: int, **others: Any) -> dict[str, Any]:
    return {
        "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": keys, "intermediate_size": between, "vocab_size": words, **others,
    }  # fmt: skip


def convolution_weights(step: Step) -> int:
    """Weights of all convolutions, computed from their shapes."""
    found = 0
    for shape, count in calls(step, "conv").items():
        sizes, *words = shape.split(" ")
        channels, filters, window = sizes.split(",")[3:]
        height, width = window.split("x")
        groups = next((int(word[7:]) for word in words if word.startswith("groups=")), 1)
        found += count * int(channels) * int(filters) // groups * int(height) * int(width)
    return found


def won(problem: Problem, time_ns: float, default_ns: float) -> Winner:
    provenance = Provenance(
        driver="1", template_hash="0", space_version=1, tool_version="1", measured_at="2026-01-31T12:00:00Z"
    )  # fmt: skip
    return Winner(
        device="invented-1", problem=problem, configuration=find_family(problem.family).baseline, time_ns=time_ns,
        default_ns=default_ns, baseline_ns=None, gain_low=1.0, gain_high=2.0, samples=9, is_default=False,
        verdict=Verdict.FASTER, verifications=3, provenance=provenance,
    )  # fmt: skip
