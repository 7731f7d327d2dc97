"""The processes that run the searches of a service, as the service sees them; invented ones are started."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from autotune.service import searches
from autotune.service.searches import Processes, Search


class Started:
    """A process that does nothing."""

    pids = iter(range(1, 10**6))

    def __init__(self, target: Any, on_message: Callable[..., None], on_end: Callable[[Any], None], _: object) -> None:
        self.target, self.on_message, self.on_end = target, on_message, on_end
        self.searches: dict[int, Search] = {}
        self.sent: list[Any] = []
        self.pid = next(self.pids)
        self.is_open = False

    def send(self, *message: Any) -> None:
        self.sent.append(message)

    def says(self, number: int, name: str, *content: Any) -> None:
        self.on_message(self, number, name, *content)

    def end_input(self) -> None:
        self.sent.append(None)

    def close(self) -> None:
        self.on_end(self)


class Scene:
    """Two processes at most, and what they lead to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[Started] = []
        self.messages: list[tuple[int, str]] = []
        self.lost: list[int] = []

        def start(*given: Any) -> Started:
            self.started.append(Started(*given))
            return self.started[-1]

        monkeypatch.setattr(searches, "Process", start)
        self.processes = Processes(
            2, "the store", lambda search, name: self.messages.append((search.problem.id, name)),
            lambda search: self.lost.append(search.problem.id), lambda _: None,
        )  # fmt: skip

    def begin(self, *problems: int) -> None:
        for problem in problems:

            def begin(process: Started, number: int, troubles: int, problem: int = problem) -> None:
                process.searches[number] = cast("Search", SimpleNamespace(problem=SimpleNamespace(id=problem)))
                process.send(number, "begin", problem, troubles)

            search = SimpleNamespace(problem=SimpleNamespace(id=problem), begin=begin)
            self.processes.begin(cast("Search", search))

    def searched(self) -> list[list[int]]:
        """The problems that are searched in each process."""
        return [[search.problem.id for search in process.searches.values()] for process in self.started]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def test_searches_are_spread_over_the_processes(scene: Scene) -> None:
    scene.begin(1)
    assert scene.searched() == [[1]], "one is started when it is needed"
    scene.begin(2, 3, 4)
    assert scene.searched() == [[1, 3], [2, 4]]
    assert scene.processes.pids == [process.pid for process in scene.started]
    assert {process.target for process in scene.started} == {"the store"}


def test_process_whose_searches_have_ended_is_used_again(scene: Scene) -> None:
    scene.begin(1)
    scene.started[0].says(1, "ended")
    scene.started[0].says(1, "closed")  # of a search that is not there any more
    scene.begin(2)
    assert scene.searched() == [[2]]
    assert scene.messages == [(1, "ended")]


def test_searches_of_a_process_that_died_are_lost_and_begin_in_another(scene: Scene) -> None:
    scene.begin(1, 2, 3)
    first, _ = scene.started
    first.says(0, "opened")
    first.on_end(first)
    assert scene.lost == [1, 3]
    assert scene.processes.deaths == {1: 1, 3: 1}
    scene.begin(1)
    assert scene.searched()[1:] == [[2], [1]]


def test_process_that_could_not_open_the_store_does_not_count_against_its_searches(scene: Scene) -> None:
    scene.begin(1)
    scene.started[0].on_end(scene.started[0])
    assert scene.lost == [1] and not scene.processes.deaths.total()


def test_troubles_of_devices_are_passed_to_the_next_search_of_the_problem(scene: Scene) -> None:
    scene.processes.troubles[7] += 2
    scene.begin(7)
    assert scene.started[0].sent == [(1, "begin", 7, 2)]


def test_all_processes_end_with_the_service(scene: Scene) -> None:
    scene.begin(1, 2)
    scene.processes.publish_to_all("stop")
    scene.processes.close()
    assert [process.sent[-2:] for process in scene.started] == [[(0, "stop"), None]] * 2
    assert scene.processes.pids == []
