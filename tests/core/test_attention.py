"""The family of attention: problems, defaults; what PoCL lacks in emulation; the judge itself; wrong kernels."""

import dataclasses
import itertools
import math
import random
import re
from typing import Any

import numpy as np
import pytest

from autotune.errors import ProblemError
from autotune.kernels import find_family
from autotune.kernels.attention import FAMILY, Attention, AttentionProblem
from autotune.kernels.attention.plan import PLAN
from autotune.kernels.attention.problem import EXAMPLES, HEADS, WORDS
from autotune.kernels.attention.reference import AttentionCase
from autotune.measure.measurer import Measurer
from autotune.model.configuration import Configuration
from autotune.model.device import DeviceLimits
from autotune.model.trial import TrialState
from autotune.space.search_space import SearchSpace
from core.test_reduce import DEVICES
from factories import LARGE_GPU, find_wrong, first_short, quick_job, read_shape, spoil_sources

PARSE = AttentionProblem.parse


class TestProblem:
    @pytest.mark.parametrize(
        ("text", "label"),
        [
            ("32/8,1,8192,128 float16 causal", "32/8,1,8192,128 causal float16"),
            ("8 , 2,3 ,64", "8,2,3,64"),
            ("4/4,2,3,192/128 tokens mask capped", "4,2,3,192/128 tokens mask capped"),
            ("4/2,2,3,64,Q8_0,float16", "4/2,2,3,64 float16 kv=q8_0"),
            (
                "4/2,2,30,64 kv=float16 window=7 capacity=40 batch=5",
                "4/2,2,30,64 batch=5 kv=float16 window=7 capacity=40",
            ),
            ("2,1,30,64 pages", "2,1,30,64 pages"),
            ("2,1,30,64 pages page=1 pool=9", "2,1,30,64 pages pool=9 page=1"),
            ("2,1,30,64 alibi sinks batch=1", "2,1,30,64 alibi sinks"),
        ],
    )
    def test_is_read_from_text(self, text: str, label: str) -> None:
        assert read_shape(AttentionProblem, text).label == label

    @pytest.mark.parametrize(
        "text",
        [
            "", "8,1,100", "8,1,100,65", "8/3,1,100,64", "8/0,1,100,64", "0,1,100,64", "8,0,100,64", "8,1,0,64",
            "8,1,100,64 causal full", "8,1,100,64 window=-1", "8,1,100,64 capacity=99", "8,1,100,64 page=2",
            "8,1,100,64 pool=2", "8,1,100,40 kv=q8_0", "8,1,100,64 kv=q5_0", "8,1,100,64 heads=3", "8,1,100,64 batch",
            "8,1,2147483648,64", "1073741824/1,2,1,64", "8,1,100,64 128", "x" * 10**6, "1,1,1,\u0661",
        ],
    )  # fmt: skip
    def test_refuses_what_is_none(self, text: str) -> None:
        with pytest.raises(ProblemError) as caught:
            PARSE(text)
        assert len(str(caught.value)) < 400

    def test_counts_what_is_moved(self) -> None:
        for text in EXAMPLES:
            problem = dataclasses.replace(PARSE(text), capacity=0, pool=0, page=0, layout="heads", window=0)
            buffers = {b.name: b.size_bytes for b in FAMILY.plan(problem, FAMILY.baseline).buffers}
            large = sum(buffers.get(name, 0) for name in ("q", "k", "v", "mask", "output"))
            assert problem.bytes_moved == large, problem.label

    def test_counts_the_keys_that_are_seen(self) -> None:
        products = {
            "1,4,6,64": 24, "1,4,6,64 causal": 3 + 4 + 5 + 6, "1,4,6,64 causal window=2": 8,
            "1,6,4,64 causal": 1 + 2 + 3 + 4, "1,1,6,64 window=2": 2, "1,4,6,64 window=2": 3 + 3 + 3 + 2,
        }  # fmt: skip
        for text, pairs in products.items():
            assert PARSE(text).flops == 4 * 64 * pairs, text

    def test_resized_stays_a_problem(self) -> None:
        problem = PARSE("8/2,1,100,64 pages page=8 pool=7 causal kv=q8_0")
        assert problem.resized((3, 2, 5, 70, 6)).label == "6/3,5,70,64 batch=6 causal pages kv=q8_0 page=8"

    def test_must_fit_the_device(self) -> None:
        limits = DeviceLimits(max_allocation_bytes=64 * 100 * 4, global_memory_bytes=60_000)
        PARSE("1,1,100,64").check_device(limits)
        with pytest.raises(ProblemError, match="allocates at most"):
            PARSE("1,1,101,64").check_device(limits)
        with pytest.raises(ProblemError, match="device has"):
            PARSE("1,100,100,64").check_device(limits)
        with pytest.raises(ProblemError, match="half precision"):
            PARSE("1,1,8,64 kv=q8_0").check_device(dataclasses.replace(limits, max_vector_float16=0))


ASKED = [
    f"{heads},{queries},{keys},{head}{words}"
    for heads, queries, keys in (
        ("1", 1, 1),
        ("32/8", 1, 8192),
        ("32/2", 7, 300),
        ("8", 512, 512),
        ("4/1", 2000, 131072),
    )
    for head in HEADS
    for words in ("", " float16 kv=q4_0 causal", " kv=float16 tokens window=100")
    if "q4_0" not in words or max(HEADS[head]) % 32 == 0 == HEADS[head][0] % 32
]


class TestConfigurations:
    def test_the_family_is_found_by_its_folder(self) -> None:
        assert find_family("attention") is FAMILY and FAMILY.contract_faults() == []

    @pytest.mark.parametrize("device", DEVICES)
    def test_baseline_and_default_are_legal_everywhere(self, device: str) -> None:
        limits = DEVICES[device]
        for text in ASKED:
            problem = PARSE(text)
            assert FAMILY.violations(problem, FAMILY.baseline, limits) == []
            default = FAMILY.default(problem, limits, ())
            assert FAMILY.violations(problem, default, limits) == []
            if device in ("large", "processor"):
                assert default.algorithm != "naive", text

    @pytest.mark.parametrize(
        ("device", "text", "algorithm", "values"),
        [
            ("large", "32/8,1,8192,128 float16", "decode", {"tile_q": 4, "lanes": 16, "vector_width": 8}),
            ("large", "32,1,8192,128 batch=64", "decode", {"tile_q": 1, "split": 1}),
            ("large", "8/8,2048,2048,128 causal", "prefill", {"kv_storage": "local", "split": 1}),
            ("phone", "32/8,512,512,64 causal", "prefill", {"kv_storage": "local", "micro_tile_q": 4}),
            ("phone", "32/8,1,4096,64 kv=q8_0", "decode", {"tile_q": 4, "join": "local"}),
            ("processor", "32/8,1,4096,128", "decode", {"lanes": 1, "work_group_size": 1}),
            ("processor", "32/8,1024,1024,128 causal", "columns", {"tile_q": 64}),
        ],
    )
    def test_default_suits_device_and_size(
        self, device: str, text: str, algorithm: str, values: dict[str, Any]
    ) -> None:
        chosen = FAMILY.default(PARSE(text), DEVICES[device], ())
        assert chosen.algorithm == algorithm and values.items() <= dict(chosen.values).items()

    def test_few_heads_share_out_the_keys_until_the_device_is_full(self) -> None:
        chosen = [FAMILY.default(PARSE(f"8/1,1,8192,128 batch={n}"), LARGE_GPU, ()) for n in (1, 64, 999)]
        splits = [int(dict(configuration.values)["split"]) for configuration in chosen]
        assert splits[0] > splits[1] > splits[2] == 1


class TestJudge:
    @pytest.mark.parametrize("text", first_short([(text,) for text in EXAMPLES], 8))
    @pytest.mark.parametrize("seed", [2, 3])
    def test_accepts_single_precision_and_finds_one_wrong_element(self, text: str, seed: int) -> None:
        problem = PARSE(text)
        case = AttentionCase(problem, seed)
        right = in_float32(case)
        assert case.error_ratio({"output": right}) <= 1
        large = np.abs(right) > np.abs(right).max() / 4
        if large.any():
            place = np.flatnonzero(large)[0]
            for factor in (1.1, np.nan):
                wrong = right.copy()
                wrong.reshape(-1)[place] *= factor
                assert case.error_ratio({"output": wrong}) > 1
        assert case.error_ratio({"output": case.inputs["output"]}) == math.inf, "an output never written"

    def test_rows_without_keys_must_be_zero(self) -> None:
        case = AttentionCase(PARSE("2,9,5,64 causal"), 1)
        right = in_float32(case)
        assert not right.reshape(2, 9, 64)[:, :4].any() and case.error_ratio({"output": right}) <= 1
        right.reshape(2, 9, 64)[1, 0, 3] = 1e-6
        assert case.error_ratio({"output": right}) > 1

    def test_of_large_problems_rows_are_compared_that_are_drawn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        problem = PARSE("4/2,70,90,32 causal")
        monkeypatch.setattr(AttentionCase, "MULTIPLICATIONS", problem.kv_length * 64 * 20)
        case = AttentionCase(problem, 1)
        right = in_float32(case)
        assert case.error_ratio({"output": right}) <= 1
        assert 10 < sum(len(row[2]) for row in case._expected) <= 22
        last = right.reshape(4, 70, 32)[3, 69]
        last += 0.01
        assert case.error_ratio({"output": right}) > 1

    def test_heads_that_come_again_have_the_same_keys(self, monkeypatch: pytest.MonkeyPatch) -> None:
        problem = PARSE("3,1,20,32 batch=3")
        monkeypatch.setattr(AttentionCase, "DISTINCT_ELEMENTS", 2 * 20 * 32)
        case = AttentionCase(problem, 1)
        assert case.error_ratio({"output": in_float32(case)}) <= 1

    def test_lengths_are_any_where_problems_are_small_and_full_otherwise(self) -> None:
        lengths = AttentionCase(PARSE("1,1,300,16 batch=50"), 1).inputs["lengths"]
        assert lengths.min() < 60 and lengths.max() > 290
        lengths = AttentionCase(PARSE("8,1,3000,16 batch=50"), 1).inputs["lengths"]
        assert 2980 < lengths.min() < lengths.max() <= 3000


def in_float32(case: AttentionCase) -> Any:
    """What a kernel computes in single precision, row by row from the operands as they lie in memory."""
    p, given = case._problem, case.inputs
    q = given["q"].reshape(-1, p.k_size).astype(np.float32)
    found = np.full((len(q), p.v_size), np.nan, np.float32)
    for sequence, head, query in itertools.product(range(p.batch), range(p.q_heads), range(p.q_length)):
        number = (sequence * p.q_heads + head) * p.q_length + query
        if p.layout != "heads":
            number = (sequence * p.q_length + query) * p.q_heads + head
        length = int(given["lengths"][sequence])
        keys = np.array(p.visible(query, length), dtype=int)
        unit = (sequence * p.kv_heads + head // p.group) % case._units
        scores = case._k[unit, keys] @ q[number] * np.float32(0.125)
        if p.capping == "capped":
            scores = 30 * np.tanh(scores / 30)
        if p.bias == "mask":
            scores = scores + given["mask"].reshape(p.batch, p.q_length, p.capacity)[sequence, query, keys]
        elif p.bias == "alibi":
            scores = scores + given["slopes"][head] * (keys - (length - p.q_length + query)).astype(np.float32)
        sink = given["sink"][head] if p.sinks == "sinks" else np.float32(-np.inf)
        largest = max(scores.max(initial=-1e30), sink)
        weights = np.exp(scores - largest).astype(np.float32)
        total = weights.sum() + np.exp(sink - largest)
        found[number] = (weights / total) @ case._v[unit, keys] if total > 0 else 0
    return found.astype(p.dtype)


def shuffled_through_local_memory(source: str) -> str:
    source = re.sub(r"float from_lane.*?\n}\n", "", source, flags=re.DOTALL)
    source = source.replace("    const int item =", "    __local float seen[1024];\n    const int item =", 1)
    exchanged, count = re.subn(
        r"(\S+) \+= (?:from_lane|sub_group_shuffle_xor)\(\S+, (\d+)\);",
        r"seen[item] = \1; barrier(CLK_LOCAL_MEM_FENCE); \1 += seen[item ^ \2]; barrier(CLK_LOCAL_MEM_FENCE);",
        source,
    )
    assert count
    return exchanged.replace("#pragma OPENCL EXTENSION cl_khr_subgroup", "#pragma NONE")


@pytest.mark.parametrize("join", ["shuffle", "sub_group"])
@pytest.mark.parametrize("text", ["4/2,1,90,64 kv=q8_0", "3/1,5,70,96 causal float16", "2,3,40,40 tokens"])
def test_what_needs_other_hardware_is_right_in_emulation(
    measurer: Measurer, monkeypatch: pytest.MonkeyPatch, text: str, join: str
) -> None:
    spoil_sources(monkeypatch, shuffled_through_local_memory)
    monkeypatch.setattr(Attention, "plan", lambda _, *given: dataclasses.replace(PLAN.plan(*given), build_options=()))
    draw, problem = random.Random(text), PARSE(text)
    limits = dataclasses.replace(LARGE_GPU, extensions=(*LARGE_GPU.extensions, "cl_khr_subgroup_shuffle"))
    space = SearchSpace(
        FAMILY, problem, limits, algorithms=["decode"], overrides={"join": (join,), "combine": ("launch",)}
    )
    for number in draw.sample(range(len(space)), 2):
        trial = measurer.measure(quick_job("", problem, space[number], seed=number % 1000))
        assert trial.state is TrialState.COMPLETE, (space[number], trial.message)


DECODE = Configuration.of(
    "decode", work_group_size=16, lanes=4, tile_q=3, tile_k=2, vector_width=4, split=2, join="local", combine="launch",
    exponential="exp2", multiply_add="operator",
)  # fmt: skip
PREFILL = Configuration.of(
    "prefill", work_group_q=2, work_group_k=4, micro_tile_q=2, micro_tile_k=2, vector_width=4, kv_storage="local",
    unroll=1, split=1, combine="launch", exponential="exp2", multiply_add="operator",
)  # fmt: skip
COLUMNS = Configuration.of(
    "columns", tile_q=4, tile_k=16, micro_tile_q=2, micro_tile_k=1, vector_width=8, exponential="exp2"
)
NAIVE = FAMILY.baseline

JOIN = "other = 0; other < 4; other++)"
WRONG: dict[str, tuple[str, Configuration, tuple[tuple[str, str], ...]]] = {
    "the last key counts twice": ("causal", DECODE, (("t + 1 < until && ", ""),)),
    "the key after its place is seen": ("causal", DECODE, (("<= place", "<= 1 + place"),)),
    "a key less is seen": ("causal", NAIVE, (("t < end", "t < end - 1"),)),
    "a key more is seen": ("full", NAIVE, (("t < end", "t <= end"),)),
    "keys of another head": ("full", DECODE, (("* kv_heads + kv_head) * capacity", "* kv_heads) * capacity"),)),
    "the length of another sequence": ("full", DECODE, (("lengths[sequence]", "lengths[sequence ^ 1]"),)),
    "a lane's piece is left out": ("full", DECODE, (("q0_1 * k0_1", "q0_1 * 0.0f"),)),
    "a lane is not joined": ("full", DECODE, (("other < 4; other++)\n                total += parts_of_s",
                                               "other < 3; other++)\n                total += parts_of_s"),)),
    "the totals are not scaled down": ("full", DECODE, (("total0_0 *= factor0;", ""),)),
    "the sum is not scaled down": ("full", DECODE, (("sum0 * factor0", "sum0"),)),
    "a team is not joined": ("full", DECODE, ((f"{JOIN}\n                total += of_teams",
                                               "other = 1; other < 4; other++)\n                total += of_teams"),)),
    "a part is not joined": ("full", DECODE, (("part = 0; part < split; part++) {",
                                               "part = 1; part < split; part++) {"),)),
    "parts have equal weights": ("full", DECODE, (("factor = exp2(most_of[2 * part] - most);", "factor = 1.0f;"),)),
    "the scale is left out": ("full", DECODE, (("(scale * 1.442695041f)", "(0.2f)"),)),
    "the window is one too wide": ("causal window=7", DECODE, (("- window + 1", "- window"), ("> place", ">= place"))),
    "the window is not looked at": ("window=7", NAIVE, (("group - window + 1", "group - 1000"),
                                                        ("> place - window", "> place - 1000"))),
    "scores are not capped": ("capped", DECODE, (("cap * tanh(s0.s0 / cap)", "s0.s0"),)),
    "the mask of another query": ("mask", DECODE, (("* q_length + row1 / group) * capacity",
                                                    "* q_length + row1 / group / 2) * capacity"),)),
    "the slope of another head": ("alibi", DECODE, (("* group + row1 % group]", "* group]"),)),
    "the sink is left out": ("sinks", DECODE, (("exp2(sink - larger)", "0.0f"),)),
    "the scale of another block": ("kv=q8_0", DECODE, (("row + n / 8 * 34", "row + (n / 8 ^ 1) * 34"),)),
    "nibbles are swapped": ("kv=q4_0", DECODE, (("bits & (uchar)15", "bits >> (uchar)4"),)),
    "pages in order": ("pages", DECODE, (("table[t0 / page]", "t0 / page"), ("table[t1 / page]", "t1 / page"))),
    "maxima are left out": ("full", PREFILL, ((f"{JOIN}\n                larger",
                                               "other = 0; other < 1; other++) larger"),)),
    "a tile of V is one of K": ("full", PREFILL, (("v + (((size_t)", "k + (((size_t)"),)),
    "a work-item's sum is left out": ("full", PREFILL, ((f"{JOIN}\n            sum",
                                                         "other = 1; other < 4; other++) sum"),)),
    "the last key counts again": ("full", PREFILL, (("t1 < until ?", "true ?"),)),
    "columns of another tile": ("full", COLUMNS, (("key_tiles + base / 16)", "key_tiles)"),)),
    "keys behind the last have weight": ("full", COLUMNS, (("place_of < own_end", "place_of <= own_end"),
                                                           ("> own_end ||", "> own_end + 1 ||"))),
    "a new maximum changes no sum": ("full", COLUMNS, (("sum[r] *= factor;", ""),)),
    "a vector of the head is left out": ("full", COLUMNS, (("e = 0; e < 64; e += 8) {", "e = 0; e < 56; e += 8) {"),)),
    "queries of another head": ("causal", COLUMNS, (("row % group) * q_length", "0) * q_length"),)),
}  # fmt: skip


@pytest.mark.parametrize("fault", first_short(WRONG, 3))
def test_wrong_kernels_are_found(measurer: Measurer, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    words, configuration, changes = WRONG[fault]
    problem = PARSE(f"4/2,7,45,64 batch=4 {words.removeprefix('full')}")

    def spoilt(source: str) -> str:
        for old, new in changes:
            assert old in source, f"{old!r} is not in the source any more"
            source = source.replace(old, new)
        return source

    find_wrong(measurer, monkeypatch, problem, configuration, spoilt)


def test_words_are_those_of_the_fields() -> None:
    """Each names one field, so that a shape may have them in any order."""
    named = [word for name, known in WORDS.items() if name not in ("head", "kv_type") for word in known]
    assert len(named) == len(set(named))


@pytest.mark.parametrize(("sizes", "most"), [((8, 16, 32), 8), ((16,), 16), ((), 32)])
def test_no_more_lanes_join_by_shuffles_than_the_smallest_sub_group_has(sizes: tuple[int, ...], most: int) -> None:
    """Intel's compiler may choose any of its sizes."""
    extensions = ("cl_khr_fp16", "cl_khr_subgroup_shuffle")
    limits = DeviceLimits(compute_units=8, has_float16=True, extensions=extensions, sub_group_sizes=sizes)
    problem = AttentionProblem.parse("32/8,1,4096,128 float16")
    joined = [c for c in FAMILY.candidates(problem, limits, ()) if dict(c.values).get("join") == "sub_group"]
    assert max(c.number("lanes") for c in joined) == most
