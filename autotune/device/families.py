"""The device families: how each is recognised, its vendor, and where its driver comes from.

Profiles (profiles/*.toml) are named after them; the rules that need more than a pattern are in identity.py, where the
system reports clock and temperature in sensors.py. Standard library only.
"""

from dataclasses import dataclass

from autotune.paths import install_hint


@dataclass(frozen=True, kw_only=True)
class DeviceFamily:
    """Devices that one compiler serves, as far as tuning is concerned."""

    name: str
    vendor: str = ""
    pattern: str = ""
    """Matches a device's name or vendor; empty where identity.py has a rule of its own."""
    prefix: str = ""
    """Matches what precedes the model in names."""
    vendor_id: int = 0
    install: str = "install the OpenCL driver of the GPU's maker"
    """A hint what to do where no such device is found."""
    driver_files: tuple[str, ...] = ()
    """Where systems without .icd files have the driver."""


POCL_HINT = f"to install an OpenCL device that runs on the processor: {install_hint('pocl')}"
_ANDROID = "in Termux set LD_LIBRARY_PATH=/vendor/lib64:$PREFIX/lib"

_TABLE = (
    DeviceFamily(name="cpu", install=POCL_HINT),
    DeviceFamily(
        name="adreno",
        vendor="Qualcomm",
        install=f"{_ANDROID} and build pyopencl against the system's loader; on Windows use a native ARM64 Python",
        driver_files=("/vendor/lib64/libOpenCL.so", "/system/vendor/lib64/libOpenCL.so"),
    ),
    DeviceFamily(
        name="mali",
        vendor="Arm",
        install=f"{_ANDROID}; on boards install the vendor's package with libmali.so and name that library in an .icd "
        "file",
        driver_files=(
            "/vendor/lib64/libOpenCL.so",
            "/vendor/lib64/egl/libGLES_mali.so",
            "/usr/lib/aarch64-linux-gnu/libmali.so",
        ),
    ),
    DeviceFamily(
        name="nvidia",
        vendor="NVIDIA",
        pattern=r"(?i)\bnvidia\b|\bgeforce\b|\bquadro\b|^tesla\b",
        prefix=r"nvidia( corporation)?",
        vendor_id=0x10DE,
        install="install NVIDIA's driver with its OpenCL library (nvidia.icd); a container needs "
        "NVIDIA_DRIVER_CAPABILITIES=compute",
    ),
    DeviceFamily(
        name="amd",
        vendor="AMD",
        pattern=r"(?i)advanced micro devices|\bamd\b|\bradeon\b|^gfx\d",
        prefix=r"amd|ati",
        vendor_id=0x1002,
        install="install AMD's OpenCL runtime (amdocl64.icd, part of ROCm) or Mesa's with RUSTICL_ENABLE=radeonsi",
    ),
    DeviceFamily(
        name="powervr",
        vendor="Imagination",
        pattern=r"(?i)\bpowervr\b|\bimagination\b",
        prefix=r"imagination( technologies)?|powervr",
        vendor_id=0x1010,
    ),
    DeviceFamily(name="apple", vendor="Apple", pattern=r"(?i)^apple\b", prefix=r"apple", vendor_id=0x106B),
    DeviceFamily(
        name="intel",
        vendor="Intel",
        pattern=r"(?i)\bintel\b",
        prefix=r"intel",
        vendor_id=0x8086,
        install="install Intel's compute runtime (intel.icd, package intel-opencl-icd)",
    ),
    DeviceFamily(name="gpu"),
)
"""In the order in which a selector or a driver's texts are searched for them; "gpu" is any other device."""

FAMILIES = {family.name: family for family in _TABLE}
