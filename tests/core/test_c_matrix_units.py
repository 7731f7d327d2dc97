"""The choice of exported C on a device with matrix units, which none of the devices of `test_c_package.py` has."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from autotune.export import export_package, export_table
from autotune.kernels.qgemm import FAMILY, QGemmProblem
from autotune.lookup import TuningTable
from autotune.model.device import Device
from autotune.store import Store
from core.test_c_package import Library, check_choice, pytestmark
from factories import winner
from stand_in import LIMITS

__all__ = ["pytestmark"]

LARGE = Device(
    slug="nvidia-h100", vendor="NVIDIA", model="H100", family="nvidia",
    limits=replace(LIMITS, has_ptx_integer_dot=True),
)  # fmt: skip
KINDS = ("q4_0", "q4_0 int8", "q4_k float16", "q8_0")


@pytest.mark.long
def test_c_chooses_among_matrix_units_as_python_does(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "tuned.sqlite")
    store.add_device(LARGE)
    for kind in KINDS:
        problem = QGemmProblem.parse(f"4096,1,4096 {kind}")
        store.record_winner(winner(LARGE, problem, FAMILY.default(problem, LARGE.limits, ())))
    export_package(store, None, ("qgemm",), tmp_path / "c")
    library = Library(tmp_path / "c", LARGE, ("qgemm",))
    assert library.opened == 0
    (tmp_path / "qgemm.json").write_text(str(export_table(store, None, "qgemm", "json")))
    table = TuningTable.open(tmp_path / "qgemm.json")
    algorithms = set()
    for m, n, k, experts, kind in product((1, 33, 4096), (1, 8, 9, 64, 1024), (256, 2048), (1, 3), KINDS):
        problem = QGemmProblem.parse(f"{m},{n},{k} {kind} experts={experts}")
        found = table.find(LARGE.slug, problem)
        check_choice(library, problem, found.match, found.configuration)
        algorithms.add(found.configuration.algorithm)
    assert algorithms == {"shared_rows", "matrix_rows", "matrix_tile"}
