"""What tuning gained: networks before and after, as the service's page shows them too, and the numbers of pictures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from autotune.model.trial import Request, Verdict, Winner
from autotune.networks.presets import DEFAULT_PRESET, PRESETS, preset

EDGES = (1, 1.05, 1.1, 1.25, 1.5, 2, 3, 5, 10)
"""Lower ends of the ranges of gains that sizes are counted by; the last range has no upper end."""
STEPS = (1.02, 1.25, 2)
"""Upper ends of the ranges of gains that have a color each; the last range has none."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One product of a network. Times of one call in nanoseconds, None where it is not tuned."""

    shape: str
    label: str
    calls: int
    flops: int
    default_ns: float | None
    time_ns: float | None


@dataclass(frozen=True, kw_only=True)
class Network:
    """The products of a network on a device. Totals are over all calls of the tuned ones, nanoseconds."""

    name: str
    meaning: str
    tuned: int
    """Number of layers with a winner."""
    default_ns: float
    time_ns: float
    layers: list[Layer]


def tuned_networks(winners: Sequence[Winner]) -> list[Network]:
    """Return the networks of which a device has tuned at least one product."""
    tuned = {winner.problem: winner for winner in winners}
    found = []
    for name in PRESETS:
        if name != DEFAULT_PRESET:
            layers = [_layer(request, tuned.get(request.problem)) for request in preset(name)]
            if any(layer.time_ns for layer in layers):
                found.append(_network(name, layers))
    return found


def _layer(request: Request, winner: Winner | None) -> Layer:
    return Layer(
        shape=request.problem.label, label=request.label, calls=request.calls, flops=request.problem.flops,
        default_ns=winner.default_ns if winner else None, time_ns=winner.time_ns if winner else None,
    )  # fmt: skip


def _network(name: str, layers: list[Layer]) -> Network:
    return Network(
        name=name,
        meaning=PRESETS[name].meaning,
        tuned=sum(layer.time_ns is not None for layer in layers),
        default_ns=sum(layer.calls * (layer.default_ns or 0) for layer in layers),
        time_ns=sum(layer.calls * (layer.time_ns or 0) for layer in layers),
        layers=layers,
    )


def compared(winners: Sequence[Winner]) -> list[Winner]:
    """Return the winners that finals compared with a default."""
    return [winner for winner in winners if winner.is_final and winner.verdict is not Verdict.DEFAULT_FAILED]


def gain(winner: Winner) -> float:
    """Return a winner's gain over the default; 1 for a provisional winner, which has none."""
    return winner.gain_over_default or 1.0


def gains_text(winners: Sequence[Winner]) -> str:
    """Describe the gain over the default: ``1.3x in the median, 2.1x in total``; empty if no default worked."""
    known = compared(winners)
    if not known:
        return ""
    total = sum(winner.default_ns for winner in known) / sum(winner.time_ns for winner in known)
    return f"{median(gain(winner) for winner in known):.3g}x in the median, {total:.3g}x in total"


def sizes_by_gain(winners: Sequence[Winner]) -> list[int]:
    """Return how many sizes gained over the default by each range of EDGES."""
    found = [0] * len(EDGES)
    for winner in compared(winners):
        found[max((n for n, low in enumerate(EDGES) if gain(winner) >= low), default=0)] += 1
    return found


def step(winner: Winner) -> int:
    """Return the number of the range of STEPS that a gain over the default is in."""
    return sum(gain(winner) >= end for end in STEPS)


def share_of_limit(winners: Sequence[Winner]) -> Callable[[Winner], float]:
    """Return what tells how near a winner comes to the best that the device has shown among these winners.

    That is its highest rate for the same type of numbers, or its highest bandwidth, whichever allows less.
    """
    bandwidth = max(winner.problem.bytes_moved / winner.time_ns for winner in winners)
    rates: dict[object, float] = {}
    for winner in winners:
        kind = _type_of(winner)
        rates[kind] = max(rates.get(kind, 0.0), winner.gflops)

    def share(winner: Winner) -> float:
        by_memory = winner.problem.bytes_moved / winner.time_ns / bandwidth
        return max(winner.gflops / rates[_type_of(winner)], by_memory)

    return share


def _type_of(winner: Winner) -> object:
    plain = winner.problem.to_dict()
    return plain.get("mode", plain.get("dtype", ""))
