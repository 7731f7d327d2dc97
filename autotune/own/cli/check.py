"""The command `autotune check`: run the default of a kernel file, to find what is wrong before tuning."""

import argparse
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cli.arguments import JSON, argument, command, flag, words
from autotune.cli.output import print_json, print_note
from autotune.errors import AutotuneError
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.model.trial import Job, Trial, TrialState, time_text
from autotune.paths import safe_path

if TYPE_CHECKING:
    from autotune.own.kernel_file.family import FileFamily

WRONG = 1
"""Exit status when a kernel does not run right."""
SEEDS = (0, 1)
SIMULATOR = "oclgrind"
"""A device that finds data races, bad accesses and uninitialised values, thousands of times slower than others."""
SIMULATED_S = 300.0
MOST_COMPLAINTS = 10
REASONS = {
    "INVALID_COMMAND_QUEUE|OUT_OF_RESOURCES": "a fault: the kernel leaves its memory, or reads what is not aligned, as "
    "NVIDIA's local void * is not; or a work-group that needs more registers than there are",
    "INVALID_WORK_GROUP_SIZE": "is global_size a multiple of local_size, and local_size what the kernel asks for?",
    "INVALID_ARG_SIZE": "is a scalar of another type than the kernel's, a structure packed or of other members, or "
    "local memory of 0 bytes?",
    "INVALID_KERNEL_NAME": "the source has no kernel of this name",
    "sub_group_": "has the device sub-groups, as autotune devices tells? The constraint has_sub_groups asks",
}
"""What a driver may mean by its refusals."""


@command(
    argument("file", metavar="FILE", type=Path, help="the kernel file, such as kernel.toml"),
    words("--device", "D", "devices to check on; all unless given"),
    flag("--small", "only the sizes listed under `check` in the file"),
    flag("--no-simulator", "do not look for races and bad accesses with Oclgrind, where it is installed"),
    JSON,
    examples=("check kernel.toml", "check kernel.toml --device adreno cpu --small"),
)
def check_command(options: argparse.Namespace) -> int:
    """Compare the default of a kernel file with its reference; at all its sizes, on every device.

    Where Oclgrind is installed, it looks for data races, accesses outside a buffer and uninitialised values, at the
    sizes listed under `check`.
    """
    from autotune.own.tuning import use_kernel_file

    family = use_kernel_file(options.file)
    from autotune.own.kernel_file.signature import doubts

    for doubt in doubts(family.file):
        print_note(f"note: {doubt}")
    is_small = options.small and family.file.check
    from autotune.device.discovery import find_devices

    devices = find_devices(options.device)
    rows = []
    for device in devices:
        print_note(f"checking {family.name} on {device.slug} ...")
        rows += [(device, problem, trial) for problem, trial in _checked(device, family, is_small=bool(is_small))]
        if not options.json:
            _print(device, [(problem, trial) for one, problem, trial in rows if one is device])
    complaints = [] if options.no_simulator else _simulated(family)
    if options.json:
        print_json({"runs": [_plain(*row) for row in rows], "simulator": complaints})
    else:
        print("\n".join(complaints), end="\n" if complaints else "")
    wrong = [trial for _, _, trial in rows if trial.state is not TrialState.COMPLETE]
    if not wrong and not complaints and not options.json:
        print(f"{len(rows)} runs are right")
    given = family.file.reference
    if not (given.kernel or given.python or given.outputs):
        print_note("there is no reference: the default was compared with itself only")
    return WRONG if wrong or complaints or not rows else 0


def _simulated(family: "FileFamily") -> list[str]:
    """Return what Oclgrind complains of at the small sizes, each complaint once; empty where it is not installed."""
    from autotune.measure.operands import SIMULATED  # loads NumPy

    program = shutil.which(SIMULATOR)
    if program is None or os.environ.get(SIMULATED):
        return []
    if not family.file.check:
        print_note("Oclgrind is not used: it needs small sizes, listed under `check`")
        return []
    print_note(f"looking for races and bad accesses with Oclgrind, at most {SIMULATED_S:.0f} s ...")
    has_images = any(entry.image or entry.line for entry in family.file.arguments.values())
    # Oclgrind takes all that is in an image for uninitialised.
    for checks in (("--data-races", "--uninitialized"), ("--data-races",))[has_images:]:
        text = _log_of_simulator([program, *checks], family.file.path)
        fatal = re.search(r"FATAL ERROR.*\n(.*)", text)
        if not fatal:
            break
        print_note(f"Oclgrind gave up with {' '.join(checks)}: {fatal[1]}")
    found = dict.fromkeys(filter(None, map(_complaint, re.split(r"\n(?=\S)", text))))
    return [f"oclgrind: {line}" for line in list(found)[:MOST_COMPLAINTS]]


def _log_of_simulator(simulator: list[str], file: Path) -> str:
    """Return what Oclgrind writes of a check at the small sizes; empty, and told why, if it cannot run it."""
    from autotune.measure.operands import SIMULATED

    ours = [sys.executable, "-m", "autotune", "check", str(file), "--small", "--device", SIMULATOR]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        environment = {**os.environ, **safe_path(), SIMULATED: "1"}
        try:
            done = subprocess.run(  # noqa: S603 - our own command
                [*simulator, "--log", str(log), *ours],
                env=environment, capture_output=True, text=True, timeout=SIMULATED_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            print_note("Oclgrind was stopped: these sizes take it too long")
            return ""
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if "FATAL ERROR" not in text:  # what it did not run to the end is not right
        for line in re.findall(rf"(?m)^{SIMULATOR}\S* (.*: wrong result: .*)", done.stdout):
            print_note(f"under Oclgrind:{line}")
    if done.returncode not in (0, WRONG) and not text:
        print_note(f"Oclgrind could not run it: {(done.stderr.strip() or done.stdout.strip())[-300:]}")
    return text


def _complaint(output: str) -> str:
    """Return a complaint of Oclgrind in one line, without addresses; empty for anything else.

    A race has two places: that of each access.
    """
    lines = output.strip().splitlines()
    what = re.sub(r" (at|to|from)( \w+){0,3} (memory )?address 0x[0-9a-f]+", "", lines[0]) if lines else ""
    if "FATAL ERROR" in what or not re.search(
        r"race|[Ii]nvalid|[Uu]ninitialized|exceeds|outside|out of|alignment|divergence", what
    ):
        return ""
    kernel = next((line.split(":")[1].strip() for line in lines if "Kernel:" in line), "")
    known = [line.strip().rstrip(":").removeprefix("At ") for line in lines if re.search("At line (?!0 )", line)]
    places = dict.fromkeys(known)
    place = f" ({' and '.join(places)})" if places else ""
    return f"{kernel}: {what}{place}"


def _checked(device: Device, family: "FileFamily", *, is_small: bool) -> Iterator[tuple[Problem, Trial]]:
    """Yield the default at every size that fits the device, run on fresh inputs."""
    from autotune.measure.worker import Worker

    with Worker(selector=device.selector) as worker:
        problems = family.examples()
        for problem in dict.fromkeys(problems[: len(family.file.check)] if is_small else problems):
            try:
                problem.check_device(device.limits)
            except AutotuneError as error:
                print_note(f"left out: {error.message}")
                continue
            yield problem, _run(worker, device, family, problem, family.usual)


def _run(worker: Any, device: Device, family: "FileFamily", problem: Problem, configuration: Configuration) -> Trial:
    from autotune.measure.operands import SIMULATED

    broken = family.violations(problem, configuration, device.limits)
    trial = Trial(configuration=configuration, state=TrialState.INVALID, message="; ".join(broken), seed=0)
    is_probed = not os.environ.get(SIMULATED)  # a probe of a kernel reads what those before it did not write
    for seed in () if broken else SEEDS:
        job = Job(selector=device.selector, problem=problem, configuration=configuration, samples=1, seed=seed)
        trial = worker.run(dataclasses.replace(job, give_up_above_ns=float("inf"), probe=is_probed))
        if trial.state is not TrialState.COMPLETE:
            break
    return trial


def _print(device: Device, rows: list[tuple[Problem, Trial]]) -> None:
    for problem, trial in rows:
        measured = trial.measurement
        verdict = f"right, {time_text(measured.time_ns)}" if measured else trial.state.value
        verdict += f": {trial.message}" if trial.message else ""
        verdict += "".join(f" ({reason})" for refusal, reason in REASONS.items() if re.search(refusal, trial.message))
        print(f"{device.slug}  {problem.label}  {trial.configuration.algorithm}: {verdict}")


def _plain(device: Device, problem: Problem, trial: Trial) -> dict[str, Any]:
    return {
        "device": device.slug,
        "problem": problem.to_dict(),
        "configuration": {"algorithm": trial.configuration.algorithm, **dict(trial.configuration.values)},
        "state": trial.state.value,
        "message": trial.message,
        "time_ns": trial.measurement.time_ns if trial.measurement else None,
    }
