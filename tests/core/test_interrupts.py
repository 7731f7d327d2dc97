"""What interrupts leave behind: Ctrl-C at any step of a call, forks, and the end of Python during a call."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyopencl.array as cla
import pytest

import autotune
from autotune.child import Child
from autotune.errors import WorkerError
from autotune.lookup import TuningTable
from autotune.model.device import Device
from autotune.runtime import Gemm, QGemm, Reduce
from waiting import HANG_S

STEPS_IN = frozenset(
    str(Path(autotune.__file__).with_name(folder) / f"{name}.py")
    for folder, names in {
        "runtime": ("choice", "engine", "executor", "gemm", "on_device", "prepared", "qgemm", "reduce"),
        "device": ("arrays", "opencl", "programs"),
    }.items()
    for name in names
)
"""Files at whose every line a call is interrupted."""


class Interrupted(KeyboardInterrupt):
    """What these tests raise, as Ctrl-C would."""


class Interrupter:
    """Raises at one of the lines that a call runs, counted from its begin."""

    def __init__(self, at: int) -> None:
        self._left = at

    def run(self, call: Callable[[], object]) -> bool:
        """Return whether the call ended before it was interrupted."""
        before = sys.gettrace()
        sys.settrace(self._entered)
        try:
            call()
        except Interrupted:
            return False
        finally:
            sys.settrace(before)
        return True

    def _entered(self, frame: FrameType, _event: str, _argument: object) -> Any:
        return self._line if frame.f_code.co_filename in STEPS_IN else None

    def _line(self, _frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            self._left -= 1
            if self._left == 0:
                raise Interrupted
        return self._line


def steps(call: Callable[[], object], every: int = 1) -> Any:
    """Interrupt a call at one of its lines after the other, until it ends before that; yield after each."""
    at = 1
    while not Interrupter(at).run(call):
        yield at
        at += every
    assert at > 1


A, B = (np.arange(n * n, dtype=np.float32).reshape(n, n) % 7 - 3 for n in (24, 24))


def on_device(gemm: Gemm, *operands: Any) -> list[Any]:
    return [cla.to_device(gemm.queue, operand) for operand in operands]


@pytest.fixture
def gemm(pocl: Device, binaries: Path) -> Gemm:
    return Gemm(pocl.selector, table=TuningTable([], []), binaries=binaries, host_blas=False)


def test_no_product_is_wrong_after_an_interrupted_one(gemm: Gemm) -> None:
    out = np.ones_like(A)
    gemm(A, B)
    for at in steps(lambda: gemm(A, B, out, alpha=3.0, beta=0.5)):
        assert np.array_equal(gemm(A, B), A @ B), at


def test_no_product_on_the_device_is_wrong_after_an_interrupted_one(gemm: Gemm) -> None:
    a, b, out, result = on_device(gemm, A, B, np.ones_like(A), np.zeros_like(A))
    gemm(a, b, result)
    for at in steps(lambda: gemm(a, b, out, alpha=3.0, beta=0.5)):
        assert np.array_equal(gemm(a, b, result).get(), A @ B), at


def test_no_bound_product_is_wrong_after_an_interrupted_one(gemm: Gemm) -> None:
    a, b, result = on_device(gemm, A, B, np.zeros_like(A))
    for at in steps(gemm.bind(a, b, result, alpha=3.0)):
        assert np.array_equal(gemm.bind(a, b, result)().get(), A @ B), at
    bound = gemm.bind(a, b, result, alpha=3.0)
    bound()
    for at in steps(bound):
        assert np.array_equal(bound().get(), 3 * (A @ B)), at


def test_no_product_with_prepared_weights_is_wrong_after_an_interrupted_one(gemm: Gemm) -> None:
    for at in steps(lambda: gemm(A, gemm.prepare(B)), every=3):
        assert np.array_equal(gemm(A, gemm.prepare(B)), A @ B), at
    weights = gemm.prepare(B)
    for at in steps(lambda: gemm(A, weights), every=3):
        assert np.array_equal(gemm(A, weights), A @ B), at
        weights.release()
    assert gemm.stats.prepared_bytes >= 0


def test_no_shared_memory_is_stale_after_an_interrupted_product(gemm: Gemm) -> None:
    a, b, out = (gemm.allocate(A.shape, "float32") for _ in range(3))
    a[:], b[:] = A, B
    gemm(a, b, out)
    for at in steps(lambda: gemm(a, b, out, alpha=2.0)):
        a[:] = A + at % 5
        assert np.array_equal(gemm(a, b, out), (A + at % 5) @ B), at


def test_no_reduction_is_wrong_after_an_interrupted_one(pocl: Device, binaries: Path) -> None:
    reduce = Reduce(pocl.selector, table=TuningTable([], []), binaries=binaries)
    values = np.arange(6000, dtype=np.float32).reshape(2, 3000) % 13
    reduce(values)
    for at in steps(lambda: reduce(values + 1), every=2):
        assert np.array_equal(reduce(values), values.sum(axis=1)), at


@pytest.mark.long
def test_no_first_product_is_wrong_after_an_interrupted_one(pocl: Device, binaries: Path) -> None:
    """Choosing, checking, building and binding are interrupted too, at every seventh line."""

    at, has_ended = 1, False
    while not has_ended:
        gemm = Gemm(pocl.selector, table=TuningTable([], []), binaries=binaries, host_blas=False)
        has_ended = Interrupter(at).run(partial(gemm, A, B, alpha=2.0))
        assert np.array_equal(gemm(A, B), A @ B), at
        at += 7
    assert at > 100


@pytest.mark.long
def test_no_quantised_product_is_wrong_after_an_interrupted_one(pocl: Device, binaries: Path) -> None:
    qgemm = QGemm(pocl.selector, table=TuningTable([], []), binaries=binaries)
    raw = np.random.default_rng(3).integers(0, 256, (32, 4, 18), dtype=np.uint8)
    raw[..., :2] = np.float16(0.01).tobytes()[0], np.float16(0.01).tobytes()[1]
    x = np.ones((2, 128), np.float32)
    right = qgemm(x, qgemm.prepare(raw, format="q4_0", shape=(32, 128)))
    for at in steps(lambda: qgemm(x * 2, qgemm.prepare(raw, format="q4_0", shape=(32, 128))), every=5):
        assert np.array_equal(qgemm(x, qgemm.prepare(raw, format="q4_0", shape=(32, 128))), right), at


ECHO = (
    "import time\n"
    "from autotune.child import serve\n"
    "def answer(message, entering):\n"
    "    entering('work')\n"
    "    return message\n"
    "serve(answer)\n"
)


def test_an_answer_that_an_interrupt_left_behind_is_not_taken_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with Child((sys.executable, "-c", ECHO)) as child:
        assert child.ask("first", {"work": HANG_S}) == "first"

        def interrupt(**_: object) -> None:
            raise Interrupted

        monkeypatch.setattr(child._messages, "get", interrupt)
        with pytest.raises(Interrupted):
            child.ask("second", {"work": HANG_S})
        assert child.ask("third", {"work": HANG_S}) == "third"


# Processes


def ran(script: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(script)
    return subprocess.run(
        [sys.executable, str(path), *arguments], capture_output=True, text=True, timeout=HANG_S, cwd=folder
    )


FORKED = """
import os, sys, threading
import numpy as np
from autotune.errors import DeviceSelectionError
from autotune.runtime import Gemm

a = np.eye(8, dtype=np.float32)
gemm = Gemm(sys.argv[1], host_blas=False)
gemm(a, a)
for use in (lambda: gemm(a, a), gemm.finish, lambda: gemm.allocate((4,), "float32"), lambda: Gemm(sys.argv[1])):
    child = os.fork()
    if not child:
        try:
            use()
        except DeviceSelectionError as error:
            print(error, flush=True)
            os._exit(3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
assert np.array_equal(gemm(a, a), a)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="not covered: no fork on this system")
def test_a_forked_process_gets_an_error(pocl: Device, tmp_path: Path) -> None:
    done = ran(FORKED, tmp_path, pocl.selector)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("forked") == 4 and "spawn" in done.stdout


FORKED_DURING_CALLS = """
import os, sys, threading, warnings
import numpy as np
from autotune.errors import DeviceSelectionError
from autotune.runtime import Gemm, Reduce

warnings.simplefilter("ignore")  # of a fork beside threads, from Python 3.12 on
a = np.ones((256, 256), dtype=np.float32)
gemm = Gemm(sys.argv[1], host_blas=False)
gemm(a, a)
called = threading.Semaphore(0)

def multiply():
    while True:
        gemm(a, a)
        called.release()

for _ in range(2):
    threading.Thread(target=multiply, daemon=True).start()
uses = (lambda: gemm(a, a), lambda: Gemm(sys.argv[1], host_blas=False)(a, a), lambda: Reduce(sys.argv[1]))
for turn in range(24):
    called.acquire()  # both are in their next calls
    child = os.fork()
    if not child:
        try:
            uses[turn % len(uses)]()
        except DeviceSelectionError as error:
            os._exit(3 if "forked" in str(error) else 4)
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
assert np.array_equal(gemm(a, a), a @ a)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="not covered: no fork on this system")
def test_a_process_forked_while_threads_multiply_gets_an_error(pocl: Device, tmp_path: Path) -> None:
    done = ran(FORKED_DURING_CALLS, tmp_path, pocl.selector)
    assert done.returncode == 0, done.stderr


ENDING_IN_A_FORK = """
import os, sys, warnings
import numpy as np
from autotune.runtime import Gemm

warnings.simplefilter("ignore")  # of a fork beside threads, from Python 3.12 on
a = np.eye(8, dtype=np.float32)
gemm = Gemm(sys.argv[1], host_blas=False)
gemm(a, a)
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
sys.exit(3)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="not covered: no fork on this system")
def test_a_forked_process_ends_without_a_word(pocl: Device, tmp_path: Path) -> None:
    done = ran(ENDING_IN_A_FORK, tmp_path, pocl.selector)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


FORKED_FIRST = """
import multiprocessing, sys
import numpy as np
from autotune.runtime import Gemm

def product(selector):
    a = np.eye(8, dtype=np.float32)
    return bool(np.array_equal(Gemm(selector, host_blas=False)(a, a), a))

pool = multiprocessing.get_context("fork").Pool(2)
assert pool.map(product, [sys.argv[1]] * 4) == [True] * 4
pool.close()  # not by SIGTERM: under coverage a handler in Python waits for a main thread that waits
pool.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="not covered: no fork on this system")
def test_processes_forked_before_the_first_use_work(pocl: Device, tmp_path: Path) -> None:
    done = ran(FORKED_FIRST, tmp_path, pocl.selector)
    assert done.returncode == 0, done.stderr


ENDING = """
import sys, threading
import numpy as np
from autotune.runtime import Gemm

a = np.ones((640, 640), dtype=np.float32)
gemm = Gemm(sys.argv[1], host_blas=False)
gemm(a, a)
begun = threading.Barrier(5)

def work():
    begun.wait()
    while True:
        gemm(a, a)

for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
begun.wait()
"""


def test_python_may_end_while_threads_multiply(pocl: Device, tmp_path: Path) -> None:
    for _ in range(3):
        done = ran(ENDING, tmp_path, pocl.selector)
        assert done.returncode == 0, done.stderr


DISCOVERING = """
from autotune.device.discovery import discover
from autotune.measure.build_pool import BuilderPool
print([device.slug for device in discover()])
"""


def test_files_of_the_user_named_as_modules_do_not_break_children(pocl: Device, tmp_path: Path) -> None:
    for name in ("statistics", "tempfile", "json", "types", "fractions"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not the module of Python')\n")
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text("raise SystemExit('not the package')\n")
    script = f"import sys\nsys.path.pop(0)\n{DISCOVERING}"  # the script itself does without its folder
    done = ran(script, tmp_path)
    assert pocl.slug in done.stdout, done.stderr


def test_a_child_killed_at_its_start_is_not_called_a_damaged_installation() -> None:
    script = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    with Child((sys.executable, "-c", script)) as child, pytest.raises(WorkerError, match=signal.SIGKILL.name):
        child.ask("anything", {"work": HANG_S})
