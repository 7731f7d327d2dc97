"""The jobs of a search: what is measured how, on which inputs."""

import dataclasses

import numpy as np

from autotune.model.configuration import Configuration
from autotune.model.trial import Job
from autotune.search.knowledge import Knowledge

SAME_INPUTS = 32
"""Consecutive trials of a search that share their inputs. Drawing inputs, computing the reference and copying both to
the device takes longer than measuring most kernels: at 1024 cubed on an H200, checks and inputs were 121 of 195 ms a
trial. The finals have inputs of their own."""
SEARCH_TICKS = 250
"""Shortest length of a sample in a search: 0.4% is precise enough, since the finals decide."""
SEARCH_AGREEMENT = 0.02


class Jobs:
    """Makes the jobs of one problem."""

    GIVE_UP_FACTOR = 3.0
    """One sample is enough for a configuration this many times slower than the best."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._draw = np.random.default_rng()
        self._shared_seed = self._seed_uses = 0

    def fresh(self, configuration: Configuration) -> Job:
        """Return the job that measures a configuration on fresh inputs."""
        knowledge = self._knowledge
        return Job(
            selector=knowledge.device.selector,
            problem=knowledge.problem,
            configuration=configuration,
            build_options=knowledge.build_options,
            timer=knowledge.timer,
            seed=self.new_seed(),
        )

    def quick(self, configuration: Configuration) -> Job:
        """Return the job that shows if a configuration is worth a final: shared inputs, as few samples as possible."""
        if self._seed_uses % SAME_INPUTS == 0:
            self._shared_seed = self.new_seed()
        self._seed_uses += 1
        return dataclasses.replace(
            self.fresh(configuration),
            seed=self._shared_seed,
            min_sample_ticks=SEARCH_TICKS,
            agreement=SEARCH_AGREEMENT,
        )

    def trial(self, configuration: Configuration) -> Job:
        """Return the job of a new trial: a quick one, which gives up early if it is far slower than the best."""
        give_up_above_ns = self.GIVE_UP_FACTOR * self._knowledge.best_ns * self._knowledge.drift.slowdown
        return dataclasses.replace(self.quick(configuration), give_up_above_ns=give_up_above_ns)

    def new_seed(self) -> int:
        """Return the seed of inputs that no trial has used."""
        return int(self._draw.integers(2**31))
