"""What is publicly known of a device by its name alone: the limits of its model, of its generation, of its family.

The knowledge is data, one TOML file per family in `machines/`, with the source of its numbers:

    [limits]                            fields of `DeviceLimits` that every device of the family has
    [generation.adreno-7xx.limits]      what is different in a generation (`identity.architecture_of`)
    [generation.adreno-7xx.models]      what is different in a model; a slug may go on after a hyphen, as in
    adreno-735 = { compute_units = 3 }  mali-g610-mc4, whose last part states the compute units

Standard library only.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from autotune.codec import Node, read
from autotune.device.identity import architecture_of
from autotune.model.device import DeviceLimits

_FOLDER = Path(__file__).parent / "machines"


def public_limits(slug: str, family: str) -> tuple[DeviceLimits, str]:
    """Return the limits that a device is known to have by its slug, and whose they are: a model, generation or family.

    Of a family without a file they are the least that OpenCL allows, and are nobody's.
    """
    file = _read(family)
    if not file:
        return DeviceLimits(), ""
    source, found = family, dict(file["limits"])
    architecture = architecture_of(slug)
    generation = file.get("generation", {}).get(architecture)
    if generation:
        source, found = architecture, found | generation["limits"]
        models = generation.get("models", {})
        model = max((name for name in models if f"{slug}-".startswith(f"{name}-")), key=len, default="")
        if model:
            source, found = model, found | models[model]
    cores = re.search(r"-m[cp](\d{1,3})$", slug)
    if cores and int(cores[1]):
        found["compute_units"] = int(cores[1])
    return read(DeviceLimits, Node(found)), source


@cache
def _read(family: str) -> Mapping[str, Any]:
    import tomllib

    path = _FOLDER / f"{family}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path in _files() else {}


@cache
def _files() -> frozenset[Path]:
    return frozenset(_FOLDER.glob("*.toml"))
