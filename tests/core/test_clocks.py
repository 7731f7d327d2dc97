"""What is made of a device's event times, and what the system tells of its clock and heat."""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import factories
from autotune.device.clocks import Observations, calibrate, judge, try_calibration
from autotune.device.opencl import Session
from autotune.device.port import Run
from autotune.device.sensors import Folder, Reading, Sensors, find_sensors
from autotune.errors import LaunchError
from autotune.model.device import Device, DeviceLimits
from autotune.model.trial import Calibration, Timer

DeviceClock = Callable[[float], float]
"""Event time at a host time, both in nanoseconds."""


def observed(
    device: DeviceClock, *, tick_ns: int = 1, delays_ns: Sequence[int] = (0, 0, 0, 0, 0), share: float = 1.0
) -> Observations:
    """Launches of 5 ms with 20 us around them; the host notices the end of each after a delay."""

    def event(time_ns: float) -> int:
        return int(device(time_ns)) // tick_ns * tick_ns

    long, now = [], 1_000_000
    for delay in delays_ns:
        start, end = now + 20_000, now + 20_000 + int(share * 5_000_000)
        seen = now + 5_040_000 + delay
        long.append(Run(host_start_ns=now, host_end_ns=seen, events=np.array([[[event(start), event(end)]]])))
        now = seen + 7_000
    spans = [(event(now + 3_137 * i), event(now + 3_137 * i + 1_411)) for i in range(200)]
    return Observations(told_tick_ns=1.0, latency_ns=40_000, overhead_ns=3_137, spans=spans, long=long)


def test_a_true_clock_is_trusted_whatever_its_zero_and_its_tick() -> None:
    for tick_ns in (1, 52, 1000, 10_000):
        calibration = judge(observed(lambda t: t + 123_456_789, tick_ns=tick_ns))
        assert (calibration.timer, calibration.reason) == (Timer.EVENT, "")
        assert tick_ns <= calibration.tick_ns <= max(2 * tick_ns, 1_500)
        assert calibration.clock_speed == pytest.approx(1.0, abs=0.01)
        assert calibration.drift == 0.0
        assert (calibration.launch_overhead_ns, calibration.launch_latency_ns) == (3_137, 40_000)


def test_a_host_that_is_late_to_notice_spoils_nothing() -> None:
    delays = (0, 9_000_000, 0, 30_000_000, 1_000_000)
    calibration = judge(observed(lambda t: t, delays_ns=delays))
    assert calibration.timer is Timer.EVENT
    assert calibration.clock_speed == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (observed(lambda _: 0), "zero"),
        (observed(lambda t: 2 * t), "2 times as fast"),
        (observed(lambda t: t / 2), r"0\.5\d* times as fast"),
        (observed(lambda t: t, tick_ns=100_000), "tick only every 100 us"),
        (observed(lambda t: 1e9 - t), "backwards"),
        (observed(lambda t: t if t < 14_000_000 else 1.6 * t - 0.6 * 14_000_000), "drifts"),
        (observed(lambda t: t, share=0.3), "as long by events"),
    ],
)
def test_what_is_wrong_with_event_times_is_found_and_named(wrong: Observations, reason: str) -> None:
    calibration = judge(wrong)
    assert calibration.timer is Timer.HOST
    assert re.search(reason, calibration.reason), calibration.reason


def test_a_launch_that_ends_before_the_one_ahead_of_it_runs_backwards() -> None:
    fine = observed(lambda t: t)
    swapped = replace(fine, spans=[fine.spans[1], fine.spans[0], *fine.spans[2:]])
    assert judge(fine).timer is Timer.EVENT
    assert "backwards" in judge(swapped).reason


@pytest.mark.long
def test_a_real_device_is_calibrated(pocl: Device) -> None:
    calibration = calibrate(Session(pocl.selector))
    assert calibration.launch_overhead_ns > 0
    assert calibration.launch_latency_ns > 0
    assert calibration.tick_ns > 0
    assert bool(calibration.reason) == (calibration.timer is Timer.HOST)


def test_a_device_that_fails_at_it_is_timed_by_the_host(pocl: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise LaunchError("out of resources")

    monkeypatch.setattr(Session, "run", refuse)
    calibration = calibrate(Session(pocl.selector))
    assert calibration == Calibration(timer=Timer.HOST, reason="the calibration failed: out of resources")


def test_where_the_clock_of_the_host_stands_still_there_is_a_calibration_too(
    pocl: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.device.clocks.MOST_TURNS", 1000)
    monkeypatch.setattr("autotune.device.opencl.perf_counter_ns", lambda: 5)
    assert calibrate(Session(pocl.selector)).timer is Timer.HOST


def test_a_device_that_hangs_or_crashes_while_calibrated_harms_nobody() -> None:
    begin = "import sys; from autotune import child; "
    hang = begin + "child.serve(lambda m, entering: (entering('calibration'), __import__('time').sleep(60)))"
    crash = begin + "child.serve(lambda m, entering: (entering('calibration'), __import__('os').abort()))"
    assert try_calibration("0:0", 0.5, (sys.executable, "-c", hang)) == "calibration took more than 0.5 s"
    assert "SIGABRT" in str(try_calibration("0:0", 30, (sys.executable, "-c", crash)))
    assert "cannot start" in str(try_calibration("0:0", 1, ("/no/such/program",)))


@pytest.mark.long
def test_a_calibration_comes_back_from_its_process_and_so_does_what_is_no_device(pocl: Device) -> None:
    assert isinstance(try_calibration(pocl.selector, 60), Calibration)
    assert "99:0" in str(try_calibration("99:0", 60))


# Sensors


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


ADRENO, MALI, AMD, INTEL, NVIDIA = (
    factories.device(slug, vendor=vendor)
    for slug, vendor in (
        ("adreno-730", "Qualcomm"), ("mali-g610", "Arm"), ("amd-gfx1030", "AMD"), ("intel-arc", "Intel"),
        ("nvidia-h200", "NVIDIA"),
    )
)  # fmt: skip
CPU = factories.device("pocl-amd-epyc", family="cpu", vendor="AMD", limits=DeviceLimits(is_cpu=True))


@pytest.mark.parametrize(
    ("device", "files", "reading"),
    [
        (
            ADRENO,
            {"class/kgsl/kgsl-3d0/gpuclk": "818000000\n", "class/kgsl/kgsl-3d0/temp": "61500\n"},
            Reading(clock_mhz=818.0, temperature_c=61.5),
        ),
        (ADRENO, {"class/kgsl/kgsl-3d0/clock_mhz": "587\n"}, Reading(clock_mhz=587.0)),
        (
            MALI,
            {
                "class/devfreq/fb000000.gpu/cur_freq": "1000000000",
                "class/devfreq/dmc/cur_freq": "2112000000",
                "class/thermal/thermal_zone0/type": "bigcore0-thermal",
                "class/thermal/thermal_zone0/temp": "80000",
                "class/thermal/thermal_zone5/type": "gpu-thermal",
                "class/thermal/thermal_zone5/temp": "55461",
            },
            Reading(clock_mhz=1000.0, temperature_c=55.461),
        ),
        (
            AMD,
            {
                "class/drm/card0/device/hwmon/hwmon3/freq1_input": "2475000000",
                "class/drm/card0/device/hwmon/hwmon3/temp1_input": "48000",
            },
            Reading(clock_mhz=2475.0, temperature_c=48.0),
        ),
        (INTEL, {"class/drm/card1/gt_act_freq_mhz": "1150"}, Reading(clock_mhz=1150.0)),
        (
            CPU,
            {
                "devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "1800000",
                "devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "3400000",
                "class/thermal/thermal_zone0/type": "x86_pkg_temp",
                "class/thermal/thermal_zone0/temp": "71000",
            },
            Reading(clock_mhz=3400.0, temperature_c=71.0),
        ),
        (
            CPU,
            {"class/hwmon/hwmon2/name": "k10temp", "class/hwmon/hwmon2/temp1_input": "50125"},
            Reading(temperature_c=50.125),
        ),
        (
            ADRENO,
            {
                "class/kgsl/kgsl-3d0/gpuclk": "inf",
                "class/kgsl/kgsl-3d0/temp": "61500000",
                "class/thermal/thermal_zone0/type": "gpuss-0",
                "class/thermal/thermal_zone0/temp": "255000",
                "class/thermal/thermal_zone1/type": "gpuss-1",
                "class/thermal/thermal_zone1/temp": "47000",
            },
            Reading(temperature_c=47.0),
        ),
        (ADRENO, {"class/kgsl/kgsl-3d0/gpuclk": "no number", "class/kgsl/kgsl-3d0/temp": ""}, Reading()),
        (CPU, {}, Reading()),
    ],
)
def test_sensors_of_each_kind_of_device(
    tmp_path: Path, device: Device, files: dict[str, str], reading: Reading
) -> None:
    found = find_sensors(device, system=Folder(tree(tmp_path, files))).read()
    assert found.clock_mhz == (pytest.approx(reading.clock_mhz) if reading.clock_mhz else None)
    assert found.temperature_c == (pytest.approx(reading.temperature_c) if reading.temperature_c else None)


def test_a_sensor_that_vanishes_tells_nothing_from_then_on(tmp_path: Path) -> None:
    sensors = find_sensors(ADRENO, system=Folder(tree(tmp_path, {"class/kgsl/kgsl-3d0/gpuclk": "305000000"})))
    assert sensors.read().clock_mhz == pytest.approx(305.0)
    (tmp_path / "sys/class/kgsl/kgsl-3d0/gpuclk").unlink()
    assert sensors.read() == Reading()
    assert Sensors().read() == Reading()


def test_nvidia_is_asked_by_its_library_for_the_device_at_that_address(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def by_address(address: bytes) -> str:
        asked.append(address)
        return "second"

    library = SimpleNamespace(
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByPciBusId=by_address,
        nvmlDeviceGetClockInfo=lambda handle, kind: 1980 if (handle, kind) == ("second", 1) else 0,
        nvmlDeviceGetTemperature=lambda handle, kind: 47 if (handle, kind) == ("second", 0) else 0,
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    address = "00000000:1b:00.0"
    assert find_sensors(NVIDIA, address).read() == Reading(clock_mhz=1980.0, temperature_c=47.0)
    assert asked == [address.encode()]
    assert find_sensors(NVIDIA).read() == Reading(), "of two devices it may be either"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert find_sensors(NVIDIA, address).read() == Reading(), "without the library"
