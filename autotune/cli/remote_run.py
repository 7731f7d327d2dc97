"""`autotune run --server`: the search runs in a service and is displayed like a local one."""

import argparse
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import autotune
from autotune.cli.output import STOPPED, plain_outcome, print_json, standard_error, tell
from autotune.cli.service_client import open_client, tell_left_out, wanted
from autotune.codec import parse
from autotune.errors import AutotuneError, UsageError
from autotune.kernels import find_family
from autotune.lookup.json_table import read_entry
from autotune.model.configuration import Configuration
from autotune.model.trial import Measurement, Request, Timer, Trial, TrialState

if TYPE_CHECKING:
    from autotune.remote import Client, Event
    from autotune.search.contract import Listener, Outcome


def follow(client: "Client", job: dict[str, Any], options: argparse.Namespace) -> int:
    """Show progress until a job has ended, then its table. Return the exit status.

    Raises AutotuneError when the job failed or was cancelled.
    """
    from autotune.display import print_outcomes, progress, total_ns
    from autotune.search.contract import Budget

    if job["kind"] != "tune":
        return _follow_verification(client, job)
    budget = Budget(trials=job["trials"], seconds=job["seconds"])
    with progress(budget, standard_error(), is_quiet=options.quiet) as listener:
        teller = _Teller(job, listener)
        for event in client.follow(job["id"]):
            teller.tell(event)
    ended = client.job(job["id"])
    outcomes = [_outcome(ended["device"], problem) for problem in ended["problems"] if problem["outcome"]]
    if options.json:
        before, after = total_ns(outcomes)
        print_json(
            {
                "device": ended["device"],
                "tool_version": autotune.__version__,
                "is_complete": ended["state"] == "done",
                "outcomes": [plain_outcome(outcome) for outcome in outcomes],
                "total": {"default_ns": before, "tuned_ns": after},
            }
        )
    else:
        print_outcomes(outcomes, sys.stdout, is_wide=options.wide)
    return _status(ended)


def _follow_verification(client: "Client", job: dict[str, Any]) -> int:
    for event in client.follow(job["id"]):
        if event.name == "recheck_finished":
            problem = job["problems"][event.data["problem"]]
            tell(f"{problem['shape']}: {event.data['result']}")
    return _status(client.job(job["id"]))


def _status(job: dict[str, Any]) -> int:
    failed = [problem for problem in job["problems"] if problem["state"] == "failed"]
    if failed:
        raise AutotuneError(f"job {job['id']}: {failed[0]['shape']}: {failed[0]['message']}")
    if job["state"] == "cancelled":
        raise AutotuneError(f"job {job['id']} was cancelled; what it found by then is kept")
    return 0


class _Teller:
    """Passes the events of a job to a listener.

    If several problems run at once, only the trials of the one that started last are shown.
    """

    def __init__(self, job: dict[str, Any], listener: "Listener") -> None:
        self._device = job["device"]
        self._requests = [_request(problem) for problem in job["problems"]]
        self._listener = listener
        self._shown = -1
        self._is_waiting = False

    def tell(self, event: "Event") -> None:
        data = event.data
        if event.name == "job":
            self._tell_job(data)
            return
        number = data["problem"]
        if event.name == "problem_started":
            self._start(number, data)
        elif event.name == "problem_finished":
            self._listener.problem_finished(_outcome_of(self._device, self._requests[number], data["outcome"]))
        elif number == self._shown:
            self._tell_progress(event.name, self._requests[number], data)

    def _tell_progress(self, name: str, request: Request, data: dict[str, Any]) -> None:
        if name == "trial_finished":
            best_ns = float("inf") if data["best_ns"] is None else data["best_ns"]
            self._listener.trial_finished(request, _trial(data["trial"]), data["new_trials"], best_ns)
        elif name == "device_drifted":
            self._listener.device_drifted(request, data["slowdown"], data["rest_s"])
        elif name == "finals_started":
            self._listener.finals_started(request, data["finalists"])

    def _tell_job(self, job: dict[str, Any]) -> None:
        """Report the state of the job, including problems that started before this client followed it."""
        for problem in job["problems"]:
            if problem["progress"] and "configurations" in problem["progress"] and self._shown < problem["number"]:
                self._start(problem["number"], problem["progress"])
        is_waiting = job["state"] == "queued"
        if is_waiting and not self._is_waiting:
            tell(f"job {job['id']} waits for {job['device']}")
        self._is_waiting = is_waiting

    def _start(self, number: int, data: dict[str, Any]) -> None:
        self._shown = number
        request, total = self._requests[number], len(self._requests)
        self._listener.problem_started(request, number + 1, total, data["configurations"], data["resumed"])


def _request(problem: dict[str, Any]) -> Request:
    asked = find_family(problem["family"]).problem_type.from_dict(problem["problem"])
    return Request(problem=asked, calls=problem["calls"], label=problem["label"])


def _trial(plain: dict[str, Any]) -> Trial:
    time_ns = plain["time_ns"]
    measured = None
    if time_ns is not None:
        measured = Measurement(time_ns=time_ns, samples_ns=(time_ns,), calls_per_sample=1, timer=Timer.EVENT)
    return Trial(
        configuration=Configuration.from_dict(plain["configuration"]),
        state=TrialState(plain["state"]),
        measurement=measured,
        message=plain["message"],
    )


def _outcome(device: str, problem: dict[str, Any]) -> "Outcome":
    told = _outcome_of(device, _request(problem), problem["outcome"])
    return replace(told, seconds=problem["spent_s"], is_finished=problem["state"] == "done")


def _outcome_of(device: str, request: Request, plain: dict[str, Any]) -> "Outcome":
    from autotune.search.contract import Outcome

    entry = plain["winner"]
    winner = replace(read_entry(device, parse(json.dumps(entry))), source="measured") if entry else None
    return Outcome(
        request=request,
        winner=winner,
        new_trials=plain["new_trials"],
        resumed_trials=plain["resumed_trials"],
        failures=plain["failures"],
        is_finished=True,
    )


def run_elsewhere(options: argparse.Namespace) -> int:
    """Run the search in the service, with the same output as a local run. Return the exit status."""
    _refuse_what_stays_here(options)

    with open_client(options) as client:
        job = client.submit(options.device, **wanted(options))
        tell_left_out(job)
        try:
            return follow(client, job, options)
        except KeyboardInterrupt:
            client.cancel(job["id"])
            tell(f"job {job['id']} is cancelled; every trial is kept")
            return STOPPED


def _refuse_what_stays_here(options: argparse.Namespace) -> None:
    """Raises UsageError for options that a job of the service does not support."""
    given = [
        name
        for name in ("misses", "retry_quarantined", "db", "until_gain", "sampler_options")
        if getattr(options, name)
    ]
    if options.sampler != "ours":
        given.append("sampler")
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        verb = "is" if len(given) == 1 else "are"
        raise UsageError(f"{names} {verb} supported only for devices of this machine", hint="leave out --server")
