"""The finals: what is sure, what is a tie, who stays, who drops out, and that the winner is right every time."""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.trial import Job, Timer, Trial, TrialState, Verdict, Winner
from autotune.search import significance
from autotune.search.budget import Rhythm
from autotune.search.finals import LEAST_VERIFICATIONS, MOST_VERIFICATIONS, SAMPLES, Finals, foreseen_seconds
from autotune.search.knowledge import Knowledge
from autotune.search.pipeline import Pipeline
from autotune.search.significance import Decision, decide, gain, still_in_question
from autotune.store import Store
from fakes import FakeWorker
from invented_clock import Clock
from searches import DEFAULT, DEVICE, PROBLEM

FIRST, SECOND, THIRD = (Configuration.of("dot", **changes) for changes in ({"x": 1}, {"x": 2}, {"x": 3}))
FEW, MANY = significance.LOOKS[0], significance.LOOKS[-1]


def of_rounds(**columns: list[float]) -> dict[Configuration, dict[int, float]]:
    names = {"default": DEFAULT, "first": FIRST, "second": SECOND, "third": THIRD}
    return {names[name]: dict(enumerate(times)) for name, times in columns.items()}


def wavering(middle: float, count: int = MANY, *, by: float = 0.002) -> list[float]:
    """Times around a middle, the pattern longer than that of any other middle."""
    steps = itertools.cycle(np.random.default_rng(int(middle * 1000)).uniform(-by, by, 97))
    return [middle * (1 + next(steps)) for _ in range(count)]


# What rounds prove


def test_a_gain_has_an_interval_that_shrinks_with_agreement() -> None:
    exact = gain(of_rounds(default=[200.0] * FEW, first=[100.0] * FEW), DEFAULT, FIRST)
    assert (exact.ratio, exact.low, exact.high) == (2.0, 2.0, 2.0)
    few, many = (gain(of_rounds(default=wavering(102, n), first=wavering(100, n)), DEFAULT, FIRST) for n in (FEW, MANY))
    assert few.low < many.low < many.ratio < many.high < few.high
    assert many.low == pytest.approx(1.02, abs=0.003)


def test_what_drifts_for_all_alike_cancels() -> None:
    drifting = [100.0 * 1.2**number for number in range(FEW)]
    found = gain(of_rounds(default=drifting, first=[t / 1.5 for t in drifting]), DEFAULT, FIRST)
    assert (found.ratio, found.low, found.high) == pytest.approx((1.5, 1.5, 1.5))


def test_only_rounds_in_which_both_took_part_are_compared() -> None:
    times = of_rounds(default=[100.0] * FEW, first=[90.0] * FEW + [180.0] * 20)
    assert gain(times, DEFAULT, FIRST).ratio == pytest.approx(100 / 90), "it got hot after the default had dropped out"


def test_one_round_out_of_line_proves_nothing_and_hides_nothing() -> None:
    alike = of_rounds(default=[*wavering(100, FEW - 1), 500.0], first=wavering(100.1, FEW))
    assert not gain(alike, DEFAULT, FIRST).is_sure
    better = of_rounds(default=wavering(110, 12), first=[*wavering(100, 11), 500.0])
    assert gain(better, DEFAULT, FIRST).is_sure


def test_who_is_surely_slower_drops_out_and_a_close_tie_needs_no_more_rounds() -> None:
    noisy = wavering(100, FEW, by=0.1)
    times = of_rounds(first=noisy, second=wavering(101, FEW, by=0.1), third=[t * 2 for t in noisy], default=noisy[::-1])
    assert set(still_in_question(times, DEFAULT)) == {FIRST, SECOND, DEFAULT}
    close = of_rounds(default=wavering(100), first=wavering(100.1))
    assert still_in_question(close, DEFAULT) == []


def test_the_default_stays_in_while_any_that_may_win_has_not_surely_beaten_it() -> None:
    first = [100.0] * FEW
    second = [100.0 + 8 * (-1) ** number for number in range(FEW)]
    times = of_rounds(first=first, second=second, default=[105.0] * FEW)
    assert gain(times, DEFAULT, FIRST).is_sure
    assert set(still_in_question(times, DEFAULT)) == {FIRST, SECOND, DEFAULT}


FASTEST, NEARLY, SLOWER, SLOW_ONE = (wavering(middle) for middle in (100, 100.1, 105, 110))


def test_the_default_stays_in_until_the_gain_over_it_tells_something() -> None:
    first = [100.0] * FEW
    default = [150.0, 200.0, 250.0] * (FEW // 3)
    times = of_rounds(first=first, default=default)
    assert gain(times, DEFAULT, FIRST).is_settled, "it is surely faster"
    assert set(still_in_question(times, DEFAULT)) == {FIRST, DEFAULT}
    times = of_rounds(first=first, second=default)
    assert still_in_question(times, DEFAULT) == [], "nobody asks how much slower a rival is"


@pytest.mark.parametrize(
    ("times", "incumbent", "expected"),
    [
        (of_rounds(default=SLOW_ONE, first=FASTEST, second=SLOWER), None, (FIRST, Verdict.FASTER)),
        (of_rounds(default=NEARLY, first=FASTEST), None, (DEFAULT, Verdict.TIE)),
        (of_rounds(default=FASTEST, first=NEARLY), None, (DEFAULT, Verdict.TIE)),
        (of_rounds(default=FASTEST, first=SLOW_ONE), None, (DEFAULT, Verdict.DEFAULT)),
        (of_rounds(default=FASTEST), None, (DEFAULT, Verdict.DEFAULT)),
        (of_rounds(default=SLOW_ONE, first=FASTEST, second=NEARLY), SECOND, (SECOND, Verdict.FASTER)),
        (of_rounds(default=SLOW_ONE, first=FASTEST, second=SLOWER), SECOND, (FIRST, Verdict.FASTER)),
        (of_rounds(default=NEARLY, first=FASTEST, second=FASTEST), SECOND, (DEFAULT, Verdict.TIE)),
        (of_rounds(first=FASTEST, second=SLOW_ONE), None, (FIRST, Verdict.DEFAULT_FAILED)),
        (of_rounds(first=FASTEST, second=NEARLY), SECOND, (SECOND, Verdict.DEFAULT_FAILED)),
    ],
)  # fmt: skip
def test_the_default_and_then_the_incumbent_stay_unless_surely_beaten(
    times: significance.Times, incumbent: Configuration | None, expected: tuple[Configuration, Verdict]
) -> None:
    found = decide(times, DEFAULT, incumbent)
    assert (found.configuration, found.verdict) == expected
    assert found.gain.is_sure == (found.verdict is Verdict.FASTER)


def play(draw: np.random.Generator, gains: dict[Configuration, float]) -> Decision:
    """Finals by the rules, under noise of which every seventh measurement is far slower."""
    times: dict[Configuration, dict[int, float]] = {c: {} for c in gains}
    taking_part, played = list(gains), 0
    for look in significance.LOOKS:
        for number in range(played, look):
            for configuration in taking_part:
                outlier = 0.1 * (1 + draw.pareto(1.5)) if draw.random() < 1 / 7 else 0.0
                noise = np.exp(0.02 * draw.standard_normal()) * (1 + outlier)
                times[configuration][number] = float(1e6 / gains[configuration] * noise)
        played, taking_part = look, still_in_question(times, DEFAULT)
        if not taking_part:
            break
    return decide(times, DEFAULT)


def test_looking_often_and_choosing_among_several_makes_no_false_winners() -> None:
    draw = np.random.default_rng(1)
    alike = {FIRST: 1.0, SECOND: 1.0, THIRD: 1.0, DEFAULT: 1.0}
    verdicts = Counter(play(draw, alike).verdict for _ in range(60))
    assert verdicts[Verdict.FASTER] <= 3
    assert verdicts.total() == verdicts[Verdict.FASTER] + verdicts[Verdict.TIE]


def test_the_interval_of_the_winner_holds_the_true_gain() -> None:
    draw = np.random.default_rng(2)
    gains = {FIRST: 1.2, SECOND: 1.19, THIRD: 1.1, DEFAULT: 1.0}
    found = [play(draw, gains) for _ in range(40)]
    assert all(decision.verdict is Verdict.FASTER for decision in found)
    covered = [d for d in found if d.gain.low <= gains[d.configuration] <= d.gain.high]
    assert len(covered) >= 36


# Finals with an invented device


class Arena:
    """Finals among a few configurations of known times."""

    def __init__(
        self,
        store: Store,
        worker: FakeWorker,
        device: Device = DEVICE,
        clock: Clock | None = None,
        rhythm: Rhythm | None = None,
    ) -> None:
        self.knowledge = Knowledge(device, PROBLEM, store)
        self.pipeline = Pipeline(self.knowledge, worker, clock=clock)
        self.finals = Finals(self.pipeline, lambda: False, rhythm)
        self.worker = worker

    def learn(self, *configurations: Configuration) -> None:
        for configuration in configurations:
            self.knowledge.learn(self.pipeline.measure(self.pipeline.jobs.fresh(configuration)))
        self.worker.jobs.clear()

    def decide(self, deadline: float = float("inf")) -> Winner | None:
        return self.finals.decide(self.finals.finalists(), deadline)

    @property
    def timings(self) -> Counter[Configuration]:
        """Measurements of each, verifying left out."""
        return Counter(job.configuration for job in self.worker.jobs if not job.verifications)


VARIANTS = [
    Configuration.of(DEFAULT.algorithm, **{**dict(DEFAULT.values), "micro_tile_m": size})
    for size in (1, 2, 4, 8, 12)
    if size != dict(DEFAULT.values)["micro_tile_m"]
][:4]
BEST, NEXT, SLOW, SLOWEST = VARIANTS
TIMES = {BEST: 1000.0, NEXT: 1100.0, SLOW: 1200.0, SLOWEST: 9000.0, DEFAULT: 1500.0}


def as_told(job: Job) -> float:
    return TIMES[job.configuration]


def test_a_rhythm_may_choose_another_winner_than_calls_in_a_row(store: Store) -> None:
    in_rhythm = {BEST: 2000.0, NEXT: 1150.0, SLOW: 2400.0, SLOWEST: 9000.0, DEFAULT: 3000.0}

    def measured(job: Job) -> float:
        return in_rhythm[job.configuration] if job.burst_ns else TIMES[job.configuration]

    winners = []
    for rhythm in (None, Rhythm(burst_ns=8e6, pause_ns=33e6)):
        arena = Arena(store, FakeWorker(measured), rhythm=rhythm)
        arena.learn(DEFAULT, *VARIANTS)
        winners.append(arena.decide())
        timings = [(job.burst_ns, job.pause_ns) for job in arena.worker.jobs if not job.verifications]
        assert set(timings) == {(rhythm.burst_ns, rhythm.pause_ns) if rhythm else (0.0, 0.0)}
    assert [winner and winner.configuration for winner in winners] == [BEST, NEXT]
    assert winners[1] and winners[1].gain_over_default == pytest.approx(3000 / 1150)


def test_a_rhythm_takes_longer() -> None:
    of_rhythm = foreseen_seconds(1e6, 0.1, 0.1, 8, rhythm=Rhythm(burst_ns=8e6, pause_ns=33e6))
    assert of_rhythm - foreseen_seconds(1e6, 0.1, 0.1, 8) > 8 * 7 * 0.5


@pytest.mark.parametrize("is_verifying", [False, True])
def test_a_slow_moment_of_the_default_in_the_finals_is_measured_again(store: Store, is_verifying: bool) -> None:
    moments = itertools.count()

    def told(job: Job) -> float | TrialState:
        is_slow = job.configuration == DEFAULT and bool(job.verifications) == is_verifying and next(moments) == 1
        return TrialState.CUT_SHORT if is_slow else {**TIMES, DEFAULT: 900.0}[job.configuration]

    arena = Arena(store, FakeWorker(told))
    arena.learn(*TIMES)
    winner = arena.decide()
    assert winner is not None and (winner.configuration, winner.verdict) == (DEFAULT, Verdict.DEFAULT)
    assert arena.finals.failed == []


@pytest.mark.parametrize("is_verifying", [False, True])
def test_nothing_wins_where_the_default_is_cut_short_in_the_finals(store: Store, is_verifying: bool) -> None:
    slow: list[Configuration] = []

    def told(job: Job) -> float | TrialState:
        is_cut_short = job.configuration in slow and bool(job.verifications) == is_verifying
        return TrialState.CUT_SHORT if is_cut_short else {**TIMES, DEFAULT: 900.0}[job.configuration]

    arena = Arena(store, FakeWorker(told))
    arena.learn(*TIMES)
    slow.append(DEFAULT)
    assert arena.decide() is None
    assert arena.knowledge.is_sound(DEFAULT) and store.winner(DEVICE.slug, PROBLEM) is None


def test_clear_finals_are_short_and_their_winner_is_verified(store: Store) -> None:
    arena = Arena(store, FakeWorker(as_told))
    arena.learn(*TIMES)
    winner = arena.decide()
    assert winner is not None and winner.configuration == BEST
    assert (winner.verdict, winner.gain_over_default) == (Verdict.FASTER, 1.5)
    assert winner.samples == SAMPLES * FEW
    assert winner.verifications == MOST_VERIFICATIONS
    assert set(arena.timings.values()) == {FEW}
    checks = [job for job in arena.worker.jobs if job.verifications]
    assert [job.configuration for job in checks] == [BEST], "the winner alone is verified at length"
    assert checks[0] is arena.worker.jobs[-1]
    assert store.best(DEVICE.slug) == [winner]


def test_finalists_have_inputs_and_places_in_common_and_the_winner_others(store: Store) -> None:
    arena = Arena(store, FakeWorker(as_told))
    for configuration in TIMES:
        arena.knowledge.learn(arena.pipeline.measure(arena.pipeline.jobs.quick(configuration)))
    searched = {job.seed for job in arena.worker.jobs}
    arena.worker.jobs.clear()
    arena.decide()
    *timings, verifying = arena.worker.jobs
    assert len(searched) == 1
    assert len({job.seed for job in timings}) == 1, "drawn once"
    assert len({timings[0].seed, verifying.seed, *searched}) == 3
    placed = {number: [job.configuration for job in timings if job.placement == number] for number in range(FEW)}
    assert all(sorted(met, key=str) == sorted(placed[0], key=str) for met in placed.values()), "in each round elsewhere"
    assert sum(map(len, placed.values())) == len(timings)
    verified = [job.configuration for job in timings if job.verify]
    assert sorted(verified, key=str) == sorted(TIMES.keys() - {SLOWEST}, key=str), "each once, but for the far slower"


def test_the_default_takes_part_however_slow(store: Store) -> None:
    times = {BEST: 1000.0, NEXT: 2900.0, SLOW: 3100.0, DEFAULT: 50_000.0}
    arena = Arena(store, FakeWorker(lambda job: times[job.configuration]))
    arena.learn(*times)
    assert arena.finals.finalists() == [BEST, DEFAULT, NEXT]


def test_rivals_meet_until_they_are_told_apart_and_the_slow_drop_out(store: Store) -> None:
    draw = np.random.default_rng(5)
    close = {BEST: 1000.0, NEXT: 1030.0, SLOW: 1300.0, DEFAULT: 1600.0}
    worker = FakeWorker(lambda job: close[job.configuration] * float(np.exp(0.03 * draw.standard_normal())))
    arena = Arena(store, worker)
    arena.learn(*close)
    winner = arena.decide()
    assert winner is not None and winner.configuration == BEST
    rounds = arena.timings
    assert rounds[BEST] == rounds[NEXT] > FEW
    assert rounds[SLOW] == FEW
    assert winner.gain_low < 1.6 < winner.gain_high


def test_all_take_part_again_where_events_are_found_wrong_after_some_dropped_out(store: Store) -> None:
    draw = np.random.default_rng(5)
    close = {BEST: 1000.0, NEXT: 1030.0, SLOW: 1300.0, DEFAULT: 1600.0}

    class Distrusting(FakeWorker):
        def run(self, job: Job) -> Trial:
            has_dropped_out = len(self.jobs) >= FEW * len(close) + 3
            return super().run(replace(job, timer=Timer.HOST) if has_dropped_out else job)

    worker = Distrusting(lambda job: close[job.configuration] * float(np.exp(0.03 * draw.standard_normal())))
    arena = Arena(store, worker)
    arena.learn(*close)
    winner = arena.decide()
    assert winner is not None and (winner.configuration, winner.verdict) == (BEST, Verdict.FASTER)
    assert arena.timings[SLOW] == 2 * FEW and arena.timings[BEST] > 2 * FEW


def test_long_kernels_are_verified_less_often_but_never_less_than_twenty_times(store: Store) -> None:
    arena = Arena(store, FakeWorker(lambda job: as_told(job) * 1e6))
    arena.learn(BEST, DEFAULT)
    winner = arena.decide()
    assert winner is not None and winner.verifications == LEAST_VERIFICATIONS
    assert winner.samples == FEW, "one sample a round"


class Fickle:
    """Wrong in one of twenty runs."""

    def __init__(self, fickle: Configuration, times: Callable[[Job], float] = as_told) -> None:
        self._fickle = fickle
        self._times = times
        self.runs = 0

    def __call__(self, job: Job) -> float | TrialState:
        if job.configuration == self._fickle:
            before = self.runs // 20
            self.runs += job.verifications or 2 * job.verify
            if self.runs // 20 > before:
                return TrialState.WRONG_RESULT
        return self._times(job)


def test_what_is_wrong_in_one_of_twenty_runs_loses_to_the_runner_up(store: Store) -> None:
    arena = Arena(store, FakeWorker(Fickle(BEST)))
    arena.learn(*TIMES)
    winner = arena.decide()
    assert winner is not None and winner.configuration == NEXT
    assert winner.verifications == MOST_VERIFICATIONS
    assert [trial.configuration for trial in arena.finals.failed] == [BEST]
    assert winner.gain_over_default == pytest.approx(1500 / 1100)
    again = Arena(store, FakeWorker(as_told))
    assert BEST not in again.finals.finalists(), "what was ever wrong is not trusted again"


def test_a_fickle_default_gives_way_too(store: Store) -> None:
    faster = {**TIMES, DEFAULT: 900.0}
    arena = Arena(store, FakeWorker(Fickle(DEFAULT, lambda job: faster[job.configuration])))
    arena.learn(*TIMES)
    winner = arena.decide()
    assert winner is not None
    assert (winner.configuration, winner.verdict) == (BEST, Verdict.DEFAULT_FAILED)
    assert (winner.gain_over_default, winner.gain_low, winner.gain_high) == (1.0, 1.0, 1.0)


def test_a_challenger_that_ties_with_the_winner_of_before_does_not_replace_it(store: Store) -> None:
    before = Arena(store, FakeWorker(as_told))
    before.learn(NEXT, DEFAULT)
    first = before.decide()
    assert first is not None and first.configuration == NEXT
    alike = {**TIMES, BEST: 1099.0}
    after = Arena(store, FakeWorker(lambda job: alike[job.configuration]))
    after.learn(BEST)
    draw = np.random.default_rng(3)
    noisy = FakeWorker(lambda job: alike[job.configuration] * float(np.exp(0.01 * draw.standard_normal())))
    tied = Arena(store, noisy).decide()
    assert tied is not None and tied.configuration == NEXT
    assert tied.verdict is Verdict.FASTER, "than the default"
    beaten = Arena(store, FakeWorker(as_told)).decide()
    assert beaten is not None and beaten.configuration == BEST


def test_the_time_kept_for_finals_follows_how_long_calls_take() -> None:
    assert foreseen_seconds(float("inf"), 0.0, 0.0) == 0.0, "nothing ran yet"
    short, middle, long = (foreseen_seconds(ns, 0.1, 0.0) for ns in (1e3, 1e7, 1e9))
    assert 2.0 < short < 10.0, "each sample lasts 2 ms at least"
    assert short < middle < long
    with_inputs = foreseen_seconds(1e3, 0.1, 2.0)
    assert with_inputs - short == pytest.approx(3 * 2.0), "those of the finalists, and twice as many of the winner"


def test_finals_without_time_for_the_default_decide_nothing(store: Store) -> None:
    arena = Arena(store, FakeWorker(as_told))
    arena.learn(*TIMES)
    assert arena.decide(deadline=0.0) is None, "times of different moments prove nothing"
    assert arena.timings == {BEST: 1}
    winner = arena.knowledge.record_provisional()
    assert winner is not None and (winner.configuration, winner.verdict) == (DEFAULT, Verdict.PROVISIONAL)
    assert winner.gain_over_default is None and math.isnan(winner.gain_low) and math.isnan(winner.gain_high)
    assert not winner.is_final and winner.verifications == 0


def test_finals_without_time_claim_no_gain_over_a_default_that_was_wrong(store: Store) -> None:
    arena = Arena(store, FakeWorker(lambda job: TrialState.WRONG_RESULT if job.configuration == DEFAULT else 1000.0))
    arena.learn(BEST, DEFAULT)
    arena.worker = arena.pipeline.own.worker = FakeWorker(lambda _: 800.0)
    winner = arena.decide(deadline=0.0)
    assert winner is not None and (winner.configuration, winner.verdict) == (BEST, Verdict.PROVISIONAL)
    assert winner.gain_over_default is None


@pytest.mark.parametrize(("seconds", "expected"), [(130.0, DEFAULT), (320.0, BEST)])
def test_finals_end_with_the_time_they_have(
    seconds: float, expected: Configuration, store: Store, clock: Clock
) -> None:
    """10 s a timing: what the fewest rounds would need is not there; five rounds are, or less."""

    def measure(job: Job) -> float:
        clock.now += 10.0
        return as_told(job)

    arena = Arena(store, FakeWorker(measure), clock=clock)
    arena.learn(*TIMES)
    deadline = clock.now + seconds
    winner = arena.decide(deadline)
    assert winner is not None
    assert (winner.configuration, winner.verdict) == (expected, Verdict.PROVISIONAL)
    assert DEFAULT in arena.timings, "the default had its turn"
    assert winner.gain_over_default is None
    assert clock.now <= deadline + 10.0
    assert len(arena.worker.jobs) > 4


def test_a_default_that_is_slower_than_the_plainest_kernel_does_not_stay() -> None:
    """As on a driver where it took 1.2 times as long, and noise kept the fastest from being surely faster."""
    columns = {"default": wavering(120, FEW, by=0.5), "first": wavering(100, FEW, by=0.5)}
    times = of_rounds(**columns, second=wavering(102, FEW, by=0.5))
    assert not gain(times, DEFAULT, FIRST).is_sure
    assert (decide(times, DEFAULT).configuration, decide(times, DEFAULT).verdict) == (DEFAULT, Verdict.TIE)
    decision = decide(times, DEFAULT, baseline=SECOND)
    assert decision.configuration != DEFAULT and decision.verdict is Verdict.TIE
    assert decision.gain.low <= 1.0 < decision.gain.ratio
    assert gain(times, decision.configuration, SECOND).ratio <= 1.0 + significance.NARROW


def test_a_default_about_as_fast_as_the_plainest_kernel_stays() -> None:
    times = of_rounds(default=wavering(100.2, by=0.02), first=wavering(100, by=0.02))
    assert 1.0 < gain(times, DEFAULT, FIRST).ratio < 1.0 + significance.NARROW
    decision = decide(times, DEFAULT, baseline=FIRST)
    assert (decision.configuration, decision.verdict) == (DEFAULT, Verdict.TIE)


def test_stopping_in_the_finals_decides_nothing(store: Store) -> None:
    worker = FakeWorker(as_told)
    arena = Arena(store, worker)
    arena.learn(*TIMES)
    finals = Finals(arena.pipeline, lambda: len(worker.jobs) >= 7)
    assert finals.decide(finals.finalists(), float("inf")) is None
    assert len(worker.jobs) == 7
    assert store.best(DEVICE.slug) == []
