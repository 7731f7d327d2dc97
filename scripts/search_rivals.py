"""Other people's search strategies on one recorded space; `bench_search` runs this in their own environment.

    PYTHON search_rivals.py kernel_tuner SPACE.csv.gz --seeds 0 20 --budget 200 [--names pso,diff_evo]
    PYTHON search_rivals.py optuna SPACE.csv.gz --names gp --seeds 0 20 --budget 200

Needs kernel_tuner, or optuna (with torch and scipy for its GP sampler), beside NumPy. Prints one line of JSON a run:
the name, the seed, the rows of the file in the order of their first evaluation, and the seconds taken. Only what the
recorded space holds counts as an evaluation; proposals outside it are refused without charge, repeats are free.
"""

import argparse
import contextlib
import csv
import functools
import gzip
import io
import json
import math
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

RUN_LIMIT_S = 120
"""A run that takes longer, as some strategies do that no longer find anything new, ends with what it has."""
IDLE_PROPOSALS = 2000
"""Proposals in a row without a new configuration after which an Optuna sampler has ended."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "diff_evo_10": ("diff_evo", {"popsize": 10, "popsize_times_dimensions": False})
}
"""Strategies of Kernel Tuner with options other than its own defaults."""


class Recorded:
    """A recorded space: each configuration's values and time, NaN where it failed."""

    def __init__(self, path: Path) -> None:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8", newline="") as file:
            header, *lines = csv.reader(file)
        self.names = header[:-1]
        self.rows = [tuple(_number(text) for text in line[:-1]) for line in lines]
        self.times_ms = [float(line[-1]) if line[-1] else math.nan for line in lines]
        self.values = {name: sorted({row[i] for row in self.rows}, key=_order) for i, name in enumerate(self.names)}


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def _order(value: float | str) -> tuple[bool, float, str]:
    return (True, 0.0, value) if isinstance(value, str) else (False, float(value), "")


class OutOfTimeError(BaseException):
    """Raised by the alarm; no strategy catches it."""


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise OutOfTimeError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    except OutOfTimeError:
        pass
    finally:
        signal.alarm(0)


class KernelTuner:
    """Kernel Tuner's strategies on its simulation runner.

    Every run has a search space of its own: one that was used keeps neighbours that later runs then prefer.
    """

    def __init__(self, space: Recorded) -> None:
        import kernel_tuner
        from kernel_tuner import interface, util
        from kernel_tuner.searchspace import Searchspace

        self.version = kernel_tuner.__version__ if hasattr(kernel_tuner, "__version__") else ""
        self._interface, self._util = interface, util
        self._results = {}
        for row, time_ms in zip(space.rows, space.times_ms, strict=True):
            result = dict(zip(space.names, row, strict=True))
            if math.isnan(time_ms):
                result["__error__"] = util.RuntimeFailedConfig()
            else:
                result["time"] = time_ms
            self._results[",".join(str(value) for value in row)] = result
        self._numbers = {key: number for number, key in enumerate(self._results)}
        self._values = {name: list(values) for name, values in space.values.items()}
        recorded = {key: {n: r[n] for n in space.names} for key, r in self._results.items()}
        self._make_space = functools.partial(
            Searchspace, None, None, None, from_cache={"tune_params": self._values, "cache": recorded}
        )

    def names(self) -> list[str]:
        left_out = {"brute_force", "nsga2", "nsga3", "skopt", "pyatf_strategies"}
        return [n for n in self._interface.strategy_map if n not in left_out] + list(VARIANTS)

    def run(self, name: str, seed: int, budget: int) -> list[int]:
        strategy, options = VARIANTS.get(name, (name, {}))
        seen: dict[str, None] = {}
        results = self._results

        class Cache(dict[str, Any]):
            def __contains__(self, key: object) -> bool:
                return key in results

            def __getitem__(self, key: str) -> Any:
                seen.setdefault(key)
                return results[key]

        kernel_options = self._interface.Options(kernel_name="recorded")
        runner = self._runner(kernel_options)
        space = self._make_space()
        tuning = self._tuning_options(options, budget, seed)
        tuning["restrictions"] = space._modified_restrictions
        tuning["cache"] = Cache()
        random.seed(seed)
        np.random.seed(seed)
        quietly = contextlib.redirect_stdout(io.StringIO())
        with limited(RUN_LIMIT_S), quietly, contextlib.suppress(self._util.StopCriterionReached):
            self._interface.strategy_map[strategy].tune(space, runner, tuning)
        return [self._numbers[key] for key in seen][:budget]

    def _runner(self, kernel_options: Any) -> Any:
        from kernel_tuner.runners.simulation import SimulationRunner

        return SimulationRunner(None, kernel_options, self._interface.Options(quiet=True), 7, None)

    def _tuning_options(self, options: dict[str, Any], budget: int, seed: int) -> Any:
        make = self._interface.Options
        return make(
            strategy_options=make(max_fevals=budget, **options),
            max_fevals=budget,
            budget=self._util.TuningBudget(None, budget),
            objective=["time"],
            objective_higher_is_better=[False],
            tune_params=self._values,
            metrics=None,
            verbose=False,
            seed=seed,
            simulated_time=0,
            time_limit=None,
            cachefile=None,
        )


class Optuna:
    """Optuna's own samplers, which do not know which configurations are valid."""

    def __init__(self, space: Recorded) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.version = optuna.__version__
        self._optuna = optuna
        self._space = space
        self._numbers = {row: number for number, row in enumerate(space.rows)}

    def names(self) -> list[str]:
        return ["tpe", "gp"]

    def run(self, name: str, seed: int, budget: int) -> list[int]:
        samplers = self._optuna.samplers
        sampler = samplers.TPESampler(seed=seed) if name == "tpe" else samplers.GPSampler(seed=seed)
        study = self._optuna.create_study(sampler=sampler)
        seen: dict[int, None] = {}
        idle = 0
        with limited(RUN_LIMIT_S):
            while len(seen) < min(budget, len(self._space.rows)) and idle < IDLE_PROPOSALS:
                trial = study.ask()
                row = self._numbers.get(tuple(self._suggest(trial, p) for p in self._space.names))
                idle = 0 if row is not None and row not in seen else idle + 1
                if row is None or math.isnan(self._space.times_ms[row]):
                    study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
                else:
                    study.tell(trial, math.log(self._space.times_ms[row]))
                if row is not None:
                    seen.setdefault(row)
        return list(seen)

    def _suggest(self, trial: Any, name: str) -> Any:
        values = self._space.values[name]
        if any(isinstance(value, str) for value in values):
            return trial.suggest_categorical(name, values)
        return values[trial.suggest_int(name, 0, len(values) - 1)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tuner", choices=("kernel_tuner", "optuna"))
    parser.add_argument("space", type=Path)
    parser.add_argument("--names", help="strategies, separated by commas (default: all)")
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 20), metavar=("FIRST", "END"))
    parser.add_argument("--budget", type=int, default=200)
    arguments = parser.parse_args()
    space = Recorded(arguments.space)
    tuner = (KernelTuner if arguments.tuner == "kernel_tuner" else Optuna)(space)
    for name in arguments.names.split(",") if arguments.names else tuner.names():
        for seed in range(*arguments.seeds):
            started = time.perf_counter()
            try:
                rows = tuner.run(name, seed, arguments.budget)
            except ImportError as error:
                print(json.dumps({"name": name, "skipped": str(error)}), flush=True)
                break
            seconds = time.perf_counter() - started
            line = {"name": name, "seed": seed, "rows": rows, "seconds": seconds, "version": tuner.version}
            print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
