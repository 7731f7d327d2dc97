"""What a service and a worker send each other: jobs go, trials come back, as JSON.

Both sides read as hostile input what the other sends. A job holds values of declared parameters, sizes and numbers;
the kernel, its build options and the device are the worker's own business, so none of them crosses the line.
"""

import hashlib
import statistics
from functools import cache
from typing import Any

from autotune.codec import Node, read, write
from autotune.kernels import family_names, find_family
from autotune.kernels.render import template_hash
from autotune.lookup.json_table import MAX_FLOPS_PER_SECOND, read_device
from autotune.lookup.values import read_family, readers_for
from autotune.model.device import Device
from autotune.model.trial import Job, Measurement, Timer, Trial, TrialState

TICK_NS = 1.0
"""Of events and of the host's clock, which both tell whole nanoseconds: no sample is shorter."""
ROUNDING = 1e-6
FORMAT = 1
"""Of what is sent; one more with every change, so that a service and a worker that differ in it part at once."""

_KNOWN = ("configuration", "seed")
"""Fields of a trial that whoever sent its job knows."""


@cache
def code_version() -> str:
    """Format, templates and search spaces in one word: only what agrees in it measures the same thing.

    Not the version of autotune, most of which has nothing to do with what is measured.
    """
    digest = hashlib.sha256(f"{FORMAT} ".encode())
    for name in family_names():
        family = find_family(name)
        hashes = [template_hash(family, algorithm.name) for algorithm in family.algorithms]
        digest.update(f"{name} {family.space_version} {hashes}".encode())
    return f"{FORMAT}-{digest.hexdigest()[:12]}"


def plain_device(device: Device) -> dict[str, Any]:
    """As `read_own_device` reads it: a device of a table, without entries."""
    return {**write(device), "entries": []}


def read_own_device(node: Node) -> Device:
    """What a worker says of its device. Raises TableError."""
    return read_device(node)


def plain_job(job: Job) -> dict[str, Any]:
    """As `read_job` reads it: everything but the device and its build options."""
    return {"family": job.problem.family, **write(job)}


def read_job(node: Node, selector: str, build_options: tuple[str, ...]) -> Job:
    """A job for one's own device. Raises TableError for anything that is not declared."""
    readers = readers_for(read_family(node.member("family")))
    return read(
        Job, node, given={"selector": selector, "build_options": build_options}, beside=("family",), readers=readers
    )


def plain_trial(trial: Trial) -> dict[str, Any]:
    """As `read_trial` reads it: everything but what the service knows of it."""
    plain: dict[str, Any] = write(trial, without=_KNOWN)
    return plain


def read_trial(node: Node, job: Job) -> Trial:
    """What became of a job. Raises TableError, also for times that no device can have measured."""
    trial = read(Trial, node, given={name: getattr(job, name) for name in _KNOWN})
    measured = node.member("measurement")
    if (trial.measurement is not None) != (trial.state is TrialState.COMPLETE):
        raise measured.wrong("must be present if the trial is complete, and only then")
    if trial.measurement is not None:
        _check_plausible(trial.measurement, measured, job)
    return trial


def _check_plausible(measured: Measurement, node: Node, job: Job) -> None:
    """Whether a measurement of a job agrees with itself and with what devices can do. Raises TableError."""
    time_ns, samples = measured.time_ns, measured.samples_ns
    if not samples:
        raise node.member("samples_ns").wrong("must not be empty")
    if abs(statistics.median(samples) - time_ns) > ROUNDING * time_ns:
        raise node.wrong(f"time_ns is {time_ns:g}, but the median of samples_ns is {statistics.median(samples):g}")
    if job.problem.flops / min(samples) * 1e9 > MAX_FLOPS_PER_SECOND:
        raise node.wrong(f"{min(samples):g} ns for {job.problem.label} is faster than any device")
    if min(samples) * measured.calls_per_sample < TICK_NS * (1 - ROUNDING):
        raise node.wrong(f"{measured.calls_per_sample} calls of {min(samples):g} ns take less than a tick of any clock")
    if len(samples) > max(1, job.samples):
        raise node.wrong(f"has {len(samples)} samples, more than the {job.samples} that were requested")
    if job.timer is Timer.HOST and measured.timer is not Timer.HOST:
        raise node.wrong("has times from events, but times from the host's clock were requested")
    if measured.prepare_ns > time_ns * (1 + ROUNDING):
        raise node.wrong(f"prepare_ns is {measured.prepare_ns:g}, more than time_ns, which is {time_ns:g}")
