"""Predictors made from what was measured: the few configurations that cover a device's sizes, and who picks them.

`observations.py` gathers and completes what is known of each configuration at each size, `models.py` fits, `fitting.py`
decides what to keep by leaving out each size in turn, `regret.py` measures how much a prediction loses. A database's
predictors lie in a file beside it; `autotune.lookup.predictor` evaluates them.
"""

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.errors import TableError
from autotune.family import Device, Problem
from autotune.lookup.predictor import Evaluation, Predictor
from autotune.lookup.predictor_text import predictors_file, read_predictors_file, to_plain_file
from autotune.predict.fitting import LEAST_SIZES, favoured, fit
from autotune.predict.observations import observe
from autotune.store import Store

__all__ = [
    "LEAST_SIZES",
    "add_predictors",
    "all_predictors",
    "known_predictors",
    "make_predictors",
    "note_measured",
    "refresh_predictors",
    "write_predictors",
]


def make_predictors(store: Store, device: Device, family: str, without: Collection[Problem] = ()) -> list[Predictor]:
    """One for each kind of problem that was measured at LEAST_SIZES sizes or more, `without` some left out."""
    trials = [stored for stored in store.trials(device.slug, family) if stored.problem not in without]
    winners = [winner for winner in store.best(device.slug, family) if winner.problem not in without]
    found = (fit(observed) for observed in observe(device, family, trials, winners))
    return [predictor for predictor in found if predictor is not None]


def refresh_predictors(store: Store, device: Device, families: Iterable[str]) -> list[Predictor]:
    """Make those of a device anew and keep them beside the database; what was measured of the former ones stays.

    Databases on a server have no place for them. Raises TableError when the file cannot be read or written.
    """
    place = _place(store)
    if place is None:
        return []
    kept = read_predictors_file(place)
    former = kept.get(device.slug, [])
    wanted = set(families)
    made = [
        _with_measured(predictor, former)
        for family in sorted(wanted)
        for predictor in make_predictors(store, device, family)
    ]
    kept[device.slug] = [p for p in former if p.example.family not in wanted] + made
    write_predictors(place, kept)
    return made


def add_predictors(store: Store, others: Mapping[str, Sequence[Predictor]]) -> None:
    """Keep what was made elsewhere, by slug, where it rests on more sizes than what is here. Raises TableError."""
    place = _place(store)
    if place is None or not any(others.values()):
        return
    kept = read_predictors_file(place)
    for slug, found in others.items():
        by_kind = {(p.example.family, p.example.kind): p for p in kept.get(slug, [])}
        for predictor in found:
            kind = predictor.example.family, predictor.example.kind
            if kind not in by_kind or by_kind[kind].sizes < predictor.sizes:
                by_kind[kind] = predictor
        kept[slug] = list(by_kind.values())
    write_predictors(place, kept)


def note_measured(store: Store, slug: str, example: Problem, evaluation: Evaluation) -> bool:
    """Keep what was measured with the predictor of its kind; whether there is one. Raises TableError.

    Where enough was measured, it decides over what was expected which way to choose is favoured.
    """
    place = _place(store)
    kept = read_predictors_file(place) if place else {}
    found = kept.get(slug, [])
    kept[slug] = [_measured(p, evaluation) if p.example.is_comparable(example) else p for p in found]
    if place is None or kept[slug] == found:
        return any(p.example.is_comparable(example) for p in found)
    write_predictors(place, kept)
    return True


def known_predictors(store: Store, slug: str, family: str) -> list[Predictor]:
    """What lies beside the database. Raises TableError."""
    place = _place(store)
    found = read_predictors_file(place).get(slug, []) if place else []
    return [predictor for predictor in found if predictor.example.family == family]


def all_predictors(store: Store) -> dict[str, list[Predictor]]:
    """The same of every device, by slug: one reading for all. Raises TableError."""
    place = _place(store)
    return read_predictors_file(place) if place else {}


def write_predictors(place: Path, predictors: Mapping[str, Sequence[Predictor]]) -> None:
    """The whole file, or nothing of it; predictors by slug. Raises TableError."""
    there = {slug: list(found) for slug, found in predictors.items() if found}
    if not there and not place.exists():
        return
    draft = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(to_plain_file(there), allow_nan=False) + "\n", encoding="ascii")
        draft.replace(place)
    except OSError as error:
        raise TableError(f"{place}: cannot be written: {error.strerror}") from error


def _place(store: Store) -> Path | None:
    return predictors_file(Path(store.location)) if "://" not in store.location else None


def _with_measured(predictor: Predictor, former: Iterable[Predictor]) -> Predictor:
    """An evaluation is of the way predictors are made as much as of one: it stays until the next."""
    known = next((p for p in former if p.example.is_comparable(predictor.example)), None)
    return _measured(predictor, known.measured) if known and known.measured else predictor


def _measured(predictor: Predictor, evaluation: Evaluation) -> Predictor:
    favours = favoured(evaluation) if evaluation.sizes >= LEAST_SIZES else predictor.favours
    if favours == "predicted":
        favours = predictor.favours  # what was measured by this name is what the lookup answered, by the way it favours
    return replace(predictor, measured=evaluation, favours=favours)
