"""Few threads compute at a time, and none of those that wait."""

import threading

from autotune.turns import Turns, held, idle
from factories import in_threads

SOON_S = 20


def test_a_thread_that_waits_lets_another_compute() -> None:
    turns, order = Turns(1), list[str]()
    waits, is_done = threading.Event(), threading.Event()

    def one() -> None:
        with turns.taken():
            order.append("one")
            with idle(), idle():  # what waits within a wait lets nothing go twice
                waits.set()
                assert is_done.wait(SOON_S)
            order.append("one again")

    def another() -> None:
        assert waits.wait(SOON_S)
        with turns.taken():
            order.append("another")
            is_done.set()
            order.append("another still")

    in_threads(one, another)
    assert order == ["one", "another", "another still", "one again"]


def test_no_more_compute_at_a_time_than_may() -> None:
    turns, lock = Turns(2), threading.Lock()
    at_work, most = 0, 0
    pairs = threading.Barrier(2)

    def work() -> None:
        nonlocal at_work, most
        with turns.taken():
            with lock:
                at_work += 1
                most = max(most, at_work)
            pairs.wait(SOON_S)
            with lock:
                at_work -= 1

    in_threads(*[work] * 6)
    assert most == 2
    assert at_work == 0


def test_a_thread_without_a_turn_waits_as_it_likes() -> None:
    turns = Turns(1)
    with idle():
        pass
    with turns.taken():
        threading.Thread(target=lambda: idle().__enter__()).start()
    with turns.taken():  # nothing was given back that nobody had
        assert not turns._places.acquire(blocking=False)


def test_who_waits_for_a_lock_has_no_turn() -> None:
    turns, lock, order = Turns(1), threading.Lock(), list[str]()
    is_held, may_go_on = threading.Event(), threading.Event()

    def one() -> None:
        with turns.taken(), held(lock):
            is_held.set()
            with idle():  # as for a database
                assert may_go_on.wait(SOON_S)
            order.append("one")

    def another() -> None:
        assert is_held.wait(SOON_S)
        with turns.taken():
            may_go_on.set()
            with held(lock):
                order.append("another")

    in_threads(one, another)
    assert order == ["one", "another"]
