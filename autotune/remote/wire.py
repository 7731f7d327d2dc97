"""What a service and a worker send each other: converts a `Job` and a `Trial` to JSON and back.

Each side treats what the other sends as hostile input. A job holds values of declared parameters, sizes and numbers;
the kernel, its build options and the device are the worker's own, so none of them is sent.
"""

import hashlib
import statistics
from functools import cache
from math import inf, isfinite
from typing import Any

from autotune.kernels import family_names, find_family
from autotune.kernels.render import template_hash
from autotune.lookup.document import MAX_NUMBER, Node, printable
from autotune.lookup.json_table import (
    DEVICE_TEXTS,
    MAX_FLOPS_PER_SECOND,
    MAX_TIME_NS,
    read_configuration,
    read_device,
    read_family,
    read_problem,
)
from autotune.model.device import Device
from autotune.model.trial import Job, Measurement, Timer, Trial, TrialState

MAX_SAMPLES = 10_000
MAX_LIMIT_S = 86_400.0
MAX_TICKS = 10**9
TICK_NS = 1.0
"""Tick of events and of the host's clock, which both count whole nanoseconds: no sample is shorter."""
ROUNDING = 1e-6
FORMAT = 1
"""Version of the messages, raised by one with every change: a service refuses workers with another one at once."""

_MEASURED = {
    "prepare_ns": MAX_TIME_NS,
    "launch_overhead_ns": MAX_TIME_NS,
    "inputs_ns": MAX_TIME_NS,
    "build_ns": MAX_TIME_NS,
    "error_ratio": 1e300,
}
_COUNTED = ("calls_per_sample", "private_memory_bytes", "kernel_work_group_limit")
_SENSED = {"clock_mhz": 1e9, "temperature_c": 1e6}


@cache
def code_version() -> str:
    """Return a digest of message format, templates and search spaces; programs that measure the same thing agree in it.

    The version of autotune is not part of it: most of autotune does not affect what is measured.
    """
    digest = hashlib.sha256(f"{FORMAT} ".encode())
    for name in family_names():
        family = find_family(name)
        hashes = [template_hash(family, algorithm.name) for algorithm in family.algorithms]
        digest.update(f"{name} {family.space_version} {hashes}".encode())
    return f"{FORMAT}-{digest.hexdigest()[:12]}"


def plain_device(device: Device) -> dict[str, Any]:
    """Return a device in the form that `read_own_device` reads: a device of a table, without entries."""
    texts = {name: printable(getattr(device, name)) for name in DEVICE_TEXTS}
    limits = device.limits.to_dict()
    extensions = [printable(name) for name in device.limits.extensions]
    return {
        "slug": device.slug, "family": device.family, **texts, "limits": {**limits, "extensions": extensions},
        "entries": [],
    }  # fmt: skip


def read_own_device(node: Node) -> Device:
    """Return the device that a worker describes. Raises TableError."""
    return read_device(node)[0]


def plain_job(job: Job) -> dict[str, Any]:
    """Return a job in the form that `read_job` reads: everything but the device and its build options."""
    return {
        "family": job.problem.family,
        "problem": job.problem.to_dict(),
        "configuration": job.configuration.to_dict(),
        "seed": job.seed,
        "samples": job.samples,
        "min_sample_ns": job.min_sample_ns,
        "min_sample_ticks": job.min_sample_ticks,
        "agreement": job.agreement,
        "give_up_above_ns": job.give_up_above_ns if isfinite(job.give_up_above_ns) else None,
        "verify": job.verify,
        "verifications": job.verifications,
        "probe": job.probe,
        "timer": job.timer.value,
        "build_limit_s": job.build_limit_s,
        "run_limit_s": job.run_limit_s,
        "is_cut_off": job.is_cut_off,
    }


_JOB = (
    "family", "problem", "configuration", "seed", "samples", "min_sample_ns", "min_sample_ticks", "agreement",
    "give_up_above_ns", "verify", "verifications", "probe", "timer", "build_limit_s", "run_limit_s", "is_cut_off",
)  # fmt: skip


def read_job(node: Node, selector: str, build_options: tuple[str, ...]) -> Job:
    """Return a job for the local device `selector`. Raises TableError for anything that is not declared."""
    members = node.record(_JOB)
    family = read_family(members["family"])
    give_up = members["give_up_above_ns"]
    return Job(
        selector=selector,
        problem=read_problem(members["problem"], family),
        configuration=read_configuration(members["configuration"], family),
        build_options=build_options,
        seed=members["seed"].whole(2**31),
        samples=members["samples"].whole(MAX_SAMPLES),
        min_sample_ns=members["min_sample_ns"].whole(int(MAX_TIME_NS)),
        min_sample_ticks=members["min_sample_ticks"].whole(MAX_TICKS),
        agreement=_share(members["agreement"]),
        give_up_above_ns=inf if give_up.value is None else give_up.number(inf),
        verify=members["verify"].truth(),
        verifications=members["verifications"].whole(MAX_SAMPLES),
        probe=members["probe"].truth(),
        timer=_timer(members["timer"]),
        build_limit_s=members["build_limit_s"].number(MAX_LIMIT_S),
        run_limit_s=members["run_limit_s"].number(MAX_LIMIT_S),
        is_cut_off=members["is_cut_off"].truth(),
    )


def plain_trial(trial: Trial) -> dict[str, Any]:
    """Return a trial in the form that `read_trial` reads: everything but the configuration, which the service knows."""
    return {
        "state": trial.state.value,
        "message": printable(trial.message),
        "measurement": _plain_measurement(trial.measurement) if trial.measurement else None,
    }


def read_trial(node: Node, job: Job) -> Trial:
    """Return the trial of a job. Raises TableError, also for times that no device can have measured."""
    members = node.record(("state", "message", "measurement"))
    states = {state.value: state for state in TrialState}
    if members["state"].text() not in states:
        raise members["state"].wrong(f"must be one of {', '.join(states)}")
    state = states[members["state"].value]
    measured = members["measurement"]
    if (measured.value is not None) != (state is TrialState.COMPLETE):
        raise measured.wrong("belongs to what is complete, and to nothing else")
    measurement = None
    if measured.value is not None:
        measurement = _read_measurement(measured)
        _check_plausible(measurement, measured, job)
    return Trial(
        configuration=job.configuration,
        state=state,
        measurement=measurement,
        message=members["message"].text(),
        seed=job.seed,
    )


def _plain_measurement(measurement: Measurement) -> dict[str, Any]:
    return {**vars(measurement), "samples_ns": list(measurement.samples_ns), "timer": measurement.timer.value}


def _read_measurement(node: Node) -> Measurement:
    members = node.record(("time_ns", "samples_ns", "timer", *_MEASURED, *_COUNTED, *_SENSED))
    measured: dict[str, Any] = {name: members[name].signed(most) for name, most in _MEASURED.items()}
    measured |= {name: members[name].whole(MAX_NUMBER) for name in _COUNTED}
    for name, most in _SENSED.items():
        measured[name] = None if members[name].value is None else members[name].signed(most)
    return Measurement(
        time_ns=members["time_ns"].number(MAX_TIME_NS),
        samples_ns=_samples(members["samples_ns"]),
        timer=_timer(members["timer"]),
        **measured,
    )


def _check_plausible(measured: Measurement, node: Node, job: Job) -> None:
    """Raise TableError for a measurement that contradicts itself, its job, or what devices can do."""
    time_ns, samples = measured.time_ns, measured.samples_ns
    if abs(statistics.median(samples) - time_ns) > ROUNDING * time_ns:
        raise node.wrong(f"time_ns is {time_ns:g}, but the median of samples_ns is {statistics.median(samples):g}")
    if job.problem.flops / min(samples) * 1e9 > MAX_FLOPS_PER_SECOND:
        raise node.wrong(f"{min(samples):g} ns for {job.problem.label} is faster than any device")
    if measured.calls_per_sample < 1 or min(samples) * measured.calls_per_sample < TICK_NS * (1 - ROUNDING):
        raise node.wrong(f"{measured.calls_per_sample} calls of {min(samples):g} ns are less than a tick of any clock")
    if len(samples) > max(1, job.samples):
        raise node.wrong(f"has {len(samples)} samples, of {job.samples} that were asked for")
    if job.timer is Timer.HOST and measured.timer is not Timer.HOST:
        raise node.wrong("has times by events, but times by the host's clock were asked for")
    if not 0 <= measured.prepare_ns <= time_ns * (1 + ROUNDING):
        raise node.wrong(f"prepare_ns is {measured.prepare_ns:g}, which is no part of {time_ns:g}")
    if not 0 <= measured.error_ratio <= 1:
        raise node.wrong(f"error_ratio is {measured.error_ratio:g}, so the result was wrong, and is not complete")
    for name in ("launch_overhead_ns", "inputs_ns", "build_ns"):
        if getattr(measured, name) < 0:
            raise node.wrong(f"{name} is below 0")


def _samples(node: Node) -> tuple[float, ...]:
    samples = tuple(item.number(MAX_TIME_NS) for item in node.items(MAX_SAMPLES))
    if not samples:
        raise node.wrong("has no sample")
    return samples


def _share(node: Node) -> float:
    share = node.signed(1.0)
    if share < 0:
        raise node.wrong("must not be below 0")
    return share


def _timer(node: Node) -> Timer:
    timers = {timer.value: timer for timer in Timer}
    if node.text() not in timers:
        raise node.wrong(f"must be one of {', '.join(timers)}")
    return timers[node.value]
