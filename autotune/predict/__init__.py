"""Makes predictors from measurements: a few configurations that cover a device's sizes, and a model that picks one.

`observations.py` collects the measurements of each configuration at each size and estimates missing ones, `costs.py`
fits models, `selection.py` decides what to keep by leaving out each size in turn, `regret.py` measures how much a
prediction loses. Predictors are stored in the database; `autotune.lookup.predictor` evaluates them.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from autotune.kernels import find_family
from autotune.lookup.predictor import Evaluation, Predictor, agrees
from autotune.lookup.values import read_document, write_predictors
from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.predict.observations import observe
from autotune.predict.selection import LEAST_SIZES, favoured, fit
from autotune.store import Store

__all__ = [
    "LEAST_SIZES",
    "add_predictors",
    "all_predictors",
    "keep_predictors",
    "known_predictors",
    "make_predictors",
    "note_measured",
    "refresh_predictors",
]


_LOG = logging.getLogger("autotune.predict")


def make_predictors(store: Store, device: Device, family: str, without: Collection[Problem] = ()) -> list[Predictor]:
    """Make one for each kind of problem that was measured at LEAST_SIZES sizes or more, ignoring those of `without`."""
    trials = [stored for stored in store.trials(device.slug, family) if stored.problem not in without]
    winners = [winner for winner in store.best(device.slug, family) if winner.problem not in without]
    found = (fit(observed) for observed in observe(device, family, trials, winners))
    return [predictor for predictor in found if predictor is not None]


def refresh_predictors(store: Store, device: Device, families: Iterable[str]) -> list[Predictor]:
    """Make the predictors of a device anew and store them; measured evaluations of the former ones are kept.

    Raises TableError when the former ones cannot be read, and StoreError.
    """
    former = all_predictors(store).get(device.slug, [])
    wanted = set(families)
    made = [
        _with_measured(predictor, former)
        for family in sorted(wanted)
        for predictor in make_predictors(store, device, family)
    ]
    kept = [p for p in former if p.example.family not in wanted] + made
    if kept or former:
        keep_predictors(store, device.slug, kept)
    return made


def add_predictors(store: Store, others: Mapping[str, Sequence[Predictor]]) -> None:
    """Store predictors made elsewhere, keyed by device slug, if they are based on more sizes than the stored ones.

    A predictor that contradicts the stored winners of its device is skipped with a warning. Raises TableError.
    """
    kept = all_predictors(store)
    devices = {device.slug: device for device in store.devices()}
    for slug, offered in others.items():
        by_kind = {(p.example.family, p.example.kind): p for p in kept.get(slug, [])}
        before = dict(by_kind)
        for predictor in offered:
            kind = predictor.example.family, predictor.example.kind
            known = by_kind.get(kind)
            is_better = known is None or predictor.sizes > known.sizes
            if is_better and (slug not in devices or _agrees(store, devices[slug], predictor)):
                by_kind[kind] = predictor
        if by_kind != before:
            keep_predictors(store, slug, by_kind.values())


def note_measured(store: Store, slug: str, example: Problem, evaluation: Evaluation) -> bool:
    """Store a measured evaluation with the predictor of its kind; return whether there is one. Raises TableError.

    If it covers enough sizes, it decides in place of the expected evaluation which way of choosing is favoured.
    """
    found = all_predictors(store).get(slug, [])
    noted = [_measured(p, evaluation) if p.example.is_comparable(example) else p for p in found]
    if noted != found:
        keep_predictors(store, slug, noted)
    return any(p.example.is_comparable(example) for p in found)


def known_predictors(store: Store, slug: str, family: str) -> list[Predictor]:
    """Return the stored predictors of a device and family. Raises TableError."""
    return [predictor for predictor in all_predictors(store).get(slug, []) if predictor.example.family == family]


def all_predictors(store: Store) -> dict[str, list[Predictor]]:
    """Return the stored predictors of every device, keyed by slug. Raises TableError."""
    return {slug: read_document(document, store.location, slug) for slug, document in store.predictors().items()}


def keep_predictors(store: Store, slug: str, predictors: Iterable[Predictor]) -> None:
    """Replace the stored predictors of the device."""
    store.keep_predictors(slug, write_predictors(predictors))


def _agrees(store: Store, device: Device, predictor: Predictor) -> bool:
    family = predictor.example.family
    if agrees(predictor, find_family(family), device.limits, store.best(device.slug, family)):
        return True
    _LOG.warning("left out what predicts %s on %s: it contradicts the measured winners", family, device.slug)
    return False


def _with_measured(predictor: Predictor, former: Iterable[Predictor]) -> Predictor:
    """Return the predictor with the measured evaluation of the former one of its kind, if there is any.

    An evaluation concerns the way predictors are made as much as a single one, so it is kept until the next.
    """
    known = next((p for p in former if p.example.is_comparable(predictor.example)), None)
    return _measured(predictor, known.measured) if known and known.measured else predictor


def _measured(predictor: Predictor, evaluation: Evaluation) -> Predictor:
    favours = favoured(evaluation) if evaluation.sizes >= LEAST_SIZES else predictor.favours
    if favours == "predicted":
        favours = predictor.favours  # what was measured as "predicted" is the lookup's answer, which follows `favours`
    return replace(predictor, measured=evaluation, favours=favours)
