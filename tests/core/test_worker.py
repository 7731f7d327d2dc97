"""The child process that measures: it survives many trials, and is replaced when it dies or hangs."""

import dataclasses
import errno
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from autotune import child
from autotune.child import Child
from autotune.errors import WorkerError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.measure.worker import REFUSED_BUILDS, Worker
from autotune.model.device import Device
from autotune.model.trial import QUARANTINED_STATES, Job, TrialState
from factories import evil, quick_job
from waiting import HANG_S, wait_for

EVIL = evil("worker")
FINE, NEVER_ENDING, STRAY_WRITE, SLOW_BUILD, ABORT, NO_BUILD, NO_DEVICE_MEMORY, OWN_FAULT, BROKEN = *range(6), 7, 10, 11


def job(device: Device, behaviour: int) -> Job:
    """A job with a time limit where the child would never end it."""
    return quick_job(
        device, GemmProblem(m=8, n=8, k=8), FAMILY.baseline, seed=behaviour,
        build_limit_s=0.5 if behaviour == SLOW_BUILD else HANG_S,
        run_limit_s=0.5 if behaviour == NEVER_ENDING else HANG_S,
    )  # fmt: skip


def test_one_child_serves_many_trials_and_ends_when_closed(pocl: Device) -> None:
    with Worker() as worker:
        states = [worker.run(job(pocl, FINE)).state for _ in range(3)]
        first = worker.pid
        assert first is not None
        assert worker.run(job(pocl, FINE)).state is TrialState.COMPLETE
        assert worker.pid == first
    assert states == [TrialState.COMPLETE] * 3
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


@pytest.mark.long
def test_every_way_to_fail_ends_the_trial_and_not_the_search(pocl: Device) -> None:
    with Worker(EVIL) as worker:
        assert worker.run(job(pocl, FINE)).state is TrialState.COMPLETE
        hung = worker.run(job(pocl, NEVER_ENDING))
        assert hung.state is TrialState.CUT_SHORT and hung.message.startswith("run took more than 0.5 s (")
        cut_off = worker.run(replace(job(pocl, NEVER_ENDING), is_cut_off=True))
        assert (cut_off.state, cut_off.message) == (TrialState.TOO_SLOW, "run took more than 0.5 s")
        stray = worker.run(job(pocl, STRAY_WRITE))
        assert stray.state is TrialState.CRASHED
        assert "run: killed by SIG" in stray.message
        slow = worker.run(job(pocl, SLOW_BUILD))
        assert slow.state is TrialState.CUT_SHORT and slow.message.startswith("build took more than 0.5 s (")
        slow = worker.run(replace(job(pocl, SLOW_BUILD), is_cut_off=True))
        assert slow.state is TrialState.CUT_SHORT, "of building nothing is known"
        aborted = worker.run(job(pocl, ABORT))
        assert aborted.state is TrialState.CRASHED
        assert "SIGABRT" in aborted.message
        assert "last words" in aborted.message
        assert worker.run(job(pocl, FINE)).state is TrialState.COMPLETE


@pytest.mark.long
@pytest.mark.parametrize(
    ("behaviours", "is_first"),
    [
        ((), False),
        ((NO_BUILD,) * (REFUSED_BUILDS - 1), False),
        ((NO_BUILD,) * REFUSED_BUILDS, True),
        ((ABORT,), True),
        ((NEVER_ENDING,), True),
        ((NO_DEVICE_MEMORY,), True),
        ((OWN_FAULT,), True),
    ],
)
def test_a_trial_tells_whether_it_is_the_first_of_its_process(
    pocl: Device, behaviours: tuple[int, ...], is_first: bool
) -> None:
    with Worker(EVIL) as worker:
        worker.prepare(job(pocl, FINE))
        found = [worker.run(job(pocl, behaviour)) for behaviour in (FINE, *behaviours, FINE)]
    measured = [trial.measurement.is_first for trial in found if trial.measurement]
    assert measured == [True, is_first]


@pytest.mark.long
def test_an_exception_of_our_own_wins_over_a_driver_that_aborts_at_exit(pocl: Device) -> None:
    with Worker(EVIL) as worker:
        trial = worker.run(job(pocl, OWN_FAULT))
        assert trial.state is TrialState.TOOL_FAILED
        assert re.fullmatch(r"build: unexpected KeyError: 'a' \(\w+\.py:\d+\)", trial.message)
        assert worker.run(job(pocl, FINE)).state is TrialState.COMPLETE
    assert TrialState.TOOL_FAILED not in QUARANTINED_STATES


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="Linux's /proc")
def test_child_that_was_stopped_between_trials_is_replaced_soon(
    pocl: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(child, "RESPONSE_LIMIT_S", 0.1)
    monkeypatch.setattr(child, "FIRST_PAUSE_S", 0.0)
    with Worker() as worker:
        assert worker.run(job(pocl, FINE)).state is TrialState.COMPLETE
        stopped = worker.pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        wait_for(lambda: state_of(stopped) == "T", seen=lambda: state_of(stopped))
        assert worker.run(job(pocl, FINE)).state is TrialState.COMPLETE
        assert worker.pid != stopped
    [warning] = caplog.messages
    limit = re.fullmatch(r"a child process is replaced: no response from the child process within (.+) s", warning)
    assert limit and float(limit[1]) < child.LOAD_LIMIT_S


def state_of(pid: int) -> str:
    """The letter of /proc for what a process does; Z if it has ended, even if it is buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_child_may_open_a_device_the_longer_the_longer_it_took_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "START_LIMIT_S", 0.001)
    monkeypatch.setattr(child, "SLOWNESS", 1e6)
    code = (
        "import time; from autotune import child\n"
        "def answer(seconds, entering):\n"
        "    time.sleep(seconds); entering('run'); return 'done'\n"
        "child.serve(answer)\n"
    )
    with Child((sys.executable, "-c", code)) as slow:
        assert slow.ask(0.1, {"run": HANG_S}) == "done"


@pytest.mark.parametrize(
    ("code", "limit"),
    [
        ("from autotune import child; child.serve(lambda *_: signal.pause())", "START_LIMIT_S"),
        ("signal.pause()", "LOAD_LIMIT_S"),
    ],
)
def test_child_that_does_not_begin_its_work_is_an_error(code: str, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, limit, 0.2)
    monkeypatch.setattr(child, "SLOWNESS", 0.0)
    monkeypatch.setattr(child, "FIRST_PAUSE_S", 0.0)
    with (
        Child((sys.executable, "-c", f"import signal; {code}")) as hanging,
        pytest.raises(WorkerError, match=r"no response from the child process within 0\.2 s"),
    ):
        hanging.ask("a job", {"run": HANG_S})


@pytest.mark.long
def test_a_child_whose_first_job_was_only_prepared_keeps_the_inputs_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child, "MAX_GROWTH_BYTES", 2**25)
    code = (
        "from autotune import child\n"
        "kept = []\n"
        "def answer(mebibytes, entering):\n"
        "    entering('run'); kept.append(bytearray(b'1') * 2**20 * mebibytes); return mebibytes or None\n"
        "child.serve(answer)\n"
    )
    with Child((sys.executable, "-c", code)) as worker:
        pids = []
        for mebibytes in (0, 64, 0, 1, 64, 0):
            worker.ask(mebibytes, {"run": HANG_S})
            pids.append(worker.pid)
    assert len(set(pids[:5])) == 1, "its inputs are no leak"
    assert pids[5] != pids[4]


@pytest.mark.long
def test_what_is_prepared_is_built_and_not_launched(pocl: Device) -> None:
    with Worker(EVIL) as worker:
        worker.prepare(job(pocl, NEVER_ENDING))
        first = worker.pid
        assert first is not None, "it was started to build"
        assert worker.run(job(pocl, FINE)).state is TrialState.COMPLETE, "what was prepared and is not run is dropped"
        worker.prepare(replace(job(pocl, FINE), samples=2))
        trial = worker.run(replace(job(pocl, FINE), samples=2))
        assert trial.measurement and len(trial.measurement.samples_ns) == 2
        worker.prepare(job(pocl, NO_BUILD))
        assert worker.run(job(pocl, FINE)).state is TrialState.COMPLETE
        worker.prepare(job(pocl, NO_BUILD))
        assert worker.run(job(pocl, NO_BUILD)).state is TrialState.COMPILE_FAILED
        assert worker.pid == first


@pytest.mark.long
@pytest.mark.parametrize(
    ("behaviour", "state", "message"),
    [
        (ABORT, TrialState.CRASHED, "SIGABRT"),
        (SLOW_BUILD, TrialState.CUT_SHORT, "build took more than 0.5 s"),
    ],
)
def test_a_child_that_is_lost_while_it_prepares_is_lost_to_that_job_only(
    pocl: Device, behaviour: int, state: TrialState, message: str
) -> None:
    with Worker(EVIL) as worker:
        worker.prepare(job(pocl, behaviour))
        trial = worker.run(job(pocl, behaviour))
        assert trial.state is state and message in trial.message
        worker.prepare(job(pocl, behaviour))
        assert worker.run(job(pocl, FINE)).state is TrialState.COMPLETE


@pytest.mark.long
def test_what_a_broken_context_refuses_to_prepare_is_measured_in_a_fresh_child(pocl: Device) -> None:
    with Worker(EVIL) as worker:
        assert worker.run(job(pocl, FINE)).state is TrialState.COMPLETE
        first = worker.pid
        worker.prepare(job(pocl, BROKEN))
        assert worker.run(job(pocl, BROKEN)).state is TrialState.COMPLETE
        assert worker.pid != first


@pytest.mark.long
def test_what_is_prepared_in_one_child_is_built_again_in_another(pocl: Device) -> None:
    with Worker() as worker:
        worker.prepare(job(pocl, FINE))
        worker.close()
        assert worker.run(job(pocl, FINE)).state is TrialState.COMPLETE


@pytest.mark.long
def test_a_child_that_died_between_trials_is_replaced(pocl: Device) -> None:
    with Worker() as worker:
        assert worker.run(job(pocl, FINE)).state is TrialState.COMPLETE
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        assert worker.run(job(pocl, FINE)).state is TrialState.COMPLETE


def test_a_device_that_is_not_there_is_an_error_not_a_trial(pocl: Device) -> None:
    with Worker() as worker:
        missing = job(Device(slug="x", vendor="", model="", family="gpu", selector="99:0"), FINE)
        with pytest.raises(WorkerError, match="99:0"):
            worker.run(missing)
        assert worker.run(job(pocl, FINE)).state is TrialState.COMPLETE


def test_a_child_that_cannot_start_is_an_error(pocl: Device) -> None:
    with pytest.raises(WorkerError, match="cannot start"):
        Worker(("/no/such/program",)).run(job(pocl, FINE))
    with pytest.raises(WorkerError, match=r"ended at its start.*exit status 3"):
        Worker((sys.executable, "-c", "raise SystemExit(3)")).run(job(pocl, FINE))


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="Linux's /proc")
def test_no_child_outlives_a_killed_parent_even_in_a_kernel_that_never_ends(pocl: Device) -> None:
    script = (
        "import sys, threading, time; sys.path.insert(0, sys.argv[1])\n"
        "from core.test_worker import *\n"
        "worker = Worker(EVIL)\n"
        "device = Device(slug='x', vendor='', model='', family='cpu', selector=sys.argv[2])\n"
        "endless = replace(job(device, NEVER_ENDING), run_limit_s=HANG_S)\n"
        "threading.Thread(target=worker.run, args=(endless,)).start()\n"
        "wait_for(lambda: worker.phase == 'run'); print(worker.pid, flush=True)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(Path(__file__).parents[1]), pocl.selector], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout
    orphan = int(parent.stdout.readline())

    def ticks() -> int:
        """Of the processor, that the child has used."""
        return int(Path(f"/proc/{orphan}/stat").read_text().rpartition(")")[2].split()[11])

    before = ticks()
    wait_for(lambda: ticks() > before + 20)  # more than anything but the kernel takes
    parent.kill()
    parent.wait()
    wait_for(lambda: state_of(orphan) == "Z", seen=lambda: state_of(orphan))


def test_a_worker_may_be_started_before_there_is_a_job(pocl: Device) -> None:
    with Worker(selector=pocl.selector) as worker:
        worker.start()
        started = worker.pid
        assert started
        assert worker.run(job(pocl, FINE)).state is TrialState.COMPLETE
        assert worker.pid == started


@pytest.mark.long
def test_a_device_that_is_not_there_is_told_by_the_first_job(pocl: Device) -> None:
    with Worker(selector="99:99") as worker:
        worker.start()
        assert worker.run(job(pocl, FINE)).state is TrialState.COMPLETE
        with pytest.raises(WorkerError, match="99"):
            Worker(selector="99:99").run(replace(job(pocl, FINE), selector="99:99"))


PAUSE = "import signal; signal.pause()"


def test_a_child_may_be_closed_by_two_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a search ends while a job that is being prepared finds that the worker has ended."""
    one = Child((sys.executable, "-c", PAUSE))
    one.start()
    process = one._process
    assert process is not None
    await_end, others = process.wait, iter([one.close])

    def wait(timeout: float | None = None) -> int:
        for close in others:
            close()
        return await_end(timeout)

    monkeypatch.setattr(process, "wait", wait)
    one.close()
    assert process.poll() is not None
    assert one.pid is None


def test_no_child_is_started_again_in_the_place_of_one_that_was_closed() -> None:
    """As when a worker is to end while its child still opens the device: nobody would end another one."""
    with Child((sys.executable, "-c", PAUSE)) as one, ThreadPoolExecutor(1) as aside:
        asked = aside.submit(one.ask, "a job", {"run": HANG_S})
        wait_for(lambda: one.phase == "start")
        one.close()
        with pytest.raises(WorkerError, match="closed"):
            asked.result(timeout=HANG_S)
        assert one.pid is None


@pytest.mark.parametrize("data", [b"\x05\0\0\0\0\0\0\0abcde", b"\xff" * 8, b"\4\0\0\0\0\0\0\0\x80\4N."])
def test_an_answer_that_a_kernel_has_spoilt_is_a_crash(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a wrong write into what is being sent, or by a driver that writes where it should not."""
    monkeypatch.setattr(child, "EXIT_LIMIT_S", 0.0)
    code = (
        "import os, signal; from autotune import child\n"
        "output = os.dup(1)\n"
        "def answer(data, entering):\n"
        "    entering('run'); os.write(output, data); signal.pause()\n"
        "child.serve(answer)\n"
    )
    with Child((sys.executable, "-c", code)) as one:
        answer = one.ask(data, {"run": HANG_S})
        assert isinstance(answer, child.Loss)
        assert (answer.cause, answer.message) == (child.Cause.DIED, "run: its answer was spoilt.")


def test_a_full_disk_is_a_worker_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(WorkerError, match="No space"):
        Child((sys.executable, "-c", "")).start()


def test_a_limit_that_a_budget_shortened_is_told_from_a_hang(pocl: Device) -> None:
    script = (
        "from autotune import child\n"
        "def answer(message, entering):\n"
        "    entering('run')\n"
        "    child.threading.Event().wait()\n"
        "child.serve(answer)\n"
    )
    with Worker((sys.executable, "-c", script)) as worker:
        trial = worker.run(dataclasses.replace(job(pocl, FINE), run_limit_s=0.2))
    assert trial.state is TrialState.CUT_SHORT
    assert re.fullmatch(r"run took more than 0\.2 s \(the machine's load was \d+\.\d\)", trial.message)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("phase", ["build", "run", "inputs"])
def test_what_is_killed_from_outside_twice_is_not_to_blame(phase: str, pocl: Device, tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from autotune import child\n"
        "from autotune.model.trial import Trial, TrialState\n"
        "def answer(message, entering):\n"
        "    entering(sys.argv[1])\n"
        "    with open(sys.argv[2], 'a') as log:\n"
        "        log.write('x')\n"
        "    if os.stat(sys.argv[2]).st_size < 3:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return Trial(configuration=message[1].configuration, state=TrialState.COMPLETE)\n"
        "child.serve(answer)\n"
    )
    with Worker((sys.executable, "-c", script, phase, str(tmp_path / "log"))) as worker:
        trial = worker.run(job(pocl, FINE))
        assert (tmp_path / "log").read_text() == "xx", "it was tried again"
        assert worker.run(job(pocl, FINE)).state is TrialState.COMPLETE, "the next job has a new process"
    assert trial.state is TrialState.CUT_SHORT and trial.message.startswith(f"{phase}: killed by SIGKILL")
    assert trial.state not in QUARANTINED_STATES


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_what_lost_its_agent_to_a_kill_is_not_to_blame(pocl: Device) -> None:
    script = (
        "from autotune import child, errors\n"
        "def answer(message, entering):\n"
        "    entering('run')\n"
        "    raise errors.AgentKilledError('something outside killed the agent')\n"
        "child.serve(answer)\n"
    )
    with Worker((sys.executable, "-c", script)) as worker:
        trial = worker.run(job(pocl, FINE))
    assert trial.state is TrialState.CUT_SHORT and "something outside killed the agent" in trial.message


IN_INPUTS = (
    "import sys\n"
    "from autotune import child\n"
    "from autotune.model.trial import Trial, TrialState\n"
    "def answer(message, entering):\n"
    "    entering('inputs')\n"
    "    if sys.argv[1] == 'hang':\n"
    "        child.threading.Event().wait()\n"
    "    return Trial(configuration=message[1].configuration, state=TrialState.COMPLETE)\n"
    "child.serve(answer)\n"
)


def test_inputs_may_take_longer_than_a_run(pocl: Device) -> None:
    with Worker((sys.executable, "-c", IN_INPUTS, "answer")) as worker:
        assert worker.run(replace(job(pocl, FINE), run_limit_s=1e-9)).state is TrialState.COMPLETE


def test_no_kernel_is_to_blame_for_inputs_that_take_too_long(pocl: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.measure.worker.INPUTS_LIMIT_S", 0.2)
    with Worker((sys.executable, "-c", IN_INPUTS, "hang")) as worker:
        trial = worker.run(job(pocl, FINE))
    assert (trial.state, trial.message) == (
        TrialState.TOOL_FAILED, "inputs and reference: inputs took more than 0.2 s",
    )  # fmt: skip
    assert trial.state not in QUARANTINED_STATES
