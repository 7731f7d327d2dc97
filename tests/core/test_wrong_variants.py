"""Kernels that are wrong on purpose: the measurer refuses all of them, or Oclgrind tells what a device lets pass."""

from pathlib import Path

import pytest

from autotune.kernels import find_family
from autotune.measure.measurer import Measurer
from autotune.measure.operands import SIMULATED
from autotune.model.device import Device
from autotune.model.trial import Trial, TrialState
from autotune.own.kernel_file.family import FileFamily
from core.test_gate import Oclgrind
from covering import Sample
from factories import quick_job
from kernel_files import registered
from wrong_variants import KERNELS, Change

pytestmark = pytest.mark.long

ROUNDS = 3
"""Jobs, of fresh inputs each, as a configuration that wins has: two of the search, and one of the finals."""


def judged(device: Device, measurer: Measurer, family: FileFamily) -> Trial:
    """Return the first trial that is not complete, as a search that believes in the configuration would come to it."""
    problem = family.examples()[-1]
    for number in range(ROUNDS):
        runs = 8 if number == ROUNDS - 1 else 0
        job = quick_job(device, problem, family.usual, seed=number, probe=False, verifications=runs)
        trial = measurer.measure(job)
        if trial.state is not TrialState.COMPLETE:
            break
    return trial


def test_there_are_more_than_a_hundred() -> None:
    changes = {(name, change) for name, kernel in KERNELS.items() for change in (*kernel.seen, *kernel.hidden)}
    assert len(changes) == sum(len(kernel.seen) + len(kernel.hidden) for kernel in KERNELS.values()) > 120


@pytest.mark.parametrize("name", KERNELS)
def test_wrong_variants_are_refused(name: str, tmp_path: Path, pocl: Device, measurer: Measurer) -> None:
    kernel = KERNELS[name]

    def found(change: Change | None) -> Trial:
        with registered(kernel.write(tmp_path, name, change)) as family:
            return judged(pocl, measurer, family)

    right = found(None)
    assert right.state is TrialState.COMPLETE, f"the kernel itself is wrong: {right}"
    trials = {change: found(change) for change in kernel.seen}
    passed = {change: trial for change, trial in trials.items() if trial.state is not TrialState.WRONG_RESULT}
    assert not passed
    limits = {change: found(change) for change in kernel.unseen}
    refused = {change: trial for change, trial in limits.items() if trial.state is not TrialState.COMPLETE}
    assert not refused, "a limit that is none any more"


RIGHT = ("", "")
NEVER_WRITTEN = "float sum = 0;"


@pytest.mark.parametrize("check", ["races", "uninitialized"])
def test_oclgrind_tells_what_a_processor_lets_pass(check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Races that work-items in order decide well, reads past the end, and what was never written."""
    monkeypatch.setenv(SIMULATED, "1")
    changes = [
        (kernel, change)
        for kernel in (KERNELS if check == "races" else ["row_sums"])
        for change in (RIGHT, *KERNELS[kernel].hidden)
        if change == RIGHT or (NEVER_WRITTEN in change[0]) == (check == "uninitialized")
    ]
    files = [
        KERNELS[kernel].write(tmp_path, kernel, change, f"{kernel}_{number}")
        for number, (kernel, change) in enumerate(changes)
    ]
    told = {}
    with registered(*files):
        for key, file in zip(changes, files, strict=True):
            family = find_family(file.stem)
            oclgrind = Oclgrind(check, file.parent)  # of its own: it falls silent after a number of errors
            with oclgrind.worker:
                told[key] = oclgrind.findings(Sample(problem=family.examples()[-1], configuration=family.baseline))
    assert {key for key, findings in told.items() if findings} == {key for key in changes if key[1] != RIGHT}
