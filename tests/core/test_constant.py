"""Constant operands: a problem of their own, for which packing is neither timed nor, in a run, repeated."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from autotune.codec import Node
from autotune.device.opencl import Session
from autotune.device.port import Run
from autotune.device.profile import find_profile
from autotune.errors import ProblemError, UsageError
from autotune.export import export_table
from autotune.export.c_package import package_files
from autotune.export.contents import read_tables
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.kernels.reduce import ReduceProblem
from autotune.kernels.shapes import parse_shapes
from autotune.lookup import Entry, Match, TuningTable
from autotune.lookup.json_table import read_contents
from autotune.measure.measurer import Measurer
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.trial import Calibration, Job, Request, Timer, TrialState, Verdict, Winner
from autotune.runtime import Gemm
from autotune.search import Budget, tune
from autotune.service.access import Access
from autotune.service.app import make_app
from autotune.service.core import Service
from autotune.service.remote.wire import plain_job, read_job
from autotune.service.store import ServiceStore
from autotune.store import Store
from factories import PHONE, device, read_shape, spoil_sources, winner
from fakes import INVENTED_PROCESSOR, FakeWorker

PLAIN = GemmProblem(m=64, n=48, k=40)
CONSTANT = replace(PLAIN, constant="b")
DEVICE = INVENTED_PROCESSOR
ADRENO = device("adreno-730", limits=replace(PHONE, compute_units=4, sub_group_sizes=()))
TILE: dict[str, Any] = {
    "micro_tile_m": 4, "micro_tile_n": 8, "vector_width": 4, "unroll": 4, "a_vector_width": 1, "work_group_m": 0,
    "work_group_n": 0, "b_storage": "buffer", "loads": "vload", "multiply_add": "mad", "relaxed_math": "off",
}  # fmt: skip
GUARDED = FAMILY.complete(Configuration.of("microtile", edges="guard", **TILE))
PADDED = FAMILY.complete(Configuration.of("microtile", edges="pad", **TILE))
"""Packs A and B."""


def packed(problem: GemmProblem, configuration: Configuration) -> list[str]:
    """The operands that a configuration packs at every call."""
    launches = FAMILY.plan(problem, configuration).launches
    return [launch.prepares for launch in launches if launch.prepares and not problem.is_constant(launch.prepares)]


def default(device: Device, problem: GemmProblem) -> Configuration:
    return FAMILY.default(problem, device.limits, find_profile(device).starting("gemm"))


def a_winner(problem: GemmProblem, configuration: Configuration = FAMILY.baseline, time_ns: float = 5e3) -> Winner:
    return winner(DEVICE, problem, configuration, time_ns)


@pytest.fixture
def store(store: Store) -> Store:
    """A product that was tuned with B constant, and without."""
    store.add_device(DEVICE)
    store.record_winner(a_winner(PLAIN, GUARDED))
    store.record_winner(a_winner(CONSTANT, PADDED, 4e3))
    return store


# The problem


def test_plain_problems_keep_their_keys() -> None:
    key = (
        '{"batch":1,"k":8,"lda":8,"ldb":8,"ldc":8,"m":8,"mode":"float32","n":8,"stride_a":64,"stride_b":64,'
        '"stride_c":64,"trans_a":0,"trans_b":0}'
    )
    plain = GemmProblem(m=8, n=8, k=8)
    assert plain.key == key and plain.plain is plain
    assert "constant" not in plain.to_dict() and plain.kind == (("mode", "float32"), ("layout", "00"))
    constant = replace(plain, constant="b")
    assert constant.key == key.replace('"k":8', '"constant":"b","k":8') and constant.plain == plain
    assert not constant.is_comparable(plain) and constant.is_comparable(constant.resized((9, 8, 8, 1)))
    assert ReduceProblem(batch=2, channels=3).plain == ReduceProblem(batch=2, channels=3)


@pytest.mark.parametrize(
    ("text", "constant"),
    [
        ("8,9,7 constant=b", "b"),
        ("8x9x7 nt float16 batch=2 constant=a", "a"),
        ("8,9,7 constant=ba", "ab"),
        ("8,9,7 constant=a constant=b", "ab"),
    ],
)
def test_a_shape_names_its_constant_operands(text: str, constant: str) -> None:
    problem = read_shape(GemmProblem, text)
    assert isinstance(problem, GemmProblem) and problem.constant == constant
    assert [operand for operand in ("a", "b", "c", "") if problem.is_constant(operand)] == list(constant)
    assert problem.resized((4, 4, 4, 1)).constant == constant


@pytest.mark.parametrize(
    ("word", "message", "hint"),
    [
        ("constant-b", "'constant-b' is not a layout", "did you mean constant=b?"),
        ("const=b", "'const=b' is not a layout", "did you mean constant=b?"),
        ("constant", "'constant' is not a layout", "did you mean constant=b?"),
        ("constant=", "'constant=' is not a layout", "did you mean constant=b?"),
        ("constant=c", "constant must be a, b or ab, not 'c'", "constant=b packs B once"),
    ],
)
def test_wrong_spellings_are_refused_with_a_hint(word: str, message: str, hint: str) -> None:
    with pytest.raises(ProblemError, match=message) as error:
        GemmProblem.parse(f"8,8,8 {word}")
    assert hint in error.value.hint
    with pytest.raises(UsageError):  # and not taken for a label
        parse_shapes([f"8,8,8 {word}"] if word != "constant" else ["8,8,8 constant=x constant"], "shapes")


def test_shape_files_have_them_as_words_and_as_a_column() -> None:
    [of_line] = parse_shapes(["64,48,40 constant=b x3 first layer"], "shapes")
    assert of_line == Request(problem=CONSTANT, calls=3, label="first layer")
    of_csv = parse_shapes(["m,n,k,constant", "64,48,40,b", "64,48,40,"], "shapes")
    assert [request.problem for request in of_csv] == [CONSTANT, PLAIN]


# Its time


class Recording(Session):
    """Knows the kernels that were enqueued."""

    def run(self, call: Any, times: int = 1, *, has_events: bool = True) -> Run:
        kernels = [step.kernel.function_name for step in call.steps]
        self.enqueued = [*getattr(self, "enqueued", []), *kernels * times]
        invented = [[(0, INVENTED_NS[kernel]) for kernel in kernels]] * times
        return replace(super().run(call, times, has_events=has_events), events=np.array(invented))


INVENTED_NS = {"pack": 700, "gemm": 300}


@pytest.mark.parametrize(("constant", "time_ns", "prepare_ns"), [("", 1700, 1400), ("b", 1000, 700), ("ab", 300, 0)])
@pytest.mark.parametrize("timer", Timer)
def test_the_time_leaves_out_packing_what_is_constant(
    pocl: Device, timer: Timer, constant: str, time_ns: float, prepare_ns: float
) -> None:
    session = Recording(pocl.selector)
    measurer = Measurer(session, Calibration(timer=timer))
    problem = replace(PLAIN, constant=constant)
    job = Job(
        selector=pocl.selector, problem=problem, configuration=PADDED, samples=3, min_sample_ns=5_000,
        min_sample_ticks=1, probe=False,
    )  # fmt: skip
    measured = measurer.measure(job)
    assert measured.measurement is not None, measured.message
    assert measured.measurement.error_ratio > 0, "it was verified"
    packs, products = (session.enqueued.count(kernel) for kernel in ("pack", "gemm"))
    whole_calls = 3 if constant else products  # two verify, one packs before the time is taken
    assert packs == 2 * whole_calls + (2 - len(constant)) * (products - whole_calls)
    if timer is Timer.EVENT:
        assert (measured.measurement.time_ns, measured.measurement.prepare_ns) == (time_ns, prepare_ns)


def test_packing_what_is_constant_is_verified_all_the_same(pocl: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil_sources(monkeypatch, lambda source: source.replace("* row_step", "* row_step * 0"))
    job = Job(selector=pocl.selector, problem=CONSTANT, configuration=PADDED)
    trial = Measurer(Session(pocl.selector), Calibration(timer=Timer.HOST)).measure(job)
    assert trial.state is TrialState.WRONG_RESULT


# The search


def invented_time(job: Job) -> float:
    """Configurations that pack B are faster but for packing, which takes longer than it saves."""
    assert isinstance(job.problem, GemmProblem)
    packs_b = "b" in packed(job.problem.plain, job.configuration)
    product_ns = 1000.0 if packs_b else 2000.0 if job.configuration.algorithm != "naive" else 9000.0
    return product_ns + 5000.0 * packed(job.problem, job.configuration).count("b")


def test_a_search_finds_what_is_fastest_without_packing(tmp_path: Path) -> None:
    workers = {problem: FakeWorker(invented_time) for problem in (PLAIN, CONSTANT)}
    winners = {}
    for problem, worker in workers.items():
        with Store.open(tmp_path / f"constant-{problem.constant}.sqlite") as fresh:
            budget = Budget(trials=40)
            [outcome] = tune(DEVICE, [Request(problem=problem)], fresh, budget, worker=worker)
        assert outcome.winner is not None
        winners[problem] = outcome.winner
        assert {job.problem for job in worker.jobs} == {problem}, "search, finals, default and baseline alike"
    assert "b" not in packed(PLAIN, winners[PLAIN].configuration)
    won = winners[CONSTANT]
    assert "b" in packed(PLAIN, won.configuration) and "b" not in packed(CONSTANT, won.configuration)
    assert (won.time_ns, won.default_ns, won.baseline_ns) == (1000.0, 2000.0, 9000.0)
    assert won.verdict is Verdict.FASTER and won.is_final


def test_the_search_tries_what_won_with_packing_early(store: Store) -> None:
    worker = FakeWorker(invented_time)
    store.record_winner(a_winner(PLAIN, PADDED, 1e3))
    near = replace(CONSTANT, k=44, lda=0, stride_a=0, stride_b=0)
    tune(DEVICE, [Request(problem=near)], store, Budget(trials=4), worker=worker)
    assert PADDED in worker.measured[:3]


def test_the_rule_takes_packing_what_is_constant_for_free() -> None:
    plain = GemmProblem.parse("16,1024,1024")
    constant = replace(plain, constant="b")
    assert packed(plain, default(ADRENO, plain)) == []
    assert packed(plain, default(ADRENO, constant)) == ["b"]
    assert default(ADRENO, replace(plain, constant="a")) == default(ADRENO, plain)


# The table


@pytest.mark.usefixtures("store")
def test_lookups_tell_both_apart(db_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(FAMILY), "has_rule", False)  # so that near sizes answer
    table = TuningTable.open(db_file)
    for problem, configuration in ((PLAIN, GUARDED), (CONSTANT, PADDED)):
        found = table.find(DEVICE.slug, problem)
        assert (found.match, found.configuration) == (Match.EXACT, configuration)
        near = table.find(DEVICE.slug, problem.resized((64, 48, 44, 1)))
        assert (near.match, near.configuration) == (Match.NEAREST, configuration)
    assert table.find(DEVICE.slug, replace(PLAIN, constant="a")).match is Match.DEFAULT


def test_json_brings_both_back_and_tells_readers_of_before(store: Store, tmp_path: Path) -> None:
    text = export_table(store, DEVICE.slug, "gemm", "json")
    assert isinstance(text, str)
    assert json.loads(text)["schema_version"] == 2
    winners = read_contents(text).winners
    assert {winner.problem: winner.configuration for winner in winners} == {PLAIN: GUARDED, CONSTANT: PADDED}
    (tmp_path / "table.json").write_text(text, encoding="ascii")
    table = TuningTable.open(tmp_path / "table.json")
    assert table.find(DEVICE.slug, CONSTANT).configuration == PADDED
    assert table.find(DEVICE.slug, PLAIN).configuration == GUARDED


def test_a_table_without_any_is_what_it_was(tmp_path: Path) -> None:
    with Store.open(tmp_path / "plain.sqlite") as plain:
        plain.add_device(DEVICE)
        plain.record_winner(a_winner(PLAIN, GUARDED))
        text = export_table(plain, DEVICE.slug, "gemm", "json")
    assert isinstance(text, str)
    document = json.loads(text)
    assert document["schema_version"] == 1 and "constant" not in document["devices"][0]["entries"][0]["problem"]


def test_csv_and_markdown_name_them(store: Store) -> None:
    text, page = (export_table(store, DEVICE.slug, "gemm", form) for form in ("csv", "markdown"))
    assert isinstance(text, str) and isinstance(page, str)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["constant"], row["algorithm"], row["edges"]) for row in rows] == [
        ("", "microtile", "guard"), ("b", "microtile", "pad"),
    ]  # fmt: skip
    assert "64x48x40 constant=b" in page


@pytest.mark.long
def test_c_leaves_them_out_and_says_so(store: Store, tmp_path: Path) -> None:
    both = export_table(store, DEVICE.slug, "gemm", "c")
    with Store.open(tmp_path / "plain.sqlite") as plain:
        plain.add_device(DEVICE)
        plain.record_winner(a_winner(PLAIN, GUARDED))
        alone = export_table(plain, DEVICE.slug, "gemm", "c")
    assert isinstance(both, str) and isinstance(alone, str)
    remark = "/* Left out: 1 tuned with constant operands, which C code cannot ask for. */\n"
    assert remark in both and both.replace(remark, "") == alone
    files = package_files({"gemm": read_tables(store, DEVICE.slug, "gemm")})
    assert remark in files["autotune_gemm.h"]


def test_the_service_takes_and_answers_them(store: Store) -> None:
    with (
        ServiceStore.open(store.location) as opened,
        TestClient(make_app(Service(opened), Access()), base_url="http://localhost") as api,
    ):
        found = {
            shape: api.get("/api/lookup", params={"device": DEVICE.slug, "shape": shape}).json()
            for shape in (PLAIN.label, CONSTANT.label)
        }
        assert [(answer["match"], answer["configuration"]["edges"]) for answer in found.values()] == [
            ("exact", "guard"), ("exact", "pad"),
        ]  # fmt: skip
        assert found[CONSTANT.label]["problem"]["constant"] == "b"
        job = {"device": DEVICE.slug, "shapes": ["64,48,40 constant=b x2 layer", "64,48,40"], "trials": 5}
        made = api.post("/api/jobs", json=job).json()
        assert [problem["shape"] for problem in made["problems"]] == [CONSTANT.label, PLAIN.label]
        refused = api.post("/api/jobs", json={**job, "shapes": ["64,48,40 constant=c"]})
        assert "constant must be a, b or ab" in refused.text and refused.status_code == 400


def test_workers_elsewhere_are_told() -> None:
    job = Job(selector="0:0", problem=CONSTANT, configuration=PADDED)
    assert read_job(Node(json.loads(json.dumps(plain_job(job))), "job"), "0:0", ()) == job


# The runtime


def matrix(*shape: int) -> Any:
    return np.random.default_rng(shape).integers(-8, 8, shape).astype(np.float32)


def test_prepared_weights_use_the_winner_that_was_tuned_for_them(pocl: Device, tmp_path: Path) -> None:
    entries = [
        Entry(problem=problem, configuration=c, time_ns=1e4, driver=pocl.driver, version=pocl.version)
        for problem, c in ((PLAIN, GUARDED), (CONSTANT, PADDED))
    ]
    table = TuningTable([pocl], [(pocl.slug, entry) for entry in entries])
    gemm = Gemm(pocl.selector, table=table, host_blas=False, binaries=tmp_path)
    a, b = matrix(64, 40), matrix(40, 48)
    weights = gemm.prepare(b)
    for _ in range(2):
        assert np.array_equal(gemm(a, weights), a @ b) and np.array_equal(gemm(a, b), a @ b)
    assert gemm.stats.packings == 1
    per_call, once = gemm.choice(a, b), gemm.choice(a, weights)
    assert per_call and per_call.configuration == GUARDED
    assert once and once.configuration == PADDED and once.is_verified
    assert "64x48x40 constant=b was measured" in once.because


@pytest.mark.long
@pytest.mark.parametrize("is_plain_tuned", [True, False])
def test_prepared_weights_without_a_winner_of_their_own(pocl: Device, tmp_path: Path, is_plain_tuned: bool) -> None:
    entry = Entry(problem=PLAIN, configuration=GUARDED, time_ns=1e4, driver=pocl.driver, version=pocl.version)
    table = TuningTable([pocl], [(pocl.slug, entry)] if is_plain_tuned else [])
    gemm = Gemm(pocl.selector, table=table, host_blas=False, binaries=tmp_path, verify=False)
    a, b = matrix(64, 40), matrix(40, 48)
    weights = gemm.prepare(b)
    assert np.array_equal(gemm(a, weights), a @ b)
    choice = gemm.choice(a, weights)
    assert choice and choice.configuration == (GUARDED if is_plain_tuned else default(pocl, CONSTANT))
