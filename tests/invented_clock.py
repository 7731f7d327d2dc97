"""A clock that only goes on when it is told to, for searches that are tested without waiting."""

from autotune.search import Clock as SearchClock


class Clock(SearchClock):
    """Goes on a little with every look; tests add what a job takes."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept = 0.0

    def __call__(self) -> float:
        self.now += 1e-4
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds
