"""What is known of one problem on one device: the ledger's trials and those of this run, judged."""

import math
from datetime import UTC, datetime

from autotune import __version__
from autotune.family import Configuration, Device, KernelFamily, Problem, find_family
from autotune.profile import Profile
from autotune.render import template_hash
from autotune.search.judging import Decision, Gain
from autotune.store import Store, StoredTrial
from autotune.trial import Provenance, Trial, TrialState, Verdict, Winner


class Knowledge:
    """The newest judgement of every configuration measured, and the winner that follows from it."""

    def __init__(self, device: Device, profile: Profile, problem: Problem, store: Store) -> None:
        self.device = device
        self.problem = problem
        self.family: KernelFamily = find_family(problem.family)
        self.starts = profile.starting(self.family.name)
        self.default = self.family.default(problem, device.limits, self.starts)
        self.known: dict[Configuration, Trial] = {}
        self.best_ns = math.inf
        self._unsound: set[Configuration] = set()
        self._store = store
        stored = store.trials(device.slug, self.family.name, problem)
        current = [s for s in stored if self._is_current(s)]
        self.resumed = [s for s in current if s.purpose == "search"]
        self.stale = [s for s in stored if not self._is_current(s)]
        """Of another driver, template or space: good for a guess, no more."""
        for item in current:
            self.learn(item.trial)

    def learn(self, trial: Trial) -> None:
        """A configuration that ever failed does not count, however often it was right."""
        before = self.known.get(trial.configuration)
        if trial.state is not TrialState.COMPLETE:
            self._unsound.add(trial.configuration)
            self.known[trial.configuration] = trial
        elif trial.configuration not in self._unsound and (before is None or trial.time_ns < before.time_ns):
            self.known[trial.configuration] = trial
        self.best_ns = min((t.time_ns for t in self.known.values()), default=math.inf)

    def is_sound(self, configuration: Configuration) -> bool:
        """Whether it was measured, and never failed."""
        return configuration in self.known and configuration not in self._unsound

    @property
    def ranking(self) -> list[Trial]:
        """Trials of the sound configurations, fastest first."""
        sound = [t for t in self.known.values() if t.state is TrialState.COMPLETE]
        return sorted(sound, key=lambda t: t.time_ns)

    @property
    def stale_ranking(self) -> list[Configuration]:
        """Configurations that ran right before something changed and never failed, fastest first."""
        failed = {s.trial.configuration for s in self.stale if s.trial.state is not TrialState.COMPLETE}
        by_time = sorted(self.stale, key=lambda s: s.trial.time_ns)
        return [c for c in dict.fromkeys(s.trial.configuration for s in by_time) if c not in failed]

    def provenance(self, configuration: Configuration) -> Provenance:
        """Of a trial measured now."""
        return Provenance(
            driver=self.device.driver,
            template_hash=template_hash(self.family, configuration.algorithm),
            space_version=self.family.space_version,
            tool_version=__version__,
            measured_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )

    def record_provisional(self) -> Winner | None:
        """Store and return the best so far, or the default where it is not beaten; no final has confirmed it."""
        ranking = self.ranking
        if not ranking:
            return None
        best = ranking[0]
        reference = self.known.get(self.default, best)
        default_ns = reference.time_ns if reference.state is TrialState.COMPLETE else best.time_ns
        ratio = default_ns / best.time_ns
        gain = Gain(ratio=ratio, low=ratio, high=ratio)
        decision = Decision(configuration=best.configuration, gain=gain, verdict=Verdict.PROVISIONAL)
        winner = self.winner(decision, best.time_ns, samples=0, verifications=0)
        self._store.record_winner(winner)
        return winner

    def winner(self, decision: Decision, time_ns: float, *, samples: int, verifications: int) -> Winner:
        """What is stored of a decision."""
        baseline = self.known.get(self.family.baseline)
        return Winner(
            device=self.device.slug,
            problem=self.problem,
            configuration=decision.configuration,
            time_ns=time_ns,
            default_ns=decision.gain.ratio * time_ns,
            baseline_ns=baseline.time_ns if baseline and baseline.state is TrialState.COMPLETE else None,
            gain_low=decision.gain.low,
            gain_high=decision.gain.high,
            samples=samples,
            is_default=decision.configuration == self.default,
            verdict=decision.verdict,
            verifications=verifications,
            provenance=self.provenance(decision.configuration),
        )

    def _is_current(self, stored: StoredTrial) -> bool:
        """Whether a stored trial still says something about driver, template and space of today."""
        now = self.provenance(stored.trial.configuration)
        then = stored.provenance
        return (then.driver, then.template_hash, then.space_version) == (
            now.driver,
            now.template_hash,
            now.space_version,
        )
