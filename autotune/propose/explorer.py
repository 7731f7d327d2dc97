"""Proposes the next row of a space, and estimates the remaining gain.

Times are modelled on a logarithmic scale that is compressed further above the best, since how bad a bad configuration
is says little about the good ones. The proposal is the row with the largest expected improvement, see `acquisition.py`.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.propose.acquisition import Beliefs, Expert, Observations, chances
from autotune.propose.features import Features, Rows
from autotune.propose.gaussian import Array, GaussianProcess, Hyperparameters, HyperPrior, fit
from autotune.propose.prior import Source, SourceModel, UsualWorkGroup
from autotune.space.diagram import Numbers, Paths
from autotune.space.search_space import SearchSpace


class Explorer:
    """Proposes rows of one space.

    Fits start from the hyperparameters of the call before; without new results, its models are used again.
    """

    LEAST_TRIALS = 3
    """Complete trials needed before the model is used, plus one per further algorithm: it beats chance that soon."""
    FIRST_ATTEMPTS = 24
    """After this many trials, including failed ones, LEAST_TRIALS is enough for any number of algorithms."""
    DRAWN, LIKELY = 64, 2
    """Without a model, a trial is one of DRAWN random rows: of the LIKELY ones that are likeliest to work, the farthest
    from earlier trials. The farthest of many would lie in the corners of the space, where hardly any row is fast: the
    farther of two gained 0.009 of the optimum after 25 trials, with an error of 0.006 (70 seeds)."""
    CANDIDATES = 768
    """Random rows ranked at each proposal, besides the neighbours of the best. 512 were level, a tenth faster."""
    WORTHWHILE = 0.02
    """Smallest improvement of log time that counts: smaller ones are noise, and many rows are nearly equal."""
    WORTHWHILE_EARLY, WORTHWHILE_EARLY_TRIALS = 0.1, 10
    """Added to WORTHWHILE in the first trials, less and less afterwards: finds a good region before its best row.

    With this and LEAST_TRIALS 3 in place of 8, 95% of the optimum took 30.0 trials instead of 34.9 (60 seeds).
    """
    REFINEMENT, REFINEMENT_TRIALS = 0.002, 100
    """After so many trials every second one counts improvements this small: by then they are most of what is left.
    It gained 0.0007 of the optimum after 200 trials, with an error of 0.0005 (16 seeds); from the 25th on, it lost."""
    REMEMBERED = 512
    """Number of most promising candidates that are ranked again at the next proposal."""
    CLIMBS, BEAM = 4, 6
    """At most CLIMBS steps of a beam search, each from the BEAM most promising rows to better neighbours."""
    MODELLED = 300
    """Observations in a model; if there are more, the fastest."""
    BELIEVED_SOURCES = 3
    LEAST_TRUST = 0.01
    SOURCE_ODDS = 2.0
    """Prior odds that a source applies here."""
    SOURCE_STARTS = 3
    """Number of first trials taken from the sources' best rows, each source in turn."""
    EXCURSION = 3
    EXCURSION_TRIALS = 8
    """Every EXCURSION-th of the EXCURSION_TRIALS trials after those starts ignores the sources."""
    STEPS, FIRST_STEPS = 8, 32
    LEARNT, RELEARNT = 100, 4
    """Above LEARNT observations one more hardly changes the hyperparameters, so only every RELEARNT-th refits them.
    From 60 observations on, it took 0.6 trials more to 95% of the optimum."""

    def __init__(self, space: SearchSpace, seed: int = 0, sources: Sequence[Source] = ()) -> None:
        self._space = space
        self._size = len(space)
        self._rng = np.random.default_rng(seed)
        self._features = Features(space)
        self._neighbours = Neighbours(space)
        self._hyper_prior = _hyper_prior(self._features)
        self._starts: dict[int, Hyperparameters] = {}
        self._beliefs: Beliefs | None = None
        self._remembered = np.zeros(0, dtype=np.int64)
        self._usual = UsualWorkGroup(space) if UsualWorkGroup.is_known_of(space) else None
        self._sources = self._model_sources(sources)

    def _model_sources(self, sources: Sequence[Source]) -> list[SourceModel]:
        models = [
            SourceModel(source, self._space, self._features, self._hyper_prior)
            for source in sources[: self.BELIEVED_SOURCES]
            if sum(map(self._features.can_describe, source.configurations)) >= self.LEAST_TRIALS
        ]
        self._remembered = np.concatenate([self._remembered, *(model.best_rows for model in models)])
        return models

    def propose(self, known: Observations) -> int | None:
        """Return the most promising row that is not taken; None when no row is left."""
        taken = known.taken
        if len(taken) >= self._size:
            return None
        start = self._source_start(taken)
        if start is not None:
            return start
        if not self._is_modelled(known) or self._is_excursion(taken):
            return self._first(known, taken)
        beliefs = self._believe(known)
        experts = tuple(self._with_pending(e, list(known.pending)) for e in beliefs.experts)
        beliefs = dataclasses.replace(beliefs, experts=experts, least=self._worthwhile(len(taken)))
        return self._climb(beliefs, self._candidates(known, taken, self._rng), taken)

    def expected_gain(self, known: Observations) -> float:
        """Return the fraction of the best time that the next proposal is expected to save.

        It is 1 before there is a model and 0 when the space is exhausted.
        """
        taken = known.taken
        if len(taken) >= self._size:
            return 0.0
        if not self._is_modelled(known):
            return 1.0
        beliefs = self._believe(known)
        candidates = self._candidates(known, taken, np.random.default_rng(len(taken)))
        return 1.0 - math.exp(-float(self._gains(beliefs, candidates).max()))

    def _climb(self, beliefs: Beliefs, rows: Rows, taken: set[int]) -> int:
        """Return the best row of a beam search that starts at the most promising candidates."""
        gains = self._gains(beliefs, rows)
        order = np.argsort(-gains)
        rows, gains = rows[order], gains[order]
        self._remembered = rows[: self.REMEMBERED]
        rows, gains = self._climbed(beliefs, rows, gains, {*taken, *rows.tolist()})
        self._remembered = np.append(self._remembered, rows[: self.BEAM])
        return int(rows[0])

    def _climbed(self, beliefs: Beliefs, rows: Rows, gains: Array, seen: set[int]) -> tuple[Rows, Array]:
        """Return the rows met, the most promising first, and their gains; rows in `seen` are not visited again."""
        climbed = rows[: self.BEAM]
        for _ in range(self.CLIMBS):
            near = _untaken(self._neighbours.of(climbed), seen)
            if not len(near):
                break
            seen.update(near.tolist())
            more = self._gains(beliefs, near)
            better = more > gains[min(self.BEAM, len(gains)) - 1]
            climbed = near[better][np.argsort(-more[better])][: self.BEAM]
            if not len(climbed):
                break
            rows, gains = np.append(rows[: self.BEAM], near[better]), np.append(gains[: self.BEAM], more[better])
            order = np.argsort(-gains)
            rows, gains = rows[order], gains[order]
        return rows, gains

    def _worthwhile(self, taken: int) -> float:
        """Return the smallest improvement of log time that counts after `taken` trials.

        It is not raised early on if there are sources, since these show the good regions.
        """
        if taken >= self.REFINEMENT_TRIALS and taken % 2:
            return self.REFINEMENT
        early = 0.0 if self._sources else self.WORTHWHILE_EARLY
        return self.WORTHWHILE + early * min(1.0, self.WORTHWHILE_EARLY_TRIALS / max(taken, 1))

    def _with_pending(self, expert: Expert, pending: Sequence[int]) -> Expert:
        if not pending:
            return expert
        return dataclasses.replace(expert, process=expert.process.believing(self._features.of(np.array(pending))))

    def _is_modelled(self, known: Observations) -> bool:
        attempts = len(known.log_times) + len(known.failed) + len(known.at_least)
        is_patient = not self._sources and attempts < self.FIRST_ATTEMPTS
        further = sum(span.count > 0 for span in self._space.spans) - 1 if is_patient else 0
        return len(known.log_times) >= self.LEAST_TRIALS + further

    def _source_start(self, taken: set[int]) -> int | None:
        """Return the best row by one source, each source in turn, away from the neighbourhoods of earlier trials.

        Returns None without sources, or after SOURCE_STARTS trials.
        """
        if not self._sources or len(taken) >= self.SOURCE_STARTS:
            return None
        source = self._sources[len(taken) % len(self._sources)]
        near = {int(other) for row in taken for other in self._neighbours.within_two(row)}
        rows = _untaken(np.append(self._drawn(self._rng), source.best_rows), taken | near)
        return int(rows[np.argmin(source.of(rows))]) if len(rows) else None

    def _is_excursion(self, taken: set[int]) -> bool:
        """Return whether the next trial ignores the sources: some must, or a wrong source would go unnoticed."""
        tried = len(taken) - self.SOURCE_STARTS
        return bool(self._sources) and tried < self.EXCURSION_TRIALS and tried % self.EXCURSION == self.EXCURSION - 1

    def _first(self, known: Observations, taken: set[int]) -> int:
        """Return a row chosen without a model of the times.

        Of some random rows of the algorithm least tried for its size, it is among those that are likeliest to work the
        one farthest from the rows tried.
        """
        shares = []
        for span in self._space.spans:
            tried = sum(span.first <= row < span.first + span.count for row in taken)
            shares.append((tried + 1) / math.log2(2 + span.count) if tried < span.count else math.inf)
        span = self._space.spans[shares.index(min(shares))]
        drawn = _untaken(self._rng.integers(span.first, span.first + span.count, self.DRAWN), taken)
        if not len(drawn):
            drawn = _untaken(np.arange(span.first, span.first + span.count), taken)
        if not taken:
            return int(drawn[0])
        works = chances(self._fit_failures(known), self._features.of(drawn))
        likely = drawn[np.argsort(-works, kind="stable")[: self.LIKELY]]
        return int(likely[np.argmax(self._squared_distances(likely, taken))])

    def _squared_distances(self, rows: Rows, taken: set[int]) -> Array:
        """Return each row's squared distance to the nearest taken row, with the prior mean of the feature weights."""
        weights = np.exp(self._hyper_prior.mean.log_weights)
        points = self._features.of(rows) * weights
        others = self._features.of(np.fromiter(taken, dtype=np.int64, count=len(taken))) * weights
        nearest: Array = np.min([((points - other) ** 2).sum(axis=1) for other in others], axis=0)
        return nearest

    def _drawn(self, rng: np.random.Generator) -> Rows:
        if self._size <= self.CANDIDATES:
            return np.arange(self._size)
        return rng.integers(0, self._size, self.CANDIDATES)

    def _candidates(self, known: Observations, taken: set[int], rng: np.random.Generator) -> Rows:
        best = sorted(known.log_times, key=known.log_times.__getitem__)[:3]
        near = self._neighbours.of(np.array(best))
        found = _untaken(np.concatenate([self._drawn(rng), self._remembered, near]), taken)
        return found if len(found) else _untaken(np.arange(self._size), taken)

    def _gains(self, beliefs: Beliefs, rows: Rows) -> Array:
        return beliefs.gains(rows, self._features.of(rows))

    def _believe(self, known: Observations) -> Beliefs:
        """Return models fitted to the observations; those of the previous call if nothing is new."""
        last = self._beliefs.known if self._beliefs else None
        if last and (last.log_times, last.failed, last.at_least) == (known.log_times, known.failed, known.at_least):
            assert self._beliefs is not None
            return self._beliefs
        fastest = sorted(known.log_times, key=known.log_times.__getitem__)[: self.MODELLED]
        rows = np.array(fastest)
        values = _squeezed(known.log_times, fastest, known.log_times[fastest[0]])
        sources = [self._usual, *self._sources]
        processes = [
            self._fit(key, rows, values if source is None else values - source.of(rows))
            for key, source in enumerate(sources)
        ]
        scores = np.array([process.log_likelihood for process in processes])
        scores[1:] += math.log(self.SOURCE_ODDS)
        trusts = np.exp(scores - scores.max())
        experts = tuple(
            self._with_bounds(Expert(process=process, source=source, trust=float(trust)), known)
            for process, source, trust in zip(processes, sources, trusts / trusts.sum(), strict=True)
            if trust > self.LEAST_TRUST
        )
        self._beliefs = Beliefs(known=known.copy(), experts=experts, works=self._fit_failures(known))
        return self._beliefs

    def _with_bounds(self, expert: Expert, known: Observations) -> Expert:
        """Add the rows without a time, so that the model no longer hopes for much near them.

        A row that was cut off gets the larger of its predicted time and its known lower bound, one that failed its
        predicted time.
        """
        lowest = sorted(known.at_least, key=known.at_least.__getitem__)[: self.MODELLED // 2]
        failed = sorted(known.failed)[-self.MODELLED // 2 :]
        rows = np.array([*lowest, *failed], dtype=np.int64)
        if not len(rows):
            return expert
        bounds = _squeezed(known.at_least, lowest, min(known.log_times.values()))
        if expert.source:
            bounds = bounds - expert.source.of(rows[: len(lowest)])
        bounds = np.append(bounds, np.full(len(failed), -math.inf))
        process = expert.process.believing(self._features.of(rows), at_least=bounds)
        return Expert(process=process, source=expert.source, trust=expert.trust)

    def _fit(self, key: int, rows: Rows, values: Array) -> GaussianProcess:
        started = self._starts.get(key)
        steps = self.FIRST_STEPS if started is None else _affordable(self.STEPS, len(rows))
        if started is not None and len(rows) > self.LEARNT and len(rows) % self.RELEARNT:
            steps = 0
        points = self._features.of(rows).astype(np.float64)
        process = fit(points, values, self._hyper_prior, started or self._hyper_prior.mean, steps)
        self._starts[key] = process.at
        return process

    def _fit_failures(self, known: Observations) -> GaussianProcess | None:
        if not known.failed or not known.log_times:
            return None
        failed = sorted(known.failed)[-self.MODELLED // 2 :]
        worked = list(known.log_times)[-self.MODELLED // 2 :]
        values = np.array([0.0] * len(failed) + [1.0] * len(worked))
        return self._fit(-1, np.array(failed + worked), values)


def _squeezed(log_times: Mapping[int, float], rows: Sequence[int], best: float) -> Array:
    """Return log times relative to the best, compressed as ``log(1 + x)``: slope 1 at the best, less above it."""
    return np.log1p(np.maximum(np.array([log_times[row] for row in rows]) - best, -0.5))


def _untaken(rows: Rows, taken: set[int]) -> Rows:
    """Return the rows that are not taken, each once, in their order."""
    return np.array([row for row in dict.fromkeys(rows.tolist()) if row not in taken], dtype=np.int64)


def _affordable(steps: int, points: int) -> int:
    """Reduce the steps of a fit whose cost grows with the square of the number of points."""
    return max(1, min(steps, round(steps * (90 / max(points, 1)) ** 2)))


def _hyper_prior(features: Features) -> HyperPrior:
    """Return a prior under which each group contributes its weight to the squared distance of two typical rows."""
    weights = np.zeros(features.count)
    for group in features.groups:
        if len(group.columns):
            weights[group.columns] = 0.5 * math.log(0.5 * group.weight / len(group.columns))
    return HyperPrior(mean=Hyperparameters(log_weights=weights, log_noise=math.log(0.01)))


class Neighbours:
    """Finds the rows that differ from given ones in one parameter, in a time almost independent of the space's size."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._changes = {name: _changes(diagram.sizes) for name, diagram in space.diagrams.items()}

    def of(self, rows: Numbers) -> Numbers:
        """Return rows of the same algorithm that differ from one of these in one parameter; may have duplicates."""
        found = [np.zeros(0, dtype=np.int64)]
        for span, _, paths in self._space.paths(rows):
            found.append(self._space.rows(span.algorithm, _changed(paths, self._changes[span.algorithm])))
        near = np.concatenate(found)
        return near[near >= 0]

    def within_two(self, row: int) -> Numbers:
        """Return the rows of the same algorithm that differ from this one in one or two parameters."""
        [(span, _, paths)] = self._space.paths(np.array([row]))
        once = _changed(paths, self._changes[span.algorithm])
        twice = _changed(once, self._changes[span.algorithm])
        near = np.unique(self._space.rows(span.algorithm, np.concatenate([once, twice])))
        others: Numbers = near[(near >= 0) & (near != row)]
        return others


def _changes(sizes: tuple[int, ...]) -> NDArray[np.uint16]:
    """Return all changes of one value, shape (changes, 3): layer, increment of the index, and size (the modulus)."""
    changes = [(layer, by, size) for layer, size in enumerate(sizes) for by in range(1, size)]
    return np.array(changes, dtype=np.uint16).reshape(-1, 3)


def _changed(paths: Paths, changes: NDArray[np.uint16]) -> Paths:
    """Apply each change to each path; the result has shape (paths * changes, layers)."""
    layers, by, sizes = changes.T
    after = np.repeat(paths, len(changes), axis=0)
    lines = np.arange(len(after))
    columns = np.tile(layers, len(paths))
    after[lines, columns] = (after[lines, columns] + np.tile(by, len(paths))) % np.tile(sizes, len(paths))
    return after
