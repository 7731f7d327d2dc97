"""What `bench_reduce` and `bench_rows` share: tuning, calls in turns with a rival and copies, the table, the JSON.

One copy is of up to 1 GiB, beside which launches cost nothing; the other moves as many bytes as the operation.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pyopencl as cl
import pyopencl.array

from autotune.device.discovery import discover, select
from autotune.errors import AutotuneError
from autotune.kernels import find_family
from autotune.lookup import TuningTable
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.events import Event, ProblemFinished, ProblemStarted, TrialFinished
from autotune.model.plan import Role
from autotune.model.problem import Problem
from autotune.model.trial import Request, Trial, TrialState
from autotune.runtime import Operation
from autotune.search import Budget, tune
from autotune.store import Store

MIB = 2**20
ROTATED_BYTES = 256 * MIB
MOST_SETS = 128
SAMPLE_NS = 20_000_000
MOST_CALLS = 4000

Calls = Callable[[int], None]
"""Makes so many calls in a row and waits for them."""
Inputs = Mapping[str, Any]
"""NumPy arrays by the names of the family's buffers."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """A family, and how others compute the same."""

    family: str
    shapes: tuple[str, ...]
    numpy_call: Callable[[Any, Inputs], Callable[[], object]]
    """For a problem and its inputs, returns one call in NumPy."""
    torch_call: Callable[[Any, Any, Inputs], Callable[[], object]]
    """The same in torch, whose module is passed first, on tensors that lie on the card."""


def run(contest: Contest, about: str | None) -> int:
    """Tune and compare as the command line says, and return the exit status."""
    try:
        _run(contest, _parse_arguments(about))
    except AutotuneError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    return 0


def _run(contest: Contest, arguments: argparse.Namespace) -> None:
    device, family = select(arguments.device, discover()), find_family(contest.family)
    problems = [family.problem_type.parse(text) for text in arguments.shape or contest.shapes]
    with tempfile.TemporaryDirectory() as folder:
        database = arguments.db or Path(folder) / "bench.sqlite"
        _tune(device, problems, database, arguments.budget)
        bench = _Bench(contest, device, database, arguments.rounds)
        rows: list[dict[str, Any]] = []
        for problem in problems:
            rows.append(bench.compare(problem))
            print(" ".join(_cells(rows[-1])), file=sys.stderr, flush=True)
            if arguments.json:
                _write(arguments.json, bench, rows)
    _print_table(bench, rows)


def _write(path: Path, bench: "_Bench", rows: list[dict[str, Any]]) -> None:
    report = {
        "device": bench.device.slug,
        "driver": bench.device.driver,
        "rival": bench.rival_name,
        "copy_gb_per_s": bench.copy_gb_per_s,
        "rounds": bench.rounds,
        "results": rows,
    }
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _parse_arguments(about: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="gpu", help="slug, family or platform:device (default: gpu)")
    parser.add_argument("--shape", action="append", help="as in autotune run; may be repeated")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tuning for each shape (default: 60)")
    parser.add_argument("--db", type=Path, help="database of tuned configurations (default: one for this run)")
    parser.add_argument("--rounds", type=int, default=15, help="samples of each (default: 15)")
    parser.add_argument("--json", type=Path, help="write the results here too")
    return parser.parse_args()


# Tuning


def _tune(device: Device, problems: list[Problem], database: Path, budget_s: float) -> None:
    with Store.open(database) as store:
        store.add_device(device)
        if budget_s > 0:
            requests = [Request(problem=problem) for problem in problems]
            tune(device, requests, store, Budget(seconds=budget_s * len(problems)), _print_progress)
        for problem in problems:
            _print_best_of_each_algorithm(device, store, problem)


def _print_best_of_each_algorithm(device: Device, store: Store, problem: Problem) -> None:
    best: dict[str, Trial] = {}
    for stored in store.trials(device.slug, problem.family, problem):
        trial = stored.trial
        known = best.get(trial.configuration.algorithm)
        if trial.state is TrialState.COMPLETE and (known is None or trial.time_ns < known.time_ns):
            best[trial.configuration.algorithm] = trial
    for trial in sorted(best.values(), key=lambda t: t.time_ns):
        print(f"{problem.label}: {trial.time_ns / 1e3:10.2f} us  {trial.configuration}", file=sys.stderr)


def _print_progress(event: Event) -> None:
    match event:
        case ProblemStarted(number=number, total=total, configurations=count, resumed_trials=resumed):
            told = f"{number}/{total} {event.request.problem.label}: {count} configurations, {resumed} known"
            print(told, file=sys.stderr)
        case TrialFinished(trial=trial, best_ns=best_ns) if trial.state is not TrialState.COMPLETE:
            told = f"  {event.request.problem.label} trial {event.new_trials}, best so far {best_ns / 1e3:.2f} us"
            print(f"{told}: {trial.state.value}: {trial.configuration}: {trial.message[:200]}", file=sys.stderr)
        case ProblemFinished():
            print(f"  {event.outcome.new_trials} trials", file=sys.stderr)


# Measuring


class _Bench:
    """Tuned kernels as the runtime calls them, rival and copy on one device."""

    def __init__(self, contest: Contest, device: Device, database: Path, rounds: int) -> None:
        self.device, self.rounds = device, rounds
        self._contest = contest
        self._table = TuningTable.open(str(database))
        self._operation = Operation(contest.family, device.selector, table=self._table, verify=False)
        self.torch = _torch() if device.family == "nvidia" else None
        self.rival_name = f"torch {self.torch.__version__}" if self.torch else f"NumPy {np.__version__}"
        self._source, self._target, self._size = self._copied()
        self.copy_gb_per_s = 0.0

    def compare(self, problem: Problem) -> dict[str, Any]:
        """Return the medians of one shape. Raises AutotuneError when the result is wrong."""
        family = find_family(self._contest.family)
        case = family.make_case(problem, 2)
        plan = family.plan(problem, family.baseline)
        inputs = {b.name: case.inputs[b.name] for b in plan.buffers if b.role is Role.INPUT}
        sets = max(2, min(MOST_SETS, math.ceil(ROTATED_BYTES / problem.bytes_moved) + 1))
        outputs = {b.name: case.inputs[b.name] for b in plan.buffers if b.role is Role.OUTPUT}
        tuned = [self._bind(problem, {**inputs, **outputs}) for _ in range(sets)]
        results = {name: array.get() for name, array in tuned[0]().items()}
        ratio = case.error_ratio(results)
        found = self._table.find(self.device.slug, problem)
        if not ratio <= 1:
            raise AutotuneError(f"{problem.label}: {found.configuration} is wrong: {ratio:.3g} times the tolerance")
        finish = self._operation.finish
        calls = {
            "tuned": _in_a_row(tuned, finish),
            "rival": self._rival(problem, inputs, sets),
            "copy": self._copy(self._size, 1),
            "equal_copy": self._copy(min(math.ceil(problem.bytes_moved / 2), self._size), sets),
        }
        samples = self._in_turns(calls)
        del tuned, calls
        if self.torch is not None:
            self.torch.cuda.empty_cache()
        medians = {name: statistics.median(times) / 1e3 for name, times in samples.items()}
        self.copy_gb_per_s = 2 * self._size / medians["copy"] / 1e3
        bandwidth = problem.bytes_moved / medians["tuned"] / 1e3
        return {
            "shape": problem.label,
            "configuration": found.configuration.to_dict(),
            "match": found.match.value,
            "sets": sets,
            "call_us": medians["tuned"],
            "gb_per_s": bandwidth,
            "of_copy": bandwidth / self.copy_gb_per_s,
            "of_equal_copy": medians["equal_copy"] / medians["tuned"],
            "copy_gb_per_s": self.copy_gb_per_s,
            "rival_call_us": medians["rival"],
            "times_rival": medians["rival"] / medians["tuned"],
            "samples_us": {name: [t / 1e3 for t in times] for name, times in samples.items()},
        }

    def _bind(self, problem: Problem, operands: Inputs) -> Callable[[], Any]:
        queue = self._operation.queue
        bound = self._operation.bind(problem, **{n: cl.array.to_device(queue, v) for n, v in operands.items()})
        bound()
        return bound

    def _in_turns(self, calls: dict[str, Calls]) -> dict[str, list[float]]:
        """Return nanoseconds of one call in each round, by the host's clock."""
        counts = {name: _calls_for_a_sample(call) for name, call in calls.items()}
        samples: dict[str, list[float]] = {name: [] for name in calls}
        names = list(calls)
        for number in range(self.rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                samples[name].append(_clock(calls[name], counts[name]))
        return samples

    def _copied(self) -> tuple[cl.Buffer, cl.Buffer, int]:
        """Return two buffers far larger than any cache, and their size in bytes."""
        limits, queue = self.device.limits, self._operation.queue
        size = min(
            (256 if limits.is_cpu else 1024) * MIB, limits.max_allocation_bytes // 2, limits.global_memory_bytes // 8
        )
        source, target = (cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, size) for _ in range(2))
        for buffer in (source, target):
            cl.enqueue_fill_buffer(queue, buffer, np.float32(1), 0, size // 4 * 4)
        return source, target, size

    def _copy(self, size: int, sets: int) -> Calls:
        """Return copies of so many bytes, at `sets` places in turns."""
        queue = self._operation.queue
        starts = range(0, min(sets * size, self._size - size + 1), size)

        def copy(start: int) -> None:
            cl.enqueue_copy(queue, self._target, self._source, byte_count=size, src_offset=start, dst_offset=start)

        return _in_a_row([partial(copy, start) for start in starts], queue.finish)

    def _rival(self, problem: Problem, inputs: Inputs, sets: int) -> Calls:
        if self.torch is None:
            copies = [{name: values.copy() for name, values in inputs.items()} for _ in range(sets)]
            return _in_a_row([self._contest.numpy_call(problem, one) for one in copies], lambda: None)
        torch = self.torch
        on_card = [{name: torch.from_numpy(values).cuda() for name, values in inputs.items()} for _ in range(sets)]
        return _in_a_row([self._contest.torch_call(torch, problem, one) for one in on_card], torch.cuda.synchronize)


def _in_a_row(calls: list[Callable[[], object]], wait: Callable[[], object]) -> Calls:
    """Return what makes many calls, one after the other of these, and then waits."""
    turn = 0

    def make(count: int) -> None:
        nonlocal turn
        for _ in range(count):
            calls[turn]()
            turn = (turn + 1) % len(calls)
        wait()

    return make


def _clock(call: Calls, count: int) -> float:
    start = time.perf_counter_ns()
    call(count)
    return (time.perf_counter_ns() - start) / count


def _calls_for_a_sample(call: Calls) -> int:
    call(3)
    return max(2, min(MOST_CALLS, math.ceil(SAMPLE_NS / _clock(call, 5))))


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def _print_table(bench: _Bench, rows: list[dict[str, Any]]) -> None:
    print(f"\n{bench.device.name}, driver {bench.device.driver}; copy {bench.copy_gb_per_s:.0f} GB/s\n")
    heads = ("shape", "call us", "GB/s", "of copy", "of equal copy", f"{bench.rival_name} us", "gain")
    lines = [heads, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    for line in lines:
        cells = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("  ".join([line[0].ljust(widths[0]), *cells]))
    print()
    for row in rows:
        print(f"{row['shape']}: {Configuration.from_dict(row['configuration'])}")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["shape"],
        f"{row['call_us']:.2f}",
        f"{row['gb_per_s']:.0f}",
        f"{row['of_copy']:.1%}",
        f"{row['of_equal_copy']:.1%}",
        f"{row['rival_call_us']:.2f}",
        f"{row['times_rival']:.2f}x",
    )
