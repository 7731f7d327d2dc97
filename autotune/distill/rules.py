"""Distills many cases into a few kernels and a small decision tree that picks one of them.

Kernels are chosen to be good on devices that took no part: the one of a leaf loses little in the mean and on its worst
device, and how many leaves there are is decided by leaving out devices and sizes in turn.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, log

import numpy as np

from autotune.distill.cases import Case
from autotune.distill.losses import TIE, Feature, Losses, Numbers, Places, product
from autotune.errors import AutotuneError
from autotune.model.configuration import Configuration

WORST_SHARE = 0.5
"""Weight of the loss on the worst device, against that of the mean, where a leaf chooses its kernel."""
ALL_COUNT = 0.5
"""Weight, in cases, of the loss in all cases there: a leaf of few cases takes a kernel that is good elsewhere, too.

In the spaces that `scripts/bench_distill` names, rules reach 0.885 to 0.894 of the best with 0.1 to 2, without it 0.82.
"""
_LEAST_GAIN = 0.002
"""Mean loss that one more leaf must save."""
_LEAST_DEVICES, _LEAST_SIZES = 3, 5
"""Least number of devices or sizes of which leaving some out can say how many leaves are right."""
_MOST_FOLDS, _MOST_GROUPS = 12, 40
"""In how many parts devices or sizes are left out, to decide that and by `judge`."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """A question about a problem and its device."""

    feature: str
    """A fact, or a product of sizes such as ``m * n``."""
    bound: float | str
    """Where the feature is at most this number, or is this text, `yes` answers."""
    yes: "Node"
    no: "Node"

    def answer(self, facts: Mapping[str, str | float]) -> "Node":
        if isinstance(self.bound, str):
            return self.yes if facts[self.feature] == self.bound else self.no
        return self.yes if product(self.feature, facts) <= self.bound else self.no


Node = Split | int
"""A part of a tree; an integer is the number of a kernel."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A tree, and the kernels: those that the tree picks, then others worth trying on a device."""

    kernel: str
    kernels: tuple[Configuration, ...]
    root: Node

    def choose(self, facts: Mapping[str, str | float]) -> int:
        """Return the number of the kernel for the sizes, types and facts of a device."""
        node = self.root
        while isinstance(node, Split):
            node = node.answer(facts)
        return node

    @cached_property
    def inputs(self) -> dict[str, type]:
        """The facts that the tree asks for, in the order of their names, each with its type."""
        return dict(sorted((name, type(s.bound)) for s in _splits(self.root) for name in s.feature.split(" * ")))


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What is reached on a device, or at a size, by rules made without it: fractions of the best speed measured."""

    left_out: str
    cases: int
    measured: float
    """Share of the cases where the rule's kernel was measured; in the others its loss is an estimate."""
    rule: float
    nearest: float
    """By the winner of the nearest device and size that remain."""
    default: float | None
    """None where its time is not known."""
    best: float
    """By the fastest of the rule's kernels, for programs that try them all on the device."""
    single: float
    """By the one kernel that does best elsewhere."""


def distill(kernel: str, cases: Sequence[Case], most: int, depth: int) -> Rule:
    """Return a rule of at most `most` kernels whose tree asks at most `depth` questions.

    Raises AutotuneError when it is known to lose to the default somewhere.
    """
    losses = Losses(cases)
    fit = _Fit(losses, losses.columns, most, depth)
    rule = Rule(kernel=kernel, kernels=tuple(losses.configurations[row] for row in fit.kernels), root=fit.root)
    picked = [(case, case.times.get(rule.kernels[rule.choose(case.facts)], 0.0)) for case in cases]
    # Comparing with a default that is not known, NaN, is false.
    lost = [(case.default / time, case) for case, time in picked if time > case.default * exp(TIE)]
    if lost:
        speed, case = min(lost, key=lambda item: item[0])
        others = f", and in {len(lost) - 1} more cases" if lost[1:] else ""
        raise AutotuneError(
            f"the rule loses to the default: {speed:.2f} of its speed at {case.label} on {case.device}{others}",
            hint="allow more with --kernels and --depth",
        )
    return rule


def judge(cases: Sequence[Case], most: int, depth: int) -> dict[str, list[Judged]]:
    """Return what rules reach on each device that they were made without, and at each size."""
    losses = Losses(cases)
    groups = {name: losses.grouped(of_case, losses.columns) for name, of_case in _KINDS.items()}
    return {
        name: [_judged(losses, *part, most, depth) for part in _parts(of_kind, _MOST_GROUPS)]
        for name, of_kind in groups.items()
        if len(of_kind) > 1
    }


_KINDS: Mapping[str, Callable[[Case], str]] = {"device": lambda case: case.device, "size": lambda case: case.label}


def mean_of(lines: Sequence[Judged]) -> Judged:
    """Return the geometric means of what was reached, each line counting once."""
    cases = sum(line.cases for line in lines)
    defaults = [line.default for line in lines if line.default is not None]
    reached = ("rule", "nearest", "best", "single")
    return Judged(
        left_out="mean",
        cases=cases,
        measured=sum(line.measured * line.cases for line in lines) / cases,
        default=_geometric(defaults) if len(defaults) == len(lines) else None,
        **{name: _geometric(getattr(line, name) for line in lines) for name in reached},
    )


def _geometric(values: Iterable[float]) -> float:
    return exp(float(np.mean([log(value) for value in values])))


def _parts(groups: Mapping[str, Places], most: int) -> Iterator[tuple[str, Places]]:
    """Yield at most `most` parts of the groups; one of several groups is named by the first and their number."""
    names = list(groups)
    for some in (names[number::most] for number in range(min(most, len(names)))):
        others = f" and {len(some) - 1} others" if some[1:] else ""
        yield some[0] + others, np.concatenate([groups[name] for name in some])


def _judged(losses: Losses, left_out: str, columns: Places, most: int, depth: int) -> Judged:
    train = np.setdiff1d(losses.columns, columns)
    fit = _Fit(losses, train, most, depth)

    def speed(rows: Sequence[int] | int) -> float:
        return float(np.exp(-losses.losses[rows, columns].mean()))

    picked = fit.picks(columns)
    default = float(np.exp(-losses.defaults[columns].mean()))
    return Judged(
        left_out=left_out,
        cases=len(columns),
        measured=float(losses.is_measured[picked, columns].mean()),
        rule=speed(picked),
        nearest=speed([losses.nearest_winner(train, column) for column in columns.tolist()]),
        default=None if np.isnan(default) else default,
        best=float(np.exp(-losses.losses[fit.kernels][:, columns].min(axis=0).mean())),
        single=speed(fit.row(train)),
    )


def _splits(node: Node) -> Iterator[Split]:
    if isinstance(node, Split):
        yield node
        yield from _splits(node.yes)
        yield from _splits(node.no)


def _with_ends(node: Node, ends: Mapping[int, Node]) -> Node:
    """Return the tree with these in place of its integers; a split whose ends are equal goes."""
    if isinstance(node, int):
        return ends.get(node, node)
    yes, no = _with_ends(node.yes, ends), _with_ends(node.no, ends)
    return yes if yes == no else replace(node, yes=yes, no=no)


@dataclass(frozen=True, kw_only=True)
class _Leaf:
    """Cases at the end of a growing tree."""

    columns: Places
    depth: int
    row: int
    """Their kernel."""
    saved: float
    """What the split that saves most saves of the mean cost; 0 if there is none."""
    feature: str
    bound: float | str


class _Fit:
    """A tree grown on some of the cases, and its kernels."""

    def __init__(self, losses: Losses, columns: Places, most: int, depth: int) -> None:
        self._losses, self._columns, self._most, self._depth = losses, columns, most, depth
        self._rows = losses.rows(columns)
        self._by_device = losses.grouped(_KINDS["device"], columns)
        self._weighted = np.zeros((len(self._rows), len(losses.columns)))
        for group in self._by_device.values():
            self._weighted[:, group] = losses.costs[np.ix_(self._rows, group)] / len(group) / len(self._by_device)
        self._scores_of_all = self._scores(columns)
        self._trees = list(self._grown())
        """Trees of 1, 2, ... leaves, whose integers are numbers of leaves."""

    @cached_property
    def _chosen(self) -> tuple[Node, list[_Leaf]]:
        return self._trees[min(self._best_count(), len(self._trees)) - 1]

    @cached_property
    def kernels(self) -> list[int]:
        """Rows of the kernels: those of the tree, then those that help most if the best of all is taken."""
        chosen = list(dict.fromkeys(leaf.row for leaf in self._chosen[1]))
        losses = self._losses.losses[:, self._columns]
        best = losses[chosen].min(axis=0)
        while len(chosen) < self._most:
            means = np.minimum(losses[self._rows], best).mean(axis=1)
            if means.min() >= best.mean():
                break
            chosen.append(int(self._rows[means.argmin()]))
            best = np.minimum(best, losses[chosen[-1]])
        return chosen

    @cached_property
    def root(self) -> Node:
        """The tree, whose integers are numbers of kernels."""
        root, leaves = self._chosen
        return _with_ends(root, {number: self.kernels.index(leaf.row) for number, leaf in enumerate(leaves)})

    def picks(self, columns: Places, count: int | None = None) -> list[int]:
        """Return the rows that the tree picks in these cases, or that the one of so many leaves does."""
        root, leaves = self._trees[min(count, len(self._trees)) - 1] if count else self._chosen
        rule = Rule(kernel="", kernels=(), root=root)
        return [leaves[rule.choose(self._losses.cases[column].facts)].row for column in columns.tolist()]

    def row(self, columns: Places) -> int:
        """Return the kernel for some cases; to be good on devices that took no part, it counts the others as well."""
        scores = len(columns) * self._scores(columns) + ALL_COUNT * self._scores_of_all
        return int(self._rows[scores.argmin()])

    def _scores(self, columns: Places) -> Numbers:
        """Return what each row costs in the mean over devices and on the worst of them."""
        groups = [found for group in self._by_device.values() if len(found := np.intersect1d(group, columns))]
        means = np.stack([self._losses.costs[np.ix_(self._rows, group)].mean(axis=1) for group in groups])
        return np.asarray(means.mean(axis=0) + WORST_SHARE * means.max(axis=0))

    def _grown(self) -> Iterator[tuple[Node, list[_Leaf]]]:
        """Yield a tree as it grows, always by the split that saves most, until it has a leaf for each kernel."""
        root: Node = 0
        leaves = [self._leaf(self._columns, 0)]
        yield root, leaves
        while len(leaves) < self._most:
            number = max(range(len(leaves)), key=lambda n: leaves[n].saved)
            leaf = leaves[number]
            if not leaf.saved:
                return
            values = self._losses.features[leaf.feature][leaf.columns]
            bound = leaf.bound
            is_yes = np.array([v == bound if isinstance(bound, str) else v <= bound for v in values.tolist()])
            split = Split(feature=leaf.feature, bound=leaf.bound, yes=number, no=len(leaves))
            root = _with_ends(root, {number: split})
            yes, no = (self._leaf(leaf.columns[part], leaf.depth + 1) for part in (is_yes, ~is_yes))
            leaves = [*leaves[:number], yes, *leaves[number + 1 :], no]
            yield root, leaves

    def _leaf(self, columns: Places, depth: int) -> _Leaf:
        best: tuple[float, str, float | str] = (0.0, "", 0.0)
        weighted = self._weighted[:, columns]
        for name, values in self._losses.features.items() if depth < self._depth else ():
            for bound, saved in _cuts(weighted, values[columns]):
                if saved > best[0] + 1e-9:
                    best = saved, name, bound
        row = self.row(columns)
        return _Leaf(columns=columns, depth=depth, row=row, saved=best[0], feature=best[1], bound=best[2])

    def _best_count(self) -> int:
        """Return how many leaves lose least in cases left out; fewer, if those are not worse by more than chance."""
        of_kinds = []
        for kind, least in (("device", _LEAST_DEVICES), ("size", _LEAST_SIZES)):
            groups = self._losses.grouped(_KINDS[kind], self._columns)
            if len(groups) >= least:
                of_kinds.append(np.array([self._costs_without(part) for _, part in _parts(groups, _MOST_FOLDS)]))
        if not of_kinds:
            return 1
        best = int(np.mean([costs.mean(axis=0) for costs in of_kinds], axis=0).argmin())
        behind = [costs - costs[:, [best]] for costs in of_kinds]
        # The standard error of the mean difference is what chance makes of it.
        is_near = [b.mean(axis=0) <= b.std(axis=0) / len(b) ** 0.5 + _LEAST_GAIN for b in behind]
        return int(np.flatnonzero(np.all(is_near, axis=0))[0]) + 1

    def _costs_without(self, part: Places) -> Numbers:
        """Return the mean cost in some cases, of trees of 1, 2, ... leaves that were made without them."""
        fit = _Fit(self._losses, np.setdiff1d(self._columns, part), self._most, self._depth)
        picks = [fit.picks(part, count) for count in range(1, self._most + 1)]
        return np.array([self._losses.costs[rows, part].mean() for rows in picks])


def _cuts(weighted: Numbers, values: Feature) -> Iterator[tuple[float | str, float]]:
    """Yield each bound at which a feature can split cases, and what that saves. Shape of `weighted`: (rows, cases)."""
    distinct = sorted(set(values.tolist()))
    if len(distinct) < 2:
        return
    order = np.argsort(values, kind="stable")
    sums = np.add.reduceat(weighted[:, order], np.searchsorted(values[order], distinct), axis=1)
    total = sums.sum(axis=1, keepdims=True)
    bounds: list[float | str] = list(distinct)
    if not isinstance(distinct[0], str):
        sums = sums.cumsum(axis=1)[:, :-1]
        bounds = [_between(low, high) for low, high in itertools.pairwise(distinct)]
    saved = total.min() - sums.min(axis=0) - (total - sums).min(axis=0)
    yield from zip(bounds, saved.tolist(), strict=True)


def _between(low: float, high: float) -> float:
    """Return a number from `low` to below `high`: a power of two, else a whole number, where there is one."""
    middle = (low * high) ** 0.5 if low > 0 else (low + high) / 2
    power = 2.0 ** np.floor(np.log2(high)) if high > 0 else low
    return next((float(bound) for bound in (power, np.floor(middle), middle) if low <= bound < high), low)
