"""Distills many cases into a few kernels and a small decision tree that picks one of them.

Kernels are chosen to be good on devices that took no part: the one of a leaf loses little in the mean and on its worst
device, and how many leaves there are is decided by leaving out devices and sizes in turn.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, inf, log

import numpy as np

from autotune.distill.cases import Case
from autotune.distill.losses import TIE, Feature, Losses, Numbers, Places, product
from autotune.errors import AutotuneError
from autotune.model.configuration import Configuration

WORST_SHARE = 0.5
"""Weight of the loss on the worst device, against that of the mean, where a leaf chooses its kernel."""
ALL_COUNT = 0.5
"""Weight, in cases, of the loss in all cases there: a leaf of few cases takes a kernel that is good elsewhere, too.

In the spaces that `scripts/bench_distill` names, rules reach 0.885 to 0.894 of the best with 0.1 to 2, without it 0.79.
"""
_LEAST_GAIN = 0.002
"""Mean loss that one more leaf must save, and one more kernel half of it."""
_LEAST_DEVICES, _LEAST_SIZES = 3, 5
"""Least number of devices or sizes of which leaving some out can say how many leaves are right."""
_MOST_FOLDS = 12
"""Folds in which devices or sizes are left out to decide that."""
_MOST_GROUPS = 40
"""Sizes that `judge` leaves out one at a time; more are left out several at a time."""
_MOST_PAIRS = 2000


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
    rule = _Fit(losses, losses.columns, most, depth).rule(kernel)
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
    devices = losses.grouped(lambda case: case.device, losses.columns)
    sizes = _merged(losses.grouped(lambda case: case.label, losses.columns))
    return {
        name: [_judged(losses, left_out, columns, most, depth) for left_out, columns in groups.items()]
        for name, groups in (("device", devices), ("size", sizes))
        if len(groups) > 1
    }


def mean_of(lines: Sequence[Judged]) -> Judged:
    """Return the geometric means of what was reached, each line counting once."""
    cases = sum(line.cases for line in lines)
    defaults = [line.default for line in lines if line.default is not None]
    return Judged(
        left_out="mean",
        cases=cases,
        measured=sum(line.measured * line.cases for line in lines) / cases,
        rule=_geometric([line.rule for line in lines]),
        nearest=_geometric([line.nearest for line in lines]),
        default=_geometric(defaults) if len(defaults) == len(lines) else None,
        best=_geometric([line.best for line in lines]),
        single=_geometric([line.single for line in lines]),
    )


def _geometric(values: Sequence[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


def _merged(groups: Mapping[str, Places]) -> dict[str, Places]:
    """Return at most _MOST_GROUPS groups; one that was several is named by the first and their number."""
    names = list(groups)
    parts = [names[number::_MOST_GROUPS] for number in range(min(_MOST_GROUPS, len(names)))]
    return {
        part[0] + (f" and {len(part) - 1} others" if part[1:] else ""): np.concatenate([groups[name] for name in part])
        for part in parts
    }


def _judged(losses: Losses, left_out: str, columns: Places, most: int, depth: int) -> Judged:
    train = np.setdiff1d(losses.columns, columns)
    fit = _Fit(losses, train, most, depth)
    picked, rows = fit.picks(columns), fit.kernels
    nearest = [losses.winner(losses.nearest(train, column)) for column in columns.tolist()]
    default = float(np.exp(-losses.defaults[columns].mean()))
    return Judged(
        left_out=left_out,
        cases=len(columns),
        measured=float(losses.is_measured[picked, columns].mean()),
        rule=_speed(losses.losses[picked, columns]),
        nearest=_speed(losses.losses[nearest, columns]),
        default=None if np.isnan(default) else default,
        best=_speed(losses.losses[rows][:, columns].min(axis=0)),
        single=_speed(losses.losses[fit.leaf(train), columns]),
    )


def _speed(losses: Numbers) -> float:
    return float(np.exp(-losses.mean()))


def _splits(node: Node) -> Iterator[Split]:
    if isinstance(node, Split):
        yield node
        yield from _splits(node.yes)
        yield from _splits(node.no)


@dataclass(frozen=True, kw_only=True)
class _Cut:
    """A split of some cases, and what it saves of the mean cost."""

    saved: float
    feature: str
    bound: float | str


@dataclass(kw_only=True, eq=False)
class _Branch:
    """A part of a growing tree, with its cases."""

    columns: Places
    depth: int
    cut: _Cut | None
    """The split that saves most."""
    order: float = inf
    """When it was split, counted from 1; infinite for a leaf."""
    yes: "_Branch | None" = None
    no: "_Branch | None" = None
    row: int | None = None
    """The kernel while it is a leaf, once it was asked for."""


class _Fit:
    """A tree grown on some of the cases, and its kernels."""

    def __init__(self, losses: Losses, columns: Places, most: int, depth: int, leaves: int | None = None) -> None:
        """Without `leaves`, as many as do best in cases left out."""
        self._losses, self._columns, self._most, self._depth = losses, columns, most, depth
        self._rows = losses.rows(columns)
        self._by_device = losses.grouped(lambda case: case.device, columns)
        self._weighted = np.zeros((len(self._rows), len(losses.columns)))
        for group in self._by_device.values():
            self._weighted[:, group] = losses.costs[np.ix_(self._rows, group)] / len(group) / len(self._by_device)
        self._scores_of_all = self._scores(columns)
        self._tree = self._grown()
        self._leaves = self._best_leaves() if leaves is None else leaves

    @cached_property
    def _tree_and_rows(self) -> tuple[Node, list[int]]:
        return self._frozen(self._leaves)

    @cached_property
    def kernels(self) -> list[int]:
        """Rows of the kernels, those of the tree first."""
        return self._filled(self._tree_and_rows[1])

    def rule(self, name: str) -> Rule:
        kernels = tuple(self._losses.configurations[row] for row in self.kernels)
        return Rule(kernel=name, kernels=kernels, root=self._tree_and_rows[0])

    def picks(self, columns: Places, leaves: int | None = None) -> list[int]:
        """Return the rows that the tree picks in these cases, or picked when it had so many leaves."""
        root, rows = self._frozen(leaves) if leaves else self._tree_and_rows
        rule = Rule(kernel="", kernels=(), root=root)
        return [rows[rule.choose(self._losses.cases[column].facts)] for column in columns.tolist()]

    def leaf(self, columns: Places) -> int:
        """Return the row for some cases; to be good on devices that took no part, it counts the others as well."""
        scores = len(columns) * self._scores(columns) + ALL_COUNT * self._scores_of_all
        return int(self._rows[scores.argmin()])

    def _scores(self, columns: Places) -> Numbers:
        """Return what each row costs in the mean over devices and on the worst of them."""
        groups = [found for group in self._by_device.values() if len(found := np.intersect1d(group, columns))]
        means = np.stack([self._losses.costs[np.ix_(self._rows, group)].mean(axis=1) for group in groups])
        return np.asarray(means.mean(axis=0) + WORST_SHARE * means.max(axis=0))

    def _grown(self) -> _Branch:
        """Grow a tree, always by the split that saves most, until it has a leaf for each kernel."""
        root = self._branch(self._columns, 0)
        leaves = [root]
        for order in range(1, self._most):
            parent = max(leaves, key=lambda leaf: leaf.cut.saved if leaf.cut else 0.0)
            if not parent.cut:
                break
            values = self._losses.features[parent.cut.feature][parent.columns]
            bound = parent.cut.bound
            is_yes = np.array([v == bound if isinstance(bound, str) else v <= bound for v in values.tolist()])
            parent.order = order
            parent.yes = self._branch(parent.columns[is_yes], parent.depth + 1)
            parent.no = self._branch(parent.columns[~is_yes], parent.depth + 1)
            leaves = [leaf for leaf in leaves if leaf is not parent] + [parent.yes, parent.no]
        return root

    def _branch(self, columns: Places, depth: int) -> _Branch:
        best: _Cut | None = None
        weighted = self._weighted[:, columns]
        for name, values in self._losses.features.items() if depth < self._depth else ():
            for bound, saved in _cuts(weighted, values[columns]):
                if saved > (best.saved if best else 0.0) + 1e-9:
                    best = _Cut(saved=saved, feature=name, bound=bound)
        return _Branch(columns=columns, depth=depth, cut=best)

    def _frozen(self, leaves: int) -> tuple[Node, list[int]]:
        """Return the tree as it was when it had so many leaves, and the rows of its kernels."""
        rows: list[int] = []

        def freeze(branch: _Branch) -> Node:
            if branch.order < leaves and branch.cut and branch.yes and branch.no:
                yes, no = freeze(branch.yes), freeze(branch.no)
                return yes if yes == no else Split(feature=branch.cut.feature, bound=branch.cut.bound, yes=yes, no=no)
            if branch.row is None:
                branch.row = self.leaf(branch.columns)
            if branch.row not in rows:
                rows.append(branch.row)
            return rows.index(branch.row)

        return freeze(self._tree), rows

    def _best_leaves(self) -> int:
        """Return how many leaves lose least in cases left out; fewer, if those are not worse by more than chance."""
        losses = self._losses
        of_kinds = []
        for groups, least in (
            (self._by_device, _LEAST_DEVICES),
            (losses.grouped(lambda case: case.label, self._columns), _LEAST_SIZES),
        ):
            parts = list(groups.values())
            if len(parts) >= least:
                folds = [np.concatenate(parts[n::_MOST_FOLDS]) for n in range(min(_MOST_FOLDS, len(parts)))]
                of_kinds.append(np.array([self._costs_without(fold) for fold in folds]))
        if not of_kinds:
            return 1
        best = int(np.mean([costs.mean(axis=0) for costs in of_kinds], axis=0).argmin())
        behind = [costs - costs[:, [best]] for costs in of_kinds]
        # The standard error of the mean difference is what chance makes of it.
        is_near = [b.mean(axis=0) <= b.std(axis=0) / len(b) ** 0.5 + _LEAST_GAIN for b in behind]
        return int(np.flatnonzero(np.all(is_near, axis=0))[0]) + 1

    def _costs_without(self, fold: Places) -> Numbers:
        """Return the mean cost in a fold, of trees of 1, 2, ... leaves that were made without it."""
        fit = _Fit(self._losses, np.setdiff1d(self._columns, fold), self._most, self._depth, leaves=1)
        picks = [fit.picks(fold, leaves) for leaves in range(1, self._most + 1)]
        return np.array([self._losses.costs[rows, fold].mean() for rows in picks])

    def _filled(self, tree: Sequence[int]) -> list[int]:
        """Add the kernels that help most if the best of all is taken, on each device and halfway between any two.

        A device that took no part is more like something between two that did than like either.
        """
        losses, cases = self._losses.losses[:, self._columns], [self._losses.cases[c] for c in self._columns]
        both = itertools.combinations(range(len(cases)), 2)
        pairs = np.array(
            [(a, b) for a, b in itertools.islice(both, 100 * _MOST_PAIRS) if cases[a].sizes == cases[b].sizes]
        )
        if len(pairs):
            pairs = pairs[:: -(-len(pairs) // _MOST_PAIRS)]
            losses = np.hstack([losses, (losses[:, pairs[:, 0]] + losses[:, pairs[:, 1]]) / 2])
        chosen = list(tree)
        best = losses[chosen].min(axis=0)
        while len(chosen) < self._most:
            means = np.minimum(losses[self._rows], best).mean(axis=1)
            if best.mean() - means.min() < _LEAST_GAIN / 2:
                break
            chosen.append(int(self._rows[means.argmin()]))
            best = np.minimum(best, losses[chosen[-1]])
        return chosen


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
    found = (float(bound) for bound in (power, np.floor(middle), middle) if low <= bound < high)
    return next(found, low)
