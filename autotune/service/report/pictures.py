"""What tuning gained on a device, as drawings for papers and web pages: those that the service's page shows."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from autotune.model.trial import Winner, time_text
from autotune.service.report.gains import (
    EDGES,
    STEPS,
    Layer,
    Network,
    gains_text,
    share_of_limit,
    sizes_by_gain,
    step,
    tuned_networks,
)
from autotune.service.report.svg import MARGIN, WIDTH, bar, dot, drawing, fitting, line, logarithmic, text

_LEFT = 236
"""Where bars begin, in pixels."""
_LONGEST = 300
"""Width of the longest bar, pixels."""
_ROW = 36
"""Height of a pair of bars, pixels."""
_COLORS = ("none", "some", "more", "much")
"""Classes of the ranges of STEPS, as on the page."""
_POINTS = """\
<style>circle{stroke:#fff;stroke-width:.8}.none{fill:#8a97a6}.some{fill:#5f9bd0}.more{fill:#0b5cad}.much{fill:#c2410c}
@media(prefers-color-scheme:dark){circle{stroke:#151b23}.none{fill:#6f7d8c}.some{fill:#4c86c2}.more{fill:#71b1f5}
.much{fill:#ffb066}}</style>"""
_SHARES = (1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)


def pictures(slug: str, family: str, winners: Sequence[Winner]) -> dict[str, str]:
    """Return the drawings of a device's winners of one family by the name of their file; none without winners."""
    if not winners:
        return {}
    networks, place = tuned_networks(winners), f"{slug}, {family}"
    found = {"gains": _gains(place, winners)}
    if working := [winner for winner in winners if winner.problem.flops]:  # kernel files need not say their work
        found["limit"] = _limit(place, working, networks)
    if networks:
        found["networks"] = _networks(slug, networks)
    found |= {network.name: _layers(slug, network) for network in networks}
    return {f"{slug}-{family}-{name}.svg": drawn for name, drawn in found.items()}


def _gains(place: str, winners: Sequence[Winner]) -> str:
    """A bar for each range of gains: how many sizes are in it."""
    sizes = sizes_by_gain(winners)
    last = max((number for number, found in enumerate(sizes) if found), default=0)
    words = [f"{low}x to {high}x" for low, high in pairwise(EDGES)] + [f"{EDGES[-1]}x and more"]
    words[0] = f"under {EDGES[1]}x, or a tie"
    counted = list(zip(words, sizes, strict=True))[: last + 1]
    top, height = 76, 24
    parts = []
    for y, (word, found) in enumerate(counted):
        y = top + y * height
        width = _LONGEST * found / max(*sizes, 1)
        parts += [text(_LEFT - 12, y + 12, word, "", "end"), bar(_LEFT, y, width, 15, "ours")]
        parts.append(text(_LEFT + width + 8, y + 12, str(found)))
    verdicts = Counter(winner.verdict.value for winner in winners)
    listed = ", ".join(f"{number} {word}" for word, number in verdicts.most_common())
    note = "; ".join(filter(None, (gains_text(winners), f"{len(winners)} sizes: {listed}")))
    description = f"{note}. By gain: {', '.join(f'{word}: {found}' for word, found in counted)}."
    return drawing(top + len(counted) * height + 16, f"Gain over the default: {place}", note, parts, description)


def _limit(place: str, winners: Sequence[Winner], networks: Sequence[Network]) -> str:
    """A dot for each size: its share of the device's limit over its work."""
    left, right, top, bottom = 64, WIDTH - 30, 112, 410
    share = share_of_limit(winners)
    calls = {layer.shape: layer.calls for network in networks for layer in network.layers}
    work = [winner.problem.flops for winner in winners]
    low, high = min(work) / 1.3, max(*work, 2 * min(work)) * 1.3
    least = min(0.1, 0.9 * min(map(share, winners)))
    x, y = logarithmic(low, high, left, right), logarithmic(least, 1, bottom, top)
    parts = [_POINTS, *_legend(with_calls=bool(calls))]
    for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1):
        at = x(10**power)
        parts += [line(at, top, at, bottom, "grid"), text(at, bottom + 18, _short(10**power), "tick", "middle")]
    for tick in filter(lambda tick: tick >= least, _SHARES):
        at = y(tick)
        parts += [line(left, at, right, at, "grid"), text(left - 8, at + 4, f"{100 * tick:g}%", "tick", "end")]
    parts.append(text((left + right) / 2, bottom + 38, "operations of one call", "tick", "middle"))
    points = [(3 + 1.2 * math.log2(calls.get(winner.problem.label, 1)), winner) for winner in winners]
    for radius, winner in sorted(points, key=lambda point: -point[0]):  # large ones would hide small ones
        parts.append(dot(x(winner.problem.flops), y(share(winner)), _COLORS[step(winner)], radius))
    note = "the limit is the best shown here: the highest rate of a type of numbers, or the highest bandwidth"
    near = sum(share(winner) >= 0.5 for winner in winners)
    described = f"A point for each of {len(winners)} sizes, from {_short(min(work))} to {_short(max(work))} operations"
    description = f"{described}; {near} reach at least half of the limit. {note.capitalize()}."
    return drawing(bottom + 54, f"Share of the limit by work: {place}", note, parts, description)


def _legend(*, with_calls: bool) -> Iterator[str]:
    x, y = float(MARGIN), 80
    words = [*(f"up to {end}x" for end in STEPS), "more", *(["larger points: more calls in networks"] * with_calls)]
    yield text(x, y, "gain over default:", "note")
    x += 130
    for word, color in zip(words, (*_COLORS, ""), strict=False):
        if color:
            yield dot(x, y - 4, color)
        yield text(x + 10, y, word, "note")
        x += 40 + 6 * len(word)


def _short(value: float) -> str:
    """Format a count of operations with two digits: ``20 G``."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{float(f'{value / size:.2g}'):g} {unit}"
    return f"{value:g}"


def _networks(slug: str, networks: Sequence[Network]) -> str:
    """Two bars for each network: its products without tuning, and with it."""
    note = "all matrix products of one pass; without tuning (gray) is the whole width"
    rows = []
    for network in networks:
        tuned = f"{network.tuned} of {len(network.layers)} layers tuned"
        rows.append((network.name, tuned, (network.default_ns, network.time_ns), network.default_ns))
    return _pairs(f"Networks before and after tuning: {slug}", note, rows)


def _layers(slug: str, network: Network) -> str:
    """Two bars for each layer of a network: all its calls without tuning, and with it."""
    tuned = [layer for layer in network.layers if layer.time_ns]
    longest = max(_all_calls(layer)[0] for layer in tuned)
    rows = []
    for layer in tuned:
        calls = f"{layer.calls} call{'' if layer.calls == 1 else 's'}"
        rows.append((layer.shape, ", ".join(filter(None, (calls, layer.label))), _all_calls(layer), longest))
    together = _change(network.default_ns, network.time_ns)
    which = f"{len(tuned)} of {len(network.layers)} layers"
    note = f"{which}, each times its calls, before (gray) and after; together {together}"
    return _pairs(f"{network.name} before and after tuning: {slug}", note, rows)


def _all_calls(layer: Layer) -> tuple[float, float]:
    return layer.calls * (layer.default_ns or 0), layer.calls * (layer.time_ns or 0)


def _pairs(title: str, note: str, rows: Sequence[tuple[str, str, tuple[float, float], float]]) -> str:
    """Draw rows of a name, a remark, the times before and after, and the time that has the longest bar."""
    top = 76
    parts, described = [], []
    for y, (name, remark, (before, after), longest) in enumerate(rows):
        y = top + y * _ROW
        change = _change(before, after)
        width = _LEFT - 12 - MARGIN
        parts.append(text(_LEFT - 12, y + 10, fitting(name, width), "", "end"))
        parts.append(text(_LEFT - 12, y + 25, fitting(remark, width, 12), "note", "end"))
        for below, (time_ns, color) in enumerate(((before, "other"), (after, "ours"))):
            parts.append(bar(_LEFT, y + 2 + 11 * below, _LONGEST * time_ns / longest, 9, color))
        parts.append(text(WIDTH - MARGIN, y + 16, change, "note", "end"))
        described.append(f"{name}: {change}")
    return drawing(top + len(rows) * _ROW + 12, title, note, parts, f"{note}. {'; '.join(described)}.")


def _change(before: float, after: float) -> str:
    return f"{time_text(before)} → {time_text(after)}, {before / after:.3g}x"
