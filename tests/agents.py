"""Agents that tests start: for Debian's PoCL, which pyopencl's wheel can load as well, as device 0:0."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from autotune.device.link import find_link
from autotune.model.device import Device
from autotune.phone.links.agent_link import AgentLink
from autotune.phone.links.toolchains import build_here, sources

DRIVER = Path("/etc/OpenCL/vendors/pocl.icd")
SANITIZED = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
"""Options of a compiler for a program that ends at a wrong access to memory."""


def agent_link(name: str) -> AgentLink:
    """The link of that name, with which agents can be started."""
    link = find_link(name)
    assert isinstance(link, AgentLink)
    return link


def link_name() -> str:
    """Return a link to an agent that sees one driver."""
    if not DRIVER.exists():
        pytest.skip("Debian's pocl-opencl-icd is not installed")
    return f"exec:env OCL_ICD_VENDORS={DRIVER} {build_here()}"


def known_to_pyopencl() -> tuple[Device, tuple[str, ...]]:
    """Return the same driver's device and toolchain as pyopencl tells them, in a process of its own."""
    code = (
        "import pickle, sys; from autotune.device import open_port; port = open_port('0:0');"
        "sys.stdout.buffer.write(pickle.dumps((port.device, port.toolchain)))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"OCL_ICD_VENDORS": str(DRIVER)}, stdout=subprocess.PIPE,
        check=True,
    )  # fmt: skip
    device, toolchain = pickle.loads(told.stdout)
    return device, toolchain


def compiled(target: Path, *options: str) -> Path:
    """Return an agent for this machine with further options of the compiler, built at `target`."""
    strict = ("-std=c99", "-D_POSIX_C_SOURCE=200809L", "-O2", "-Wall", "-Wextra", "-Werror")
    subprocess.run(["gcc", *strict, *options, "-o", str(target), *map(str, sources()), "-ldl"], check=True)
    return target


def fake_driver(target: Path, *options: str) -> Path:
    """Return an OpenCL library that does nothing, built at `target`; see fake_opencl.c."""
    source = Path(__file__).with_name("fake_opencl.c")
    subprocess.run(
        ["gcc", "-std=c99", "-D_POSIX_C_SOURCE=200809L", "-O1", "-shared", "-fPIC", *options, "-o", target, source],
        check=True,
    )
    return target


def frames_in(data: bytes) -> list[bytes]:
    """Return the frames, or the records of a result, each with its kind and without its size."""
    found, at = [], 0
    while at + 5 <= len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        found.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def with_sizes(frames: Iterable[bytes | bytearray]) -> bytes:
    return b"".join(len(frame).to_bytes(4, "little") + frame for frame in frames)
