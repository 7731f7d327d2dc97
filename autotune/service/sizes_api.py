"""Route for one problem on a device: the winner compared with its rivals, and which parameters mattered."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from autotune.errors import TableError
from autotune.kernels import find_family
from autotune.lookup.json_table import plain_entry
from autotune.service import importance, rivals
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
    rivals: list[Rival] = Field(description="the winner first; empty if there is none")
    host: list[Rival] = Field(description="the host's BLAS and the device, copies included, where measured")
    parameters: list[Share] = Field(description="`algorithm` over all trials, then the parameters of one algorithm")
    searched: str = Field(description="the algorithm that has these `parameters`")


def size_routes(store: Store, pools: Pools) -> APIRouter:
    """Return the route with what the page shows about one problem."""
    routes = APIRouter(prefix="/api", tags=["tables"])

    @routes.get("/devices/{slug}/size")
    async def get_size(slug: Slug, shape: Shape, family: Family = "gemm") -> SizeAnswer:
        """Compare the winner with the default, plainest kernel and host BLAS, and show which parameters mattered."""
        return await pools.heavy.run(_size, store, slug, shape, family)

    return routes


def _size(store: Store, slug: str, shape: str, family: str) -> SizeAnswer:
    problem = find_family(family).problem_type.parse(shape)
    trials = store.trials(slug, family, problem)
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
        rivals=rivals.rivals(winner, trials) if winner else [],
        host=host,
        parameters=shares,
        searched=_searched(shares, winner.configuration.algorithm if winner else ""),
    )


def _searched(shares: list[Share], winning: str) -> str:
    if winning or not shares or shares[0].parameter != "algorithm":
        return winning
    return str(min(shares[0].levels, key=lambda level: level.best_ns).value)
