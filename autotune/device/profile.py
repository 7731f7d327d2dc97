"""What is known about a kind of device before anything is measured: build options, starting configurations, traps.

The knowledge itself is data, one TOML file per family in `profiles/`:

    build_options = ["-cl-mad-enable"]            passed to the compiler for every kernel
    traps = ["one short sentence", ...]           shown to users
    [overrides.gemm]                              values that replace a parameter's own in the search
    micro_tile_m = [1, 2, 4]
    [[starts.gemm]]                               candidates of the kernel family's rule, best first; at least one is
                                                  legal everywhere; parameters with a neutral value may be omitted
    algorithm = "naive"
    work_group_m = 0
    [[starts.gemm]]                               as the first of that algorithm before it, but for what it states
    like = "naive"
    work_group_m = 16
    [[variant]]                                   some devices of the family
    devices = ["adreno-840", "adreno-8??"]        slugs, and patterns of slugs such as that of a generation

A variant's keys replace those of the family; its traps come before the family's. Standard library only.
"""

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, ClassVar

from autotune.codec import MAX_ITEMS, Items, Node, read
from autotune.device.machine import measured_machine
from autotune.errors import ConfigurationError, TableError
from autotune.kernels import find_family
from autotune.model.configuration import Configuration, Value
from autotune.model.device import Device
from autotune.model.machine import UNKNOWN, Machine, Rates
from autotune.space.family import Starts

_FOLDER = Path(__file__).parent / "profiles"
_SOME = Items(MAX_ITEMS, least=1)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What is known about one device. Kernel families are named as in `kernels/`."""

    name: str
    """The device family, or the first pattern of the variant."""
    build_options: tuple[str, ...] = ()
    starts: Mapping[str, tuple[Configuration, ...]] = field(default_factory=dict)
    overrides: Mapping[str, Mapping[str, tuple[Value, ...]]] = field(default_factory=dict)
    traps: tuple[str, ...] = ()
    machine: Machine = UNKNOWN

    def starting(self, family: str) -> Starts:
        """Return the configurations of a kernel family to try first, best first, with omitted parameters filled in.

        It is the same tuple object each time, so that rules can cache what they derive from it by its identity.
        """
        if family not in self._starting:
            starts = self.starts.get(family, ())
            self._starting[family] = Starts((find_family(family).complete(start) for start in starts), self.machine)
        return self._starting[family]

    @cached_property
    def _starting(self) -> dict[str, Starts]:
        return {}

    def overrides_for(self, family: str) -> Mapping[str, tuple[Value, ...]]:
        """Return the values that replace those of parameters, by name, as `SearchSpace` takes them."""
        return self.overrides.get(family, {})


@dataclass(frozen=True, kw_only=True)
class ProfileFile:
    """The profile of a device family, and its variants for some of the devices."""

    profile: Profile
    variants: tuple[tuple[tuple[str, ...], Profile], ...] = ()
    """Device patterns, each with the complete profile for those devices."""

    def profile_for(self, slug: str) -> Profile:
        """Return the most specific profile: by slug, by the pattern with most literal characters, or by family."""
        ranked = [
            (len(re.sub(r"[*?]", "", pattern)), profile)
            for patterns, profile in self.variants
            for pattern in patterns
            if fnmatch.fnmatchcase(slug, pattern)
        ]
        return max(ranked, key=lambda item: item[0], default=(0, self.profile))[1]


def find_profile(device: Device, rates: Rates | None = None) -> Profile:
    """Return the profile of a device, by its measured rates if there are any; `generic` if its family has none."""
    name = device.family if device.family in profile_names() else "generic"
    profile, machine = _read(name).profile_for(device.slug), measured_machine(device, name, rates)
    key = name, profile.name, machine
    if key not in _OF_MACHINES:
        _OF_MACHINES[key] = replace(profile, machine=machine)
    return _OF_MACHINES[key]


_OF_MACHINES: dict[tuple[str, str, Machine], Profile] = {}
"""Profiles with the machines they were asked for, which are few: rules cache by the identity of a profile's starts."""


@cache
def profile_names() -> list[str]:
    """Return the device families that have a profile, and ``generic``."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


class _StatedStarts(tuple[Configuration, ...]):
    """The starts of a kernel family in a file."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class _Section:
    """What a file states for its family, or a variant for some of the devices."""

    is_sparse: ClassVar[bool] = True
    build_options: tuple[str, ...] | None = None
    traps: tuple[str, ...] = ()
    starts: Mapping[str, _StatedStarts] = field(default_factory=dict)
    overrides: Mapping[str, Mapping[str, Annotated[tuple[Value, ...], _SOME]]] = field(default_factory=dict)

    def over(self, base: Profile, name: str) -> Profile:
        """Return the profile with what this section adds or replaces."""
        return Profile(
            name=name,
            build_options=base.build_options if self.build_options is None else self.build_options,
            starts={**base.starts, **self.starts},
            overrides={**base.overrides, **self.overrides},
            traps=self.traps + base.traps,
        )


@dataclass(frozen=True, kw_only=True)
class _Variant(_Section):
    devices: Annotated[tuple[str, ...], _SOME]


@dataclass(frozen=True, kw_only=True)
class _File(_Section):
    variant: tuple[_Variant, ...] = ()


def parse_profile(text: str, source: str) -> ProfileFile:
    """Parse a profile's TOML. Raises ConfigurationError, which names `source` and the key."""
    import tomllib

    try:
        file = read(_File, Node(tomllib.loads(text)), readers={_StatedStarts: _read_starts})
    except (tomllib.TOMLDecodeError, TableError) as error:
        raise ConfigurationError(f"{source}: {error}") from error
    name = Path(source).stem
    base = file.over(Profile(name=name), name)
    return ProfileFile(profile=base, variants=tuple((v.devices, v.over(base, v.devices[0])) for v in file.variant))


def _read_starts(node: Node) -> _StatedStarts:
    found: list[Configuration] = []
    for start in node.items(MAX_ITEMS):
        values = {name: member.value for name, member in start.members().items()}
        if "like" in values:
            like = values.pop("like")
            if "algorithm" in values:
                raise start.wrong("states an algorithm, which is that of the start it is like")
            first = next((one for one in found if one.algorithm == like), None)
            if first is None:
                raise start.wrong(f"is like {str(like)[:80]!r}, of which there is none before it")
            values = {**first.to_dict(), **values}
        try:
            found.append(Configuration.from_dict(values))
        except ConfigurationError as error:
            raise start.wrong(error.message) from error
    return _StatedStarts(found)


@cache
def _read(name: str) -> ProfileFile:
    path = _FOLDER / f"{name}.toml"
    return parse_profile(path.read_text(encoding="utf-8"), path.name)
