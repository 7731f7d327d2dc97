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
from factories import provenance, trial

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
    proposals = Proposals(knowledge, knowledge.space(["dot"]), seed=0)
    found: list[Configuration] = []
    while len(found) < count and (configuration := proposals.next()):
        found.append(configuration)
        proposals.tell(trial(configuration, 1000.0))
    return found


def first(store: Store) -> list[Configuration]:
    """What is proposed first while nothing is known."""
    return proposed(store, 6)


@pytest.mark.parametrize("build", [SPILLING, LIMITED])
def test_what_did_not_fit_another_driver_is_avoided(store: Store, build: Build) -> None:
    task = Task(PHONE, PROBLEM)
    before = first(store)
    build_all(store, build, before)
    builds = store.builds(PHONE.slug, PHONE.driver, by_others=True)
    assert any(task.is_doubtful(c, builds) for c in before)
    now = proposed(store, 6)
    assert len(now) == 6
    assert not any(task.is_doubtful(c, builds) for c in now)


@pytest.mark.parametrize("build", [FAILED, Build(source_hash="", state=BuildState.BUILT)])
def test_what_failed_to_build_or_fits_there_is_no_reason_for_doubt(store: Store, build: Build) -> None:
    before = first(store)
    build_all(store, build, before)
    assert proposed(store, 6) == before


def test_this_driver_decides_for_itself(store: Store) -> None:
    before = first(store)
    build_all(store, FAILED, before, driver=PHONE.driver)
    task = Task(PHONE, PROBLEM)
    assert not {task.hash_of(c) for c in before} & {task.hash_of(c) for c in proposed(store, 6)}
    assert not store.builds(PHONE.slug, PHONE.driver, by_others=True)
    assert len(store.builds(PHONE.slug, "Mesa 25", by_others=True)) == len({task.hash_of(c) for c in before})


def test_a_search_where_all_is_doubtful_still_measures(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Task, "is_doubtful", lambda *_: True)
    monkeypatch.setattr(Proposals, "MOST_SUSPECTED", 5)
    assert len(proposed(store, 2)) == 2
