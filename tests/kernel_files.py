"""Kernel files in a temporary folder, and what the measurer says of their configurations."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from autotune.device.opencl import Session
from autotune.kernels import FILES, families_of_files, find_family
from autotune.measure.measurer import Measurer
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.model.trial import Trial
from autotune.own.kernel_file import function
from autotune.own.kernel_file.family import FileFamily
from factories import quick_job

DATA = Path(__file__).with_name("data") / "kernel_files"
FOREIGN = "AUTOTUNE_FOREIGN_KERNELS"
"""The folder of other people's kernels: ``ggml``, ``kernel_tuner`` and ``ktt`` in it."""


FOREIGN_SOURCE = r'(?m)^source = .*"(ggml|kernel_tuner|ktt)/'


def foreign_folder() -> Path | None:
    """Return the folder of other people's kernels, if there is one here."""
    return Path(os.environ[FOREIGN]) if os.environ.get(FOREIGN) else None


def foreign_files() -> list[Path]:
    """Return the kernel files whose sources lie in the folder of other people's kernels."""
    return sorted(path for path in DATA.glob("*.toml") if re.search(FOREIGN_SOURCE, path.read_text()))


def placed(folder: Path, name: str, text: str = "") -> Path:
    """Copy a kernel file of the data, or this text of it, with all that its sources can be, and return its path."""
    for path in [*DATA.glob("*.cl"), *DATA.glob("*.py")]:
        shutil.copy(path, folder)
    foreign = foreign_folder()
    for source in foreign.iterdir() if foreign else ():
        if source.is_dir():
            shutil.copytree(source, folder / source.name, dirs_exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(text or (DATA / path.name).read_text())
    return path


@contextmanager
def registered(*paths: Path) -> Iterator[FileFamily]:
    """Make kernel files known to this process and the children it starts, and give the family of the first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FILES, os.pathsep.join(map(str, paths)))
        _forget()
        try:
            family = next(iter(families_of_files().values()))
            assert isinstance(family, FileFamily)
            yield family
        finally:
            patch.undo()
            _forget()


def _forget() -> None:
    families_of_files.cache_clear()
    find_family.cache_clear()


def measured_afresh(device: Device, problem: Problem, configuration: Configuration, **changes: Any) -> Trial:
    """Return a trial as a new process gives it, but in this one: what files define in Python is loaded again."""
    function._function.cache_clear()
    return Measurer(Session(device.selector)).measure(quick_job(device, problem, configuration, **changes))


def measured(device: Device, measurer: Measurer, problem: Problem, configuration: Configuration) -> Trial:
    """Return a trial of one sample: what counts is its state."""
    return measurer.measure(quick_job(device, problem, configuration, probe=False, min_sample_ticks=1))
