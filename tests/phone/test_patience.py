"""A worker that waits for its device: what it tells, how long it waits, and how it stops."""

import sys
from collections.abc import Callable

import pytest

from autotune.device.link import PATIENCE_S
from autotune.errors import DeviceAwayError, DeviceSelectionError, WorkerError
from autotune.measure.worker import Worker
from autotune.model.configuration import Configuration
from autotune.model.problem import Problem
from autotune.model.trial import Job, Measurement, Timer, Trial, TrialState
from autotune.phone.patience import COOLER_C, HOT_C, MOST_USELESS, REST_S, PatientWorker

IDLE = (sys.executable, "-c", "input()")
"""A child process that does nothing."""


class Link:
    """A link that is away for some seconds of a clock."""

    name = "adb:FAKE1"

    def __init__(self, away_s: float, error: DeviceSelectionError | None = None) -> None:
        self.now = 0.0
        self.away_s = away_s
        self.error = error or DeviceAwayError("adb does not show the phone FAKE1", hint="plug it in")

    def check(self) -> None:
        if self.now < self.away_s:
            raise self.error

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def _worker(
    link: Link, told: list[str], should_stop: Callable[[], bool] = lambda: False, *, is_sustained: bool = False
) -> PatientWorker:
    return PatientWorker(
        link,
        told.append,
        should_stop,
        command=IDLE,
        is_sustained=is_sustained,
        clock=lambda: link.now,
        sleep=link.sleep,
    )


def test_device_that_is_there_is_not_waited_for() -> None:
    told: list[str] = []
    with _worker(Link(0), told) as worker:
        worker.start()
        assert worker.pid and worker.waited_s == 0 and told == []


def test_wait_is_told_each_minute_and_counted() -> None:
    told: list[str] = []
    with _worker(Link(150), told) as worker:
        worker.start()
        assert worker.pid and worker.waited_s == 150
    first, *minutes, last = told
    assert first == "waiting for adb:FAKE1: adb does not show the phone FAKE1 (plug it in) (Ctrl-C stops)"
    assert [line.split(":")[1] for line in minutes] == ["FAKE1 for 60 s", "FAKE1 for 120 s"]
    assert last == "adb:FAKE1 is back after 150 s"


def test_wait_ends_after_an_hour_with_how_to_continue() -> None:
    link = Link(2 * PATIENCE_S)
    with _worker(link, []) as worker, pytest.raises(WorkerError, match=r"stayed away for 60 minutes.*same command"):
        worker.start()
    assert PATIENCE_S < link.now < PATIENCE_S + 10


def test_wait_stops_when_asked() -> None:
    link = Link(1000)
    with _worker(link, [], lambda: link.now > 5) as worker, pytest.raises(WorkerError, match="stopped while waiting"):
        worker.start()
    assert link.now < 10


def test_what_waiting_does_not_mend_is_raised_at_once() -> None:
    link = Link(1000, DeviceSelectionError("adb is not installed"))
    with _worker(link, []) as worker, pytest.raises(DeviceSelectionError, match="adb is not installed"):
        worker.start()
    assert link.now == 0


def _run_at(
    monkeypatch: pytest.MonkeyPatch, temperatures: list[float | None], *, is_sustained: bool = False
) -> tuple[list[float], list[str]]:
    """Run trials that end at these temperatures; return when each began, and what was told."""
    link, told, times = Link(0), list[str](), list[float]()

    def run(_: Worker, job: Job) -> Trial:
        temperature_c = temperatures[len(times)]
        times.append(link.now)
        measured = Measurement(
            time_ns=1, samples_ns=(1,), calls_per_sample=1, timer=Timer.EVENT, temperature_c=temperature_c
        )
        return Trial(configuration=job.configuration, state=TrialState.COMPLETE, measurement=measured)

    monkeypatch.setattr(Worker, "run", run)
    worker = _worker(link, told, is_sustained=is_sustained)
    job = Job(selector="", problem=Problem, configuration=Configuration.of("naive"))  # type: ignore[arg-type]
    for _ in temperatures:
        worker.run(job)
    assert worker.waited_s == link.now
    return times, told


def test_hot_device_rests_before_its_next_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    times, told = _run_at(monkeypatch, [HOT_C - 1, HOT_C + 5, HOT_C - 10])
    assert times == [0, 0, REST_S]
    assert told == [f"adb:FAKE1 has {HOT_C + 5:.0f} degrees Celsius: resting for 30 s"]


@pytest.mark.parametrize("hot", [[95.0, 95.0, 95.0, 95.0], [95.1, 95.3, 95.2, 95.1], [90.0, 93.0, 89.0, 93.0]])
def test_device_that_rests_do_not_cool_rests_a_few_times(monkeypatch: pytest.MonkeyPatch, hot: list[float]) -> None:
    times, told = _run_at(monkeypatch, [*hot, *hot, None, *hot])
    assert times == [0, 30, 60, *[90] * 10]
    assert told == [
        *(f"adb:FAKE1 has {temperature_c:.0f} degrees Celsius: resting for 30 s" for temperature_c in hot[:-1]),
        f"adb:FAKE1 has {hot[-1]:.0f} degrees Celsius after each rest: no more rests until it is cooler",
    ]


@pytest.mark.parametrize("cooler", [95.0 - COOLER_C, HOT_C])
def test_device_that_gets_cooler_rests_again_when_hot(monkeypatch: pytest.MonkeyPatch, cooler: float) -> None:
    times, _ = _run_at(monkeypatch, [*[95.0] * (MOST_USELESS + 2), cooler, 95.0, 95.0])
    rests = (times[-1] - times[MOST_USELESS + 1]) / REST_S
    assert rests == (1 if cooler == HOT_C else 2)


def test_device_that_rests_cool_a_little_each_time_rests_on(monkeypatch: pytest.MonkeyPatch) -> None:
    times, _ = _run_at(monkeypatch, [100.0 - number for number in range(12)])
    assert times == [REST_S * number for number in range(12)]


def test_device_whose_times_are_to_be_sustained_never_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _run_at(monkeypatch, [HOT_C + 5, HOT_C + 5], is_sustained=True) == ([0, 0], [])


def test_job_that_could_not_begin_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[Trial | WorkerError] = [
        WorkerError("the link ended"),
        WorkerError("the link ended"),
        Trial(configuration=Configuration.of("naive"), state=TrialState.CRASHED),
    ]

    def run(_: Worker, job: Job) -> Trial:
        result = results.pop(0)
        if isinstance(result, WorkerError):
            raise result
        return result

    monkeypatch.setattr(Worker, "run", run)
    job = Job(selector="", problem=Problem, configuration=Configuration.of("naive"))  # type: ignore[arg-type]
    assert _worker(Link(0), []).run(job).state is TrialState.CRASHED
    results += [WorkerError("no luck")] * 10
    with pytest.raises(WorkerError, match="no luck"):
        _worker(Link(0), []).run(job)
