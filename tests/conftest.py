"""Fixtures shared by all tests."""

import os
import shutil
import signal
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

pytest.register_assert_rewrite(
    "agents", "databases", "factories", "fake_adb", "gguf_files", "invented_port", "invented_service", "kernel_files",
    "searches", "small_kernels", "stand_in", "waiting", "wrong_variants",
)  # fmt: skip

from autotune.device.discovery import discover
from autotune.kernels import FILES, families_of_files, find_family
from autotune.kernels.render import code_version
from autotune.lookup.contents import Shipped
from autotune.model.device import Device
from autotune.search import neighbours
from autotune.store import Store
from databases import Server, missing
from factories import Printed, Run
from invented_clock import Clock

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from autotune.measure.measurer import Measurer


def pytest_configure(config: pytest.Config) -> None:
    """A shell has what it starts in the background ignore Ctrl-C, and nohup the loss of the terminal, which some tests
    send to commands."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


_Report = TypeVar("_Report", pytest.TestReport, pytest.CollectReport)


def fail_missing_tools(report: _Report) -> _Report:
    """Turn a skip into a failure in continuous integration, where everything is installed.

    The exception is what a device cannot do: reasons that begin with "not covered".
    """
    if not report.skipped or not os.environ.get("CI") or hasattr(report, "wasxfail"):
        return report
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not reason.removeprefix("Skipped: ").startswith("not covered"):
        report.outcome = "failed"
        report.longrepr = f"{reason}\n(no test is skipped where CI is set)"
    return report


_crashed: set[str] = set()


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: pytest.TestReport, sched: Any) -> None:
    """Run a test once more whose process died, since PoCL 3.0 has ended processes at tests that pass alone."""
    if crashitem not in _crashed:
        _crashed.add(crashitem)
        report.outcome = "rerun"  # type: ignore[assignment]
        sched.mark_test_pending(crashitem)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return fail_missing_tools((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return fail_missing_tools((yield))


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of published tables that searches begin with: empty, since what is published must change no test."""
    folder = tmp_path_factory.mktemp("published")
    monkeypatch.setattr(neighbours, "shipped", lambda: Shipped(folder))
    return folder


@pytest.fixture(scope="session")
def pocl() -> Device:
    """The OpenCL device that the tests run kernels on: PoCL, which comes with the `pocl` extra."""
    for device in discover():
        if "pocl" in device.version.lower():
            return device
    pytest.skip('no PoCL here: pip install ".[pocl]"')


@pytest.fixture(scope="module")
def measurer(pocl: Device) -> "Measurer":
    from autotune.device.opencl import Session
    from autotune.measure.measurer import Measurer

    return Measurer(Session(pocl.selector))


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tests of a file keep programs that are built."""
    return tmp_path_factory.mktemp("binaries")


@pytest.fixture
def fresh_families(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Families are read afresh, none of files but those that the test names, and forgotten afterwards."""
    monkeypatch.setenv(FILES, "")
    yield
    monkeypatch.undo()
    families_of_files.cache_clear()
    find_family.cache_clear()


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Server]:
    """One for all tests of a process; those that stop it start it again."""
    if reason := missing():
        pytest.skip(reason)
    with Server() as server:
        yield server


@pytest.fixture
def postgresql(postgresql_server: Server) -> str:
    """The URL of an empty database, in effect: a schema of its own."""
    postgresql_server.execute("DROP SCHEMA IF EXISTS here CASCADE; CREATE SCHEMA here")
    return postgresql_server.url("here")


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """To be copied: that takes a tenth of the time of making one by all migrations."""
    path = tmp_path_factory.mktemp("empty") / "empty.sqlite"
    Store.open(path).close()
    return path


@pytest.fixture
def db_file(tmp_path: Path, empty_database: Path) -> Path:
    """A SQLite database without anything in it."""
    return Path(shutil.copy(empty_database, tmp_path / "tuning.sqlite"))


@pytest.fixture
def store(db_file: Path) -> Iterator[Store]:
    """Open, and empty."""
    with Store.open(db_file) as opened:
        yield opened


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Chromium, which asks nobody for anything but what tests open."""
    pytest.importorskip("playwright")
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    flags = (
        "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync",
    )  # fmt: skip
    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=found, args=list(flags))
        yield opened
        opened.close()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command, which ends with that exit status, and returns what it prints."""

    from autotune.cli import main

    def done(arguments: Sequence[str], status: int = 0) -> Printed:
        capsys.readouterr()
        assert main(arguments) == status
        return Printed(*capsys.readouterr())

    return done


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the invented compiler writes the hash of each source it is given."""
    path = tmp_path / "log"
    path.touch()
    monkeypatch.setenv("BUILD_LOG", str(path))
    return path


@pytest.fixture
def clock() -> Clock:
    """A clock for searches, which goes on only as tests say."""
    return Clock()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a database may be, as `--db` takes it; there is nothing yet. Tests that ask for it run on both kinds."""
    if request.param == "sqlite":
        return str(tmp_path / "store.sqlite")
    return str(request.getfixturevalue("postgresql"))


@pytest.fixture(autouse=True)
def _own_version() -> None:
    """A version that was computed while a test had families of its own would part services from workers later."""
    code_version.cache_clear()


@pytest.fixture(autouse=True, scope="session")
def _no_misses_logged() -> Iterator[None]:
    """Tests ask for sizes that nobody needs tuned, and measure at the same time; children inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_MISSES", "0")
        patch.setenv("AUTOTUNE_DEVICE_LOCK", "0")
        yield
