"""Winners of before met again, and what a database is said to hold, with an invented device."""

import dataclasses
import io
import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main
from autotune.device import discovery
from autotune.display.results import print_overviews
from autotune.display.words import recheck_text
from autotune.kernels.gemm import FAMILY
from autotune.kernels.render import changes
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.trial import Job, Trial, TrialState, Verdict, Winner
from autotune.search import recheck as recheck_module
from autotune.search.recheck import Recheck, Standing, recheck, survey
from autotune.space.search_space import SearchSpace
from autotune.store import Store
from fakes import FakeWorker
from searches import DEFAULT, DEVICE, PROBLEM, search, won

TRIALS = 24
NEWER = dataclasses.replace(DEVICE, driver="2.0")


def invented_time(job: Job) -> float:
    """The wider the micro-tile the faster; no two alike."""
    values = dict(job.configuration.values)
    area = int(values.get("micro_tile_m", 1)) * int(values.get("micro_tile_n", 1))
    return 1e6 / area * (1 + (zlib.crc32(job.configuration.key.encode()) % 97) / 1e4)


class Recorder:
    def __init__(self) -> None:
        self.started: list[tuple[str, int, int]] = []
        self.finished: list[Recheck] = []

    def recheck_started(self, winner: Winner, number: int, total: int) -> None:
        self.started.append((winner.problem.label, number, total))

    def recheck_finished(self, recheck: Recheck) -> None:
        self.finished.append(recheck)


@pytest.fixture(scope="module")
def tuned(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of which each test gets a copy."""
    path = Path(shutil.copy(empty_database, tmp_path_factory.mktemp("tuned")))
    with Store.open(path) as store:
        assert won(search(store, FakeWorker(invented_time), trials=TRIALS)).verdict is Verdict.FASTER
    return path


@pytest.fixture
def db_file(tmp_path: Path, tuned: Path) -> Path:
    return Path(shutil.copy(tuned, tmp_path / "tuning.sqlite"))


@pytest.fixture
def winner(store: Store) -> Winner:
    """Tuned before anything changed."""
    [winner] = store.best(DEVICE.slug)
    return winner


def again(store: Store, worker: FakeWorker, device: Device = NEWER, **options: Any) -> list[Recheck]:
    listener = Recorder()
    found = recheck(device, store.best(DEVICE.slug), store, listener, worker=worker, **options)
    assert listener.finished == found
    assert worker.is_closed
    return found


def test_under_a_new_driver_the_best_of_before_and_the_default_meet_and_nothing_else(
    store: Store, winner: Winner
) -> None:
    worker = FakeWorker(invented_time)
    [found] = again(store, worker)
    assert (found.before, found.standing) == (winner, Standing.HOLDS)
    assert found.after is not None and found.after.configuration == winner.configuration
    assert found.after.provenance.driver == "2.0"
    assert found.after.verifications >= 20
    assert store.best(DEVICE.slug) == [found.after]
    assert worker.measured[:2] == [winner.configuration, DEFAULT]
    before = sorted((s.trial for s in store.trials(DEVICE.slug, "gemm") if s.provenance.driver == "1.0"),
                    key=lambda trial: trial.time_ns)  # fmt: skip
    fastest = list(dict.fromkeys(trial.configuration for trial in before))[:3]
    assert set(worker.measured) == {DEFAULT, *fastest}


def test_what_takes_longer_than_before_is_said_to(store: Store, winner: Winner) -> None:
    [found] = again(store, FakeWorker(lambda job: 1.5 * invented_time(job)))
    assert found.standing is Standing.SLOWER
    assert found.slower_by == pytest.approx(1.5)
    assert recheck_text(found) == "slower: 1.5 times the earlier time"


def test_a_winner_that_is_beaten_under_the_new_driver_gives_way(store: Store, winner: Winner) -> None:
    worker = FakeWorker(lambda job: invented_time(job) * (9 if job.configuration == winner.configuration else 1))
    [found] = again(store, worker)
    assert found.standing is Standing.REPLACED
    assert found.after is not None and found.after.configuration != winner.configuration
    assert recheck_text(found).startswith("replaced: ")
    assert store.best(DEVICE.slug) == [found.after]


def wrong(*configurations: Configuration) -> FakeWorker:
    return FakeWorker(lambda j: TrialState.WRONG_RESULT if j.configuration in configurations else invented_time(j))


def test_a_winner_that_fails_gives_way_to_the_next_best(store: Store, winner: Winner) -> None:
    [found] = again(store, wrong(winner.configuration))
    assert (found.standing, found.message) == (Standing.FAILED, "wrong result: as told")
    assert found.after is not None and found.after.configuration not in (winner.configuration, DEFAULT)
    assert store.best(DEVICE.slug) == [found.after]


@pytest.mark.parametrize("which", ["winner", "default"])
def test_a_slow_moment_leaves_the_winner_of_before(store: Store, winner: Winner, which: str) -> None:
    slow = winner.configuration if which == "winner" else DEFAULT
    worker = FakeWorker(lambda j: TrialState.CUT_SHORT if j.configuration == slow else invented_time(j))
    [found] = again(store, worker)
    assert (found.standing, found.after, recheck_text(found)) == (Standing.OPEN, None, "not measured: as told")
    assert store.best(DEVICE.slug) == [winner]


def test_a_default_cut_short_in_the_finals_leaves_the_winner_of_before(store: Store, winner: Winner) -> None:
    def told(job: Job) -> float | TrialState:
        is_cut_short = job.configuration == DEFAULT and not job.verify
        return TrialState.CUT_SHORT if is_cut_short or job.verifications else invented_time(job)

    [found] = again(store, FakeWorker(told))
    assert (found.standing, found.after) == (Standing.OPEN, None)
    assert store.best(DEVICE.slug) == [winner]


def test_a_winner_wrong_now_and_then_is_found_out_by_many_verifications(store: Store, winner: Winner) -> None:
    def now_and_then(job: Job) -> float | TrialState:
        is_found = job.verifications and job.configuration == winner.configuration
        return TrialState.WRONG_RESULT if is_found else invented_time(job)

    [found] = again(store, FakeWorker(now_and_then), device=DEVICE)
    assert found.standing is Standing.FAILED
    assert found.after is not None and found.after.configuration != winner.configuration


def test_the_default_takes_over_from_all_that_fail(store: Store, winner: Winner) -> None:
    worker = FakeWorker(lambda j: invented_time(j) if j.configuration == DEFAULT else TrialState.CRASHED)
    [found] = again(store, worker)
    assert found.after is not None and found.after.configuration == DEFAULT
    assert recheck_text(found) == "failed: the default takes over"
    [lost] = again(store, FakeWorker(lambda _: TrialState.CRASHED), device=dataclasses.replace(DEVICE, driver="3"))
    assert (lost.after, recheck_text(lost)) == (None, "failed: nothing replaces it")


@pytest.mark.long
def test_a_winner_of_another_search_space_is_not_run(store: Store, winner: Winner) -> None:
    odd = Configuration.of("microtile", **{**dict(winner.configuration.values), "micro_tile_m": 77})
    store.record_winner(dataclasses.replace(winner, configuration=odd, time_ns=1.0))
    worker = FakeWorker(invented_time)
    [found] = again(store, worker)
    assert odd not in worker.measured
    assert (found.standing, found.message) == (Standing.FAILED, "micro_tile_m=77 is not among 1, 2, 3, 4, 6, 8, 12, 16")


def test_a_winner_without_a_newer_parameter_is_met_as_what_it_is_today(store: Store, winner: Winner) -> None:
    space = SearchSpace(FAMILY, PROBLEM, DEVICE.limits, algorithms=["microtile"])
    today = next(c for c in space if c["a_storage"] == "buffer" and c != winner.configuration)
    stored = Configuration.of("microtile", **{name: value for name, value in today.values if name != "a_storage"})
    store.record_winner(dataclasses.replace(winner, configuration=stored, time_ns=1e6))
    worker = FakeWorker(lambda job: 10.0 if job.configuration == today else 1e6)
    [found] = again(store, worker)
    assert stored not in worker.measured
    assert (found.standing, found.message) == (Standing.HOLDS, "")
    assert found.after is not None and found.after.configuration == today


def test_stopping_keeps_the_winner_of_before(store: Store, winner: Winner) -> None:
    worker = FakeWorker(invented_time)
    assert again(store, worker, should_stop=lambda: len(worker.jobs) >= 6) == []
    assert len(worker.jobs) == 6
    assert store.best(DEVICE.slug) == [winner]


def test_a_run_under_a_new_driver_begins_with_the_winner_and_the_best_of_before(store: Store, winner: Winner) -> None:
    known = sorted((s.trial for s in store.trials(DEVICE.slug, "gemm")), key=lambda trial: trial.time_ns)
    best = list(dict.fromkeys(trial.configuration for trial in known if trial.configuration != DEFAULT))[:5]
    worker = FakeWorker(invented_time)
    search(store, worker, 9, device=NEWER)
    assert worker.measured[:2] == [DEFAULT, winner.configuration]
    assert set(best) <= set(worker.measured[:7])
    assert len(set(worker.measured[:9])) == 9, "each once, before the finals"


# What there is


def test_the_survey_tells_what_is_tuned_and_what_is_out_of_date(store: Store, winner: Winner) -> None:
    [now] = survey(store, {DEVICE.slug: "1.0"})
    assert (now.device, now.driver, now.problems, now.stale_problems) == (DEVICE.slug, "1.0", 1, 0)
    assert now.verdicts == {"faster": 1}
    assert now.last_measured >= winner.provenance.measured_at
    searched = TRIALS + 1  # and the baseline
    assert now.trials == {"complete": searched}
    assert now.repeats == len(store.trials(DEVICE.slug, "gemm")) - searched > 0
    text = io.StringIO()
    print_overviews([now], text)
    assert f"trials stored  {searched}: {searched} complete\n  run again      {now.repeats} times" in text.getvalue()
    [later] = survey(store, {DEVICE.slug: "2.0"})
    assert (later.driver, later.stale_problems, later.stale) == ("2.0", 1, {"driver": 1})
    [elsewhere] = survey(store, {})
    assert elsewhere == now, "without the device here, the driver that measured last counts"


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ({}, []),
        ({"driver": "0.9"}, ["driver"]),
        ({"template_hash": "other"}, ["template"]),
        ({"space_version": 0, "driver": "0.9"}, ["driver", "space"]),
    ],
)
def test_what_changed_since_a_winner_was_measured(winner: Winner, made: dict[str, Any], expected: list[str]) -> None:
    provenance = dataclasses.replace(winner.provenance, **made)
    assert changes(provenance, FAMILY, winner.configuration, "1.0") == expected


def test_an_algorithm_that_is_gone_is_a_change_of_the_space(winner: Winner) -> None:
    assert changes(winner.provenance, FAMILY, Configuration.of("gone"), "1.0") == ["space"]


# The commands


@pytest.fixture
def database(store: Store, winner: Winner, monkeypatch: pytest.MonkeyPatch) -> str:
    """Tuned before; the device has a new driver now."""
    monkeypatch.setattr(discovery, "discover", lambda: [NEWER])
    return store.location


def _measures(monkeypatch: pytest.MonkeyPatch, worker: FakeWorker) -> None:
    monkeypatch.setattr(recheck_module, "Worker", lambda: worker)


def test_verify_tells_each_result_and_ends_well_when_all_holds(
    database: str, winner: Winner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _measures(monkeypatch, FakeWorker(invented_time))
    assert main(["verify", "--device", "cpu", "--shape", "96,96,96", "--db", database]) == 0
    shown = capsys.readouterr()
    assert shown.err == "[1/1] 96x96x96: still holds\n"
    [header, _, row] = [line.split("|") for line in shown.out.splitlines()]
    cells = {name.strip(): cell.strip() for name, cell in zip(header, row, strict=True)}
    assert (cells["shape"], cells["result"], cells["verifications"]) == ("96x96x96", "still holds", "60")
    assert float(cells["vs default"].split("x")[0]) > 1


def test_verify_fails_when_a_winner_does_though_another_takes_over(
    database: str, winner: Winner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _measures(monkeypatch, wrong(winner.configuration))
    assert main(["verify", "--device", "cpu", "--db", database, "--json", "--quiet"]) == 1
    shown = capsys.readouterr()
    [one] = json.loads(shown.out)
    assert (shown.err, one["result"], one["message"]) == ("", "failed", "wrong result: as told")
    assert one["before"]["configuration"] == winner.configuration.to_dict() != one["after"]["configuration"]


def test_verify_says_when_nothing_is_left(
    database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _measures(monkeypatch, FakeWorker(lambda _: TrialState.CRASHED))
    assert main(["verify", "--device", "cpu", "--db", database, "--quiet"]) == 1
    shown = capsys.readouterr()
    assert "failed: nothing replaces it" in shown.out and "crashed: as told" in shown.out
    assert shown.err.startswith("autotune: error: no configuration runs right for 96x96x96")


def test_verify_stopped_by_ctrl_c_keeps_what_it_has(
    database: str, winner: Winner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import signal

    class Interrupting(FakeWorker):
        def run(self, job: Job) -> Trial:
            if len(self.jobs) == 5:
                signal.raise_signal(signal.SIGINT)
            return super().run(job)

    _measures(monkeypatch, Interrupting(invented_time))
    assert main(["verify", "--device", "cpu", "--db", database]) == 130
    assert f"autotune verify --device cpu --db {database}" in capsys.readouterr().err
    with Store.open(database) as store:
        assert store.best(DEVICE.slug) == [winner]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "8,8,8"], "not tuned for pocl-invented: 8x8x8 (autotune status"),
        (["--family", "reduce"], "nothing is tuned for pocl-invented"),
    ],
)
def test_verify_of_what_is_not_tuned_is_wrong_usage(
    database: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--device", "cpu", "--db", database, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_status_tells_what_is_tuned_and_out_of_date(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--db", database]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == DEVICE.slug
    told = dict(line.split("  ", 1) for line in lines[1:])
    assert {name: value.strip() for name, value in told.items()}["tuned"] == "1 problem: 1 faster"
    assert told["out of date"].strip() == "1: 1 measured with another driver"
    assert main(["status", "--device", "cpu", "--db", database, "--json"]) == 0
    [one] = json.loads(capsys.readouterr().out)
    assert (one["device"], one["driver"], one["stale"], one["set_aside"]) == (DEVICE.slug, "2.0", {"driver": 1}, {})


@pytest.mark.parametrize("drivers", [("3.1", "3.0-rc2"), ("3.0-rc2", "3.1")])
def test_status_goes_by_the_driver_that_other_commands_use(
    database: str, drivers: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    devices = [dataclasses.replace(DEVICE, driver=driver) for driver in drivers]
    monkeypatch.setattr(discovery, "discover", lambda: devices)
    assert discovery.select("cpu", devices).driver == "3.1"
    assert main(["status", "--db", database, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["driver"] == "3.1"
    for number, driver in enumerate(drivers):
        devices[number] = dataclasses.replace(devices[number], selector=f"{number}:0")
        assert main(["status", "--device", f"{DEVICE.slug}@{driver}", "--db", database, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["driver"] == driver


def test_status_without_any_device_here_tells_what_the_database_holds(
    database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(discovery, "discover", list)
    assert main(["status", "--db", database]) == 0
    assert "out of date    0" in capsys.readouterr().out
