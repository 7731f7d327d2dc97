"""Fixtures shared by all tests."""

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
