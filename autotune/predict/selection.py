"""Selects the configurations of a predictor, judged by leaving out each size in turn."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autotune.lookup.answer import Entry, distance
from autotune.lookup.predictor import LEAST_AGREEMENT, Evaluation, Predictor, Reach, agrees
from autotune.predict.costs import Prices, fit_costs
from autotune.predict.observations import Observed

LEAST_SIZES = 5
"""Minimum number of measured sizes for a prediction."""
MOST_LEFT_OUT = 60
"""Maximum number of sizes in the leave-one-out validation; more add little, and its cost grows with their square."""
MOST_CHOICES = 16
"""Maximum number of configurations to choose among; each costs a lookup half a microsecond."""
_LEAST_SAVING = 0.001
"""Mean loss that one more configuration must save."""
_ALIKE = 1.0
"""Distance in powers of two within which sizes are left out together: a device behaves much the same at both."""
_TIE = 0.002
"""Mean fraction of the tuned speed by which a prediction must beat the default, and the nearest entry a prediction."""
_OWN_LOSS = 0.1
"""Loss that a prediction may have at a size it was fitted to, where it was measured."""


def fit(observed: Observed) -> Predictor | None:
    """Return the predictor; None if too few sizes were measured, or if `Costs` cannot express the configurations."""
    count = len(observed.problems)
    if count < LEAST_SIZES:
        return None
    everything = np.arange(count)
    prices = observed.prices(everything)
    truth = np.maximum(0.0, observed.completed(everything, prices))
    left_out = [int(column) for column in np.unique(np.linspace(0, count - 1, MOST_LEFT_OUT).round())]
    lost = np.array([_loss_of_prediction(observed, truth, column) for column in left_out])
    chosen = _chosen(observed, np.arange(len(observed.candidates)), everything, truth, prices)
    model = fit_costs([observed.works[row] for row in chosen], prices)
    if model is None:
        return None
    nearest = np.array([_loss_of_nearest(observed, truth, column, _unlike(observed, column)) for column in left_out])
    default = observed.default_losses[left_out]
    sizes = np.array([observed.problems[column].size_vector for column in left_out])
    left = _left_to_default(sizes, lost, default)
    predicted = np.where((sizes[:, left] == 1).any(axis=1), default, lost)
    expected = Evaluation(
        sizes=len(left_out), predicted=reach(predicted), nearest=reach(nearest), default=reach(default)
    )
    predictor = Predictor(
        example=observed.problems[0],
        sizes=count,
        configurations=tuple(observed.candidates[row] for row in chosen),
        model=model,
        favours=favoured(expected),
        expected=expected,
        left_to_default=left,
    )
    if _reproduces(observed, predictor, chosen):
        return predictor
    return replace(predictor, favours="nearest" if expected.nearest.mean > expected.default.mean + _TIE else "default")


def _reproduces(observed: Observed, predictor: Predictor, rows: Sequence[int]) -> bool:
    """Return whether the predictor chooses at its own sizes what was measured to be fast there.

    Estimates fill in what was not measured; if they misled the model, its choices contradict the winners. `rows` are
    the rows of its configurations.
    """
    limits, winners = observed.device.limits, [observed.candidates[row] for row in observed.winners]
    measured = [
        Entry(problem=problem, configuration=configuration, time_ns=time_ns)
        for problem, configuration, time_ns in zip(observed.problems, winners, observed.tuned_ns, strict=True)
    ]
    if not agrees(predictor, observed.family, limits, measured):
        return False
    losses = []
    for column, problem in enumerate(observed.problems):
        ranking = predictor.model.ranking(problem, limits.compute_units)
        row = next((rows[place] for place in ranking if observed.is_valid[rows[place], column]), None)
        if row is not None and not np.isnan(observed.losses[row, column]):
            losses.append(float(observed.losses[row, column]))
    return not losses or sum(loss <= _OWN_LOSS for loss in losses) >= LEAST_AGREEMENT * len(losses)


def _left_to_default(
    sizes: NDArray[np.int_], predicted: NDArray[np.float64], default: NDArray[np.float64]
) -> tuple[int, ...]:
    """Return the axes for which the default answers instead of the prediction if the size there is 1.

    A single row or column has its own kernels, about which other sizes say little: there the default answers unless it
    was beaten. `sizes` has shape (left out, axes); the losses `predicted` and `default` have shape (left out,).
    """
    found = []
    for axis, are_ones in enumerate((sizes == 1).T):
        is_better = are_ones.any() and predicted[are_ones].mean() < default[are_ones].mean() - _TIE
        if not is_better and not are_ones.all():
            found.append(axis)
    return tuple(found)


def _chosen(
    observed: Observed,
    rows: NDArray[np.intp],
    columns: NDArray[np.intp],
    losses: NDArray[np.float64],
    prices: Prices,
) -> list[int]:
    """Return the rows to choose among, most useful first, judged at the columns' problems and those `elsewhere`."""
    beside = observed.losses_elsewhere(rows, columns, prices)
    return [int(rows[place]) for place in cover(np.hstack([losses[rows], beside]), MOST_CHOICES)]


def cover(losses: NDArray[np.float64], most: int) -> list[int]:
    """Choose greedily at most `most` rows, so that the best of them at each column loses least in the mean.

    `losses` has shape (rows, columns).
    """
    chosen: list[int] = []
    best = np.full(losses.shape[1], np.inf)
    while len(chosen) < most:
        means = np.minimum(losses, best).mean(axis=1)
        row = int(np.argmin(means))
        if chosen and best.mean() - means[row] < _LEAST_SAVING:
            break
        chosen.append(row)
        best = np.minimum(best, losses[row])
    return chosen


def reach(losses: NDArray[np.float64]) -> Reach:
    """Return the fractions of the tuned speed, from losses (logarithms of times divided by tuned times)."""
    parts = np.exp(-losses)
    return Reach(
        mean=round(float(np.exp(-losses.mean())), 4),
        median=round(float(np.median(parts)), 4),
        low=round(float(np.quantile(parts, 0.1)), 4),
        worst=round(float(parts.min()), 4),
    )


def _loss_of_prediction(observed: Observed, truth: NDArray[np.float64], column: int) -> float:
    """Return the loss at a size of what is predicted from all sizes that are not near it."""
    others = _unlike(observed, column)
    rows = np.flatnonzero(observed.nominations[:, others].any(axis=1))
    prices = observed.prices(others)
    losses = np.maximum(0.0, observed.completed(others, prices))
    chosen = _chosen(observed, rows, others, losses, prices)
    model = fit_costs([observed.works[row] for row in chosen], prices)
    if model is not None:
        for place in model.ranking(observed.problems[column], observed.device.limits.compute_units):
            if observed.is_valid[chosen[place], column]:
                return float(truth[chosen[place], column])
    return _loss_of_nearest(observed, truth, column, others)


def _unlike(observed: Observed, column: int) -> NDArray[np.intp]:
    """Return the sizes from which to predict one that is left out: not those near it, unless too few would remain."""
    apart = np.linalg.norm(observed.places - observed.places[column], axis=1)
    far = np.flatnonzero(apart > _ALIKE)
    return far if len(far) >= LEAST_SIZES - 1 else np.flatnonzero(np.arange(len(apart)) != column)


def _loss_of_nearest(observed: Observed, truth: NDArray[np.float64], column: int, others: NDArray[np.intp]) -> float:
    """Return the loss of the nearest other winner that is valid here, as the lookup finds it, else the default's."""
    here = observed.problems[column]
    for number in sorted(others, key=lambda number: distance(observed.problems[number], here)):
        row = observed.winners[number]
        if observed.is_valid[row, column]:
            return float(truth[row, column])
    return float(observed.default_losses[column])


def favoured(evaluation: Evaluation) -> str:
    """Return which of FAVOURS reached most: the default unless beaten, a prediction if as good as the nearest entry."""
    nearest, predicted, default = (getattr(evaluation, name).mean for name in ("nearest", "predicted", "default"))
    if max(nearest, predicted) <= default + _TIE:
        return "default"
    return "nearest" if nearest > predicted + _TIE else "predicted"
