"""Problems, configurations and search spaces."""

import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.codec import write
from autotune.errors import ConfigurationError, ProblemError
from autotune.kernels import find_family
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.model.configuration import Configuration
from autotune.model.device import DeviceLimits
from autotune.model.problem import NUMBER_TYPES
from autotune.space.expression import Expression
from autotune.space.family import KernelFamily
from autotune.space.search_space import SearchSpace
from covering import occurring
from factories import PHONE, first_short

GPU = replace(PHONE, global_memory_bytes=2**32, max_allocation_bytes=2**30)
SMALL = DeviceLimits(max_work_group_size=64, max_work_item_sizes=(64, 8, 1), local_memory_bytes=2048)


@pytest.mark.parametrize("limits", [GPU, SMALL])
@pytest.mark.parametrize("shape", first_short(["1,1,1", "7,5,3", "64,64,64 lda=68 ldb=70 ldc=72"], 1))
def test_space_is_exactly_the_valid_configurations(shape: str, limits: DeviceLimits) -> None:
    problem = GemmProblem.parse(shape)
    for algorithm in FAMILY.algorithms:
        space = SearchSpace(FAMILY, problem, limits, algorithms=[algorithm.name])
        some = [space[row] for row in range(0, len(space), max(1, len(space) // 300))]
        assert len(set(some)) == len(some)
        assert all(not FAMILY.violations(problem, c, limits) for c in some)
        if algorithm.name in ("naive", "dot"):  # small enough to try every combination
            found = set(space)
            assert len(found) == len(space)
            names = [p.name for p in algorithm.parameters]
            combinations = itertools.product(*(p.values for p in algorithm.parameters))
            brute = {Configuration.of(algorithm.name, **dict(zip(names, c, strict=True))) for c in combinations}
            assert found == {c for c in brute if not FAMILY.violations(problem, c, limits)}


def test_rows_and_configurations_correspond() -> None:
    space = SearchSpace(FAMILY, GemmProblem(m=1, n=64, k=9), GPU)
    for row in range(0, len(space), max(1, len(space) // 97)):
        assert space.row_of(space[row]) == row
    with pytest.raises(IndexError):
        space[len(space)]
    assert space.row_of(Configuration.of("naive", work_group_m=5, work_group_n=1)) is None
    assert space.row_of(Configuration.of("naive", work_group_m=1)) is None
    assert space.row_of(Configuration.of("no such", work_group_m=1)) is None


def test_space_of_one_algorithm_without_valid_rows_is_passed_over() -> None:
    space = SearchSpace(FAMILY, GemmProblem(m=1, n=1, k=1), GPU)
    assert {c.algorithm for c in space} >= {"naive", "microtile"}
    assert "dot" not in {c.algorithm for c in space}, "a product of one element has no vector along k"


def test_overrides_restrict_the_space() -> None:
    problem = GemmProblem(m=64, n=64, k=64)
    space = SearchSpace(FAMILY, problem, GPU, algorithms=["microtile"], overrides={"b_storage": ("image",)})
    assert len(space) > 0
    assert _storages(space) == {"image"}


def _storages(space: SearchSpace) -> set[object]:
    return set(occurring(space, "microtile", "b_storage"))


def test_every_algorithm_with_images_needs_a_device_with_images() -> None:
    problem = GemmProblem(m=64, n=64, k=64)
    blind = DeviceLimits.from_dict({**write(GPU), "has_images": False})
    assert _storages(SearchSpace(FAMILY, problem, blind, algorithms=["microtile"])) == {"buffer"}
    assert _storages(SearchSpace(FAMILY, problem, GPU, algorithms=["microtile"])) == {"buffer", "image"}


def test_an_image_too_high_for_the_device_is_not_proposed() -> None:
    limits = DeviceLimits.from_dict({**write(GPU), "max_image_height": 63})
    space = SearchSpace(FAMILY, GemmProblem(m=64, n=64, k=64), limits, algorithms=["microtile"])
    assert _storages(space) == {"buffer"}


def test_violations_are_told_by_name_and_reason() -> None:
    problem = GemmProblem(m=512, n=512, k=512)
    good = next(iter(SearchSpace(FAMILY, problem, GPU, algorithms=["microtile"])))
    values: dict[str, Any] = dict(good.values)
    assert FAMILY.violations(problem, good, GPU) == []
    wide = Configuration.of("microtile", **{**values, "micro_tile_n": 64, "vector_width": 1})
    assert any(v.startswith("vectors_fill_tile: ") for v in FAMILY.violations(problem, wide, GPU))
    assert FAMILY.violations(problem, Configuration.of("naive", work_group_m=0, work_group_n=3), GPU) == [
        "work_group_n=3 is not among 0, 1, 2, 4, 8, 16, 32, 64, 128"
    ]
    assert FAMILY.violations(problem, Configuration.of("naive", work_group_m=0), GPU) == [
        "parameter 'work_group_n' is missing"
    ]
    odd = Configuration.of("naive", work_group_m=0, work_group_n=0, colour="red")
    assert FAMILY.violations(problem, odd, GPU) == ["naive has no parameter 'colour'"]
    assert FAMILY.violations(problem, Configuration.of("magic"), GPU) == ["gemm has no algorithm 'magic'"]


def test_constraints_name_only_what_exists() -> None:
    known = {*GPU.constraint_values(), *GemmProblem(m=1, n=1, k=1).constraint_values()}
    for algorithm in FAMILY.algorithms:
        own = known | {p.name for p in algorithm.parameters}
        expressions: list[Expression] = [c.condition for c in algorithm.constraints] + list(algorithm.features)
        for expression in expressions:
            assert expression.names <= own, expression
        assert len({c.name for c in algorithm.constraints}) == len(algorithm.constraints)


@pytest.mark.parametrize("shape", ["1,1,1", "1,512,512", "512,1,512", "7,5,3", "1000,1000,1000"])
def test_baseline_and_some_default_are_legal_everywhere(shape: str) -> None:
    problem = GemmProblem.parse(shape)
    for limits in (GPU, SMALL, DeviceLimits()):
        assert FAMILY.violations(problem, FAMILY.baseline, limits) == []
        assert FAMILY.violations(problem, FAMILY.default(problem, limits, []), limits) == []


def test_the_default_is_a_start_that_is_legal() -> None:
    illegal = Configuration.of("naive", work_group_m=32, work_group_n=128)
    legal = Configuration.of("naive", work_group_m=1, work_group_n=64)
    assert FAMILY.default(GemmProblem(m=64, n=64, k=1), SMALL, [illegal, legal]) == legal


def test_configuration_round_trips_and_compares_by_value() -> None:
    configuration = Configuration.of("naive", work_group_n=8, work_group_m=1)
    assert Configuration.from_dict(json.loads(configuration.key)) == configuration
    assert configuration == Configuration.of("naive", work_group_m=1, work_group_n=8)
    assert len({configuration, Configuration.of("naive", work_group_m=1, work_group_n=8)}) == 1
    assert configuration.number("work_group_n") == 8
    assert str(configuration) == "naive(work_group_m=1, work_group_n=8)"
    with pytest.raises(ConfigurationError, match="no integer parameter"):
        configuration.number("edges")


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"algorithm": 3},
        {"algorithm": "naive", "x": 1.5},
        {"algorithm": "naive", "x": True},
        {"algorithm": "naive", "x": None},
        {"algorithm": "naive", "x": [1]},
    ],
)
def test_configuration_refuses_wrong_types(data: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Configuration.from_dict(data)


def test_limits_round_trip_and_forget_unknown_fields() -> None:
    data = json.loads(json.dumps({**write(GPU), "invented_later": 1}))
    assert DeviceLimits.from_dict(data) == GPU


def test_problem_reads_shapes_and_fills_pitches() -> None:
    assert GemmProblem.parse(" 3x4X5 ") == GemmProblem(m=3, n=4, k=5, lda=5, ldb=4, ldc=4)
    padded = GemmProblem.parse("3,4,5 lda=8 ldb=8 ldc=6")
    assert (padded.lda, padded.ldb, padded.ldc) == (8, 8, 6)
    assert padded.label == "3x4x5 lda=8 ldb=8 ldc=6"
    assert GemmProblem.from_dict(json.loads(padded.key)) == padded
    assert padded.flops == 120
    assert padded.size_vector == (3, 4, 5, 1)
    assert padded.is_comparable(GemmProblem(m=9, n=9, k=9))
    full = GemmProblem.parse("8x16x32 tn int8 batch=3 stride_b=600")
    assert (full.lda, full.ldb, full.stride_a, full.stride_b, full.stride_c) == (8, 16, 256, 600, 128)
    assert full.label == "8x16x32 tn batch=3 int8 stride_b=600"
    assert GemmProblem.parse(full.label) == full
    assert (full.dtype("a"), full.dtype("c"), full.accumulator) == ("int8", "int32", "int32")
    assert not full.is_comparable(padded)
    assert not GemmProblem.parse("8,8,8 nt").is_comparable(GemmProblem.parse("8,8,8"))


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ("0,1,1", "m must be at least 1"),
        ("1,-4,1", "n must be at least 1"),
        ("1,1", "not a shape"),
        ("a,b,c", "not a shape"),
        ("", "not a shape"),
        ("1,1,1,1", "not a shape"),
        ("1,1,1 float64", "not a shape"),
        ("1,1,1 m=2", "not a shape"),
        ("1,1,1 lda=", "not a shape"),
        ("1,1,1 batch=0", "batch must be at least 1"),
        ("1,1,1 trans_a=2", "trans_a must be 0 or 1"),
        ("4,4,4 stride_c=15", "stride_c must be at least 16"),
        ("1,1,99999999999999999999999", "not a shape"),
        ("2,2,4 lda=3", "lda must be at least 4"),
        ("100000,100000,2", "more than"),
        ("1,1,1 lda=1" + "0" * 100000, "not a shape"),
        ("x" * 100000, "not a shape"),
    ],
)
def test_problem_refuses_bad_shapes(shape: str, told: str) -> None:
    with pytest.raises(ProblemError, match=told) as caught:
        GemmProblem.parse(shape)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("data", [{"m": 1, "n": 1}, {"m": 1, "n": 1, "k": True}, {"m": 1, "n": 1, "k": 1, "z": 2}])
def test_problem_refuses_bad_data(data: dict[str, Any]) -> None:
    with pytest.raises(ProblemError):
        GemmProblem.from_dict(data)


def test_problem_beyond_memory_is_told_before_measuring() -> None:
    with pytest.raises(ProblemError, match="allocates at most 128 MiB"):
        GemmProblem(m=8192, n=8192, k=8192).check_device(DeviceLimits())
    with pytest.raises(ProblemError, match="the device has 300 MiB"):
        GemmProblem(m=5500, n=5500, k=5500).check_device(DeviceLimits(global_memory_bytes=300 * 2**20))
    GemmProblem(m=1024, n=1024, k=1024).check_device(DeviceLimits())


def test_a_mode_the_device_does_not_compute_in_is_told_before_measuring() -> None:
    problem = GemmProblem.parse("8,8,8 float16-acc16")
    with pytest.raises(ProblemError, match="has no float16 arithmetic"):
        problem.check_device(DeviceLimits())
    problem.check_device(DeviceLimits(has_float16=True))
    GemmProblem.parse("8,8,8 float16").check_device(DeviceLimits())


def test_number_types_are_those_of_numpy() -> None:
    for name, number in NUMBER_TYPES.items():
        assert (np.dtype(name).itemsize, np.dtype(name).kind == "i") == (number.size_bytes, number.is_whole)
        assert NUMBER_TYPES[number.widened].is_whole == number.is_whole and number.name == name


def test_families_are_found_by_file_name() -> None:
    assert find_family("gemm") is FAMILY
    assert isinstance(FAMILY, KernelFamily)
    for name in ("magic", "../gemm", "gemm.py", "__init__", ""):
        with pytest.raises(ProblemError, match="no kernel family"):
            find_family(name)
