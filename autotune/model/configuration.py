"""A configuration: an algorithm and one value for each of its parameters."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from autotune.errors import ConfigurationError

Value = int | str


@dataclass(frozen=True, kw_only=True, order=True)
class Configuration:
    """One value for every parameter of one algorithm. Hashable; `values` is sorted by name."""

    algorithm: str
    values: tuple[tuple[str, Value], ...]

    @classmethod
    def of(cls, algorithm: str, **values: Value) -> Self:
        return cls(algorithm=algorithm, values=tuple(sorted(values.items())))

    def __getitem__(self, name: str) -> Value:
        """Return the value of a parameter, or the algorithm's name for ``algorithm``, as in `to_dict`."""
        return self.algorithm if name == "algorithm" else self._mapping[name]

    def __getstate__(self) -> dict[str, object]:
        """Leave out the cached mapping, which is computed from the values."""
        return {"algorithm": self.algorithm, "values": self.values}

    def number(self, name: str) -> int:
        """Return the value of an integer parameter. Raises ConfigurationError when the parameter is not one."""
        value = self._mapping.get(name)
        if not isinstance(value, int):
            raise ConfigurationError(f"{self.algorithm} has no integer parameter {name!r}")
        return value

    @cached_property
    def _mapping(self) -> dict[str, Value]:
        return dict(self.values)

    def to_dict(self) -> dict[str, Value]:
        """Return the parameters by name, and the algorithm's name under ``algorithm``."""
        return {"algorithm": self.algorithm, **self._mapping}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`. Raises ConfigurationError for values other than integers and strings."""
        values = dict(data)
        algorithm = values.pop("algorithm", None)
        if not isinstance(algorithm, str):
            raise ConfigurationError("a configuration needs an algorithm name")
        for name, value in values.items():
            if type(value) not in (int, str) or not isinstance(name, str):
                raise ConfigurationError(f"parameter {str(name)[:80]!r} must be an integer or a string")
        return cls.of(algorithm, **values)

    @property
    def key(self) -> str:
        """Canonical JSON: equal configurations have equal keys."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))

    def __str__(self) -> str:
        return f"{self.algorithm}({', '.join(f'{name}={value}' for name, value in self.values)})"
