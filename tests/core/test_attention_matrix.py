"""Attention by matrix units, which PoCL has not: functions that do the same, item by item, stand in for them."""

from dataclasses import replace

import pytest

from autotune.kernels.attention import FAMILY, AttentionProblem
from autotune.measure.measurer import Measurer
from autotune.model.configuration import Value
from autotune.model.device import Device
from autotune.model.trial import TrialState
from autotune.space.search_space import SearchSpace
from covering import covering_sample
from factories import first_short, quick_job
from stand_in import LIMITS, StandIn

SMALL: dict[str, tuple[Value, ...]] = {
    "sub_groups_q": (1, 2), "sub_groups_k": (1, 2), "tile_k": (16, 32), "split": (1, 2), "combine": ("launch",),
    "kv_storage": ("local", "global"),
}  # fmt: skip
TEXTS = (
    "4/2,21,50,64 causal batch=2", "4/1,3,90,64 kv=q8_0 batch=2", "2/1,20,60,128 kv=q4_0 causal", "4/1,1,67,128",
    "8/1,1,130,64 tokens causal window=20", "4/2,18,40,64 kv=q8_0 mask", "2/1,9,75,64 kv=q4_0 pages sinks",
    "2,33,64,192/128 capped alibi", "1,2,150,256 window=30", "2/1,40,60,64 causal window=10",
)  # fmt: skip


@pytest.mark.parametrize("text", first_short(TEXTS, 1))
def test_attention_by_matrix_units_is_right(pocl: Device, text: str) -> None:
    problem = AttentionProblem.parse(f"{text} float16" if "kv" in text else f"{text} float16 kv=float16")
    space = SearchSpace(FAMILY, problem, LIMITS, algorithms=["matrix_tile"], overrides=SMALL)
    samples = covering_sample([space], "matrix_tile", strength=1, seed=1)
    assert samples
    for sample in samples[:3]:
        job = quick_job(pocl, problem, sample.configuration, seed=3, min_sample_ns=1, probe=False)
        trial = Measurer(StandIn(pocl.selector)).measure(job)
        assert trial.state is TrialState.COMPLETE, (sample.configuration, trial.message)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("32/8,1,8192,128 float16", {"sub_groups_q": 1, "sub_groups_k": 2, "kv_storage": "local"}),
        ("32/8,1,8192,64 float16 kv=q4_0 batch=64", {"sub_groups_q": 1, "split": 1}),
        (
            "32/8,2048,2048,128 float16 causal",
            {"sub_groups_q": 4, "sub_groups_k": 1, "kv_storage": "local", "split": 1},
        ),
    ],
)
def test_the_rule_takes_matrix_units_where_there_are_any(text: str, values: dict[str, Value]) -> None:
    problem = AttentionProblem.parse(text)
    chosen = FAMILY.default(problem, LIMITS, ())
    assert chosen.algorithm == "matrix_tile" and values.items() <= dict(chosen.values).items()
    assert FAMILY.default(problem, replace(LIMITS, has_matrix_units=False), ()).algorithm != "matrix_tile"


@pytest.mark.parametrize("text", ["32/8,64,512,128", "32/8,64,512,128 float16 kv=float32", "32/8,64,512,80 float16"])
def test_only_numbers_and_heads_that_matrix_units_take(text: str) -> None:
    assert not len(SearchSpace(FAMILY, AttentionProblem.parse(text), LIMITS, algorithms=["matrix_tile"]))
