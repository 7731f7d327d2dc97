"""Route for one problem on a device: the winner compared with its rivals, and which parameters mattered."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from autotune.device.profile import find_profile
from autotune.errors import AutotuneError, TableError
from autotune.kernels import find_family
from autotune.kernels.render import render
from autotune.lookup.answer import Tuned
from autotune.lookup.json_table import plain_entry
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.service import importance, rivals
from autotune.service.core import Service
from autotune.service.importance import Share
from autotune.service.pools import Pools
from autotune.service.rivals import Rival
from autotune.service.tables_api import Family, Shape, Slug
from autotune.store import Store


class SizeAnswer(BaseModel):
    """What is known about a problem, apart from its trials."""

    device: str
    family: str
    shape: str
    problem: dict[str, Any]
    flops: int
    bytes_moved: int
    winner: dict[str, Any] | None = Field(description="an entry of a table")
    is_imported: bool = Field(description="whether the winner came with a table, measured elsewhere")
    rivals: list[Rival] = Field(description="the winner first; empty if there is none")
    host: list[Rival] = Field(description="the host's BLAS and the device, copies included, where measured")
    parameters: list[Share] = Field(description="`algorithm` over all trials, then the parameters of one algorithm")
    searched: str = Field(description="the algorithm that has these `parameters`")


class LaunchView(BaseModel):
    """One enqueued kernel."""

    kernel: str
    global_size: list[int] = Field(description="work-items")
    local_size: list[int] = Field(description="work-items; empty where the driver chooses")


class KernelAnswer(BaseModel):
    """The kernel that a lookup leads to."""

    source: str = Field(description="OpenCL C")
    build_options: list[str]
    launches: list[LaunchView]


def size_routes(service: Service, pools: Pools) -> APIRouter:
    """Return the route with what the page shows about one problem."""
    routes = APIRouter(prefix="/api", tags=["tables"])
    store = service.store

    @routes.get("/devices/{slug}/size")
    async def get_size(slug: Slug, shape: Shape, family: Family = "gemm") -> SizeAnswer:
        """Compare the winner with the default, plainest kernel and host BLAS, and show which parameters mattered."""
        return await pools.heavy.run(_size, store, slug, shape, family)

    @routes.get("/devices/{slug}/kernel")
    async def get_kernel(slug: Slug, shape: Shape, family: Family = "gemm") -> KernelAnswer:
        """Get the source and build options of the kernel to use for a problem, as a lookup finds it."""
        found, tuned = service.lookups.find(slug, shape, family)

        def read() -> KernelAnswer:
            return _kernel([device for device in store.devices() if device.slug == found], tuned)

        return await pools.heavy.run(read)

    return routes


def _size(store: Store, slug: str, shape: str, family: str) -> SizeAnswer:
    problem = find_family(family).problem_type.parse(shape)
    trials = store.trials(slug, family, problem)
    default = _default(store, slug, problem)
    winner = store.winner(slug, problem)
    shares = importance.shares(trials, winner.configuration.algorithm if winner else None)
    try:
        host = rivals.host_rivals(slug, problem)
    except TableError:  # only this comparison is lost with an unreadable record
        host = []
    return SizeAnswer(
        device=slug,
        family=family,
        shape=problem.label,
        problem=problem.to_dict(),
        flops=problem.flops,
        bytes_moved=problem.bytes_moved,
        winner=plain_entry(winner) if winner else None,
        is_imported=winner is not None and winner.source == "imported",
        rivals=rivals.rivals(winner, trials, default) if winner else [],
        host=host,
        parameters=shares,
        searched=_searched(shares, winner.configuration.algorithm if winner else ""),
    )


def _default(store: Store, slug: str, problem: Problem) -> Configuration | None:
    """Return the configuration without tuning; None for a problem that the device cannot hold."""
    family = find_family(problem.family)
    for device in store.devices():
        if device.slug == slug:
            with suppress(AutotuneError):
                return family.default(problem, device.limits, find_profile(device).starting(family.name))
    return None


def _kernel(devices: Sequence[Device], tuned: Tuned) -> KernelAnswer:
    family = find_family(tuned.problem.family)
    plan = family.plan(tuned.problem, tuned.configuration)
    options = find_profile(devices[-1]).build_options if devices else ()
    launches = [
        LaunchView(kernel=launch.kernel, global_size=list(launch.global_size), local_size=list(launch.local_size or ()))
        for launch in plan.launches
    ]
    source = render(family, tuned.configuration, plan).strip()
    return KernelAnswer(source=source, build_options=[*options, *plan.build_options], launches=launches)


def _searched(shares: list[Share], winning: str) -> str:
    if winning or not shares or shares[0].parameter != "algorithm":
        return winning
    return str(min(shares[0].levels, key=lambda level: level.best_ns).value)
