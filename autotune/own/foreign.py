"""What other tuners measured of a kernel: their T4 results and Kernel Tuner's caches, read as hostile input.

Such times were taken elsewhere, by another program, unverified here, so they never enter the ledger. They guide one
search as a sibling's trials do: their best are tried early, and the model learns how far they apply.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from autotune.codec import Node, parse, read_file
from autotune.errors import TableError, UsageError
from autotune.model.configuration import Configuration, Value
from autotune.propose.prior import Source
from autotune.space.family import Algorithm, KernelFamily

_MOST_MS = 1e12


def read_foreign(path: Path, family: KernelFamily) -> tuple[Source, int]:
    """Return the results of a file that fit a family's parameters, fastest first, and the number of all that ran right.

    A result fits an algorithm that has all its parameters with just these values; of several for one configuration the
    fastest counts. Raises UsageError when the file is neither T4 nor a cache, or when nothing fits.
    """
    found: dict[Configuration, float] = {}
    count = 0
    try:
        for values, time_ms in _results(_parsed(read_file(path))):
            count += 1
            configuration = _fitting(values, family)
            if configuration is not None:
                found[configuration] = min(time_ms, found.get(configuration, math.inf))
    except TableError as error:
        raise UsageError(f"{path}: {error.message}", hint=error.hint) from error
    if not found:
        names = ", ".join(dict.fromkeys(name for algorithm in family.algorithms for name in algorithm.by_name))
        raise UsageError(f"none of {path}'s {count} results fits {family.name}", hint=f"its parameters are {names}")
    ranked = sorted(found, key=found.__getitem__)
    times = tuple(math.log(found[configuration]) for configuration in ranked)
    return Source(name=path.name, configurations=tuple(ranked), log_times=times), count


def _parsed(data: bytes) -> Node:
    """Return the root of a file. Kernel Tuner closes a cache only when it has finished, which its last entry shows."""
    try:
        return parse(data)
    except TableError:
        if b'"cache"' not in data:
            raise
        return parse(data[: data.rfind(b"}") + 1] + b"}}")


def _results(root: Node) -> Iterator[tuple[Mapping[str, Node], float]]:
    """Yield the parameters and the time in milliseconds of each result that is right."""
    members = root.members()
    if "cache" in members:
        for entry in members["cache"].members().values():
            fields = entry.members()
            if "time" in fields and not isinstance(fields["time"].value, str):  # the name of an error
                yield fields, _time(fields["time"])
    elif "results" in members:
        # The length of the list is bounded by that of the file.
        for result in members["results"].items():
            if result.member("invalidity").text() == "correct":
                yield result.member("configuration").members(), _time(_time_of_t4(result))
    else:
        raise root.wrong("is neither T4 results nor a cache of Kernel Tuner")


def _time_of_t4(result: Node) -> Node:
    measurements = result.members().get("measurements")
    for measurement in measurements.items() if measurements else ():
        if measurement.member("name").text() == "time":
            return measurement.member("value")
    raise result.wrong("has no measurement named time")


def _time(node: Node) -> float:
    return node.number(0, _MOST_MS, excludes_least=True)


def _fitting(values: Mapping[str, Node], family: KernelFamily) -> Configuration | None:
    """Return the configuration of the first algorithm that has these values; None where no algorithm does."""
    named = values["algorithm"].value if "algorithm" in values else None
    for algorithm in family.algorithms:
        if named in (None, algorithm.name):
            chosen = _chosen(values, algorithm)
            if chosen is not None:
                return Configuration.of(algorithm.name, **chosen)
    return None


def _chosen(values: Mapping[str, Node], algorithm: Algorithm) -> dict[str, Value] | None:
    """Return a value for each parameter: the one given, or the only possible or neutral one where none is given."""
    chosen: dict[str, Value] = {}
    for name, parameter in algorithm.by_name.items():
        if name in values:
            given = values[name].value
            is_whole = isinstance(given, bool) or (isinstance(given, float) and given.is_integer())
            known = {str(value): value for value in parameter.values}
            value = known.get(str(given), known.get(str(int(given))) if is_whole else None)
        else:
            value = parameter.values[0] if len(parameter.values) == 1 else parameter.neutral
        if value is None:
            return None
        chosen[name] = value
    return chosen if not values.keys().isdisjoint(chosen) else None
