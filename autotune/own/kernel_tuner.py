"""The trials of one problem as other tuners read them: T4 results, and a cache that Kernel Tuner replays.

Both hold each configuration once, as the search judges it: under the present driver and kernels, with its best time
corrected for drift. Times are in milliseconds.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import autotune
from autotune.errors import UsageError
from autotune.kernels import find_family
from autotune.model.configuration import Configuration, Value
from autotune.model.problem import Problem
from autotune.model.trial import Trial, TrialState
from autotune.space.family import KernelFamily

if TYPE_CHECKING:
    from autotune.store import Store

INVALIDITY = {
    TrialState.COMPLETE: "correct",
    TrialState.INVALID: "constraints",
    TrialState.COMPILE_FAILED: "compile",
    TrialState.LAUNCH_FAILED: "runtime",
    TrialState.CRASHED: "runtime",
    TrialState.WRONG_RESULT: "correctness",
    TrialState.TIMED_OUT: "timeout",
    TrialState.CUT_SHORT: "timeout",
    TrialState.TOO_SLOW: "timeout",
}
"""T4's word for how a trial ended. A failure of autotune itself says nothing of the kernel and is left out."""
_ERRORS = {"constraints": "InvalidConfig", "compile": "CompilationFailedConfig"}
_OTHER_ERROR = "RuntimeFailedConfig"
_ABSENT = "none"


def export_trials(store: "Store", slug: str, family: str, shape: str | None, form: str) -> str:
    """Return the trials of one problem as ``t4`` or as a ``kernel-tuner`` cache.

    Without a shape, the device must have trials of one problem only. Raises UsageError when there is none or several,
    ProblemError for a shape of another family.
    """
    known = find_family(family)
    problems = list(dict.fromkeys(winner.problem for winner in store.best(slug, family)))
    if shape is not None:
        problems = [problem for problem in problems if problem == known.problem_type.parse(shape)]
    if len(problems) != 1:
        labels = ", ".join(problem.label for problem in problems)
        what = (
            f"several shapes are stored: {labels}" if problems else f"no such trials of {family} on {slug} are stored"
        )
        raise UsageError(what, hint="choose one with --shape" if problems else "autotune status shows what there is")
    exported = _Trials(store, slug, known, problems[0])
    return json.dumps(exported.as_t4() if form == "t4" else exported.as_cache(), ensure_ascii=False) + "\n"


class _Trials:
    """What is known of each configuration of a problem, in the order of their first trials."""

    def __init__(self, store: "Store", slug: str, family: KernelFamily, problem: Problem) -> None:
        from autotune.search.knowledge import Knowledge

        self._device = [device for device in store.devices() if device.slug == slug][-1]
        self._problem, self._family = problem, family
        judged = Knowledge(self._device, problem, store).known
        self._moments: dict[Configuration, str] = {}
        for stored in store.trials(slug, family.name, problem):
            self._moments.setdefault(stored.trial.configuration, stored.provenance.measured_at)
        self._trials = [judged[c] for c in self._moments if c in judged and judged[c].state in INVALIDITY]
        if not self._trials:
            raise UsageError(
                f"every trial of {problem.label} was measured with another driver or kernel",
                hint="tune it again",
            )
        used = {trial.configuration.algorithm for trial in self._trials}
        algorithms = [algorithm for algorithm in family.algorithms if algorithm.name in used]
        self._names = {p.name: p.is_numeric for algorithm in algorithms for p in algorithm.parameters}
        self._has_algorithm = len(algorithms) > 1
        winner = store.winner(slug, problem)
        self._winner = winner.configuration.to_dict() if winner else None

    def as_t4(self) -> dict[str, Any]:
        return {
            **self._heading(),
            "schema_version": "1.0.0",
            "results": [self._result(trial) for trial in self._trials],
        }

    def as_cache(self) -> dict[str, Any]:
        """Return the content of a cache; Kernel Tuner wants the member `cache` last."""
        entries = {}
        for trial in self._trials:
            values = self._values(trial.configuration)
            entries[",".join(map(str, values.values()))] = {**values, **self._cached(trial)}
        columns: dict[str, list[Value]] = {}
        for entry in entries.values():
            for name in values:
                columns.setdefault(name, []).append(entry[name])
        return {
            **self._heading(),
            "device_name": self._device.name,
            "kernel_name": self._family.name,
            "problem_size": list(self._problem.size_vector),
            "tune_params_keys": list(columns),
            "tune_params": {
                name: sorted(set(found), key=lambda v: (str(type(v)), v)) for name, found in columns.items()
            },
            "objective": "time",
            "cache": entries,
        }

    def _heading(self) -> dict[str, Any]:
        return {
            "tool": f"autotune {autotune.__version__}",
            "metadata": {
                "timeunit": "milliseconds",
                "device": self._device.slug,
                "driver": self._device.driver,
                "family": self._family.name,
                "problem": self._problem.to_dict(),
                "winner": self._winner,
            },
        }

    def _values(self, configuration: Configuration) -> dict[str, Value]:
        """Return a value for every parameter of every algorithm: 0 or ``none`` for those of other algorithms."""
        own = dict(self._family.complete(configuration).values)
        values: dict[str, Value] = {name: 0 if is_number else _ABSENT for name, is_number in self._names.items()}
        chosen: Mapping[str, Value] = {"algorithm": configuration.algorithm} if self._has_algorithm else {}
        return {**chosen, **values, **{name: value for name, value in own.items() if name in values}}

    def _result(self, trial: Trial) -> dict[str, Any]:
        cached, is_right = self._cached(trial), trial.state is TrialState.COMPLETE
        return {
            "timestamp": cached["timestamp"],
            "configuration": self._values(trial.configuration),
            # Named as Kernel Tuner names them, not as in the schema, which requires none.
            "times": {
                "runtimes": cached.get("times", []),
                "compilation": cached["compile_time"],
                "benchmark": cached["benchmark_time"],
                "framework": cached["framework_time"],
                "search_algorithm": cached["strategy_time"],
                "validation": cached["verification_time"],
            },
            "invalidity": INVALIDITY[trial.state],
            "correctness": int(is_right),
            "measurements": [{"name": "time", "value": cached["time"], "unit": "ms"}] if is_right else [],
            "objectives": ["time"],
        }

    def _cached(self, trial: Trial) -> dict[str, Any]:
        measured = trial.measurement
        if measured and trial.state is TrialState.COMPLETE:
            runs = [ns / 1e6 for ns in measured.samples_ns]
            outcome = {"time": measured.time_ns / 1e6, "times": runs}
        else:
            error = _ERRORS.get(INVALIDITY[trial.state], _OTHER_ERROR)
            outcome = {"time": error, "__error__": error}
        return {
            **outcome,
            "compile_time": measured.build_ns / 1e6 if measured else 0.0,
            "benchmark_time": measured.calls_per_sample * sum(measured.samples_ns) / 1e6 if measured else 0.0,
            "verification_time": 0.0,
            "strategy_time": 0.0,
            "framework_time": 0.0,
            "timestamp": self._moments[trial.configuration],
        }
