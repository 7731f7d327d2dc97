"""Fixtures of the tests of the service."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.service.remote import Client
from autotune.service.store import ServiceStore
from fakes import INVENTED_PROCESSOR

if TYPE_CHECKING:
    from starlette.testclient import TestClient

    from autotune.service.server import Server as Service


@pytest.fixture
def store(db_file: Path) -> Iterator[ServiceStore]:
    """Open, and empty."""
    with ServiceStore.open(db_file) as opened:
        yield opened


@pytest.fixture
def server(db_file: Path) -> Iterator["Service"]:
    """A service over HTTP, with `db_file`."""
    from invented_service import serving

    with serving(db_file) as started:
        yield started


@pytest.fixture
def client(server: "Service") -> Iterator[Client]:
    with Client(server.url) as opened:
        yield opened


@contextmanager
def _asked(store: ServiceStore) -> Iterator["TestClient"]:
    from starlette.testclient import TestClient

    from autotune.service.access import Access
    from autotune.service.app import make_app
    from autotune.service.core import Service

    with TestClient(make_app(Service(store), Access()), base_url="http://localhost") as client:
        yield client


@pytest.fixture
def api(store: ServiceStore) -> Iterator["TestClient"]:
    """A service without tokens, asked without HTTP."""
    with _asked(store) as client:
        yield client


@pytest.fixture(scope="module")
def unchanged_api(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator["TestClient"]:
    """The same for all tests of a file, which only read, or are refused; it knows the invented processor."""
    with ServiceStore.open(Path(shutil.copy(empty_database, tmp_path_factory.mktemp("unchanged")))) as store:
        store.add_device(INVENTED_PROCESSOR)
        with _asked(store) as client:
            yield client
