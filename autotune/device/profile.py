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
    [[variant]]                                   some devices of the family
    devices = ["adreno-840", "adreno-8??"]        slugs, and patterns of slugs such as that of a generation

A variant's keys replace those of the family; its traps come before the family's. Standard library only.
"""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from autotune.errors import ConfigurationError
from autotune.kernels import find_family
from autotune.model.configuration import Configuration, Value
from autotune.model.device import Device

_FOLDER = Path(__file__).parent / "profiles"


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What is known about one device. Kernel families are named as in `kernels/`."""

    name: str
    """The device family, or the first pattern of the variant."""
    build_options: tuple[str, ...] = ()
    starts: Mapping[str, tuple[Configuration, ...]] = field(default_factory=dict)
    overrides: Mapping[str, Mapping[str, tuple[Value, ...]]] = field(default_factory=dict)
    traps: tuple[str, ...] = ()

    def starting(self, family: str) -> tuple[Configuration, ...]:
        """Return the configurations of a kernel family to try first, best first, with omitted parameters filled in.

        It is the same tuple object each time, so that rules can cache what they derive from it by its identity.
        """
        if family not in self._starting:
            starts = self.starts.get(family, ())
            self._starting[family] = tuple(find_family(family).complete(start) for start in starts)
        return self._starting[family]

    @cached_property
    def _starting(self) -> dict[str, tuple[Configuration, ...]]:
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
            (_literal_characters(pattern), profile)
            for patterns, profile in self.variants
            for pattern in patterns
            if fnmatch.fnmatchcase(slug, pattern)
        ]
        return max(ranked, key=lambda item: item[0], default=(0, self.profile))[1]


def find_profile(device: Device) -> Profile:
    """Return the profile of a device; `generic` if its family has none."""
    name = device.family if device.family in profile_names() else "generic"
    return _read(name).profile_for(device.slug)


def profile_names() -> list[str]:
    """Return the device families that have a profile, and ``generic``."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def parse_profile(text: str, source: str) -> ProfileFile:
    """Parse a profile's TOML. Raises ConfigurationError, which names `source` and the key."""
    import tomllib

    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{source}: {error}") from error
    variants = data.pop("variant", [])
    base = _parse_section(data, Profile(name=Path(source).stem), source, "")
    if not isinstance(variants, list):
        raise _wrong(source, "variant", "must be written [[variant]]")
    return ProfileFile(
        profile=base, variants=tuple(_parse_variant(v, base, source, f"variant[{i}]") for i, v in enumerate(variants))
    )


@cache
def _read(name: str) -> ProfileFile:
    path = _FOLDER / f"{name}.toml"
    return parse_profile(path.read_text(encoding="utf-8"), path.name)


def _literal_characters(pattern: str) -> int:
    return sum(character not in "*?" for character in pattern)


def _wrong(source: str, key: str, what: str) -> ConfigurationError:
    return ConfigurationError(f"{source}: {key} {what}")


def _parse_variant(data: Any, base: Profile, source: str, key: str) -> tuple[tuple[str, ...], Profile]:
    table = dict(_table(data, source, key))
    patterns = _texts(table.pop("devices", []), source, f"{key}.devices")
    if not patterns:
        raise _wrong(source, f"{key}.devices", "must name at least one device")
    return patterns, _parse_section(table, base, source, f"{key}.", name=patterns[0])


def _parse_section(data: Any, base: Profile, source: str, prefix: str, *, name: str = "") -> Profile:
    known = ("build_options", "traps", "starts", "overrides")
    unknown = [key for key in data if key not in known]
    if unknown:
        raise _wrong(source, f"{prefix}{unknown[0]}", f"is not known; there are {', '.join(known)}")
    options = _texts(data.get("build_options", list(base.build_options)), source, f"{prefix}build_options")
    traps = _texts(data.get("traps", []), source, f"{prefix}traps")
    starts = {
        family: _configurations(rows, source, f"{prefix}starts.{family}")
        for family, rows in _table(data.get("starts", {}), source, f"{prefix}starts").items()
    }
    overrides = {
        family: _values_by_parameter(table, source, f"{prefix}overrides.{family}")
        for family, table in _table(data.get("overrides", {}), source, f"{prefix}overrides").items()
    }
    return Profile(
        name=name or base.name,
        build_options=options,
        starts={**base.starts, **starts},
        overrides={**base.overrides, **overrides},
        traps=traps + base.traps,
    )


def _table(data: Any, source: str, key: str) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise _wrong(source, key, "must be a table")
    return data


def _list(data: Any, source: str, key: str) -> list[Any]:
    if not isinstance(data, list):
        raise _wrong(source, key, "must be a list")
    return data


def _texts(data: Any, source: str, key: str) -> tuple[str, ...]:
    for item in _list(data, source, key):
        if not isinstance(item, str):
            raise _wrong(source, key, f"must hold strings, not {item!r}")
    return tuple(data)


def _configurations(data: Any, source: str, key: str) -> tuple[Configuration, ...]:
    found = []
    for index, row in enumerate(_list(data, source, key)):
        try:
            found.append(Configuration.from_dict(_table(row, source, f"{key}[{index}]")))
        except ConfigurationError as error:
            if error.message.startswith(f"{source}: "):
                raise
            raise _wrong(source, f"{key}[{index}]:", error.message) from error
    return tuple(found)


def _values_by_parameter(data: Any, source: str, key: str) -> Mapping[str, tuple[Value, ...]]:
    table = _table(data, source, key)
    for name, values in table.items():
        items = _list(values, source, f"{key}.{name}")
        if not items or any(type(item) not in (int, str) for item in items):
            raise _wrong(source, f"{key}.{name}", "must hold at least one integer or string, and nothing else")
    return {name: tuple(values) for name, values in table.items()}
