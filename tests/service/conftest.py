"""Fixtures of the tests of the service."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.service.remote import Client
from autotune.service.store import ServiceStore

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


@pytest.fixture
def api(store: ServiceStore) -> Iterator["TestClient"]:
    """A service without tokens, asked without HTTP."""
    from starlette.testclient import TestClient

    from autotune.service.access import Access
    from autotune.service.app import make_app
    from autotune.service.core import Service

    with TestClient(make_app(Service(store), Access()), base_url="http://localhost") as client:
        yield client
