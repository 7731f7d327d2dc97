"""What a search takes over from other sizes and other devices."""

from pathlib import Path

import pytest

from autotune.export import export_table
from autotune.kernels import find_family
from autotune.model.device import Device, DeviceLimits
from autotune.model.problem import Problem
from autotune.search.neighbours import LEAST_OF_SOURCE, Neighbours
from autotune.store import Store
from factories import device, naive, product, provenance, trial, winner

GEMM = find_family("gemm")
HERE = device("adreno-730", vendor="Qualcomm")
PROBLEM = product(256, 256, 256)


def measured(store: Store, on: Device, problem: Problem, winning: int, trials: int = LEAST_OF_SOURCE) -> None:
    """Store a winner whose work-group is so many rows high, after so many trials."""
    store.add_device(on)
    for width in range(trials):
        store.add_trial(on, problem, trial(naive(winning, 1 + width), 100.0), provenance(), "search")
    store.import_winners([winner(on, problem, naive(winning, 1))], [on])


def neighbours_of(here: Device, store: Store) -> Neighbours:
    return Neighbours(here, GEMM, PROBLEM, store)


def test_a_device_without_any_results_gets_nothing(store: Store) -> None:
    found = neighbours_of(HERE, store)
    assert (found.own, found.starts, found.sources) == (None, [], [])


def test_near_sizes_come_before_other_devices_and_those_of_the_family_before_the_rest(store: Store) -> None:
    measured(store, HERE, PROBLEM, 1)
    measured(store, HERE, product(256, 256, 300), 2)
    measured(store, HERE, product(512, 256, 256), 4)
    measured(store, HERE, product(4096, 256, 256), 64)
    measured(store, device("mali-g78", vendor="ARM"), PROBLEM, 8)
    measured(store, device("adreno-640", vendor="Qualcomm"), product(256, 512, 256), 16)
    measured(store, device("adreno-650", vendor="Qualcomm"), PROBLEM, 32)
    found = neighbours_of(HERE, store)
    assert found.own == naive(1, 1)
    assert found.starts == [naive(2, 1), naive(4, 1), naive(16, 1), naive(32, 1)]
    assert [source.name for source in found.sources] == [
        "256x256x300 on adreno-730", "512x256x256 on adreno-730",
        "256x512x256 on adreno-640", "256x256x256 on adreno-650",
    ]  # fmt: skip


def test_devices_of_a_vendor_come_before_those_of_others(store: Store) -> None:
    measured(store, device("a-gpu", family="gpu", vendor="Other"), PROBLEM, 4)
    measured(store, device("b-gpu", family="gpu", vendor="Qualcomm"), PROBLEM, 8)
    assert neighbours_of(HERE, store).starts == [naive(8, 1), naive(4, 1)]


def test_a_processor_teaches_a_gpu_nothing(store: Store) -> None:
    measured(store, device("cpu-1", limits=DeviceLimits(is_cpu=True)), PROBLEM, 2)
    assert neighbours_of(HERE, store).starts == []


def test_a_few_trials_are_no_source(store: Store) -> None:
    measured(store, device("adreno-640"), PROBLEM, 2, trials=LEAST_OF_SOURCE - 1)
    found = neighbours_of(HERE, store)
    assert found.starts == [naive(2, 1)]
    assert found.sources == []


def test_other_number_types_teach_nothing(store: Store) -> None:
    measured(store, device("adreno-640"), product(256, 256, 256, mode="int8"), 2)
    assert neighbours_of(HERE, store).starts == []


def test_published_winners_of_the_family_are_starts_the_own_table_first(
    store: Store, published: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Store.open(tmp_path_factory.mktemp("elsewhere") / "autotune.sqlite") as elsewhere:
        for on, problem, winning in (
            (device("adreno-640"), product(256, 256, 300), 2),
            (HERE, PROBLEM, 4),
            (device("mali-g78"), PROBLEM, 8),
        ):
            measured(elsewhere, on, problem, winning)
            table = export_table(elsewhere, on.slug, "gemm", "json")
            (published / f"{on.slug}.json").write_text(str(table))
    found = neighbours_of(HERE, store)
    assert (found.starts, found.sources) == ([naive(4, 1), naive(2, 1)], [])
