"""A device port whose launches take what a test says, on a clock that goes on only with them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from autotune.device.port import Port, Run
from autotune.device.quirks import Quirks
from autotune.model.plan import Launch
from factories import INVENTED_GPU


class InventedPort:
    """Binds and runs, which is all that timing needs of a port."""

    device = replace(INVENTED_GPU, limits=replace(INVENTED_GPU.limits, compute_units=2))
    quirks = Quirks(builds_by_work_group_size=True)

    def __init__(
        self, host_ns: Callable[[Launch], float], event_of: Callable[[int], float] = float, latency_ns: float = 0.0
    ) -> None:
        """`host_ns` is the time of a launch by the host, `event_of` that of the nth launch by events."""
        self.now = 0.0
        self.launched: list[Launch] = []
        self._host_ns, self._event_of, self._latency_ns = host_ns, event_of, latency_ns

    def clock(self) -> float:
        return self.now

    def bind(self, _: Sequence[Any], launches: Sequence[Launch], memory: Mapping[str, Any] = {}) -> Sequence[Launch]:
        return launches

    def run(self, call: Sequence[Launch], times: int = 1, *, has_events: bool = True) -> Run:
        began, spans = self.now, []
        for launch in [*call] * times:
            self.launched.append(launch)
            self.now += self._host_ns(launch)
            spans.append((0, self._event_of(len(self.launched))))
        self.now += self._latency_ns
        events = np.array(spans, np.int64).reshape(times, len(call), 2)
        return Run(host_start_ns=int(began), host_end_ns=int(self.now), events=events)

    @property
    def port(self) -> Port:
        return cast("Port", self)
