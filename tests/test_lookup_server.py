"""Lookups in a database server: the command reads it through the store, the library refuses it with a hint."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main
from autotune.errors import TableError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.lookup import TuningTable
from autotune.lookup.database import read_trials
from autotune.lookup.predictor import Cost, Costs, Evaluation, Predictor, Reach
from autotune.model.configuration import Configuration
from autotune.predict import keep_predictors
from autotune.store import Store
from autotune.testing import INVENTED_PROCESSOR as DEVICE
from factories import winner

PLAIN = FAMILY.baseline


@pytest.fixture
def server(postgresql: str) -> str:
    even = Reach(mean=0.9, median=0.9, low=0.9, worst=0.9)
    terms = (Cost(tile=(1, 1, 0, 1), split=1, step=1, at_once=1, weights=(w, 0, 0, 0, 0, 0)) for w in (0.0, 0.5))
    other = FAMILY.complete(Configuration.of("naive", work_group_m=1, work_group_n=4))
    predictor = Predictor(
        example=GemmProblem(m=8, n=8, k=8), sizes=9, configurations=(other, PLAIN), favours="predicted",
        model=Costs(terms=tuple(terms)),
        expected=Evaluation(sizes=9, predicted=even, nearest=even, default=even),
    )  # fmt: skip
    with Store.open(postgresql) as store:
        store.add_device(DEVICE)
        for size in (64, 512):
            store.record_winner(winner(DEVICE, GemmProblem(m=size, n=size, k=size), PLAIN, 1000.0 * size))
        keep_predictors(store, DEVICE.slug, [predictor])
    return postgresql


def test_the_command_gives_the_answers_of_a_snapshot(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(size: int, place: str) -> Any:
        shape = (str(size),) * 3
        assert main(["lookup", "--device", DEVICE.slug, *shape, "--explain", "--json", "--db", place]) == 0
        return json.loads(capsys.readouterr().out)

    with Store.open(server, read_only=True) as store:
        store.snapshot(tmp_path / "copy.sqlite")
    matches = []
    for size in (64, 500, 1):
        found = answer(size, server)
        assert found == answer(size, str(tmp_path / "copy.sqlite"))
        matches.append(found["match"])
    assert matches[:2] == ["exact", "predicted"]


def test_an_sqlite_url_is_a_path(tmp_path: Path) -> None:
    path = tmp_path / "a table.sqlite"
    Store.open(path).close()
    table = TuningTable.open(f"sqlite:///{path}")
    assert (table.source, table.place, table.devices) == (str(path), str(path), ())


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://me:secret@host/x", "cannot open a table from a URL of the kind postgresql://"),
        ("mysql://me:secret@localhost/x", "cannot open a table from a URL of the kind mysql://"),
        ("sqlite:///nowhere/x.sqlite", "there is no table"),
    ],
)
def test_urls_that_lead_nowhere(url: str, message: str) -> None:
    with pytest.raises(TableError, match=message) as caught:
        TuningTable.open(url)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)
    assert read_trials(url, DEVICE, GemmProblem(m=9, n=9, k=9)) == []
