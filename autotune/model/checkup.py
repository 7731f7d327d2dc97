"""What a device was found to do right and wrong, as values: `Checkup`, and what follows from it for a search.

`doctor.py` makes checkups, the store keeps them. Nothing here needs more than the standard library.
"""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from autotune.model.device import VECTOR_WIDTHS, Device, Fault

PROBES_VERSION = 1
"""Raised when probes change so that earlier checkups no longer count."""

PROGRAMS = 10
"""How many times as long as the short form the full one takes, about."""

EMPTY_KERNEL = "empty kernel"
VSTORE_HALF = "vstore_half"
HALF_ARITHMETIC = "half arithmetic"
LOCAL_MEMORY = "local memory and barriers"
ATOMICS = "atomics"
SUB_GROUPS = "sub-groups"
SUB_GROUP_SIZES = "required sub-group sizes"
IMAGES = "images"
IMAGE_VIEWS = "image views"
INTEGER_DOT_KHR = "integer dot product (khr)"
INTEGER_DOT_ARM = "integer dot product (arm)"
CLOCKS = "event times"

VECTOR_TYPES = ("float32", "float16", "int8", "int32")

_EXTENSIONS = {
    IMAGE_VIEWS: "cl_khr_image2d_from_buffer",
    INTEGER_DOT_KHR: "cl_khr_integer_dot_product",
    INTEGER_DOT_ARM: "cl_arm_integer_dot_product_int8",
    SUB_GROUP_SIZES: "cl_qcom_reqd_sub_group_size",
}
"""Each is left out of the device's extensions where its probe found it broken."""


def vector_probe(dtype: str, width: int) -> str:
    """The name of the probe of vectors of a type."""
    return f"{dtype} vectors of {width}"


class Health(enum.Enum):
    """What a probe found."""

    WORKS = "works"
    BROKEN = "broken"
    """Offered by the driver, and wrong: refused, crashed, hung, or with false results."""
    MISSING = "missing"
    """Not offered by the driver, which is fine."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one probe found; the message says what went wrong."""

    probe: str
    health: Health
    message: str = ""
    fault: Fault | None = None
    """What it amounts to where an algorithm is broken."""

    def to_dict(self) -> dict[str, Any]:
        plain = {"probe": self.probe, "health": self.health.value, "message": self.message}
        return {**plain, "fault": self.fault.to_dict()} if self.fault else plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        fault = Fault(**data["fault"]) if "fault" in data else None
        return cls(**{**data, "health": Health(data["health"]), "fault": fault})


@dataclass(frozen=True, kw_only=True)
class Examination:
    """Asks a child process to run probes on one device, all of them built as one program."""

    selector: str
    probes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Checkup:
    """All findings about one device under one driver."""

    findings: tuple[Finding, ...]
    is_full: bool
    """False for the short form, without algorithms and clocks."""
    seconds: float = 0.0
    version: int = PROBES_VERSION

    @property
    def can_search(self) -> bool:
        """Whether kernels can be built and run, and of the algorithms tried any ran right."""
        algorithms = [finding for finding in self.findings if finding.fault and finding.health is not Health.MISSING]
        is_all_wrong = bool(algorithms) and all(finding.health is Health.BROKEN for finding in algorithms)
        return EMPTY_KERNEL not in self._broken and not is_all_wrong

    @property
    def program_s(self) -> float:
        """How long a program with a few plain kernels takes to build and run; 0 where that is not known.

        Broken probes may have run into their time limits.
        """
        return 0.0 if self.broken else self.seconds / (PROGRAMS if self.is_full else 1)

    @property
    def broken(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.health is Health.BROKEN)

    @property
    def _broken(self) -> frozenset[str]:
        return frozenset(finding.probe for finding in self.broken)

    def applied_to(self, device: Device) -> Device:
        """The device without what was found broken: constraints then keep a search from proposing it."""
        broken, limits = self._broken, device.limits
        changes: dict[str, Any] = {f"max_vector_{dtype}": _widest(dtype, broken) for dtype in VECTOR_TYPES}
        if VSTORE_HALF in broken:
            changes["max_vector_float16"] = 0
        if IMAGES in broken:
            changes |= {"has_images": False, "max_image_width": 0, "max_image_height": 0}
        if SUB_GROUPS in broken:
            changes["has_sub_groups"] = False
        if HALF_ARITHMETIC in broken:
            changes["has_float16"] = False
        if LOCAL_MEMORY in broken:
            changes["local_memory_bytes"] = 0
        if ATOMICS in broken:
            changes["ordering_standard"] = 0
        left_out = {extension for probe, extension in _EXTENSIONS.items() if probe in broken}
        if left_out:
            changes["extensions"] = tuple(name for name in limits.extensions if name not in left_out)
        faults = [finding.fault for finding in self.broken if finding.fault]
        changes["faults"] = tuple(dict.fromkeys([*limits.faults, *faults]))
        sound = dataclasses.replace(limits, **changes)
        return device if sound == limits else dataclasses.replace(device, limits=sound)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "findings": [finding.to_dict() for finding in self.findings]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(**{**data, "findings": tuple(Finding.from_dict(plain) for plain in data["findings"])})


def consequence(finding: Finding) -> str:
    """What is done about what is broken, for people."""
    probe = finding.probe
    if probe == EMPTY_KERNEL:
        return "nothing can be tuned here"
    if probe == CLOCKS:
        return "times are taken by the host's clock"
    if probe == VSTORE_HALF:
        return "float16 problems are refused"
    if probe == HALF_ARITHMETIC:
        return "float16-acc16 problems are refused"
    if probe == ATOMICS:
        return "parts of a sum are joined by a second launch"
    return "not proposed by the search"


def _widest(dtype: str, broken: frozenset[str]) -> int:
    """The widest vector up to which all work."""
    found = 1
    for width in VECTOR_WIDTHS:
        if vector_probe(dtype, width) in broken:
            break
        found = width
    return found


def summary(findings: Sequence[Finding]) -> str:
    """What is broken, in a few words: vectors of one type are told by their least width."""
    names: dict[str, str] = {}
    for finding in findings:
        dtype, _, width = finding.probe.partition(" vectors of ")
        text = f"{dtype} vectors from {width} elements on" if width else finding.probe
        names.setdefault(dtype if width else finding.probe, text)
    return ", ".join(names.values())
