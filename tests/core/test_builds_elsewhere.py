"""Builds by another driver of the same device, such as Mesa's for a phone: doubts about configurations, no verdicts."""

from pathlib import Path

import pytest

import factories
from autotune.kernels.gemm import GemmProblem
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.trial import Build, BuildState
from autotune.search.knowledge import Knowledge
from autotune.search.proposals import Proposals
from autotune.search.task import Task
from autotune.store import ExampleBuild, Store
from factories import naive, provenance, trial

LIMITS = DeviceLimits(compute_units=4, max_work_group_size=1024, max_work_item_sizes=(1024, 1024, 64))
PHONE = factories.device("adreno-730", limits=LIMITS, driver="OpenCL 3.0 QUALCOMM build: 0676.42")
PROBLEM = GemmProblem(m=64, n=64, k=64)
SPILLING = Build(source_hash="", state=BuildState.BUILT, private_memory_bytes=64)
LIMITED = Build(source_hash="", state=BuildState.BUILT, work_group_limit=1)
FAILED = Build(source_hash="", state=BuildState.FAILED)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "phone.sqlite")


def build_all(store: Store, build: Build, configurations: list[Configuration], driver: str = "Mesa 25") -> None:
    device: Device = factories.device(PHONE.slug, limits=PHONE.limits, driver=driver)
    task = Task(device, PROBLEM)
    values = {**vars(build)}
    examples = {
        task.hash_of(c): ExampleBuild(
            build=Build(**{**values, "source_hash": task.hash_of(c)}),
            problem=PROBLEM, configuration=c, provenance=provenance(driver),
        )
        for c in configurations
    }  # fmt: skip
    store.add_builds(device, list(examples.values()))


def proposed(store: Store, count: int) -> list[Configuration]:
    """What a search measures first; every trial completes."""
    knowledge = Knowledge(PHONE, PROBLEM, store)
    proposals = Proposals(knowledge, knowledge.space(["microtile"]), seed=0)
    found: list[Configuration] = []
    while len(found) < count and (configuration := proposals.next()):
        found.append(configuration)
        proposals.tell(trial(configuration, 1000.0))
    return found


def first(store: Store) -> list[Configuration]:
    """What is proposed first while nothing is known."""
    return proposed(store, 6)


@pytest.mark.parametrize("build", [SPILLING, LIMITED])
def test_a_search_begins_with_what_fitted_under_another_driver(store: Store, build: Build) -> None:
    task = Task(PHONE, PROBLEM)
    before = first(store)
    build_all(store, build, before[:2])
    builds = store.builds(PHONE.slug, PHONE.driver, by_others=True)
    fitting = [c for c in before if not task.is_doubtful(c, builds)]
    assert 2 <= len(fitting) < len(before)
    assert proposed(store, len(fitting)) == fitting


@pytest.mark.parametrize("build", [FAILED, Build(source_hash="", state=BuildState.BUILT)])
def test_what_failed_to_build_or_fits_there_is_no_reason_for_doubt(store: Store, build: Build) -> None:
    before = first(store)
    build_all(store, build, before)
    assert proposed(store, 6) == before


def test_builds_are_told_apart_by_driver(store: Store) -> None:
    build_all(store, FAILED, [naive(4, 8)], driver=PHONE.driver)
    build_all(store, SPILLING, [naive(4, 8)])
    (own,), (elsewhere,) = (
        store.builds(PHONE.slug, PHONE.driver, by_others=by_others).values() for by_others in (False, True)
    )
    assert (own.state, elsewhere.private_memory_bytes) == (FAILED.state, SPILLING.private_memory_bytes)
