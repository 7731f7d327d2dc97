"""Overview of a database by device: what is tuned, out of date, and set aside."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.kernels import find_family
from autotune.kernels.render import changes
from autotune.model.trial import Winner
from autotune.store import Store


@dataclass(frozen=True, kw_only=True)
class Overview:
    """State of one device."""

    device: str
    """Slug."""
    driver: str
    """Driver of the device on this machine, otherwise the driver that measured last."""
    problems: int
    """Number of problems that have a winner."""
    verdicts: Mapping[str, int]
    """Number of winners by the value of their verdict."""
    stale: Mapping[str, int]
    """Number of winners measured under another `driver`, `template` or `space`; one may count for several."""
    stale_problems: int
    last_measured: str
    """UTC, ISO 8601; empty when nothing was measured."""
    trials: Mapping[str, int]
    """Number of trials by state."""
    set_aside: Mapping[str, int]
    """Number of configurations in flight and in quarantine, by these words."""


def survey(store: Store, drivers: Mapping[str, str]) -> list[Overview]:
    """Return an overview of each device by slug; `drivers` are those of this machine's devices, by slug."""
    last_drivers = {device.slug: device.driver for device in store.devices()}
    winners = store.best()
    return [
        _overview(store, slug, drivers.get(slug, driver), [w for w in winners if w.device == slug])
        for slug, driver in sorted(last_drivers.items())
    ]


def _overview(store: Store, slug: str, driver: str, winners: list[Winner]) -> Overview:
    reasons = [changes(w.provenance, find_family(w.problem.family), w.configuration, driver) for w in winners]
    counts = store.trial_counts(slug)
    set_aside = {"in flight": len(store.in_flight(slug, driver)), "in quarantine": len(store.quarantined(slug, driver))}
    return Overview(
        device=slug,
        driver=driver,
        problems=len(winners),
        verdicts=Counter(winner.verdict.value for winner in winners),
        stale=Counter(reason for found in reasons for reason in found),
        stale_problems=sum(1 for found in reasons if found),
        last_measured=max([counts.last_measured, *(winner.provenance.measured_at for winner in winners)]),
        trials=counts.by_state,
        set_aside={word: count for word, count in set_aside.items() if count},
    )
