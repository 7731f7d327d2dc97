"""The JSON that a service and its workers exchange: jobs go out, trials come back.

Each side reads what the other sends as hostile input. A job holds values of declared parameters, sizes and numbers. The
kernel source, the build options and the device belong to the worker, so none of them is sent.
"""

import statistics
from typing import Any

from autotune.codec import Node, read, write
from autotune.lookup.json_table import MAX_FLOPS_PER_SECOND, read_family, readers_for
from autotune.model.device import Device
from autotune.model.trial import Job, Measurement, Timer, Trial, TrialState

TICK_NS = 1.0
"""Resolution of event times and of the host clock, both of which count whole nanoseconds: no sample is shorter."""
ROUNDING = 1e-6
_KNOWN = ("configuration", "seed")
"""Fields of a trial that are not sent, since the service knows them from the job."""


def plain_device(device: Device) -> dict[str, Any]:
    """Return a device as `read_device` of a table reads it: one without entries."""
    return {**write(device), "entries": []}


def plain_job(job: Job) -> dict[str, Any]:
    """Return a job as `read_job` reads it: everything but the device and its build options."""
    return {"family": job.problem.family, **write(job)}


def read_job(node: Node, selector: str, build_options: tuple[str, ...]) -> Job:
    """Read a job for the worker's own device. Raises TableError for anything that is not declared."""
    readers = readers_for(read_family(node.member("family")))
    return read(
        Job, node, given={"selector": selector, "build_options": build_options}, ignored=("family",), readers=readers
    )


def plain_trial(trial: Trial) -> dict[str, Any]:
    """Return a trial as `read_trial` reads it, without the fields that the service knows."""
    plain: dict[str, Any] = write(trial, without=_KNOWN)
    return plain


def read_trial(node: Node, job: Job) -> Trial:
    """Read the trial of a job. Raises TableError, also for times that no device can have measured."""
    trial = read(Trial, node, given={name: getattr(job, name) for name in _KNOWN})
    measured = node.member("measurement")
    if (trial.measurement is not None) != (trial.state is TrialState.COMPLETE):
        raise measured.wrong("must be present if the trial is complete, and only then")
    if trial.measurement is not None:
        _check_plausible(trial.measurement, measured, job)
    return trial


def _check_plausible(measured: Measurement, node: Node, job: Job) -> None:
    """Check that a measurement is consistent and within what devices can do. Raises TableError."""
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
