"""What is made of the result of a bundle, without an agent: its outputs are those of numpy."""

import io
import re
import signal
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from autotune.errors import TableError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.kernels.render import code_version
from autotune.measure.operands import canary
from autotune.model.configuration import Configuration
from autotune.model.trial import BUILD_LIMIT_S, RUN_LIMIT_S, TrialState
from autotune.phone.agent import FOLDER
from autotune.phone.agent.frames import CONSTANTS
from autotune.phone.bundle import collect as collect_module
from autotune.phone.bundle.collect import Collected, collect
from autotune.phone.bundle.note import Note, Task
from autotune.phone.bundle.result import Failed, Record, Result, Timed, read_records
from autotune.search.task import Task as SearchTask
from autotune.store import Store
from factories import INVENTED_GPU, naive

PROBLEM = GemmProblem(m=8, n=8, k=16)
DEFAULT = SearchTask(INVENTED_GPU, PROBLEM).default
OTHERS = (naive(4, 4), naive(8, 4))
SEEDS = (2, 4)


def output(seed: int, error: float = 0.0) -> memoryview:
    inputs = FAMILY.make_case(PROBLEM, seed).inputs
    a, b = (inputs[name].reshape(shape) for name, shape in (("a", (8, 16)), ("b", (16, 8))))
    return memoryview((a @ b + np.float32(error)).tobytes() + canary("float32", "c").tobytes())


def timed(rounds: range, time_ns: int) -> dict[int, Timed]:
    return {number: Timed(round=number, calls=1, samples=((time_ns, time_ns - 10),) * 3) for number in rounds}


@pytest.fixture
def result(monkeypatch: pytest.MonkeyPatch) -> Result:
    """Of the default, which is right, and two others: one is faster, one is wrong."""
    monkeypatch.setattr(collect_module, "described", lambda *_: INVENTED_GPU)
    task = Task(problem=PROBLEM, calls=1, label="", seeds=SEEDS, configurations=(DEFAULT, *OTHERS))
    note = Note(code=code_version(), device=INVENTED_GPU.slug, seconds=9, tasks=(task,))
    made = Result(name=b"work", note=note.to_json(), chosen=(0, 0, 8), spent_s=3.0, solved={0})
    for number, (time_ns, error) in enumerate([(20_000, 0.0), (10_000, 0.0), (5_000, 1.0)]):
        record = made.records[number]
        for check, seed in enumerate(SEEDS):
            digest = 10 * number + check
            record.outputs[check, 0].append(digest)
            made.contents[digest] = output(seed, error)
        record.timed = timed(range(21 if number < 2 else 1), time_ns)
    return made


def states(store: Store, found: Collected) -> Mapping[Configuration, TrialState]:
    assert not found.refused
    stored = store.trials(INVENTED_GPU.slug, "gemm", PROBLEM)
    return {s.trial.configuration: s.trial.state for s in stored if s.purpose == "search"}


def test_fastest_of_what_was_right_wins_and_all_is_stored_once(result: Result, store: Store) -> None:
    found = collect(result, store)
    assert states(store, found) == {
        DEFAULT: TrialState.COMPLETE, OTHERS[0]: TrialState.COMPLETE, OTHERS[1]: TrialState.WRONG_RESULT,
    }  # fmt: skip
    [outcome] = found.outcomes
    assert found.is_finished and found.seconds == 3.0 and not found.unchecked and outcome.new_trials == 3
    assert outcome.winner == store.winner(INVENTED_GPU.slug, PROBLEM)
    assert outcome.winner and outcome.winner.configuration == OTHERS[0] and outcome.winner.is_final
    assert outcome.winner.verifications == 2
    assert outcome.winner.gain_over_default == pytest.approx(2, rel=0.01)
    [again] = collect(result, store).outcomes
    assert again.new_trials == 0 and again.winner
    assert replace(again.winner, provenance=outcome.winner.provenance) == outcome.winner


def test_outputs_that_did_not_come_along_prove_nothing(result: Result, store: Store) -> None:
    result.contents.pop(10)
    found = collect(result, store)
    assert found.unchecked == 1 and OTHERS[0] not in states(store, found)
    assert found.outcomes[0].winner and found.outcomes[0].winner.configuration == DEFAULT


def test_what_is_wrong_in_the_second_check_alone_is_wrong(result: Result, store: Store) -> None:
    result.contents[11] = output(SEEDS[1], error=1.0)
    assert states(store, collect(result, store))[OTHERS[0]] is TrialState.WRONG_RESULT


def test_stray_writes_are_wrong(result: Result, store: Store) -> None:
    result.contents[10] = memoryview(bytes(result.contents[10][:-4]) + bytes(4))
    assert states(store, collect(result, store))[OTHERS[0]] is TrialState.WRONG_RESULT


@pytest.mark.parametrize(
    ("why", "how", "number", "state"),
    [
        ("FAILED_REFUSED", 0, -5, TrialState.LAUNCH_FAILED),
        ("FAILED_ENDED", CONSTANTS["ENDED_BY_SIGNAL"], signal.SIGSEGV, TrialState.CRASHED),
        ("FAILED_ENDED", CONSTANTS["ENDED_BY_SIGNAL"], 9, TrialState.CUT_SHORT),
        ("FAILED_ENDED", CONSTANTS["ENDED_BY_LIMIT"], 90_000, TrialState.TIMED_OUT),
        ("FAILED_ENDED", CONSTANTS["ENDED_BY_LIMIT"], 20_000, TrialState.CUT_SHORT),
        ("FAILED_LATE", 0, 30_000, TrialState.TIMED_OUT),
        ("FAILED_LATE", 0, 20_000, TrialState.CUT_SHORT),
        ("FAILED_BUSY", 0, 30_000, TrialState.CUT_SHORT),
        ("FAILED_SLOW", 0, 700, TrialState.TOO_SLOW),
        ("FAILED_DIFFERS", 0, 0, TrialState.WRONG_RESULT),
        ("FAILED_LOST", 0, 0, TrialState.CRASHED),
    ],
)
def test_every_failure_has_a_state(
    result: Result, store: Store, why: str, how: int, number: int, state: TrialState
) -> None:
    failed = Failed(why=CONSTANTS[why], how=how, command=CONSTANTS["RUN"], number=number, text="clFinish")
    result.records[1] = Record(failed=failed)
    found = collect(result, store)
    assert states(store, found)[OTHERS[0]] is state
    assert bool(store.quarantined()) == (state in (TrialState.CRASHED, TrialState.TIMED_OUT))


def test_the_limits_of_an_agent_are_those_of_the_host() -> None:
    told = re.findall(r"#define (\w+)_LIMIT_MS (\d+)", (FOLDER / "trials.h").read_text(encoding="ascii"))
    assert dict(told) == {"BUILD": f"{BUILD_LIMIT_S * 1000:.0f}", "RUN": f"{RUN_LIMIT_S * 1000:.0f}"}


def test_a_finalist_whose_agent_was_killed_keeps_its_times(result: Result, store: Store) -> None:
    how = CONSTANTS["ENDED_BY_SIGNAL"]
    result.records[1].failed = Failed(
        why=CONSTANTS["FAILED_ENDED"], how=how, command=CONSTANTS["RUN"], number=9, text=""
    )
    found = collect(result, store)
    assert states(store, found)[OTHERS[0]] is TrialState.COMPLETE
    assert found.outcomes[0].winner and found.outcomes[0].winner.configuration == OTHERS[0]
    assert not store.quarantined()


def test_times_that_no_device_reaches_refuse_their_problem(result: Result, store: Store) -> None:
    result.records[1].timed = {0: Timed(round=0, calls=2**31, samples=((1, 1),) * 3)}
    [refused] = collect(result, store).refused
    assert refused.startswith(f"{PROBLEM.label}: ") and "faster than any device" in refused
    assert store.trials(INVENTED_GPU.slug, "gemm", PROBLEM) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"note": b""}, "does not tell what work"), ({"note": b"{}"}, "code"), ({"chosen": None}, "no device was found")],
)
def test_result_without_its_head_is_refused(
    result: Result, store: Store, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(TableError, match=message):
        collect(replace(result, **changes), store)  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"", b"not a result", bytes(1000)])
def test_what_is_no_result_is_refused(data: bytes) -> None:
    with pytest.raises(TableError, match="no result of an agent"):
        read_records(io.BytesIO(data))
