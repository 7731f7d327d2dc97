"""Writes of several threads in one transaction: one commit for all that wait, and no fault of one is another's."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, PoolProxiedConnection, event, text

from autotune.errors import StoreError
from autotune.model.configuration import Configuration
from autotune.model.trial import Trial, TrialState
from autotune.service.store import ServiceStore as Store
from autotune.service.store import together
from autotune.store import new_owner
from factories import provenance
from searches import DEVICE, PROBLEM
from waiting import join, wait_for

PROVENANCE = provenance()
THREADS = 6


@pytest.fixture
def any_store(place: str) -> Iterator[Store]:
    with Store.open(place) as opened:
        opened.begin_trial(DEVICE, PROBLEM, Configuration.of("naive"), new_owner())  # makes the rows that all share
        yield opened


def add(store: Store, number: int) -> None:
    trial = Trial(configuration=Configuration.of("naive", number=number), state=TrialState.CRASHED)
    store.add_trial(DEVICE, PROBLEM, trial, PROVENANCE)


def added(store: Store) -> list[int]:
    return sorted(int(s.trial.configuration["number"]) for s in store.trials(DEVICE.slug, "gemm"))


@contextmanager
def all_places_taken(store: Store) -> Iterator[None]:
    """As if others were writing, so that what comes waits."""
    places = 0
    while store._places.acquire(blocking=False):
        places += 1
    try:
        yield
    finally:
        store._places.release(places)


def write_at_once(store: Store, *more: threading.Thread) -> None:
    threads = [*(threading.Thread(target=add, args=(store, number)) for number in range(THREADS)), *more]
    with all_places_taken(store):
        for thread in threads:
            thread.start()
        wait_for(lambda: len(store._together._waiting) == len(threads))
    for thread in threads:
        join(thread)


@contextmanager
def commits_counted(store: Store) -> Iterator[list[Connection]]:
    seen: list[Connection] = []
    note = seen.append
    event.listen(store._writing, "commit", note)
    yield seen
    event.remove(store._writing, "commit", note)


def test_all_that_wait_are_written_by_one_and_each_is_there(any_store: Store) -> None:
    with commits_counted(any_store) as commits:
        write_at_once(any_store)
        assert len(commits) == 1
    assert added(any_store) == list(range(THREADS))
    assert len(any_store.quarantined()) == THREADS


def test_what_is_written_is_safe_when_it_is_answered(any_store: Store, place: str) -> None:
    seen = []

    def add_and_look(number: int) -> None:
        add(any_store, number)
        with Store.open(place, read_only=True) as other:
            seen.append(number in added(other))

    write_at_once(any_store, *(threading.Thread(target=add_and_look, args=(number,)) for number in (97, 98, 99)))
    assert seen == [True] * 3


def test_what_a_failed_commit_loses_is_written_again(any_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    dialect = any_store._writing.dialect
    commit, failures = dialect.do_commit, [OSError("input/output error")]

    def fail_once(connection: PoolProxiedConnection) -> None:
        if failures:
            connection.rollback()  # as databases do themselves
            raise failures.pop()
        commit(connection)

    monkeypatch.setattr(dialect, "do_commit", fail_once)
    write_at_once(any_store)
    assert not failures
    assert added(any_store) == list(range(THREADS))


def test_no_more_are_written_at_once_than_is_good(any_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "MOST_TOGETHER", 2)
    with commits_counted(any_store) as commits:
        write_at_once(any_store)
        assert len(commits) == THREADS // 2
    assert added(any_store) == list(range(THREADS))


def test_what_cannot_be_written_fails_alone(any_store: Store) -> None:
    caught: list[StoreError] = []

    def wrongly() -> None:
        try:
            any_store.write_together(lambda connection: connection.execute(text("SELECT no_such_column")))  # type: ignore[arg-type]
        except StoreError as error:
            caught.append(error)

    write_at_once(any_store, threading.Thread(target=wrongly))
    assert added(any_store) == list(range(THREADS))
    assert len(any_store.quarantined()) == THREADS, "and nothing twice"
    [error] = caught
    assert "no_such_column" in str(error)


def test_what_was_interrupted_is_not_written_by_another(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def __enter__(self) -> None:
            raise KeyboardInterrupt

        def __exit__(self, *_: object) -> None: ...

    add(store, 0)
    with monkeypatch.context() as patch:
        patch.setattr(store._together, "_places", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            add(store, 1)
    add(store, 2)
    assert added(store) == [0, 2]
