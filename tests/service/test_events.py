"""The events of a search: sent by a service, read back as hostile input by those who follow a job."""

import json
from dataclasses import replace
from typing import Any

import pytest

from autotune.codec import Node, write
from autotune.errors import TableError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.model.events import (
    KINDS,
    BudgetJudged,
    DeviceDrifted,
    Event,
    Failure,
    FinalsStarted,
    GainEstimated,
    Outcome,
    ProblemFinished,
    ProblemStarted,
    ShareStarted,
    TrialFinished,
)
from autotune.model.trial import Request, TrialState
from autotune.service.remote import Event as RemoteEvent
from autotune.service.remote.events import Follower, job_outcome, plain_event, plain_outcome, read_event
from factories import trial, winner
from fakes import INVENTED_PROCESSOR as DEVICE

PROBLEM = GemmProblem(m=96, n=96, k=96)
REQUEST = Request(problem=PROBLEM, calls=2, label="fc")
WINNER = winner(DEVICE, PROBLEM, FAMILY.complete(FAMILY.baseline))
EVENTS: list[Event] = [
    ProblemStarted(request=REQUEST, number=2, total=3, configurations=5000, resumed_trials=7),
    TrialFinished(
        request=REQUEST, trial=trial(WINNER.configuration, 1e6), new_trials=4, best_ns=1e6, failures={"crashed": 1}
    ),
    DeviceDrifted(request=REQUEST, slowdown=1.25, rest_s=10.0),
    GainEstimated(request=REQUEST, gain_left=0.03),
    BudgetJudged(request=REQUEST, trials=31.5, seconds=20.0, least_s=3.0),
    ShareStarted(request=REQUEST, calls=3, default_ns=2e6, best_ns=1e6),
    FinalsStarted(request=REQUEST, finalists=5),
    ProblemFinished(
        request=REQUEST,
        outcome=Outcome(
            request=REQUEST, winner=WINNER, new_trials=4, resumed_trials=7, failures={"crashed": 1}, is_finished=True,
            seconds=1.5, gain_left=0.02,
            commonest_failure=Failure(state=TrialState.CRASHED, count=1, message="run: signal 11"),
        ),
    ),
]  # fmt: skip


def _asked(request: Request, number: int = 0) -> dict[str, Any]:
    """A problem of a job, as far as a follower reads it."""
    return {**write(request), "number": number, "family": "gemm", "state": "running", "progress": None}


def test_an_outcome_tells_what_it_took_and_whether_it_is_finished() -> None:
    request = Request(problem=GemmProblem(m=8, n=8, k=8), calls=3, label="fc")
    outcome = Outcome(request=request, winner=None, new_trials=3, resumed_trials=0, failures={}, is_finished=True)
    asked = {**_asked(request), "outcome": plain_outcome(outcome)}
    told = job_outcome(DEVICE.slug, {**asked, "state": "cancelled", "spent_s": 12.5})
    assert told == replace(outcome, seconds=12.5, is_finished=False)
    assert job_outcome(DEVICE.slug, {**asked, "state": "done", "spent_s": 1.0}).is_finished


def _sent(event: Event) -> Node:
    return Node(json.loads(json.dumps({"problem": 0, **plain_event(event)}, allow_nan=False)), event.name)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
def test_every_event_is_read_as_it_was_sent(event: Event) -> None:
    assert read_event(event.name, _sent(event), DEVICE.slug, REQUEST) == event


def test_every_kind_of_event_is_sent_under_its_own_name() -> None:
    assert [type(event) for event in EVENTS] == list(KINDS.values())


def test_time_is_null_until_something_ran() -> None:
    crashed = trial(WINNER.configuration, TrialState.CRASHED)
    nothing_yet = TrialFinished(request=REQUEST, trial=crashed, new_trials=1, best_ns=float("inf"), failures={})
    assert _sent(nothing_yet).value["best_ns"] is None
    assert read_event("trial_finished", _sent(nothing_yet), DEVICE.slug, REQUEST) == nothing_yet


@pytest.mark.parametrize(
    ("number", "member", "value", "error"),
    [
        (0, "configurations", "many", "problem_started.configurations: must be a whole number, not a string"),
        (0, "gift", 1, "problem_started: has an unknown member 'gift'"),
        (1, "failures", {"\x1b[2J": 1}, "trial_finished.failures.a name: has a control character"),
        (1, "failures", {str(n): 1 for n in range(2000)}, "trial_finished.failures: has more than 1024 members"),
        (1, "trial", {}, "trial_finished.trial: configuration is missing"),
        (2, "slowdown", float("nan"), "device_drifted.slowdown: must be above 0 and at most"),
        (2, "slowdown", 0, "device_drifted.slowdown: must be above 0 and at most"),
        (1, "best_ns", 0, "trial_finished.best_ns: must be above 0 and at most"),
        (7, "outcome", None, "problem_finished.outcome: must be an object, not null"),
    ],
)
def test_an_event_that_no_service_sends_is_refused(number: int, member: str, value: object, error: str) -> None:
    event = EVENTS[number]
    with pytest.raises(TableError) as refused:
        read_event(event.name, Node({**_sent(event).value, member: value}, event.name), DEVICE.slug, REQUEST)
    assert str(refused.value).startswith(error)


def test_who_follows_late_gets_the_latest_event_of_each_kind_once() -> None:
    told: list[Event] = []
    said: list[str] = []
    other = Request(problem=GemmProblem(m=8, n=8, k=8))
    job = {"id": 1, "device": DEVICE.slug, "state": "running", "problems": [_asked(REQUEST), _asked(other, 1)]}
    follower = Follower(job, told.append, said.append)
    progress = {event.name: plain_event(event) for event in EVENTS[:2]} | {"of a later version": {}}
    running = {**job, "problems": [{**_asked(REQUEST), "progress": progress}, _asked(other, 1)]}
    for _ in range(2):
        follower.take(RemoteEvent(name="job", data=running))
    assert said == []
    follower.take(RemoteEvent(name="problem_started", data=_sent(EVENTS[0]).value))
    assert told == EVENTS[:2], "a start is reported once, though it came with the state and by itself"
    started = {"problem": 1, **plain_event(EVENTS[0])}
    follower.take(RemoteEvent(name="problem_started", data=started))
    assert told[2:] == [replace(EVENTS[0], request=other)]
    for event in EVENTS[1:]:
        follower.take(RemoteEvent(name=event.name, data=_sent(event).value))
    assert told[3:] == EVENTS[-1:], "of two at once, the later is shown, and the results of both"
    follower.take(RemoteEvent(name="of a later version", data={}))
    with pytest.raises(TableError, match="problem_started: the job has no problem 2"):
        follower.take(RemoteEvent(name="problem_started", data={**started, "problem": 2}))
