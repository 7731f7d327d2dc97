"""Which configurations and which model to keep, judged by leaving out each size in turn."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.lookup.answer import distance
from autotune.lookup.predictor import FAVOURS, Evaluation, Predictor, Reach
from autotune.predict.models import FITS, Samples
from autotune.predict.observations import Observed

LEAST_SIZES = 5
"""Measured sizes below which nothing is predicted."""
MOST_LEFT_OUT = 60
"""Of very many sizes some are left out in turn: it says as much, and takes time that grows with their square."""
PORTFOLIOS = (6, 12, 24)
"""Configurations to choose among, at most."""
_LEAST_SAVING = 0.001
"""Mean loss that one more configuration must save."""
_TIE = 0.002
"""Mean part of the tuned speed by which nearness or the default must be better to be preferred to a prediction."""


@dataclass(frozen=True, kw_only=True)
class _Trialed:
    """One way to predict, and what it lost at each size left out."""

    model: str
    most: int
    losses: NDArray[np.float64]


def fit(observed: Observed) -> Predictor | None:
    """The predictor that did best on sizes left out; None where too few were measured."""
    count = len(observed.problems)
    if count < LEAST_SIZES:
        return None
    everything = np.arange(count)
    truth = np.maximum(0.0, observed.completed(everything))
    left_out = [int(column) for column in np.unique(np.linspace(0, count - 1, MOST_LEFT_OUT).round())]
    best = min(_trials(observed, truth, left_out), key=lambda tried: float(tried.losses.mean()))
    nearest = np.array([_loss_of_nearest(observed, truth, column) for column in left_out])
    default = observed.default_losses[left_out]
    chosen = cover(truth, best.most)
    samples = _samples(observed, chosen, everything, truth)
    expected = Evaluation(
        sizes=len(left_out), predicted=reach(best.losses), nearest=reach(nearest), default=reach(default)
    )
    return Predictor(
        example=observed.problems[0],
        sizes=count,
        configurations=samples.configurations,
        model=FITS[best.model](samples),
        favours=favoured(expected),
        expected=expected,
    )


def cover(losses: NDArray[np.float64], most: int) -> list[int]:
    """Rows, at most so many, of which the best at each column loses least in the mean; chosen one after the other."""
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
    """Parts of the tuned speed, from losses as logarithms of times over tuned ones."""
    parts = np.exp(-losses)
    return Reach(
        mean=round(float(np.exp(-losses.mean())), 4),
        median=round(float(np.median(parts)), 4),
        low=round(float(np.quantile(parts, 0.1)), 4),
        worst=round(float(parts.min()), 4),
    )


def _trials(observed: Observed, truth: NDArray[np.float64], columns: Sequence[int]) -> list[_Trialed]:
    """Every way to predict, at some of the sizes, each from all the others."""
    lost = {(model, most): np.zeros(len(columns)) for model in FITS for most in PORTFOLIOS}
    for number, left_out in enumerate(columns):
        others = np.delete(np.arange(len(observed.problems)), left_out)
        rows = np.flatnonzero(observed.nominations[:, others].any(axis=1))
        losses = np.maximum(0.0, observed.completed(others))
        for most in PORTFOLIOS:
            chosen = [int(rows[place]) for place in cover(losses[rows], most)]
            samples = _samples(observed, chosen, others, losses)
            for name, fit_model in FITS.items():
                ranking = fit_model(samples).ranking(observed.problems[left_out], observed.device.limits.compute_units)
                lost[name, most][number] = _loss_of_first_valid(
                    observed, truth, left_out, [chosen[place] for place in ranking]
                )
    return [_Trialed(model=model, most=most, losses=losses) for (model, most), losses in lost.items()]


def _loss_of_first_valid(observed: Observed, truth: NDArray[np.float64], column: int, ranking: Sequence[int]) -> float:
    for row in ranking:
        if observed.is_valid[row, column]:
            return float(truth[row, column])
    return _loss_of_nearest(observed, truth, column)


def _loss_of_nearest(observed: Observed, truth: NDArray[np.float64], column: int) -> float:
    """Of the winner of the nearest other size that is valid here, as the lookup's step finds it; else the default's."""
    here = observed.problems[column]
    others = [number for number in range(len(observed.problems)) if number != column]
    for number in sorted(others, key=lambda number: distance(observed.problems[number], here)):
        row = observed.winners[number]
        if observed.is_valid[row, column]:
            return float(truth[row, column])
    return float(observed.default_losses[column])


def favoured(evaluation: Evaluation) -> str:
    """What reached most, of FAVOURS; a prediction where it is as good as the others."""
    means = {name: getattr(evaluation, name).mean for name in FAVOURS}
    best = max(means, key=means.__getitem__)
    return best if means[best] > means["predicted"] + _TIE else "predicted"


def _samples(
    observed: Observed, chosen: Sequence[int], columns: NDArray[np.intp], losses: NDArray[np.float64]
) -> Samples:
    """`losses` are of all candidates at the columns."""
    rows = np.array(chosen, dtype=np.intp)
    return Samples(
        configurations=tuple(observed.candidates[row] for row in chosen),
        problems=tuple(observed.problems[column] for column in columns),
        losses=losses[rows],
        is_valid=observed.is_valid[np.ix_(rows, columns)],
        is_measured=~np.isnan(observed.losses[np.ix_(rows, columns)]),
        tuned_ns=observed.tuned_ns[columns],
        compute_units=observed.device.limits.compute_units,
    )
