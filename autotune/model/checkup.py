"""Results of probing a device: `Checkup`, and its consequences for a search.

`doctor.py` makes checkups, the store keeps them. This module imports only the standard library.
"""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.model.device import VECTOR_WIDTHS, Device, DeviceLimits, Fault
from autotune.model.problem import NUMBER_TYPES

PROBES_VERSION = 9
"""Incremented when probes or findings change so that checkups of other versions are neither valid nor read."""

PROGRAMS = 10
"""About how many times longer a full checkup takes than the short form."""

EMPTY_KERNEL = "empty kernel"
VSTORE_HALF = "vstore_half"
HALF_ARITHMETIC = "half arithmetic"
LOCAL_MEMORY = "local memory and barriers"
WIDE_LOCAL_MEMORY = "more local memory than reported"
WIDE_LOCAL_BYTES = 96 * 1024
WIDEST_LOCAL_MEMORY = "even more local memory than reported"
WIDEST_LOCAL_BYTES = 144 * 1024
ATOMICS = "atomics"
SUB_GROUPS = "sub-groups"
SUB_GROUP_SHUFFLES = "sub-group shuffles"
SUB_GROUP_SIZES = "required sub-group sizes"
IMAGES = "images"
IMAGE_VIEWS = "image views"
IMAGE_LINES = "image lines"
INTEGER_DOT_KHR = "integer dot product (khr)"
INTEGER_DOT_ARM = "integer dot product (arm)"
INTEGER_DOT_PTX = "integer dot product (ptx)"
MATRIX_UNITS = "matrix units"
CLOCKS = "event times"


@dataclass(frozen=True, kw_only=True)
class Feature:
    """What a probe tries, other than vectors, and what follows where it is broken."""

    limit: str = ""
    """The limit by which the driver offers it; empty if every driver must have it."""
    least: int = 1
    """The least value of the limit that offers it."""
    extension: str = ""
    """The extension by which the driver offers it, removed from the device's extensions when the probe is broken."""
    lost: Mapping[str, Any] = field(default_factory=dict)
    """Limits of the device without it."""
    consequence: str = "not proposed by the search"

    def is_offered(self, limits: DeviceLimits) -> bool:
        """Return whether the driver claims to support it."""
        has_limit = not self.limit or getattr(limits, self.limit) >= self.least
        return has_limit and (not self.extension or self.extension in limits.extensions)


_VECTORS = Feature()
_FEATURES = {
    EMPTY_KERNEL: Feature(consequence="nothing can be tuned here"),
    CLOCKS: Feature(consequence="times are taken with the host's clock"),
    VSTORE_HALF: Feature(lost={"max_vector_float16": 0}, consequence="float16 problems are refused"),
    HALF_ARITHMETIC: Feature(
        limit="has_float16", lost={"has_float16": False}, consequence="float16-acc16 problems are refused"
    ),
    LOCAL_MEMORY: Feature(lost={"local_memory_bytes": 0, "declared_local_memory_bytes": 0}),
    WIDEST_LOCAL_MEMORY: Feature(
        limit="declared_local_memory_bytes",
        least=WIDEST_LOCAL_BYTES,
        lost={"declared_local_memory_bytes": WIDE_LOCAL_BYTES},
    ),
    WIDE_LOCAL_MEMORY: Feature(limit="declared_local_memory_bytes", lost={"declared_local_memory_bytes": 0}),
    ATOMICS: Feature(lost={"ordering_standard": 0}, consequence="parts of a sum are joined by a second launch"),
    SUB_GROUPS: Feature(limit="has_sub_groups", lost={"has_sub_groups": False}),
    SUB_GROUP_SHUFFLES: Feature(extension="cl_khr_subgroup_shuffle"),
    SUB_GROUP_SIZES: Feature(extension="cl_qcom_reqd_sub_group_size"),
    IMAGES: Feature(
        limit="has_images", lost={"has_images": False, "max_image_width": 0, "max_image_height": 0, "max_image_line": 0}
    ),
    IMAGE_VIEWS: Feature(limit="has_images", extension="cl_khr_image2d_from_buffer"),
    IMAGE_LINES: Feature(limit="max_image_line", lost={"max_image_line": 0}),
    INTEGER_DOT_KHR: Feature(extension="cl_khr_integer_dot_product"),
    INTEGER_DOT_ARM: Feature(extension="cl_arm_integer_dot_product_int8"),
    INTEGER_DOT_PTX: Feature(limit="has_ptx_integer_dot", lost={"has_ptx_integer_dot": False}),
    MATRIX_UNITS: Feature(limit="has_matrix_units", lost={"has_matrix_units": False}),
}


def feature_of(probe: str) -> Feature:
    """Return what a probe tries."""
    return _FEATURES.get(probe, _VECTORS)


def vector_probe(dtype: str, width: int) -> str:
    """Return the name of the probe for vectors of one type and width."""
    return f"{dtype} vectors of {width}"


class Health(enum.Enum):
    """Result of a probe."""

    WORKS = "works"
    BROKEN = "broken"
    """The driver offers it, but it was refused, crashed, hung, or gave wrong results."""
    MISSING = "missing"
    """The driver does not offer it, which is fine."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Result of one probe; `message` says what went wrong."""

    probe: str
    health: Health
    message: str = ""
    fault: Fault | None = None
    """The fault recorded if the probe ran an algorithm and found it broken."""
    is_ours: bool = False
    """An unexpected exception of autotune ended the probe: the driver may be fine."""
    is_open: bool = False
    """The probe was late on a busy machine, was killed from outside, or could not begin: to be asked again."""


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
        """Whether kernels can be built and run and at least one tried algorithm gave right results.

        A checkup that tried no algorithm does not prevent a search.
        """
        algorithms = [finding for finding in self.findings if finding.fault and finding.health is not Health.MISSING]
        is_all_wrong = bool(algorithms) and all(finding.health is Health.BROKEN for finding in algorithms)
        return EMPTY_KERNEL not in self._broken and not is_all_wrong

    @property
    def is_open(self) -> bool:
        """Whether anything is left to be found out, so that it must not be kept."""
        return any(finding.is_open for finding in self.findings)

    @property
    def program_s(self) -> float:
        """Seconds to build and run a program with a few plain kernels; 0 if unknown.

        It is unknown if any probe is broken, since that probe may have run into its time limit.
        """
        return 0.0 if self.broken else self.seconds / (PROGRAMS if self.is_full else 1)

    @property
    def broken(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.health is Health.BROKEN)

    @property
    def _broken(self) -> frozenset[str]:
        return frozenset(finding.probe for finding in self.broken)

    def applied_to(self, device: Device) -> Device:
        """Return the device with broken features removed, so that constraints keep a search from proposing them."""
        broken, limits = self._broken, device.limits
        changes: dict[str, Any] = {f"max_vector_{dtype}": _widest(dtype, broken) for dtype in NUMBER_TYPES}
        features = [feature_of(probe) for probe in sorted(broken)]
        for feature in features:
            for limit, left in feature.lost.items():
                changes[limit] = min(left, changes.get(limit, left))
        left_out = {feature.extension for feature in features}
        changes["extensions"] = tuple(name for name in limits.extensions if name not in left_out)
        faults = [finding.fault for finding in self.broken if finding.fault]
        changes["faults"] = tuple(dict.fromkeys([*limits.faults, *faults]))
        sound = dataclasses.replace(limits, **changes)
        return device if sound == limits else dataclasses.replace(device, limits=sound)


def consequence(finding: Finding) -> str:
    """Describe how a search deals with a broken finding, for display."""
    text = feature_of(finding.probe).consequence
    if finding.is_open:
        return f"late, killed or never begun, so perhaps not broken; {text} for now"
    return f"a fault in autotune, not in the driver; {text}" if finding.is_ours else text


def _widest(dtype: str, broken: frozenset[str]) -> int:
    """Return the largest width such that vectors of this and all smaller widths work."""
    found = 1
    for width in VECTOR_WIDTHS:
        if vector_probe(dtype, width) in broken:
            break
        found = width
    return found


def summary(findings: Sequence[Finding]) -> str:
    """List the probes of the findings in a few words: vectors of one type appear once, with the first width found."""
    names: dict[str, str] = {}
    for finding in findings:
        dtype, _, width = finding.probe.partition(" vectors of ")
        text = f"{dtype} vectors of {width} or more elements" if width else finding.probe
        names.setdefault(dtype if width else finding.probe, text)
    return ", ".join(names.values())
