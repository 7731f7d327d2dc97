"""Checking the result of a bundle and storing it as if its trials had been measured here.

An agent times, and judges nothing: whether outputs are right is found out here, by inputs drawn anew from the seed, and
only what was right can win.
"""

import hashlib
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from autotune.device.quirks import shortened
from autotune.errors import TableError
from autotune.lookup.json_table import MAX_FLOPS_PER_SECOND
from autotune.measure.timing import Sample, Timing
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.events import Outcome
from autotune.model.trial import BUILD_LIMIT_S, RUN_LIMIT_S, Measurement, Timer, Trial, TrialState, Verdict, Winner
from autotune.phone.agent.frames import CONSTANTS, RefusedCommand, how_ended, was_killed
from autotune.phone.agent.recording import described
from autotune.phone.bundle.checks import Checks
from autotune.phone.bundle.note import Task, read_note
from autotune.phone.bundle.result import Failed, Record, Result, Timed
from autotune.search import significance
from autotune.search.driver_faults import with_checkup
from autotune.search.knowledge import FailureCounts, Knowledge
from autotune.store import Store

_BUILDS = {CONSTANTS[name] for name in ("BUILD", "LOAD", "KERNELS")}
_WHY = {CONSTANTS[f"FAILED_{name}"]: name for name in ("REFUSED", "ENDED", "LATE", "SLOW", "DIFFERS", "LOST", "BUSY")}


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What a result contained."""

    device: Device
    outcomes: tuple[Outcome, ...]
    unchecked: int
    """Trials that were timed, but cannot be judged, as when outputs did not come along; they are not stored."""
    refused: tuple[str, ...]
    """Problems of which nothing is stored, and why."""
    seconds: float
    """Device time."""
    is_finished: bool


def collect(result: Result, store: Store) -> Collected:
    """Check a result and store its trials and winners; what is stored already is not stored again.

    Raises TableError for a result that no agent writes, DeviceSelectionError when it does not describe its device.
    """
    if not result.note:
        raise TableError(
            "it does not tell what work it is of", hint="start run.sh again where it ran, and collect the result again"
        )
    note = read_note(result.note)
    if result.chosen is None:
        raise TableError("no device was found where the bundle ran")
    device = with_checkup(described(result.told, result.chosen, result.cpuinfo), store)
    timer = _timer(result)
    outcomes: list[Outcome] = []
    refused: list[str] = []
    unchecked, first = 0, 0
    for number, task in enumerate(note.tasks):
        records = {k: result.records[first + k] for k in range(len(task.configurations)) if first + k in result.records}
        name = f"{result.name.hex()} {number}"
        try:
            collecting = _Collecting(device, task, records, result.contents, store, timer, name)
            outcomes.append(collecting.outcome(is_finished=number in result.solved))
            unchecked += collecting.unchecked
        except TableError as error:
            refused.append(f"{task.problem.label}: {error.message}")
            unchecked += sum(bool(record.timed) for record in records.values())
        first += len(task.configurations)
    is_finished = len(result.solved) == len(note.tasks)
    return Collected(
        device=device,
        outcomes=tuple(outcomes),
        unchecked=unchecked,
        refused=tuple(refused),
        seconds=result.spent_s,
        is_finished=is_finished,
    )


def _timer(result: Result) -> Timer:
    """Return the events of the device, unless a trial shows that they cannot be right."""
    timings = [
        Timing(samples=_samples(t), timer=Timer.EVENT) for r in result.records.values() for t in r.timed.values()
    ]
    is_wrong = any(timing.is_impossible or timing.is_too_short for timing in timings)
    return Timer.HOST if is_wrong else Timer.EVENT


def _samples(timed: Timed) -> tuple[Sample, ...]:
    return tuple(
        Sample(calls=timed.calls, host_ns=host / timed.calls, event_ns=event / timed.calls, prepare_ns=0.0)
        for host, event in timed.samples
    )


class _Collecting:
    """The trials of one problem."""

    def __init__(
        self,
        device: Device,
        task: Task,
        records: Mapping[int, Record],
        contents: Mapping[int, memoryview],
        store: Store,
        timer: Timer,
        name: str,
    ) -> None:
        """`name` is that of the problem in its result, and like no other."""
        self._task = task
        self._records = records
        self._store = store
        self._knowledge = Knowledge(device, task.problem, store)
        self._timer = Timer.HOST if self._knowledge.timer is Timer.HOST else timer
        self._checks = Checks(task, self._knowledge, records, contents)
        self._name = name
        self._failures = FailureCounts()
        self._trials = 0
        self.unchecked = 0

    def outcome(self, *, is_finished: bool) -> Outcome:
        """Store the trials, decide and store the winner."""
        resumed = len(self._knowledge.resumed)
        trials = {number: self._trial(number, record) for number, record in self._records.items()}
        right = [number for number, trial in trials.items() if trial and trial.state is TrialState.COMPLETE]
        finals = {number: final for number in right if (final := self._final(number))}
        for number, trial in trials.items():  # nothing is stored before all was judged
            self.unchecked += trial is None and bool(self._records[number].timed)
            if trial and self._keep(trial, "search", number):
                self._trials += 1
                self._failures.count(trial)
        winner = self._decide(finals) if finals else self._knowledge.record_provisional() if right else None
        return Outcome(
            request=self._task.request,
            winner=winner,
            new_trials=self._trials,
            resumed_trials=resumed,
            failures=self._failures.by_state,
            commonest_failure=self._failures.commonest,
            is_finished=is_finished,
            is_default_open=self._knowledge.is_default_open,
        )

    def _keep(self, trial: Trial, purpose: str, number: int) -> bool:
        """Store and learn from a trial. Returns False if that was done before."""
        knowledge, samples = self._knowledge, len(trial.measurement.samples_ns) if trial.measurement else 0
        name = f"{self._name} {number} {purpose} {trial.state.value} {samples}"
        identity = hashlib.sha256(name.encode()).hexdigest()[:32]
        provenance = knowledge.provenance(trial.configuration)
        is_new = self._store.add_trial(
            knowledge.device, knowledge.problem, trial, provenance, purpose, identity=identity
        )
        if is_new:
            knowledge.learn(trial)
        return is_new

    def _trial(self, number: int, record: Record) -> Trial | None:
        """Return the trial of a candidate; None if it was not begun, or cannot be judged."""
        configuration = self._task.configurations[number]
        broken = self._knowledge.family.violations(self._task.problem, configuration, self._knowledge.device.limits)
        ratio = self._checks.ratio(number)
        failure = self._failure(record.failed) if record.failed else None
        state, message, measurement = TrialState.COMPLETE, "", None
        if broken and (record.timed or record.failed):
            state, message = TrialState.INVALID, broken[0]
        elif ratio is not None and not ratio <= 1.0:
            state, message = TrialState.WRONG_RESULT, f"the error is {ratio:.3g} times the tolerance"
        elif failure and (failure[0] is not TrialState.CUT_SHORT or 0 not in record.timed):
            state, message = failure
        elif (record.failed and not failure) or 0 not in record.timed or ratio is None:
            return None
        else:
            measurement = self._measurement(record, [record.timed[0]], ratio)
        return Trial(
            configuration=configuration,
            state=state,
            message=shortened(message),
            measurement=measurement,
            seed=self._task.seeds[0],
        )

    def _failure(self, failed: Failed) -> tuple[TrialState, str] | None:
        """Return state and message of a failed trial; None where it proves nothing."""
        match _WHY.get(failed.why):
            case "REFUSED":
                refusal = RefusedCommand(failed.number, failed.text)
                if failed.command in _BUILDS:
                    return TrialState.COMPILE_FAILED, str(refusal)
                return (TrialState.INVALID if refusal.is_for_work_group else TrialState.LAUNCH_FAILED), str(refusal)
            case "ENDED" if failed.how != CONSTANTS["ENDED_BY_LIMIT"]:
                is_killed = was_killed(failed.how, failed.number)
                message = how_ended(failed.how, failed.number, failed.command)
                return (TrialState.CUT_SHORT if is_killed else TrialState.CRASHED), message
            case "ENDED" | "LATE" | "BUSY" as why:
                full_s = BUILD_LIMIT_S if failed.command in _BUILDS else RUN_LIMIT_S
                is_hung = why != "BUSY" and failed.number >= 1000 * full_s
                message = f"no answer within {failed.number / 1000:g} s{' on a busy machine' if why == 'BUSY' else ''}"
                return (TrialState.TIMED_OUT if is_hung else TrialState.CUT_SHORT), message
            case "SLOW":
                return TrialState.TOO_SLOW, f"not run in full: a call would take {failed.number} ms"
            case "LOST":
                return TrialState.CRASHED, "it was running when the machine restarted, or everything was killed"
            case "DIFFERS" if self._is_reference_right:
                return TrialState.WRONG_RESULT, "its output is far from that of the plainest kernel"
        return None

    @cached_property
    def _is_reference_right(self) -> bool:
        ratio = self._checks.ratio(0) if 0 in self._records else None
        return ratio is not None and ratio <= 1.0

    def _measurement(self, record: Record, timed: list[Timed], error_ratio: float) -> Measurement:
        samples = [sample for one in timed for sample in _samples(one)]
        times_ns = tuple(sample.by(self._timer) for sample in samples)
        time_ns = statistics.median(times_ns)
        if self._task.problem.flops / min(times_ns) * 1e9 > MAX_FLOPS_PER_SECOND:
            raise TableError(f"{min(times_ns):g} ns is faster than any device")
        build_ns, limit, private_bytes = record.built
        return Measurement(
            time_ns=time_ns,
            samples_ns=times_ns,
            calls_per_sample=timed[0].calls,
            timer=self._timer,
            launch_overhead_ns=max(0.0, statistics.median(sample.host_ns for sample in samples) - time_ns),
            build_ns=float(min(build_ns, 10**15)),
            error_ratio=error_ratio,
            private_memory_bytes=min(private_bytes, 2**62),
            kernel_work_group_limit=min(limit, 2**62),
        )

    # The race

    def _final(self, number: int) -> Trial | None:
        """Return the trial of a right candidate in the race; None if it took no part."""
        rounds = self._rounds(number)
        if not rounds:
            return None
        return Trial(
            configuration=self._task.configurations[number],
            state=TrialState.COMPLETE,
            measurement=self._measurement(self._records[number], rounds, self._checks.ratio(number) or 0.0),
            seed=self._task.seeds[0],
        )

    def _decide(self, finals: Mapping[int, Trial]) -> Winner:
        """Return the winner by the race; a sound one from before that took no part stays if it is faster."""
        times: dict[Configuration, dict[int, float]] = {}
        samples: dict[Configuration, int] = {}
        for number, trial in finals.items():
            self._keep(trial, "final", number)
            times[trial.configuration] = {
                one.round: statistics.median(sample.by(self._timer) for sample in _samples(one))
                for one in self._rounds(number)
            }
            samples[trial.configuration] = len(trial.measurement.samples_ns) if trial.measurement else 0
        knowledge = self._knowledge
        incumbent, decided = knowledge.incumbent, knowledge.decided
        decision = self._decision(times, incumbent.configuration if incumbent else None)
        time_ns = statistics.median(times[decision.configuration].values())
        took_no_part = decided and decided.source == "measured" and decided.configuration not in times
        if decided and took_no_part and decided.time_ns <= time_ns:
            return decided
        is_early = decision.verdict is Verdict.PROVISIONAL
        winner = knowledge.winner(
            decision,
            time_ns,
            samples=0 if is_early else samples[decision.configuration],
            verifications=self._checks.count(self._task.configurations.index(decision.configuration)),
        )
        self._store.record_winner(winner)
        return winner

    def _decision(
        self, times: Mapping[Configuration, Mapping[int, float]], incumbent: Configuration | None
    ) -> significance.Decision:
        knowledge = self._knowledge
        times = _comparable(times, knowledge.default)
        if max(len(rounds) for rounds in times.values()) < significance.LOOKS[0]:
            return significance.decide_early(times, knowledge.default)
        return significance.decide(times, knowledge.default, incumbent, baseline=knowledge.family.baseline)

    def _rounds(self, number: int) -> list[Timed]:
        """Return the rounds of a trial in the race, without those of an impossible number."""
        timed = self._records[number].timed
        return [timed[turn] for turn in sorted(timed) if 0 < turn <= significance.LOOKS[-1]]


def _comparable(times: significance.Times, default: Configuration) -> significance.Times:
    """Return the finalists of which each two shared a round: the default, then those with most rounds.

    Others took part in different starts of the agent, as when one start chose other finalists than the next.
    """
    kept: dict[Configuration, Mapping[int, float]] = {}
    for configuration in sorted(times, key=lambda c: (c != default, -len(times[c]))):
        if all(times[configuration].keys() & rounds.keys() for rounds in kept.values()):
            kept[configuration] = times[configuration]
    return kept
