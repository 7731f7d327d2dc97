"""What a driver got wrong in trials: found in the ledger, and honoured by search, tables, lookups and C."""

import dataclasses
import json
import random
import shutil
from collections.abc import Iterable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

import factories
from autotune import __version__
from autotune.device.profile import find_profile
from autotune.errors import TableError
from autotune.export import export_table
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.kernels.reduce import FAMILY as REDUCE
from autotune.kernels.render import provenance_now, template_hash
from autotune.lookup import Entry, Match, TuningTable
from autotune.lookup.json_table import read_contents
from autotune.model.configuration import Configuration, Value
from autotune.model.device import Device, Fault
from autotune.model.trial import Job, TrialState, Winner
from autotune.paths import data_folder
from autotune.search.driver_faults import find_faults, known_faults, with_faults
from autotune.space.search_space import SearchSpace
from autotune.store import Ending, Store
from fakes import INVENTED_PROCESSOR, FakeWorker
from searches import PROBLEM
from searches import search as search_on

DEVICE = dataclasses.replace(INVENTED_PROCESSOR, version="OpenCL 3.0 invented")
OTHER = GemmProblem(m=200, n=120, k=64)
search = partial(search_on, device=DEVICE)
WIDE = Fault(family="gemm", algorithm="microtile", parameter="vector_width", value=16)
EVERYWHERE = Fault(family="gemm", parameter="vector_width", value=16)


def crashes_when_wide(job: Job) -> float | TrialState:
    if dict(job.configuration.values).get("vector_width") == 16:
        return TrialState.CRASHED
    return 1e6 - 1000.0 * int(dict(job.configuration.values).get("micro_tile_n", 1))


def endings(states: Iterable[tuple[str, int, TrialState]], **changes: Any) -> list[Ending]:
    """Configurations of an algorithm with a vector width, so many ... of each, in a state."""
    found: list[Ending] = []
    for algorithm, width, state in states:
        number = sum(ending.configuration["vector_width"] == width for ending in found)
        known = {"template_hash": template_hash(FAMILY, algorithm), "tool_version": __version__, **changes}
        configuration = drawn(algorithm, width)[number]
        found.append(Ending(family="gemm", configuration=configuration, state=state, **known))
    return found


@cache
def drawn(algorithm: str, width: int) -> list[Configuration]:
    """Random ones of an algorithm with a vector width."""
    space = SearchSpace(FAMILY, PROBLEM, DEVICE.limits, algorithms=[algorithm])
    rows = random.Random(1).sample(range(len(space)), min(len(space), 3000))
    return [c for c in space.configurations(rows) if c["vector_width"] == width]


def of(algorithm: str, width: int, state: TrialState, count: int) -> list[tuple[str, int, TrialState]]:
    return [(algorithm, width, state)] * count


SOUND = of("microtile", 8, TrialState.COMPLETE, 8)


def fill(store: Store) -> None:
    """The ledger of a driver that crashes where vectors are wide."""
    worker = FakeWorker(crashes_when_wide)
    for configuration in [*drawn("microtile", 8)[:8], *drawn("microtile", 16)[:8]]:
        trial = worker.run(Job(selector="0:0", problem=PROBLEM, configuration=configuration))
        store.add_trial(DEVICE, PROBLEM, trial, provenance_now(DEVICE, FAMILY, configuration))


# Finding


def test_a_value_with_which_all_went_wrong_is_to_blame() -> None:
    states = [TrialState.CRASHED, TrialState.WRONG_RESULT, TrialState.TIMED_OUT] * 3
    wrong = [("microtile", 16, state) for state in states]
    [known] = find_faults(FAMILY, endings([*SOUND, *wrong]))
    assert (known.fault, known.configurations) == (WIDE, 9)


@pytest.mark.parametrize(
    "states",
    [
        [*SOUND, *of("microtile", 16, TrialState.CRASHED, 4)],
        [*of("microtile", 16, TrialState.CRASHED, 9)],
        [*SOUND, *of("microtile", 16, TrialState.CRASHED, 9), *of("microtile", 16, TrialState.COMPLETE, 1)],
        [*SOUND, *of("microtile", 16, TrialState.TOO_SLOW, 9)],
        [*SOUND, *of("microtile", 16, TrialState.INVALID, 9)],
    ],
    ids=["too few", "nothing ran right", "one ran right", "slow is not wrong", "limits are not faults"],
)
def test_what_may_be_chance_is_no_fault(states: list[tuple[str, int, TrialState]]) -> None:
    assert find_faults(FAMILY, endings(states)) == []


@pytest.mark.parametrize("change", [{"template_hash": "old"}, {"tool_version": "0.0.1"}])
def test_what_another_version_did_is_not_held_against_the_driver(change: dict[str, str]) -> None:
    states = [*SOUND, *of("microtile", 16, TrialState.CRASHED, 9)]
    assert find_faults(FAMILY, endings(states, **change)) == []


def test_what_nearly_always_fails_blames_no_single_value() -> None:
    states = [*of("microtile", 8, TrialState.COMPLETE, 1), *of("microtile", 8, TrialState.CRASHED, 40)]
    found = find_faults(FAMILY, endings([*states, *of("microtile", 16, TrialState.CRASHED, 5)]))
    assert WIDE not in [known.fault for known in found]


def test_a_value_that_several_algorithms_fail_with_is_to_blame_wherever_it_occurs() -> None:
    states = [*SOUND, *of("microtile", 16, TrialState.CRASHED, 9)]
    panels = [*of("panel", 8, TrialState.COMPLETE, 8), *of("panel", 16, TrialState.WRONG_RESULT, 9)]
    [known] = find_faults(FAMILY, endings([*states]) + endings(panels))
    assert (known.fault, known.configurations) == (EVERYWHERE, 18)
    assert known.fault.matches(Configuration.of("row", vector_width=16))
    assert not known.fault.matches(Configuration.of("row", vector_width=8))


# Searching


def test_a_search_finds_a_fault_and_the_next_one_leaves_it_alone(store: Store) -> None:
    fill(store)
    assert [known.fault for known in known_faults(DEVICE, store)] == [WIDE]
    again = FakeWorker(crashes_when_wide)
    search(store, again, problem=OTHER, algorithms=["microtile"])
    assert len(set(again.measured)) >= 12
    assert not [c for c in again.measured if WIDE.matches(c)]
    resumed = FakeWorker(crashes_when_wide)
    search(store, resumed, algorithms=["microtile"])
    assert not [c for c in resumed.measured if WIDE.matches(c)]
    retrying = FakeWorker(crashes_when_wide)
    search(store, retrying, problem=OTHER, retries_quarantined=True, algorithms=["microtile"])
    assert [c for c in retrying.measured if WIDE.matches(c)], "as asked"


def test_faults_belong_to_a_driver(store: Store) -> None:
    fill(store)
    assert with_faults(DEVICE, store).limits.faults
    for other in (dataclasses.replace(DEVICE, driver="2.0"), dataclasses.replace(DEVICE, version="OpenCL 3.0 other")):
        assert not with_faults(other, store).limits.faults


def test_spaces_rules_and_violations_agree() -> None:
    limits = dataclasses.replace(DEVICE.limits, faults=(EVERYWHERE,), local_memory_bytes=2**19)
    space = SearchSpace(FAMILY, PROBLEM, limits)
    sound = SearchSpace(FAMILY, PROBLEM, dataclasses.replace(limits, faults=()))
    rows = random.Random(1).sample(range(len(sound)), 3000)
    for configuration in sound.configurations(rows):
        is_left_out = EVERYWHERE.matches(configuration)
        assert (space.row_of(configuration) is None) == is_left_out
        assert bool(FAMILY.violations(PROBLEM, configuration, limits)) == is_left_out
    starts = find_profile(DEVICE).starting("gemm")
    assert not any(EVERYWHERE.matches(c) for c in FAMILY.candidates(PROBLEM, limits, starts))


def test_the_baseline_is_legal_whatever_tables_say() -> None:
    hostile = (
        Fault(family="gemm", algorithm="naive"), Fault(family="gemm", parameter="work_group_m", value=0),
        Fault(family="reduce", parameter="vector_width", value=1),
    )  # fmt: skip
    limits = dataclasses.replace(DEVICE.limits, faults=hostile)
    assert not FAMILY.violations(PROBLEM, FAMILY.baseline, limits)
    assert not REDUCE.faults(limits)
    assert FAMILY.baseline in list(SearchSpace(FAMILY, PROBLEM, limits, algorithms=["naive"]))


# Tables and lookups


def device_with(*faults: Fault) -> Device:
    return dataclasses.replace(DEVICE, limits=dataclasses.replace(DEVICE.limits, faults=faults))


def some(width: int) -> Configuration:
    return next(c for c in drawn("microtile", width) if c["edges"] == "guard" and c["loads"] == "vload")


def winner(problem: GemmProblem, configuration: Configuration) -> Winner:
    return factories.winner(DEVICE, problem, configuration, 1e5)


def test_an_export_tells_what_the_ledger_says_now(store: Store) -> None:
    fill(store)  # and no search since, which would have stored the fault with the device
    store.record_winner(winner(PROBLEM, some(8)))
    [device] = read_contents(str(export_table(store, DEVICE.slug, "gemm", "json"))).devices
    assert device.limits.faults == (WIDE,)


@pytest.fixture
def exported(store: Store, tmp_path: Path) -> Path:
    """A JSON table of a device with a fault."""
    store.add_device(device_with(EVERYWHERE))
    store.record_winner(winner(PROBLEM, some(16)))
    store.record_winner(winner(OTHER, some(8)))
    path = tmp_path / "table.json"
    path.write_text(str(export_table(store, DEVICE.slug, "gemm", "json")))
    return path


def test_faults_travel_with_json_tables(exported: Path) -> None:
    [device] = read_contents(exported).devices
    assert device.limits.faults == (EVERYWHERE,)
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((data_folder("db") / "table.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(json.loads(exported.read_text()))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"algorithm": "panel"}, "family is missing"), ({"family": "gemm"}, "needs an algorithm or a parameter"),
        ({"family": "gemm", "algorithm": 1}, "algorithm: must be a string"),
        ({"family": "gemm", "parameter": "unroll"}, "needs parameter and value together"),
        ({"family": "gemm", "parameter": "unroll", "value": 1.5}, "value: must be a whole number"),
        ({"family": "gemm", "algorithm": "x\ny"}, "control character"),
        ({"family": "gemm", "all": 1}, "unknown member"),
        ("gemm", "must be an object"),
    ],
)  # fmt: skip
def test_hostile_faults_are_refused_by_their_path(exported: Path, fault: Any, message: str) -> None:
    plain = json.loads(exported.read_text())
    plain["devices"][0]["limits"]["faults"] = [fault]
    with pytest.raises(TableError, match=r"devices\[0\]\.limits\.faults\[0\].*" + message):
        read_contents(json.dumps(plain))
    schema = json.loads((data_folder("db") / "table.schema.json").read_text())
    jsonschema = pytest.importorskip("jsonschema")
    assert not jsonschema.Draft202012Validator(schema).is_valid(plain)


def test_imported_faults_stay_where_the_device_is_described_without_them(exported: Path, store: Store) -> None:
    contents = read_contents(exported)
    described = replace(contents.devices[0], limits=replace(contents.devices[0].limits, faults=()))
    with Store.open(exported.with_name("other.sqlite")) as other:
        other.import_winners(contents.winners, contents.devices)
        other.add_device(replace(described, limits=replace(described.limits, compute_units=77)))
        [known] = other.devices()
        assert known.limits.compute_units == 77
        assert other.imported_faults(known) == [EVERYWHERE]


def test_imported_faults_hold_until_something_here_contradicts_them(exported: Path, tmp_path: Path) -> None:
    contents = read_contents(exported)
    with Store.open(tmp_path / "other.sqlite") as other:
        other.add_device(DEVICE)  # known here already
        other.import_winners(contents.winners, contents.devices)
        assert with_faults(DEVICE, other).limits.faults == (EVERYWHERE,)
        worker = FakeWorker(crashes_when_wide)
        search(other, worker, problem=OTHER)
        assert not any(EVERYWHERE.matches(c) for c in worker.measured)
        assert with_faults(DEVICE, other).limits.faults == (EVERYWHERE,), "a search does not forget it"
        right = FakeWorker(lambda _: 1e6).run(Job(selector="0:0", problem=PROBLEM, configuration=some(16)))
        other.add_trial(with_faults(DEVICE, other), PROBLEM, right, provenance_now(DEVICE, FAMILY, some(16)))
        assert not with_faults(DEVICE, other).limits.faults


def table(*entries: tuple[GemmProblem, Configuration], faults: tuple[Fault, ...] = (EVERYWHERE,)) -> TuningTable:
    rows = [(DEVICE.slug, Entry(problem=p, configuration=c, time_ns=1e5)) for p, c in entries]
    return TuningTable([device_with(*faults)], rows)


def test_lookups_give_way_to_the_next_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(FAMILY), "has_rule", False)  # so that near sizes answer
    near_by = GemmProblem(m=96, n=112, k=96)
    known = table((PROBLEM, some(16)), (near_by, some(8)))
    for asked in (DEVICE.slug, DEVICE):
        found = known.find(asked, PROBLEM)
        assert (found.match, found.configuration) == (Match.NEAREST, some(8))
        assert "known_fault: this driver gets gemm with vector_width=16 wrong" in found.because
    sound = table((PROBLEM, some(16)), faults=())
    assert sound.find(DEVICE, PROBLEM).match is Match.EXACT


def test_the_default_gives_way_too() -> None:
    starts = find_profile(DEVICE).starting("gemm")
    favourite = FAMILY.default(PROBLEM, DEVICE.limits, starts)
    fault = Fault(family="gemm", algorithm=favourite.algorithm)
    found = table(faults=(fault,)).find(DEVICE, PROBLEM)
    assert found.match is Match.DEFAULT
    assert found.configuration.algorithm != favourite.algorithm


def test_another_driver_is_not_held_to_a_table_s_faults() -> None:
    newer = dataclasses.replace(DEVICE, driver="2.0")
    assert table((PROBLEM, some(16))).find(newer, PROBLEM).match is Match.EXACT


def test_a_database_is_looked_up_with_its_faults(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuning.sqlite") as store:
        store.add_device(device_with(EVERYWHERE))
        store.record_winner(winner(PROBLEM, some(16)))
    found = TuningTable.open(tmp_path / "tuning.sqlite").find(DEVICE, PROBLEM)
    assert found.match is Match.DEFAULT
    assert not EVERYWHERE.matches(found.configuration)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_c_leaves_faults_out(store: Store, exported: Path, tmp_path: Path) -> None:
    from core.test_export import ask_c, ask_python

    problems: list[dict[str, Value]] = [{"m": 96, "n": 96, "k": 96}, {"m": 200, "n": 120, "k": 64}]
    known = TuningTable.open(exported)
    in_python = [ask_python(known, DEVICE.slug, "gemm", problem) for problem in problems]
    in_c = ask_c(str(export_table(store, DEVICE.slug, "gemm", "c")), DEVICE.slug, "gemm", problems, tmp_path)
    assert in_c == in_python
    assert not [answer for answer in in_c if answer.get("vector_width") == 16]
