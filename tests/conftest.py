"""Fixtures shared by all tests."""

from collections.abc import Iterator

import pytest

from autotune.device.discovery import discover
from autotune.family import Device


@pytest.fixture(scope="session")
def pocl() -> Device:
    """The OpenCL device that the tests run kernels on: PoCL, which comes with the `pocl` extra."""
    for device in discover():
        if "pocl" in device.version.lower():
            return device
    pytest.skip('no PoCL here: pip install "autotune[pocl]"')


@pytest.fixture(autouse=True, scope="session")
def _no_misses_logged() -> Iterator[None]:
    """Tests ask for sizes that nobody needs tuned; children inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_MISSES", "0")
        yield
