"""Routes for what is known of a device beside its winners: networks, failures with the quarantine, hours of work."""

from collections import defaultdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from autotune.kernels import find_family
from autotune.model.configuration import Configuration
from autotune.model.problem import Problem
from autotune.search.drift import SENTINEL, Drift
from autotune.service.admission import WHAT
from autotune.service.core import Service
from autotune.service.forms import AllowForm
from autotune.service.pools import Pools
from autotune.service.report.gains import Network, tuned_networks
from autotune.service.store import ServiceStore
from autotune.service.store.history import FailureReason, Hour
from autotune.service.tables_api import Family, Slug

MAX_QUARANTINED = 500
MAX_REASONS = 50
MAX_HOURS = 24 * 31
MAX_SPEED_CHECKS = 1000
MAX_FLEET_TRIALS = 100_000


class NetworkList(BaseModel):
    """The networks of which the device has tuned at least one product."""

    networks: list[Network]


class QuarantinedView(BaseModel):
    """A configuration that searches leave out."""

    family: str
    shape: str
    configuration: dict[str, Any]
    reason: str
    message: str
    since: str
    driver: str


class FailuresAnswer(BaseModel):
    """How the trials of a device ended, and what is in quarantine."""

    trials: dict[str, int] = Field(description="number of trials of searches by how they ended")
    repeats: int = Field(description="number of runs that measured a configuration again, as in finals")
    last_measured: str
    reasons: list[FailureReason] = Field(description=f"what trials failed with, the {MAX_REASONS} commonest")
    quarantined: list[QuarantinedView] = Field(description=f"the newest {MAX_QUARANTINED}, newest first")
    total: int = Field(description="number of configurations in quarantine")


class AllowedAnswer(BaseModel):
    """Whether a configuration was in quarantine."""

    allowed: bool


class DriverTimes(BaseModel):
    """The least times of one problem under several drivers, nanoseconds, in the order of `drivers`."""

    shape: str
    flops: int
    times_ns: list[float | None]


class DriverAnswer(BaseModel):
    """Problems that were measured under more than one driver."""

    drivers: list[str] = Field(description="in the order in which they were used first")
    problems: list[DriverTimes]


class SpeedCheck(BaseModel):
    """A repeated measurement that shows whether the device keeps its speed: the sentinel of a search."""

    measured_at: str
    family: str
    shape: str
    ratio: float = Field(description="its time as a multiple of that at the first trial of the search, noise included")
    slowdown: float = Field(description="by what the search corrects times from then on, once a change is confirmed")
    is_change: bool = Field(description="whether it confirmed a change")


class SpeedAnswer(BaseModel):
    """The last checks of the speed, oldest first."""

    checks: list[SpeedCheck]


class HourList(BaseModel):
    """Hours in which the device measured, oldest first."""

    hours: list[Hour]


class FleetHours(BaseModel):
    """The hours of every device that measured lately."""

    devices: dict[str, list[Hour]] = Field(description=f"by slug, of the last {MAX_FLEET_TRIALS} trials, oldest first")


def device_routes(service: Service, pools: Pools) -> APIRouter:
    """Return the routes about devices that do not concern one problem."""
    routes = APIRouter(prefix="/api", tags=["devices"])
    store, heavy = service.store, pools.heavy.run

    @routes.get("/devices/{slug}/networks")
    async def list_networks(slug: Slug) -> NetworkList:
        """List the networks that are tuned at least in part, with total times without and with tuning."""
        return NetworkList(networks=await heavy(lambda: tuned_networks(store.best(slug))))

    @routes.get("/devices/{slug}/failures")
    async def get_failures(slug: Slug) -> FailuresAnswer:
        """Return how trials ended, and which configurations are in quarantine."""
        return await heavy(_failures, store, slug)

    @routes.post("/devices/{slug}/allow")
    async def allow(slug: Slug, form: AllowForm, request: Request) -> AllowedAnswer:
        """Take a configuration out of quarantine, so that searches may try it again."""
        problem = find_family(form.family).problem_type.parse(form.shape)
        configuration = Configuration.from_dict(form.configuration)
        request.scope[WHAT] = f"{slug} {problem.label} {configuration}"
        return AllowedAnswer(allowed=await heavy(store.allow, slug, problem, configuration))

    @routes.get("/devices/{slug}/drivers")
    async def compare_drivers(slug: Slug, family: Family = "gemm") -> DriverAnswer:
        """Compare the fastest trial of each problem under the drivers that the device had."""
        find_family(family)
        return await heavy(_drivers, store, slug, family)

    @routes.get("/devices/{slug}/hours")
    async def list_hours(slug: Slug, limit: Annotated[int, Query(ge=1, le=MAX_HOURS)] = 24 * 7) -> HourList:
        """List the hours in which the device measured: trials, failures, temperature and clock."""
        return HourList(hours=await heavy(store.hours, slug, limit))

    @routes.get("/hours")
    async def list_hours_of_all() -> FleetHours:
        """List the hours in which any device measured, by device."""
        return FleetHours(devices=await heavy(store.fleet_hours, MAX_FLEET_TRIALS))

    @routes.get("/devices/{slug}/speed")
    async def list_speed_checks(slug: Slug) -> SpeedAnswer:
        """List the repeated measurements that show drift: whether the device became slower or faster in a search."""
        return SpeedAnswer(checks=await heavy(_speed_checks, store, slug))

    return routes


def _speed_checks(store: ServiceStore, slug: str) -> list[SpeedCheck]:
    """Repeat what each search has concluded from its sentinel."""
    searches: defaultdict[tuple[Problem, str], Drift] = defaultdict(Drift)
    checks = []
    for stored in store.speed_checks(slug, MAX_SPEED_CHECKS):
        drift, run = searches[stored.problem, stored.provenance.driver], stored.trial
        if stored.purpose != SENTINEL:
            drift.corrected(run)
            continue
        ratio, before = drift.ratio(run), drift.slowdown
        drift.observe(run)
        if ratio is not None:
            checks.append(
                SpeedCheck(
                    measured_at=stored.provenance.measured_at, family=stored.problem.family,
                    shape=stored.problem.label, ratio=ratio, slowdown=drift.slowdown,
                    is_change=drift.slowdown != before,
                )
            )  # fmt: skip
    return checks


def _drivers(store: ServiceStore, slug: str, family: str) -> DriverAnswer:
    found: dict[Problem, dict[str, float]] = {}
    drivers: dict[str, None] = {}
    for problem, driver, time_ns in store.best_by_driver(slug, family):
        found.setdefault(problem, {})[driver] = time_ns
        drivers[driver] = None
    return DriverAnswer(
        drivers=list(drivers),
        problems=[
            DriverTimes(shape=problem.label, flops=problem.flops, times_ns=[times.get(driver) for driver in drivers])
            for problem, times in found.items()
            if len(times) > 1
        ],
    )


def _failures(store: ServiceStore, slug: str) -> FailuresAnswer:
    counts, quarantined = store.trial_counts(slug), store.quarantined(slug)
    newest = quarantined[-MAX_QUARANTINED:]
    return FailuresAnswer(
        trials=counts.by_state,
        repeats=counts.repeats,
        last_measured=counts.last_measured,
        reasons=store.failure_reasons(slug, MAX_REASONS),
        total=len(quarantined),
        quarantined=[
            QuarantinedView(
                family=entry.problem.family, shape=entry.problem.label, configuration=entry.configuration.to_dict(),
                reason=entry.reason, message=entry.message, since=entry.since, driver=entry.driver,
            )
            for entry in reversed(newest)
        ],
    )  # fmt: skip
