"""Bundles: an agent works through one alone, is interrupted and killed, and what it found is judged here."""

import fcntl
import io
import os
import random
import re
import resource
import runpy
import signal
import struct
import subprocess
import sys
import time
import tracemalloc
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

import agents
import kernel_files
from agents import frames_in, with_sizes
from autotune.device.discovery import discover_behind
from autotune.errors import AutotuneError, ProblemError, TableError, UsageError
from autotune.kernels import FILES, families_of_files, find_family
from autotune.kernels.gemm import GemmProblem
from autotune.kernels.qgemm import QGemmProblem
from autotune.kernels.render import code_version
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.model.trial import Request, TrialState
from autotune.phone import bundle
from autotune.phone.agent import FOLDER as FOLDER_OF_AGENT
from autotune.phone.agent.frames import CONSTANTS
from autotune.phone.agent.machine import QUERIES, QUERIES_OF_PLATFORMS
from autotune.phone.agent.recording import described
from autotune.phone.bundle import prepare
from autotune.phone.bundle.collect import Collected, collect
from autotune.phone.bundle.note import Note, read_note
from autotune.phone.bundle.prepare import FOLDER, make_bundle
from autotune.phone.bundle.result import NAME, Result, read_records, read_result
from autotune.phone.links import toolchains
from autotune.phone.links.toolchains import ANDROID, LINUX, can_build
from autotune.store import Store
from factories import PHONE, Run, device
from waiting import HANG_S, wait_for

pytestmark = pytest.mark.long

PROBLEMS = (GemmProblem(m=48, n=40, k=36), GemmProblem.parse("1,64,96 float16"))
SECONDS = 3600.0
"""More than any search here takes: it ends with its candidates, however fast this machine is."""
MUTATIONS = 300
Job = tuple[Path, Device]
Imitation = tuple[dict[str, str], Path, bytes, bytes]


@pytest.fixture(autouse=True, scope="module")
def _few() -> Iterator[None]:
    """Of each problem there are few candidates and finalists."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "FEWEST", 24)
        patch.setattr(prepare, "MOST", 24)
        patch.setattr(prepare, "FINALISTS", 3)
        yield


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A folder as it arrives on the other machine, and the device that it is for."""
    link = agents.link_name()
    if not can_build(LINUX["x86_64"]) or os.uname().machine != "x86_64":
        pytest.skip("agents are started on x86-64")
    folder = tmp_path_factory.mktemp("job")
    (found,) = discover_behind(link)
    with Store.open(folder / "empty.sqlite") as store:
        requests = [Request(problem=problem, calls=2, label="test") for problem in PROBLEMS]
        names = make_bundle(folder / "job.zip", found, requests, store, SECONDS, algorithms=["naive", "dot"])
    assert "x86_64-linux" in names
    with zipfile.ZipFile(folder / "job.zip") as bundle:
        bundle.extractall(folder)
    return folder / FOLDER, found


def _start(folder: Path) -> "subprocess.Popen[bytes]":
    environment = os.environ | {"OCL_ICD_VENDORS": str(agents.DRIVER)}
    return subprocess.Popen(["sh", folder / "run.sh"], env=environment, stderr=subprocess.PIPE, start_new_session=True)


def _when(folder: Path, is_due: Callable[[set[str]], bool]) -> None:
    """Return when the records so far are as wanted."""
    wait_for(lambda: is_due({*_kinds(folder / NAME)}), seen=lambda: _kinds(folder / NAME))


def result_of(data: bytes) -> Result:
    return read_records(io.BytesIO(data))


def _joined(frames: list[bytes]) -> bytes:
    """Return a result of records, with sizes and checksums made right."""
    return with_sizes(frame[:-4] + struct.pack("<I", zlib.crc32(frame[:-4])) for frame in frames)


@pytest.fixture(scope="module")
def result(job: Job) -> bytes:
    """What is in a result after an interruption, a kill of everything, and the end."""
    folder, _ = job
    process = _start(folder)
    _when(folder, lambda seen: "TIMED" in seen)
    while not _is_interrupted_in_a_trial(folder, process):
        process = _start(folder)
    count = len(frames_in((folder / NAME).read_bytes()))
    process = _start(folder)
    _when(folder, lambda _: len(frames_in((folder / NAME).read_bytes())) > count + 12)
    _end_in_a_trial(folder, process, signal.SIGKILL)
    process = _start(folder)
    _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, errors
    return (folder / NAME).read_bytes()


def _hurried(work: bytes) -> bytes:
    """Return the work with a budget of 0.1 s."""
    end = 4 + int.from_bytes(work[:4], "little")
    return work[: end - 8] + struct.pack("<Q", 100) + work[end:]


def _is_interrupted_in_a_trial(folder: Path, process: "subprocess.Popen[bytes]") -> bool:
    """End everything as Ctrl-C does while a trial runs, and return whether it was dropped: it may have just ended."""
    _end_in_a_trial(folder, process, signal.SIGTERM)
    _when(folder, lambda seen: "SPENT" in seen)
    return bool(_kinds(folder / NAME)["DROPPED"])


def _end_in_a_trial(folder: Path, process: "subprocess.Popen[bytes]", how: signal.Signals) -> None:
    """Send a signal to everything, which is stopped while a trial that began after the start is under way."""
    last = (folder / NAME).stat().st_size

    def is_stopped() -> bool:
        os.killpg(process.pid, signal.SIGSTOP)
        return all(_state(pid) == "T" for pid in _group(process.pid))

    while True:
        wait_for(is_stopped)
        if _is_in_a_trial(folder) and (folder / NAME).stat().st_size > last:
            break
        os.killpg(process.pid, signal.SIGCONT)
        assert process.poll() is None
        time.sleep(0.005)  # so that it gets further
    os.killpg(process.pid, how)
    os.killpg(process.pid, signal.SIGCONT)
    process.wait(HANG_S)
    wait_for(lambda: not _group(process.pid), seen=lambda: _group(process.pid))  # the shell may end before the agent


def _is_in_a_trial(folder: Path) -> bool:
    return frames_in((folder / NAME).read_bytes())[-1][:1] == bytes([CONSTANTS["BEGUN"]])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "db.sqlite") as opened:
        yield opened


def _trials(store: Store, found: Collected, problem: GemmProblem) -> list[tuple[Configuration, TrialState, str]]:
    stored = store.trials(found.device.slug, "gemm", problem)
    return [(s.trial.configuration, s.trial.state, s.purpose) for s in stored]


def test_what_an_agent_found_alone_is_stored_and_reported_like_a_run(job: Job, result: bytes, store: Store) -> None:
    found = collect(result_of(result), store)
    there = found.device.limits  # PoCL derives sizes of memory from what is free
    limits = replace(
        job[1].limits,
        global_memory_bytes=there.global_memory_bytes,
        max_allocation_bytes=there.max_allocation_bytes,
    )
    assert found.device == replace(job[1], selector="", limits=limits)
    assert found.is_finished
    assert not found.unchecked
    [*_, spent_ms] = [struct.unpack_from("<Q", f, 1)[0] for f in frames_in(result) if f[0] == CONSTANTS["SPENT"]]
    assert found.seconds == spent_ms / 1000 > 0
    for problem, outcome in zip(PROBLEMS, found.outcomes, strict=True):
        assert outcome.request == Request(problem=problem, calls=2, label="test")
        assert outcome.winner
        assert outcome.winner == store.winner(found.device.slug, problem)
        assert outcome.winner.verifications > 2
        trials = _trials(store, found, problem)
        searched = [configuration for configuration, _, purpose in trials if purpose == "search"]
        assert len(searched) == len(set(searched)) == outcome.new_trials
        assert (outcome.winner.configuration, TrialState.COMPLETE, "final") in trials
        assert outcome.winner.default_ns > 0


def test_no_finished_trial_is_lost_or_repeated_and_the_one_that_was_killed_is_quarantined(
    result: bytes, store: Store
) -> None:
    assert len(_searched(result)) == len(set(_searched(result)))
    why = [frame[5] for frame in frames_in(result) if frame[0] == CONSTANTS["FAILED"]]
    assert why.count(CONSTANTS["FAILED_LOST"]) == 1
    found = collect(result_of(result), store)
    (lost,) = store.quarantined(found.device.slug, found.device.driver)
    trials = {(name, state) for problem in PROBLEMS for name, state, _ in _trials(store, found, problem)}
    assert (lost.configuration, TrialState.CRASHED) in trials
    assert any(frame[0] == CONSTANTS["DROPPED"] for frame in frames_in(result))  # interrupted: not to blame


def test_a_result_that_is_collected_twice_is_stored_once(result: bytes, store: Store) -> None:
    cut = len(result) * 2 // 3  # copied while the work went on
    partial = collect(result_of(result[:cut]), store)
    assert not partial.is_finished
    found = collect(result_of(result), store)
    stored = [_trials(store, found, problem) for problem in PROBLEMS]
    again = collect(result_of(result), store)
    assert [_trials(store, again, problem) for problem in PROBLEMS] == stored
    assert not any(outcome.new_trials or outcome.failures for outcome in again.outcomes)
    assert [o.winner and o.winner.configuration for o in again.outcomes] == [
        o.winner and o.winner.configuration for o in found.outcomes
    ]


def test_the_results_of_two_devices_with_one_bundle_are_both_stored(result: bytes, store: Store) -> None:
    first = collect(result_of(result), store)
    head, *others = frames_in(result)
    assert head[0] == CONSTANTS["RESULT"]
    second = _joined([head[:-12] + struct.pack("<Q", 1) + head[-4:], *others])
    again = collect(result_of(second), store)
    assert [o.new_trials for o in again.outcomes] == [o.new_trials for o in first.outcomes]
    assert all(outcome.new_trials for outcome in again.outcomes)


def test_a_winner_that_fails_later_in_the_race_does_not_stay(result: bytes, store: Store) -> None:
    found = collect(result_of(result), store)
    raced = found.outcomes[0].winner
    assert raced and raced.is_final
    store.record_winner(replace(raced, time_ns=raced.time_ns / 2))  # as if it had seemed faster at first
    configurations = read_note(result_of(result).note).tasks[0].configurations
    number = configurations.index(raced.configuration)
    right = [c for c, state, _ in _trials(store, found, PROBLEMS[0]) if state is TrialState.COMPLETE]
    other = next(configurations.index(c) for c in right if c != raced.configuration)
    frames = []
    for frame in frames_in(result):  # the other has the winner's rounds, so that a final is left
        of, turn = struct.unpack_from("<II", frame + bytes(8), 1)
        is_round = frame[0] == CONSTANTS["TIMED"] and turn > 0
        if not (is_round and of == other):
            frames.append(frame)
        if is_round and of == number:
            frames.append(frame[:1] + struct.pack("<I", other) + frame[5:])
    crash = struct.pack("<IBBBi", number, CONSTANTS["FAILED_ENDED"], CONSTANTS["ENDED_BY_SIGNAL"], CONSTANTS["RUN"], 11)
    frames.append(bytes([CONSTANTS["FAILED"]]) + crash + bytes(4))
    now = collect(result_of(_joined(frames)), store).outcomes[0].winner
    assert now and now.is_final and now.configuration != raced.configuration
    assert store.winner(raced.device, PROBLEMS[0]) == now


def test_a_result_of_too_many_records_is_refused(result: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle.result, "MOST_RECORDS", len(frames_in(result)))
    assert result_of(result).records
    monkeypatch.setattr(bundle.result, "MOST_RECORDS", len(frames_in(result)) - 1)
    with pytest.raises(TableError, match=r"at most \d+ records"):
        result_of(result)


def test_more_candidates_than_a_note_can_have_are_refused(
    job: Job, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle.prepare, "MAX_BYTES", 1000)
    with pytest.raises(UsageError, match="too many candidates"):
        make_bundle(tmp_path / "job.zip", job[1], [Request(problem=PROBLEMS[0])], store, 2.0)
    assert not list(tmp_path.glob("*.zip"))


def test_a_time_from_elsewhere_does_not_outlast_a_race_on_the_device(result: bytes, store: Store) -> None:
    found = collect(result_of(result), store)
    raced = found.outcomes[0].winner
    assert raced and raced.is_final
    faster = replace(raced, time_ns=raced.time_ns / 2, configuration=Configuration.of("no_such"))
    with Store.open(Path(store.location).with_name("imported.sqlite")) as other:
        assert other.import_winners([faster], [found.device]) == (1, 0)
        collect(result_of(result), other)
        now = other.winner(raced.device, PROBLEMS[0])
        assert now and now.configuration == raced.configuration and now.source == "measured"


def test_only_what_was_right_can_win(result: bytes, store: Store) -> None:
    honest = collect(result_of(result), store)
    winner = honest.outcomes[0].winner
    assert winner
    note = read_note(result_of(result).note)
    number = note.tasks[0].configurations.index(winner.configuration)
    outputs = {frame[7:15] for frame in _outputs(result) if struct.unpack_from("<I", frame, 1)[0] == number}
    frames = frames_in(result)
    for place, frame in enumerate(frames):
        if frame[0] == CONSTANTS["OUTPUT"] and frame[7:15] in outputs and len(frame) > 100:
            frames[place] = frame[:40] + bytes([frame[40] ^ 64, frame[41], frame[42] ^ 64]) + frame[43:]
    with Store.open(Path(store.location).with_name("other.sqlite")) as other:
        found = collect(result_of(_joined(frames)), other)
        wrong = {c for c, state, _ in _trials(other, found, PROBLEMS[0]) if state is TrialState.WRONG_RESULT}
        assert winner.configuration in wrong
        assert found.outcomes[0].winner is None or found.outcomes[0].winner.configuration not in wrong


def _outputs(result: bytes) -> list[bytes]:
    return [frame for frame in frames_in(result) if frame[0] == CONSTANTS["OUTPUT"]]


def test_outputs_that_did_not_come_along_prove_nothing(result: bytes, store: Store) -> None:
    frames = [f for f in frames_in(result) if f[0] != CONSTANTS["OUTPUT"] or struct.unpack_from("<I", f, 1)[0] == 0]
    found = collect(result_of(_joined(frames)), store)
    assert found.unchecked > 0
    names = [name for name, state, _ in _trials(store, found, PROBLEMS[0]) if state is TrialState.COMPLETE]
    assert len(set(names)) <= 1


def test_nonsense_is_refused_clearly(result: bytes, store: Store) -> None:
    frames = frames_in(result)
    refused = 0
    for seed in range(MUTATIONS):
        chance = random.Random(seed)
        changed = list(frames)
        for _ in range(chance.choice((1, 2, 5))):
            place = chance.randrange(len(changed))
            frame = bytearray(changed[place])
            at = chance.randrange(len(frame))
            match chance.randrange(4):
                case 0:
                    frame[at] = chance.randrange(256)
                case 1:
                    frame[at : at + 8] = b"\xff" * len(frame[at : at + 8])
                case 2:
                    del frame[at : at + 5]
                case 3:
                    changed.insert(place, changed[chance.randrange(len(changed))])
            changed[place] = bytes(frame) + bytes(max(0, 5 - len(frame)))
        try:
            collect(result_of(_joined(changed)), store)
        except AutotuneError:  # any other exception fails the test
            refused += 1
    assert refused > MUTATIONS // 10


def test_times_that_no_device_reaches_are_refused_with_their_problem(result: bytes, store: Store) -> None:
    frames = frames_in(result)
    number = next(frame[1:5] for frame in frames if frame[0] == CONSTANTS["TIMED"])
    for place, frame in enumerate(frames):
        if frame[0] == CONSTANTS["TIMED"] and frame[1:5] == number:
            samples = len(frame[13:-4]) // 16
            frames[place] = frame[:9] + struct.pack("<I", 2**32 - 1) + struct.pack("<QQ", 1, 1) * samples + bytes(4)
    found = collect(result_of(_joined(frames)), store)
    (refused,) = found.refused
    assert refused.startswith(f"{PROBLEMS[0].label}: ") and "faster than any device" in refused
    assert not _trials(store, found, PROBLEMS[0])
    assert [outcome.request.problem for outcome in found.outcomes] == [PROBLEMS[1]]
    assert store.winner(found.device.slug, PROBLEMS[1])


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A kernel file that names nothing that says what is right, so that its default does."""
    (tmp_path / "twice.cl").write_text(
        "__kernel void twice(__global const float *x, __global float *y, int count) {\n"
        "    for (int i = get_global_id(0); i < count - SHORT; i += get_global_size(0)) y[i] = 2.0f * x[i];\n}\n"
        "__kernel void right(__global const float *x, __global float *y, int count) {\n"
        "    for (int i = 0; i < count; i++) y[i] = 2.0f * x[i];\n}\n"
    )
    file = tmp_path / "twice.toml"
    file.write_text(
        'name = "twice"\nsource = "twice.cl"\nglobal_size = "round_up(ceil_div(count, EACH), WIDE)"\n'
        'local_size = "WIDE"\n[sizes]\ncount = 10000\n[parameters]\nEACH = [1, 4, 16]\nWIDE = [16, 64]\n'
        "SHORT = [0, 1]\n"
        '[arguments]\nx = { buffer = "float32", size = "count" }\n'
        'y = { buffer = "float32", size = "count", access = "out" }\ncount = { scalar = "int32", value = "count" }\n'
    )
    monkeypatch.setenv(FILES, "")
    yield file
    monkeypatch.undo()
    for cached in (families_of_files, find_family, code_version):
        cached.cache_clear()


def test_a_bundle_of_a_kernel_file_is_collected_with_that_file(
    job: Job, kernel: Path, tmp_path: Path, run: Run
) -> None:
    with kernel_files.registered(kernel) as family, Store.open(tmp_path / "empty.sqlite") as empty:
        requests = [Request(problem=family.problem_type.parse("10000"))]
        make_bundle(tmp_path / "job.zip", job[1], requests, empty, SECONDS)
    with zipfile.ZipFile(tmp_path / "job.zip") as bundle:
        bundle.extractall(tmp_path)
    process = _start(tmp_path / FOLDER)
    _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, errors
    db = ["--db", str(tmp_path / "db.sqlite")]
    code_version.cache_clear()
    assert "with --family FILE" in run(["collect", str(tmp_path / FOLDER), *db], 1).err
    code_version.cache_clear()
    told = run(["collect", str(tmp_path / FOLDER), "--family", str(kernel), *db])
    assert "10000" in told.out and "cannot be checked" not in told.err
    told = run(["lookup", "--device", job[1].slug, "10000", "--tuned", "--family", str(kernel), *db])
    assert re.search(r"SHORT +0\n", told.out)
    with Store.open(tmp_path / "db.sqlite") as store, kernel_files.registered(kernel):
        states = {
            (dict(s.trial.configuration.values)["SHORT"], s.trial.state) for s in store.trials(job[1].slug, "twice")
        }
    of_wrong = {state for value, state in states if value == 1}
    assert (0, TrialState.COMPLETE) in states
    assert TrialState.WRONG_RESULT in of_wrong
    assert of_wrong <= {TrialState.WRONG_RESULT, TrialState.TOO_SLOW}  # a race on a busy machine drops some


def test_where_the_reference_gave_nothing_no_output_is_judged(
    job: Job, kernel: Path, tmp_path: Path, store: Store
) -> None:
    with kernel_files.registered(kernel) as family:
        requests = [Request(problem=family.problem_type.parse("10000"))]
        make_bundle(tmp_path / "job.zip", job[1], requests, store, SECONDS)
        with zipfile.ZipFile(tmp_path / "job.zip") as bundle:
            bundle.extractall(tmp_path)
        assert _start(tmp_path / FOLDER).wait(HANG_S) == 0
        frames = frames_in((tmp_path / FOLDER / NAME).read_bytes())
        frames = [f for f in frames if f[0] != CONSTANTS["OUTPUT"] or struct.unpack_from("<I", f, 1)[0]]
        found = collect(result_of(_joined(frames)), store)
        assert not found.outcomes
        assert found.refused == ("10000: nothing tells what is right: its reference has no outputs",)


def test_a_kernel_file_with_another_kernel_for_reference_is_left_out(
    job: Job, kernel: Path, tmp_path: Path, store: Store
) -> None:
    kernel.write_text(kernel.read_text() + '[reference]\nkernel = "right"\nglobal_size = "1"\n')
    told: list[int | str] = []
    with kernel_files.registered(kernel) as family:
        requests = [Request(problem=family.problem_type.parse("10000"))]
        with pytest.raises(ProblemError, match="no shape can"):
            make_bundle(tmp_path / "j.zip", job[1], requests, store, 1.0, listener=lambda _, why: told.append(why))
    assert told == ["what is right is told by another kernel, which is not among the candidates"]


class _Everything(dict[tuple[int, int, int], bytes]):
    """Answers of a driver that has all extensions, and what it was asked."""

    def get(self, key: tuple[int, int, int], default: object = None) -> bytes:
        self[key] = b""
        extensions = (FOLDER_OF_AGENT.parents[1] / "device" / "description.py").read_text() + (
            FOLDER_OF_AGENT.parent.parent / "model" / "device.py"
        ).read_text()
        found = " ".join(re.findall(r"cl_\w+", extensions))
        return {0x1000: struct.pack("<Q", 4), 0x1030: found.encode(), 0x1016: b"\1\0\0\0", 0x102C: b"NVIDIA"}.get(
            key[2], b"OpenCL 3.0 CUDA " if key[2] in (0x102F, 0x103D) else b"\x08\0\0\0\0\0\0\0"
        )


def test_everything_that_describes_a_device_is_asked_by_a_bundle() -> None:
    asked = _Everything()
    described(asked, (0, 0, 8), "")
    codes = {query for _, _, query in asked}
    assert {0x4000, 0x4108, 0x41EB} <= codes, "those of extensions, too"
    assert codes <= {*QUERIES, *QUERIES_OF_PLATFORMS}


def test_large_outputs_come_home_and_larger_ones_are_left_out(
    tmp_path: Path, job: Job, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, few in (("FEWEST", 3), ("MOST", 3), ("FINALISTS", 1)):
        monkeypatch.setattr(prepare, name, few)
    problem, too_large = GemmProblem(m=4096, n=2560, k=4), GemmProblem(m=8192, n=2100, k=1)
    one_more = replace(problem, k=3)
    left_out: dict[Problem, int | str] = {}
    requests = [Request(problem=problem), Request(problem=too_large), Request(problem=one_more)]

    def listener(request: Request, told: int | str) -> None:
        left_out[request.problem] = told

    make_bundle(tmp_path / "job.zip", job[1], requests, store, SECONDS, algorithms=["naive"], listener=listener)
    assert isinstance(left_out[problem], int)
    assert "an output has more than" in str(left_out[too_large])
    assert "the outputs of all shapes would have more than 64 MiB" in str(left_out[one_more])
    with pytest.raises(ProblemError, match="no shape can"):
        make_bundle(tmp_path / "no.zip", job[1], requests[1:2], store, 2.0, algorithms=["naive"])
    with zipfile.ZipFile(tmp_path / "job.zip") as bundle:
        bundle.extractall(tmp_path)
    _, errors = _start(tmp_path / FOLDER).communicate(timeout=HANG_S)
    result = (tmp_path / FOLDER / NAME).read_bytes()
    whole = [frame for frame in _outputs(result) if len(frame) > 40 * 2**20]
    assert whole and not any(frame[6] for frame in whole), errors
    found = collect(result_of(result), store)
    assert found.outcomes[0].winner and not found.unchecked and not found.refused
    agent = tmp_path / FOLDER / "agent-x86_64-linux"
    again = _run_alone(agent, tmp_path / FOLDER / "work.bin", tmp_path / FOLDER / NAME, dict(os.environ))
    assert not again.returncode
    assert (tmp_path / FOLDER / NAME).read_bytes() == result, "a restart takes every record for complete"


def test_finalists_that_shared_no_round_are_not_compared(result: bytes, store: Store) -> None:
    frames = frames_in(result)
    for place, frame in enumerate(frames):
        number, turn = struct.unpack_from("<II", frame + bytes(8), 1)
        if frame[0] == CONSTANTS["TIMED"] and 0 < turn <= 20 and number % 2:
            frames[place] = frame[:5] + struct.pack("<I", turn + 40) + frame[9:]
    assert all(outcome.winner for outcome in collect(result_of(_joined(frames)), store).outcomes)


def test_a_problem_that_cannot_be_judged_does_not_hinder_others(
    result: bytes, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = frames_in(result)
    place = next(i for i, frame in enumerate(frames) if frame[0] == CONSTANTS["OUTPUT"] and len(frame) > 100)
    frames[place] = frames[place][:-12] + bytes(4)
    found = collect(result_of(_joined(frames)), store)
    assert found.refused == (f"{PROBLEMS[0].label}: an output has a wrong size",)
    assert found.unchecked
    assert not _trials(store, found, PROBLEMS[0])
    (outcome,) = found.outcomes
    assert outcome.winner
    for name, why in (("script.MOST_INPUT_BYTES", "too large"), ("checks.MOST_WORK", "too many outputs")):
        with monkeypatch.context() as patch, Store.open(Path(store.location).with_name(f"{name}.sqlite")) as other:
            patch.setattr(f"autotune.phone.bundle.{name}", 1)
            found = collect(result_of(result), other)
            assert [why in told for told in found.refused] == [True, True]
            assert not found.outcomes


def test_a_result_without_its_note_says_what_to_do(result: bytes, store: Store) -> None:
    frames = [frame for frame in frames_in(result) if frame[0] != CONSTANTS["NOTE"]]
    with pytest.raises(TableError) as raised:
        collect(result_of(_joined(frames)), store)
    assert "start run.sh again" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("kind", "layouts"),
    [
        ("OUTPUT", [struct.pack("<IBBQ", 0, 2, 0, 1)]),
        ("OUTPUT", [struct.pack("<IBBQ", 0, 0, 9, 1)]),
        ("OUTPUT", [struct.pack("<IBBQ", 0, 0, 0, 1)] * 65),
        ("TIMED", [struct.pack("<III2Q", 0, 61, 1, 1, 1)]),
        ("TIMED", [struct.pack("<III", 0, 1, 1) + struct.pack("<2Q", 1, 1) * 65]),
        ("SOLVED", [struct.pack("<I", 10**6)]),
    ],
)
def test_a_result_cannot_claim_more_than_an_agent_does(result: bytes, kind: str, layouts: list[bytes]) -> None:
    frames = [bytes([CONSTANTS[kind]]) + layout + bytes(4) for layout in layouts]
    with pytest.raises(TableError):
        result_of(_joined([*frames_in(result)[:2], *frames]))


def test_a_problem_without_operations_gets_a_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GemmProblem, "flops", 0.0)
    with Store.open(tmp_path / "empty.sqlite") as store:
        requests = [Request(problem=problem) for problem in PROBLEMS]
        make_bundle(tmp_path / "job.zip", device(limits=PHONE), requests, store, 0.2, algorithms=["naive"])
    assert (tmp_path / "job.zip").exists()


@pytest.mark.parametrize("how", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_of_another_compression_is_refused(tmp_path: Path, how: int) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", how) as archive:
        archive.writestr(NAME, b"x")
    with pytest.raises(TableError, match="unusual way"):
        read_result(tmp_path / "a.zip")


def test_run_sh_says_that_it_is_to_be_started_again(tmp_path: Path) -> None:
    script = Path(bundle.__file__).with_name("run.sh").read_bytes()
    (tmp_path / "run.sh").write_bytes(script)
    for name in ("agent-x86_64-linux", "agent-aarch64-linux"):
        (tmp_path / name).write_text("#!/bin/sh\n[ $1 = version ] || exit 75\n")
    done = subprocess.run(["sh", tmp_path / "run.sh"], capture_output=True, check=False)
    assert done.returncode == 1
    assert b"work.bin is not in this folder" in done.stderr
    (tmp_path / "work.bin").touch()
    done = subprocess.run(["sh", tmp_path / "run.sh"], capture_output=True, check=False)
    assert done.returncode == 75
    assert b"not finished: start it again" in done.stderr


@pytest.mark.parametrize("names", [[], ["a/result.bin", "b/result.bin"]])
def test_an_archive_has_one_result(tmp_path: Path, names: list[str]) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ["other", *names]:
            archive.writestr(name, b"x")
    with pytest.raises(TableError, match=f"{len(names) or 'no'} files named"):
        read_result(tmp_path / "a.zip")


def test_an_archive_takes_no_more_memory_than_its_result(tmp_path: Path, result: bytes) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive, archive.open(NAME, "w") as file:
        file.write(result)
        for _ in range(64):
            file.write(bytes(2**20))
    tracemalloc.start()
    found = read_result(tmp_path / "a.zip")
    assert tracemalloc.get_traced_memory()[1] < len(result) + 2**24
    tracemalloc.stop()
    assert found.is_cut and found.records == result_of(result).records


def test_a_result_in_an_archive_is_read_wherever_its_path_leads(tmp_path: Path, result: bytes) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"../../etc/{NAME}", result)
    before = sorted(tmp_path.iterdir())
    assert read_result(tmp_path / "a.zip") == result_of(result)
    assert sorted(tmp_path.iterdir()) == before


def test_a_note_of_other_kernels_is_refused(result: bytes) -> None:
    note = read_note(result_of(result).note)
    assert isinstance(note, Note)
    with pytest.raises(TableError, match="another version"):
        read_note(replace(note, code="1-0123456789ab").to_json())


def test_the_commands_pack_and_collect(run: Run, job: Job, result: bytes, tmp_path: Path) -> None:
    """The device of the bundle is one that nobody has asked."""
    if not can_build(ANDROID["arm64-v8a"]):
        pytest.skip("no compiler for phones: Android's NDK, or clang with lld")
    file, db = tmp_path / "job.zip", str(tmp_path / "db.sqlite")
    shapes = ["--shape", "64,64,64", "1,64,96 float16"]
    told = run(["bundle", "--device", "adreno-730", *shapes, "--budget", "10s", "-o", str(file), "--db", db])
    assert told.out.startswith(f"{file}: ")
    assert "for adreno-730, agents for " in told.out
    with zipfile.ZipFile(file) as bundle:
        modes = {info.filename: info.external_attr >> 16 & 0o777 for info in bundle.infolist()}
        work = bundle.read(f"{FOLDER}/work.bin")
    assert modes[f"{FOLDER}/run.sh"] == modes[f"{FOLDER}/agent-x86_64-linux"] == 0o755
    assert b"image2d_t" in work, "phones are presumed to have images"
    (tmp_path / NAME).write_bytes(result)
    told = run(["collect", str(tmp_path), "--db", db])
    assert "48x40x36" in told.out
    assert re.search(r"48x40x36: the rule had said .*; the default takes \d\.\d\d of its time", told.out)
    assert "not finished" not in told.err
    assert "48x40x36" in run(["lookup", "--device", job[1].slug, "48,40,36", "--tuned", "--db", db]).out


def test_a_result_is_one_more_origin_for_the_rule_of_phones(
    job: Job, result: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = Path(__file__).resolve().parents[2] / "scripts"
    monkeypatch.setattr(sys, "path", [str(scripts), *sys.path])
    phone_rows = import_module("phone_rows")
    bench = runpy.run_path(str(scripts / "bench_phones"))
    (tmp_path / NAME).write_bytes(result)
    rows = list(phone_rows.collected([tmp_path / NAME]))
    assert {row.problem for row in rows} == set(PROBLEMS)
    other = phone_rows.Winner(origin="other", slug="adreno-640", problem=PROBLEMS[0], outputs=8)
    (origin,) = {row.origin for row in rows}
    assert origin == f"collected, {job[1].slug}"
    scores = bench["scores"](origin, {"other": [other], origin: rows})
    assert scores["rows"] == len(rows)
    assert scores["tile"] is not None
    assert scores["chosen"]["outputs_least"] == 8  # what the other origin has


def test_a_bundle_that_no_phone_could_run_is_refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchains, "_compilers", lambda target: iter(()))
    asked = ["bundle", "--device", "adreno-730", "--shape", "64,64,64", "--budget", "10s"]
    places = ["-o", str(tmp_path / "j.zip"), "--db", str(tmp_path / "db.sqlite")]
    assert "arm64-v8a" in run([*asked, *places], 2).err
    assert not (tmp_path / "j.zip").exists()


def test_what_a_bundle_needs_is_said(run: Run, tmp_path: Path) -> None:
    asked = ["bundle", "--device", "adreno", "-o", str(tmp_path / "job.zip")]
    assert "a bundle needs a time" in run([*asked, "--shape", "64,64,64"], 2).err
    assert "no shape given" in run([*asked, "--budget", "1m"], 2).err
    asked += ["--budget", "1m", "--shape", "64,64,64"]
    assert "--tokens is for a model" in run([*asked, "--tokens", "8"], 2).err
    for place in (tmp_path, tmp_path / "missing" / "job.zip"):
        assert "-o job.zip" in run([*asked, "-o", str(place)], 2).err
    assert "there is no kernel family 'none'" in run(["collect", "x", "--family", "none"], 2).err


def _run_alone(
    agent: Path, work: Path, result: Path, environment: dict[str, str]
) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run([agent, work, result], capture_output=True, env=environment, timeout=HANG_S, check=False)


def test_an_agent_refuses_work_and_results_that_are_not_its_own(job: Job, tmp_path: Path) -> None:
    folder, _ = job
    agent = folder / "agent-x86_64-linux"
    agent.chmod(0o755)
    other = tmp_path / "precious"
    other.write_bytes(b"not a result" * 1000)
    done = _run_alone(agent, folder / "work.bin", other, dict(os.environ))
    assert done.returncode == 1
    assert b"is the result of other work" in done.stderr
    assert other.read_bytes() == b"not a result" * 1000
    done = _run_alone(agent, other, tmp_path / "result.bin", dict(os.environ))
    assert done.returncode == 1
    assert b"is no work for this agent" in done.stderr
    assert not (tmp_path / "result.bin").exists()


# Nonsense for the agent


@pytest.fixture(scope="module")
def imitation(tmp_path_factory: pytest.TempPathFactory) -> Imitation:
    """An agent that ends at a wrong access to memory, with a driver that does nothing; its work, and the result."""
    folder = tmp_path_factory.mktemp("imitation")
    driver = agents.fake_driver(folder / "libfake.so", *agents.SANITIZED)
    options = "detect_leaks=0:allocator_may_return_null=1"
    environment = os.environ | {"AUTOTUNE_OPENCL": str(driver), "ASAN_OPTIONS": options}
    agent = agents.compiled(folder / "agent", *agents.SANITIZED)
    requests = [Request(problem=PROBLEMS[0]), Request(problem=PROBLEMS[1])]
    with Store.open(folder / "empty.sqlite") as store:
        make_bundle(folder / "job.zip", device(limits=PHONE), requests, store, SECONDS, algorithms=["naive"])
    with zipfile.ZipFile(folder / "job.zip") as bundle:
        work = bundle.read(f"{FOLDER}/work.bin")
    (folder / "work.bin").write_bytes(work)
    done = _run_alone(agent, folder / "work.bin", folder / NAME, environment)
    assert done.returncode == 0, done.stderr
    result = (folder / NAME).read_bytes()
    timed = [frame for frame in frames_in(result) if frame[0] == CONSTANTS["TIMED"]]
    assert len({frame[5:9] for frame in timed}) > 1, "a search and a race"
    frames = [f for f in frames_in(result) if f[0] != CONSTANTS["SOLVED"]]  # so that it goes on
    return environment, agent, work, _joined(frames)


def _changed(data: bytes, chance: random.Random) -> bytes:
    """Return frames some bytes of which are changed, removed or repeated, with sizes made right."""
    frames = [bytearray(frame) for frame in frames_in(data)]
    for _ in range(chance.choice((1, 2, 5))):
        frame = frames[chance.randrange(len(frames))]
        at = chance.randrange(len(frame))
        match chance.randrange(5):
            case 0:
                frame[at] = chance.randrange(256)
            case 1:
                frame[at : at + 4] = b"\xff" * len(frame[at : at + 4])
            case 2:
                del frame[at : at + 4]
            case 3:
                frame[at:at] = frame[at : at + 8]
            case 4:
                frames.insert(at % len(frames), frames[chance.randrange(len(frames))])
    return with_sizes(frames)


@pytest.mark.parametrize("place", ["class/kgsl/kgsl-3d0", "class/thermal/thermal_zone7"])
def test_a_hot_device_rests_until_it_is_cool(imitation: Imitation, tmp_path: Path, place: str) -> None:
    environment, agent, work, _ = imitation
    (tmp_path / "work").write_bytes(work)
    folder = tmp_path / place
    folder.mkdir(parents=True)
    (own := tmp_path / "class/kgsl/kgsl-3d0/temp").parent.mkdir(parents=True, exist_ok=True)
    own.write_text("91000000\n")  # in another unit, so that it tells nothing
    (folder / "type").write_text("gpuss-0\n")
    (folder / "temp").write_text("91000\n")
    command, environment = [agent, tmp_path / "work", tmp_path / NAME], environment | {"AUTOTUNE_SYS": str(tmp_path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) as running:
        assert running.stderr
        assert b"the device has 91 degrees Celsius: resting\n" in iter(running.stderr.readline, b"")
        assert not [frame for frame in frames_in((tmp_path / NAME).read_bytes()) if frame[0] == CONSTANTS["BEGUN"]]
        (folder / "temp").write_text("60000\n")
        assert running.wait(HANG_S) == 0


def test_finalists_use_their_images_of_buffers_after_the_second_check(imitation: Imitation, tmp_path: Path) -> None:
    environment, agent, *_ = imitation
    limits = replace(PHONE, image_pitch_alignment=16, max_image_line=65536, extensions=("cl_khr_image2d_from_buffer",))
    requests = [Request(problem=GemmProblem(m=64, n=64, k=64)), Request(problem=QGemmProblem.parse("64,1,64 q8_0"))]
    with Store.open(tmp_path / "empty.sqlite") as store:
        make_bundle(tmp_path / "job.zip", device(limits=limits), requests, store, SECONDS)
    with zipfile.ZipFile(tmp_path / "job.zip") as bundle:
        (tmp_path / "work").write_bytes(bundle.read(f"{FOLDER}/work.bin"))
    assert _run_alone(agent, tmp_path / "work", tmp_path / NAME, environment).returncode == 0
    searched = (tmp_path / NAME).read_bytes()
    configurations = [c for task in read_note(result_of(searched).note).tasks for c in task.configurations]
    shown = {n for n, c in enumerate(configurations) if {"image", "image_view"} & {str(v) for _, v in c.values}}
    kept = []
    for frame in frames_in(searched):
        number, turn = struct.unpack_from("<II", frame + bytes(8), 1)
        if frame[0] == CONSTANTS["TIMED"] and not turn:
            time_ns = 10**6 if number in shown else 2 * 10**6  # so that those with images are the finalists
            kept.append(struct.pack("<BIII2Q", frame[0], number, 0, 1, time_ns, 0) + bytes(4))
        elif frame[0] in (CONSTANTS["RESULT"], CONSTANTS["NOTE"], CONSTANTS["CHOSEN"]):
            kept.append(frame)
    kept.append(struct.pack("<BQ", CONSTANTS["SPENT"], 10**7) + bytes(4))
    (tmp_path / NAME).write_bytes(_joined(kept))
    assert _run_alone(agent, tmp_path / "work", tmp_path / NAME, environment).returncode == 0
    records = read_result(tmp_path).records
    raced = {number for number, record in records.items() if max(record.timed, default=0)}
    assert len(raced & shown) > 4
    assert not [record.failed for record in records.values() if record.failed]


def test_a_temperature_that_never_changes_delays_the_work_once(imitation: Imitation, tmp_path: Path) -> None:
    (sensor := tmp_path / "class/kgsl/kgsl-3d0/temp").parent.mkdir(parents=True)
    sensor.write_text("100000\n")
    done = _imitated(imitation, tmp_path, AUTOTUNE_SYS=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(b"the device has 100 degrees Celsius: resting\n") == 1
    assert done.stderr.count(b"its temperature did not change while it rested, and is not read any more\n") == 1
    assert _kinds(tmp_path / NAME)["SOLVED"] == len(PROBLEMS)


def test_an_agent_survives_work_that_is_nonsense(imitation: Imitation, tmp_path: Path) -> None:
    *_, work, _ = imitation

    def check(seed: int) -> None:
        _check_survival(imitation, tmp_path / str(seed), seed, _changed(_hurried(work), random.Random(seed)))

    with ThreadPoolExecutor(4) as pool:  # agents wait for most of their time
        list(pool.map(check, range(MUTATIONS // 2)))


def test_an_agent_survives_a_result_that_is_nonsense(imitation: Imitation, tmp_path: Path) -> None:
    *_, work, result = imitation
    for seed in range(MUTATIONS // 2):
        changed = frames_in(_changed(result, random.Random(seed)))
        joined = _joined([frame + bytes(max(0, 5 - len(frame))) for frame in changed])
        _check_survival(imitation, tmp_path / str(seed), seed, _hurried(work), joined)


def _check_survival(imitation: Imitation, folder: Path, seed: int, work: bytes, result: bytes = b"") -> None:
    environment, agent, *_ = imitation
    folder.mkdir()
    (folder / "work").write_bytes(work)
    if result:
        (folder / NAME).write_bytes(result)
    done = _run_alone(agent, folder / "work", folder / NAME, environment)
    told = done.stderr.decode("utf-8", "replace")
    assert done.returncode in (0, 1, 75), (seed, told)
    assert "Sanitizer" not in told and "runtime error" not in told, (seed, told)
    (folder / NAME).unlink(missing_ok=True)


def _kinds(result: Path) -> Counter[str]:
    names = {value: name for name, value in CONSTANTS.items() if 96 <= value < 110}
    names[CONSTANTS["NOTE"]] = "NOTE"
    frames = frames_in(result.read_bytes()) if result.exists() else []
    return Counter(names.get(frame[0], "?") for frame in frames if frame)


def _imitated(imitation: Imitation, folder: Path, **more: str) -> "subprocess.CompletedProcess[bytes]":
    environment, agent, work, _ = imitation
    if not (folder / "work").exists():
        (folder / "work").write_bytes(work)
    return _run_alone(agent, folder / "work", folder / NAME, environment | more)


def test_a_result_belongs_to_one_start_at_a_time(imitation: Imitation, tmp_path: Path) -> None:
    *_, result = imitation
    (tmp_path / NAME).write_bytes(result[:-3])
    with (tmp_path / NAME).open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        done = _imitated(imitation, tmp_path)
    assert done.returncode == 1
    assert b"is in use by another run.sh" in done.stderr
    assert (tmp_path / NAME).read_bytes() == result[:-3]
    assert _imitated(imitation, tmp_path).returncode == 0


def test_a_missing_note_is_written_again(imitation: Imitation, tmp_path: Path) -> None:
    *_, result = imitation
    (tmp_path / NAME).write_bytes(_joined(frames_in(result)[:1]))
    assert _imitated(imitation, tmp_path).returncode == 0
    assert _kinds(tmp_path / NAME)["NOTE"] == 1
    assert _imitated(imitation, tmp_path).returncode == 0
    assert _kinds(tmp_path / NAME)["NOTE"] == 1
    assert read_note(read_result(tmp_path).note).tasks


def test_a_note_that_was_not_written_completely_is_written_again(imitation: Imitation, tmp_path: Path) -> None:
    *_, result = imitation
    head, note = frames_in(result)[:2]
    assert note[0] == CONSTANTS["NOTE"]
    (tmp_path / NAME).write_bytes(_joined([head, note])[: -len(note) // 2])
    with pytest.raises(TableError, match="does not tell what work"), Store.open(tmp_path / "db.sqlite") as store:
        collect(read_result(tmp_path), store)
    assert _imitated(imitation, tmp_path).returncode == 0
    assert _kinds(tmp_path / NAME)["NOTE"] == 1
    assert read_note(read_result(tmp_path).note).tasks


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.5])
def test_a_full_disk_ends_the_agent_and_a_start_with_room_goes_on(
    imitation: Imitation, tmp_path: Path, share: float
) -> None:
    environment, agent, work, result = imitation
    (tmp_path / "work").write_bytes(work)
    room = 20 + round(share * len(result))

    def leave_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    done = subprocess.run(
        [agent, tmp_path / "work", tmp_path / NAME], capture_output=True, env=environment, timeout=HANG_S, check=False,
        preexec_fn=leave_room,
    )  # fmt: skip
    assert done.returncode == 1
    assert b"the result cannot be written: File too large" in done.stderr
    assert (tmp_path / NAME).stat().st_size == room
    searched = _searched((tmp_path / NAME).read_bytes())
    assert _imitated(imitation, tmp_path).returncode == 0
    whole = (tmp_path / NAME).read_bytes()
    assert _searched(whole)[: len(searched)] == searched
    assert len(set(_searched(whole))) == len(_searched(whole)) > len(searched)
    assert read_note(result_of(whole).note).tasks


def _searched(result: bytes) -> list[bytes]:
    """Return the trials that were timed in the search, in order."""
    return [frame[1:5] for frame in frames_in(result) if frame[0] == CONSTANTS["TIMED"] and frame[5:9] == bytes(4)]


def test_a_restart_chooses_finalists_by_the_median(imitation: Imitation, tmp_path: Path) -> None:
    *_, result = imitation
    kept, times, ends = [], {}, _first_trials(result)
    for frame in frames_in(result):
        number, turn = struct.unpack_from("<II", frame + bytes(8), 1)
        if frame[0] == CONSTANTS["TIMED"] and not turn and number < ends:
            times[number] = 10**6 + 1000 * number
            samples = (3 * 10**6 - times[number], 0, times[number], 0, times[number], 0)
            kept.append(struct.pack("<BIII6Q", frame[0], number, 0, 1, *samples) + bytes(4))
        elif frame[0] in (CONSTANTS["RESULT"], CONSTANTS["NOTE"], CONSTANTS["CHOSEN"]):
            kept.append(frame)
    assert len(times) > 16
    kept.append(struct.pack("<BQ", CONSTANTS["SPENT"], 10**7) + bytes(4))
    (tmp_path / NAME).write_bytes(_joined(kept))
    assert _imitated(imitation, tmp_path).returncode == 0
    raced = {
        struct.unpack_from("<I", frame, 1)[0]
        for frame in frames_in((tmp_path / NAME).read_bytes())
        if frame[0] == CONSTANTS["TIMED"] and frame[5:9] != bytes(4)
    }
    raced = {number for number in raced if number < ends}
    assert set(sorted(times)[: len(raced) - 1]) <= raced
    assert 2 < len(raced) < len(times)


def _first_trials(result: bytes) -> int:
    """Return the number of trials of the first problem."""
    note = next(frame for frame in frames_in(result) if frame[0] == CONSTANTS["NOTE"])
    return len(read_note(note[1:-4]).tasks[0].configurations)


def test_no_trial_is_in_hand_while_another_is_set_up(imitation: Imitation) -> None:
    in_hand = None
    for frame in frames_in(imitation[3]):
        if frame[0] == CONSTANTS["BEGUN"]:
            assert in_hand is None
            in_hand = frame[1:5]
        elif frame[0] in {CONSTANTS[name] for name in ("TIMED", "FAILED", "CHECKED", "DROPPED")}:
            in_hand = None


@pytest.mark.parametrize("kind", ["TIMED", "CHECKED"])
def test_an_agent_that_ended_between_two_trials_blames_none(imitation: Imitation, tmp_path: Path, kind: str) -> None:
    frames = frames_in(imitation[3])
    last = next(place for place, frame in enumerate(frames) if frame[0] == CONSTANTS[kind])
    (tmp_path / NAME).write_bytes(_joined(frames[: last + 1]))
    assert _imitated(imitation, tmp_path).returncode == 0
    assert not _kinds(tmp_path / NAME)["FAILED"]


def test_a_finalist_whose_memory_cannot_be_freed_ends_the_agent_once(imitation: Imitation, tmp_path: Path) -> None:
    """The first finalist passes; the others fail their second check, and freeing their memory ends the agent."""
    changed: list[bytes] = []
    trials = checks = 0
    for frame in frames_in(imitation[2]):
        trials += frame[0] == CONSTANTS["TRIAL"]
        checks = 0 if frame[0] == CONSTANTS["TRIAL"] else checks + (frame[0] == CONSTANTS["CHECK"])
        is_broken = trials > 1 and frame[0] == CONSTANTS["CLEAR"]
        changed.append(frame[:2] if is_broken else frame)
        if trials > 1 and frame[0] == CONSTANTS["CHECK"] and checks == 2:
            changed.append(bytes([CONSTANTS["RUN"]]))
    (tmp_path / "work").write_bytes(with_sizes(changed))
    done = _imitated(imitation, tmp_path)
    assert done.returncode == 0, done.stderr
    assert _kinds(tmp_path / NAME)["SOLVED"] == len(PROBLEMS)
    assert _kinds(tmp_path / NAME)["FAILED"] > 1


def test_more_defaults_than_finalists_overflow_nothing(imitation: Imitation, tmp_path: Path) -> None:
    frames = frames_in(imitation[2])
    trials = [place for place, frame in enumerate(frames) if frame[0] == CONSTANTS["TRIAL"]]
    for place in trials:
        frames[place] = bytes([CONSTANTS["TRIAL"], CONSTANTS["KIND_DEFAULT"]]) + frames[place][2:]
    (tmp_path / "work").write_bytes(with_sizes(frames))
    done = _imitated(imitation, tmp_path)
    assert done.returncode == 0, done.stderr
    assert _kinds(tmp_path / NAME)["BUILT"] > 2 * 16


def test_a_query_that_ends_the_agent_costs_only_its_answer(imitation: Imitation, tmp_path: Path) -> None:
    assert _imitated(imitation, tmp_path, AUTOTUNE_FAKE_CRASH="0x1002").returncode == 0
    told = {frame[9:13] for frame in frames_in((tmp_path / NAME).read_bytes()) if frame[0] == CONSTANTS["TOLD"]}
    assert told >= {struct.pack("<I", query) for query in (0x102B, 0x102C, 0x102F)}
    assert struct.pack("<I", 0x1002) not in told
    (tmp_path / NAME).unlink()
    done = _imitated(imitation, tmp_path, AUTOTUNE_FAKE_CRASH="0x102C")
    assert done.returncode == 1
    assert b"does not tell what the device is" in done.stderr
    assert not _kinds(tmp_path / NAME)["CHOSEN"]
    assert _imitated(imitation, tmp_path).returncode == 0, "a later start asks again"


def test_a_device_whose_name_is_not_utf_8_is_the_same_live_and_by_a_bundle(
    imitation: Imitation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, agent, *_ = imitation
    for name, value in (environment | {"AUTOTUNE_FAKE_NAME": "GPU \udcff\udcfe 1"}).items():
        monkeypatch.setenv(name, value)
    (live,) = discover_behind(f"exec:{agent}")
    assert _imitated(imitation, tmp_path, AUTOTUNE_FAKE_NAME="GPU \udcff\udcfe 1").returncode == 0
    result = read_result(tmp_path)
    assert b"GPU \xff\xfe 1\0" in result.told.values()
    assert result.chosen
    found = described(result.told, result.chosen, result.cpuinfo)
    assert found.slug and found.slug == live.slug and found.name == live.name


def test_facts_that_end_the_agent_are_told_as_such(imitation: Imitation, tmp_path: Path) -> None:
    assert _imitated(imitation, tmp_path, AUTOTUNE_FAKE_CRASH="0x11B0").returncode == 0
    failed = [frame for frame in frames_in((tmp_path / NAME).read_bytes()) if frame[0] == CONSTANTS["FAILED"]]
    assert failed
    assert {(frame[5], frame[7]) for frame in failed} == {(CONSTANTS["FAILED_ENDED"], CONSTANTS["FACTS"])}


@pytest.mark.parametrize(("load", "why"), [("0.00 0.00", "FAILED_LATE"), ("99999.00 1.00", "FAILED_BUSY")])
def test_what_is_late_on_a_busy_machine_is_told_as_such(
    imitation: Imitation, tmp_path: Path, load: str, why: str
) -> None:
    (tmp_path / "load").write_text(f"{load} 0.00 1/100 1\n")
    environment, _, work, _ = imitation
    agent = agents.compiled(tmp_path / "agent", "-DRUN_LIMIT_MS=0", f'-DLOADAVG="{tmp_path}/load"', *agents.SANITIZED)
    assert _imitated((environment, agent, work, b""), tmp_path).returncode == 0
    failed = {frame[5] for frame in frames_in((tmp_path / NAME).read_bytes()) if frame[0] == CONSTANTS["FAILED"]}
    assert failed == {CONSTANTS[why]}


def test_few_of_the_outputs_that_differ_in_every_run_come_along(imitation: Imitation, tmp_path: Path) -> None:
    (tmp_path / "work").write_bytes(imitation[2])
    assert _imitated(imitation, tmp_path, AUTOTUNE_FAKE_COUNTS="1").returncode == 0
    runs: dict[bytes, list[int]] = defaultdict(list)
    for frame in _outputs((tmp_path / NAME).read_bytes()):
        runs[frame[1:7]].append(len(frame) > 100)
    assert max(map(len, runs.values())) > 4
    assert max(map(sum, runs.values())) == 4


def test_agents_hold_no_links_of_each_other_and_none_is_left(imitation: Imitation, tmp_path: Path) -> None:
    environment, agent, work, _ = imitation
    (tmp_path / "work").write_bytes(work)
    command, environment = [agent, tmp_path / "work", tmp_path / NAME], environment | {"AUTOTUNE_FAKE_SLOW": "1"}
    found: list[int] = []
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as running:

        def have_own_links() -> bool:
            found[:] = [pid for pid in _processes() if _parent(pid) == running.pid]
            return len(found) > 1 and all(map(_pipes, found)) and not _pipes(found[0]) & _pipes(found[1])

        try:
            wait_for(have_own_links, seen=lambda: {pid: _pipes(pid) for pid in found})
        finally:
            running.terminate()
    assert running.returncode == 75
    wait_for(lambda: not any(map(_parent, found)))


def _pipes(pid: int) -> set[str]:
    """Return the pipes that a process holds; none if it has ended."""
    try:
        held = {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return set()
    return {name for name in held if name.startswith("pipe:")}


def _processes() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]


def _status(pid: int) -> tuple[str, int, int]:
    """Return the state of a process, its parent and its group: Z, 0 and 0 if it has ended."""
    try:
        state, parent, group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return "Z", 0, 0
    return ("Z", 0, 0) if state == "Z" else (state, int(parent), int(group))


def _state(pid: int) -> str:
    return _status(pid)[0]


def _parent(pid: int) -> int:
    return _status(pid)[1]


def _group(number: int) -> list[int]:
    """Return the processes of a group that have not ended."""
    return [pid for pid in _processes() if _status(pid)[2] == number]
