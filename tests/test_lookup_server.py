"""The lookup on a database server: the same answers as from a file, quick to load, and clear about what is wrong."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.errors import (
    AutotuneError,
    DatabaseAwayError,
    NewerSchemaError,
    NotADatabaseError,
    StoreError,
    TableError,
)
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.lookup import Match, TuningTable
from autotune.lookup.predictor import Evaluation, Neighbours, Point, Predictor, Reach
from autotune.lookup.trials import read_trials
from autotune.model.configuration import Configuration
from autotune.model.trial import Measurement, Timer, Trial, TrialState
from autotune.predict import keep_predictors
from autotune.store import Store
from autotune.testing import INVENTED_PROCESSOR as DEVICE
from databases import Server, change
from factories import provenance, winner

PROVENANCE = provenance()
PLAIN = FAMILY.baseline
ASKED = ((64, 64, 64), (500, 500, 500), (1, 1, 1))


@pytest.fixture
def server(postgresql: str) -> str:
    with Store.open(postgresql) as store:
        store.add_device(replace(DEVICE, driver="older"))
        store.add_device(DEVICE)
        for size in (64, 512):
            store.record_winner(winner(DEVICE, GemmProblem(m=size, n=size, k=size), PLAIN, 1000.0 * size))
    return postgresql


def test_a_server_and_a_snapshot_of_it_give_the_same_answers(server: str, tmp_path: Path) -> None:
    with Store.open(server, read_only=True) as store:
        store.snapshot(tmp_path / "copy.sqlite")
    near, far = TuningTable.open(tmp_path / "copy.sqlite"), TuningTable.open(server)
    assert near.devices == far.devices == (replace(DEVICE, selector=""),)
    for m, n, k in ASKED:
        assert near.find(DEVICE.slug, m=m, n=n, k=k) == far.find(DEVICE.slug, m=m, n=n, k=k)
    exact = far.find(DEVICE.slug, m=512, n=512, k=512)
    assert (exact.match, exact.time_ns) == (Match.EXACT, 512000.0)


def test_a_server_predicts_as_a_snapshot_of_it_does(server: str, tmp_path: Path) -> None:
    even = Reach(mean=0.9, median=0.9, low=0.9, worst=0.9)
    other = FAMILY.complete(Configuration.of("naive", work_group_m=1, work_group_n=4))
    predictor = Predictor(
        example=GemmProblem(m=8, n=8, k=8), sizes=9, configurations=(other, PLAIN), favours="predicted",
        model=Neighbours(count=1, points=(Point(sizes=(8, 8, 8, 1), losses=(0.0, 0.5)),)),
        expected=Evaluation(sizes=9, predicted=even, nearest=even, default=even),
    )  # fmt: skip
    with Store.open(server) as store:
        keep_predictors(store, DEVICE.slug, [replace(predictor, sizes=8)])
        keep_predictors(store, DEVICE.slug, [predictor])
    with Store.open(server, read_only=True) as store:
        store.snapshot(tmp_path / "copy.sqlite", DEVICE.slug)
        store.snapshot(tmp_path / "others.sqlite", "another")
    far, near = (TuningTable.open(place) for place in (server, tmp_path / "copy.sqlite"))
    found = far.find(DEVICE.slug, m=500, n=500, k=500)
    assert (found.match, found.configuration, found.because) == (Match.PREDICTED, other, predictor.because)
    assert near.find(DEVICE.slug, m=500, n=500, k=500) == found
    with Store.open(tmp_path / "others.sqlite") as store:
        assert store.predictors() == {}


def test_the_command_asks_a_server(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lookup", "--device", DEVICE.slug, "64", "64", "64", "--explain", "--db", server]) == 0
    assert "was measured on" in capsys.readouterr().out


def test_trials_are_read_from_a_server_and_from_nowhere_else(server: str) -> None:
    problem = GemmProblem(m=9, n=9, k=9)
    measured = Measurement(time_ns=5.0, samples_ns=(5.0,), calls_per_sample=1, timer=Timer.HOST, prepare_ns=2.0)
    with Store.open(server) as store:
        trial = Trial(configuration=PLAIN, state=TrialState.COMPLETE, measurement=measured)
        store.add_trial(DEVICE, problem, trial, PROVENANCE)
    table = TuningTable.open(server)
    [found] = read_trials(table.place, DEVICE, problem)
    assert (found.configuration, found.time_ns, found.prepare_ns) == (PLAIN, 5.0, 2.0)
    assert read_trials("postgresql://nobody@localhost:1/x", DEVICE, problem) == []


def test_an_sqlite_url_is_a_path(tmp_path: Path) -> None:
    path = tmp_path / "a table.sqlite"
    Store.open(path).close()
    table = TuningTable.open(f"sqlite:///{path}")
    assert (table.source, table.place, table.devices) == (str(path), str(path), ())


def test_sqlalchemy_is_not_loaded(server: str) -> None:
    program = "import sys; from autotune.lookup import TuningTable\n"
    program += f"TuningTable.open(sys.argv[1]).find({DEVICE.slug!r}, m=64, n=64, k=64)\n"
    program += "print([m for m in ('sqlalchemy', 'numpy', 'alembic') if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", program, server], capture_output=True, text=True)
    assert (told.stdout, told.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    ("statement", "error", "message"),
    [
        ("UPDATE alembic_version SET version_num = '0999'", NewerSchemaError, "0999"),
        ("UPDATE alembic_version SET version_num = 'ab12cd34'", NotADatabaseError, "another program"),
        ("DROP VIEW best_configurations", NotADatabaseError, "another program"),
        ("DROP SCHEMA here CASCADE; CREATE SCHEMA here", StoreError, "contains no tables of autotune"),
        ("UPDATE winners SET configuration = '[1]'", TableError, "a row of best_configurations"),
        ("UPDATE devices SET limits = '[1'", TableError, "a row of devices"),
    ],
)
def test_what_cannot_be_read_is_one_clear_line(
    server: str, statement: str, error: type[AutotuneError], message: str
) -> None:
    change(server, statement)
    with pytest.raises(error, match=message) as caught:
        TuningTable.open(server)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("postgresql://me:secret@localhost:1/x", DatabaseAwayError, "cannot reach postgresql://me@localhost/x"),
        (
            "postgresql+psycopg2://me:secret@localhost:1/x",
            DatabaseAwayError,
            "cannot reach postgresql://me@localhost/x",
        ),
        ("postgresql://me:secret@local host/?nonsense=1", StoreError, "cannot be understood"),
        ("mysql://me:secret@localhost/x", TableError, "cannot open a table from a URL of the kind mysql://"),
        ("sqlite:///nowhere/x.sqlite", TableError, "there is no table"),
    ],
)
def test_urls_that_lead_nowhere(postgresql_server: Server, url: str, error: type[AutotuneError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        TuningTable.open(url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_extra_is_named_where_the_driver_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r'pip install "\.\[postgres\]", or open a file written by autotune export'):
        TuningTable.open("postgresql://me:secret@host/db")
