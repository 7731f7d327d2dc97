"""The command line: arguments, errors, what is printed where, interrupts; once with the real device."""

import builtins
import io
import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
from rich.console import Console

import autotune
from autotune import __main__ as loading
from autotune import cli, search
from autotune.cli import main, presets
from autotune.cli.arguments import Command, make_parser, parse_duration, parse_rhythm
from autotune.cli.budget import print_duration
from autotune.cli.output import write
from autotune.cli.presets import step_tokens
from autotune.device import clocks, discovery
from autotune.device.profile import find_profile
from autotune.display.console import Page, Picture
from autotune.display.live import LiveBar
from autotune.display.progress import LiveProgress, PlainProgress, progress
from autotune.display.results import print_devices, print_outcomes, total_text
from autotune.display.words import (
    bytes_text,
    doubt_text,
    duration_text,
    failures_text,
    gain_text,
    verdict_text,
)
from autotune.errors import AutotuneError, UsageError, did_you_mean
from autotune.kernels import find_family
from autotune.kernels.gemm import GemmProblem
from autotune.kernels.reduce import ReduceProblem
from autotune.lookup import TuningTable
from autotune.lookup.misses import Miss, MissLog, default_file, read_misses
from autotune.measure import doctor
from autotune.measure import worker as worker_module
from autotune.model.checkup import Checkup
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.events import (
    KINDS,
    DeviceDrifted,
    FinalsStarted,
    GainEstimated,
    Listener,
    Outcome,
    ProblemFinished,
    ProblemStarted,
    ShareStarted,
    TrialFinished,
)
from autotune.model.problem import Problem
from autotune.model.trial import Calibration, Request, Timer, Trial, TrialState, Verdict, Winner, time_text
from autotune.runtime import comparison
from autotune.search import Budget, SamplerChoice, compilation
from autotune.store import Store, new_owner
from factories import Run, trial, winner
from gguf_files import SMALL, model_file
from waiting import HANG_S

COMMANDS = make_parser().commands

DEVICE = Device(
    slug="adreno-730", vendor="Qualcomm", model="Adreno 730", family="adreno", selector="0:0",
    name="QUALCOMM Adreno(TM)", platform="QUALCOMM Snapdragon(TM)",
    version="OpenCL 3.0 Adreno(TM) 730", driver="E031.40",
    limits=DeviceLimits(
        has_images=True, max_image_width=16384, max_image_height=16384, image_pitch_alignment=64,
        sub_group_sizes=(64, 128), global_memory_bytes=2**31, max_allocation_bytes=2**28,
    ),
)  # fmt: skip
NAIVE = Configuration.of("naive", work_group_m=0, work_group_n=0)
START = Configuration.of("dot", vector_width=4)


def _winner(problem: Problem, time_ns: float = 1e6, **changes: Any) -> Winner:
    known = {"configuration": START, "baseline_ns": 10 * time_ns, "samples": 11}
    return winner(DEVICE, problem, time_ns=time_ns, **{**known, **changes})


def _outcome(request: Request, winner: Winner | None, *, is_finished: bool = True) -> Outcome:
    failures = {"timed out": 1}
    return Outcome(
        request=request, winner=winner, new_trials=2, resumed_trials=0, failures=failures, is_finished=is_finished
    )


def _trial(time_ns: float | None) -> Trial:
    return trial(START, TrialState.TIMED_OUT if time_ns is None else time_ns)


def _started(request: Request, number: int, total: int, resumed: int) -> ProblemStarted:
    return ProblemStarted(request=request, number=number, total=total, configurations=5000, resumed_trials=resumed)


def _finished(
    request: Request, trial: Trial, new_trials: int, best_ns: float, failed: Sequence[TrialState] = ()
) -> TrialFinished:
    """`failed` are the states of all trials so far that failed."""
    failures = Counter(state.value for state in failed)
    return TrialFinished(request=request, trial=trial, new_trials=new_trials, best_ns=best_ns, failures=failures)


class FakeTune:
    """Stands for search.tune: tells the listener of two trials a request, and remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.budget = Budget()
        self.options: dict[str, Any] = {}
        self.during: Callable[[], None] = lambda: None
        self.wins = True
        self.is_default_open = False

    def __call__(
        self,
        device: Device,
        requests: Sequence[Request],
        store: Any,
        budget: Budget,
        listener: Listener,
        **options: Any,
    ) -> list[Outcome]:
        self.requests, self.budget, self.options = list(requests), budget, options
        outcomes = []
        for number, request in enumerate(requests, start=1):
            listener(_started(request, number, len(requests), 85 if number == 1 else 0))
            listener(_finished(request, _trial(1e6), 1, 1e6))
            listener(_finished(request, _trial(None), 2, 1e6, [TrialState.TIMED_OUT]))
            self.during()
            was_stopped = options["should_stop"]()
            if not was_stopped:
                listener(FinalsStarted(request=request, finalists=4))
            winner = _winner(request.problem) if self.wins else None
            outcome = _outcome(request, winner, is_finished=not was_stopped)
            outcomes.append(replace(outcome, is_default_open=self.is_default_open))
            listener(ProblemFinished(request=request, outcome=outcomes[-1]))
            if was_stopped:
                break
        return outcomes


CLOCKS = {
    "0:0": Calibration(
        timer=Timer.EVENT, tick_ns=52, told_tick_ns=1000, launch_overhead_ns=25_000, launch_latency_ns=1_400_000
    )
}


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch) -> FakeTune:
    fake = FakeTune()
    monkeypatch.setattr(discovery, "discover", lambda: [DEVICE])
    monkeypatch.setattr(search, "tune", fake)
    monkeypatch.setattr(clocks, "try_calibration", lambda selector: CLOCKS[selector])
    monkeypatch.setattr(comparison, "compare_with_host", lambda *_, **__: [])
    monkeypatch.setattr(doctor, "examine", lambda *_, **__: Checkup(findings=(), is_full=False))
    return fake


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "tuned.sqlite")


SHORT_FINALS = """
import sys
from autotune.model.checkup import Checkup
from autotune.cli import main
from autotune.search import finals
finals.MOST_SECONDS = 3.0
sys.exit(main(sys.argv[1:]))
"""
"""Small kernels are nearly alike on a busy processor: to tell them apart takes a minute."""


def _command(
    *arguments: str, python: Sequence[str] = ("-m", "autotune"), **options: Any
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *python, *arguments], capture_output=True, text=True, timeout=HANG_S, **options
    )


# What a run is made of


def test_a_run_has_a_worker_of_its_device_and_builders(
    tune: FakeTune, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    class Starts:
        def __init__(self, *, selector: str) -> None:
            self.selector = selector

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            started.append("closed")

        def start(self) -> None:
            started.append(self.selector)

    pool = object()
    monkeypatch.setattr(worker_module, "Worker", Starts)
    monkeypatch.setattr(search, "builders_for", lambda device: pool if device is DEVICE else None)
    assert main(["run", "--device", "adreno", "--shape", "64,64,64", "--db", database]) == 0
    assert tune.options["builds"] is pool
    assert tune.options["worker"].selector == DEVICE.selector
    assert started == [DEVICE.selector, "closed"]


# Help and errors


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"autotune {command}" in capsys.readouterr().out.split("\nexample")[1]


def test_help_has_a_line_for_each_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    listed = [line for line in lines if line.startswith("  ") and line.split()[0] in COMMANDS]
    assert [line.split()[0] for line in listed] == list(COMMANDS)
    assert max(map(len, listed)) <= 80


def test_bash_completes_commands_and_options() -> None:
    script = subprocess.run([sys.executable, "-m", "autotune", "completion", "bash"], capture_output=True, text=True)
    words = (
        script.stdout
        + """
function complete_with { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_autotune; echo "${COMPREPLY[*]}"; }
complete_with autotune ver
complete_with autotune run --dead
"""
    )
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True)
    assert done.stdout.split("\n")[:2] == ["verify", "--deadline"]


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_in_help_are_accepted(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    for line in capsys.readouterr().out.split("\nexample")[1].splitlines()[1:]:
        arguments = shlex.split(line.split(">")[0])[1:]
        options = make_parser().parse_args(arguments) if arguments else None
        shapes = getattr(options, "shape", None) or []
        problem_type = find_family(getattr(options, "family", None) or "gemm").problem_type
        for shape in [",".join(shapes)] if command in ("lookup", "show") and shapes else shapes:
            assert problem_type.parse(shape).flops > 0


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"], ["presets"], ["run", "--device"]])
def test_light_commands_load_no_heavy_library(arguments: list[str]) -> None:
    code = (
        "import sys; from autotune.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "heavy = {'optuna', 'sqlalchemy', 'alembic', 'pyopencl', 'numpy', 'jinja2'} & set(sys.modules)\n"
        "sys.exit(f'LOADED {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert (done.returncode, "LOADED" in done.stderr) == (0, False), done.stderr


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"autotune {autotune.__version__}\n"


RUN = ("run", "--device", "adreno", "--shape", "8,8,8")
REDUCE = ("run", "--device", "adreno", "--family", "reduce")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "COMMAND (autotune --help)"),
        (("xyzzy",), "invalid choice: 'xyzzy'"),
        (("run",), "required: --device (autotune run --help)"),
        (("run", "--device", "adreno", "--family", "reduce"), "no shapes of reduce given (give --shape"),
        (("run", "--device", "adreno", "--shape"), "expected at least one argument"),
        (("run", "--device", "adreno", "--shape", "-1,2,3"), "m must be at least 1, not -1"),
        (("run", "--device", "adreno", "--shape", "1,0,3"), "n must be at least 1, not 0"),
        (("run", "--device", "adreno", "--shape", "1,2"), "'1,2' is not a shape (write M,N,K"),
        (("run", "--device", "adreno", "--shape", "1,2,three"), "is not a shape"),
        (("run", "--device", "adreno", "--shape", "9" * 5000 + ",1,1"), "is not a shape"),
        (("run", "--device", "adreno", "--shape", "2000000000,2000000000,1"), "more than 2147483647 elements"),
        (("run", "--device", "adreno", "--shape", "20000,1,20000"), "A needs 1526 MiB"),
        (("run", "--device", "adreno", "--shapes", "/nonexistent"), "/nonexistent: cannot be read: No such file"),
        (("run", "--device", "adreno", "--preset", "alexnet"), "there is no preset 'alexnet' (there are general, "),
        (("run", "--device", "mali", "--shape", "1,2,3"), "no device fits 'mali'"),
        (("run", "--device", "", "--shape", "1,2,3"), "no device fits"),
        ((*RUN, "--budget", "0"), "expected a duration such as 90s, 10m or 1h30m, got '0'"),
        ((*RUN, "--trials", "0"), "--trials: expected an integer from 1 to 1000000000, got '0'"),
        ((*RUN, "--trials", "-3"), "--trials: expected an integer from 1 to 1000000000, got '-3'"),
        ((*RUN, "--trials", "1e3"), "--trials: expected an integer from 1 to 1000000000, got '1e3'"),
        ((*RUN, "--seed", "-1"), "--seed: expected an integer from 0 to 2147483647, got '-1'"),
        ((*RUN, "--algorithm", "magic"), "gemm has no algorithm 'magic' (there are naive"),
        ((*RUN, "--fast"), "unrecognized arguments: --fast"),
        ((*RUN, "--family", "fft"), "--family: there is no kernel family 'fft' (there are attention, "),
        ((*RUN, "--family", "reduce"), "'8,8,8' is not a shape (write BATCH,CHANNELS"),
        ((*RUN, "nt"), "'nt' is not a shape"),
        ((*REDUCE, "--shape", "8,8,median"), "reduce has no 'median'"),
        ((*REDUCE, "--shape", "8,8", "--algorithm", "naive"), "reduce has no algorithm 'naive' (there are serial"),
        ((*REDUCE, "--preset", "bert-base", "--algorithm", "serial"), "gemm has no algorithm 'serial'"),
        (("compile", "--device", "adreno", "--family", "reduce", "--shape", "1,2,3"), "'1,2,3' is not a shape"),
        (("lookup", "--device", "adreno", "-1", "2", "3"), "m must be at least 1, not -1"),
        (("lookup", "--device", "adreno", "1", "2", "3.5"), "'1,2,3.5' is not a shape"),
        (("lookup", "--device", "adreno", "1,2,3", "nn", "nt"), "'nt' repeats or contradicts a word before it"),
        (("lookup", "--device", "adreno", "1,2,3", "int8", "float16"), "'float16' repeats or contradicts"),
        (("lookup", "--device", "adreno", "1,2,3", "batch=2", "batch=3"), "'batch=3' repeats or contradicts"),
        (("lookup", "--device", "adreno", "1,2,3", "tn", "trans_a=0"), "'trans_a=0' repeats or contradicts"),
        (("compile", "--device", "adreno", "--family", "qgemm", "--shape", "64,1,64 q4_0 q8_0"), "'q8_0' repeats or"),
        (("lookup", "--device", "adreno", "1", "2"), "'1,2' is not a shape (write M,N,K"),
        (("lookup", "--device", "adreno", "1,2,3", "up"), "'1,2,3,up' is not a shape"),
        (("lookup", "--device", "adreno", ""), "'' is not a shape"),
        (("lookup", "--device", "adreno"), "required: SHAPE"),
        (("lookup", "--device", "adreno", "--family", "reduce", "1", "2", "3"), "'1,2,3' is not a shape (write BATCH"),
        (("lookup", "--device", "a", "1", "2", "3", "--db", "x", "--table", "y"), "not allowed with"),
        (("export", "--format", "xml"), "invalid choice: 'xml'"),
        (("export", "--format", "sqlite"), "a SQLite table can be written only to a file (give --output FILE)"),
        (("export", "--format", "sqlite", "--output", "x", "--family", "gemm"), "holds every kernel family (leave out"),
        (("presets", "alexnet"), "there is no preset 'alexnet'"),
        (("runn",), "there is no command 'runn' (did you mean run?)"),
        (("run", "--devise", "cpu", "--shape", "8,8,8"), "unrecognized arguments: --devise (did you mean --device?)"),
        (("run", "--device", "730", "--tirals", "3"), "arguments: --tirals 3 (did you mean --trials?)"),
        (("presets", "resnet"), "there is no preset 'resnet' (did you mean resnet50?)"),
        (("run", "--device", "730", "--shape", "8,8,8 fp16"), "(did you mean float16?)"),
        (("run", "--device", "730", "--shape", "8,8,8 half"), "(did you mean float16?)"),
        ((*RUN, "--algorithm", "mircotile"), "(did you mean microtile?)"),
        (("run", "--device", "730", "--shape", "512", "512", "64"), "(did you mean --shape 512,512,64?)"),
        (("run", "--device", "adrno", "--shape", "8,8,8"), "(did you mean adreno?)"),
        (("lookup", "--device", "cup", "8", "8", "8"), "(did you mean cpu?)"),
        (("lookup", "--device", "turnip", "8", "8", "8"), "no device fits 'turnip'"),
        (("lookup", "--device", "730", "512", "768", "sum"), "; or add --family reduce)"),
        (("run", "--device", "cpu", "--shape", "64,1,64 q4_0", "--trials", "1"), "; or add --family qgemm)"),
        (("export", "--format", "josn"), "(did you mean json?)"),
    ],
)
@pytest.mark.usefixtures("tune")
def test_wrong_usage_is_one_clear_line(arguments: tuple[str, ...], message: str, run: Run) -> None:
    captured = run(arguments, 2)
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines[0].startswith("autotune: error: ")
    assert message in captured.err
    assert len(captured.err) < 1200
    assert len(lines) == 1 or "OpenCL shows" in lines[0]


def test_a_shapes_file_with_a_bad_line_names_it(tune: FakeTune, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "shapes.txt"
    path.write_text("1,2,3\n4,5,six\n")
    assert f"{path}:2: '4,5,six' is not a shape" in run(["run", "--device", "adreno", "--shapes", str(path)], 2).err
    assert tune.requests == []


def test_a_model_in_a_gguf_file_is_tuned(tune: FakeTune, database: str, tmp_path: Path, run: Run) -> None:
    path = model_file(tmp_path, SMALL)
    arguments = ["run", "--device", "adreno", "--shapes", str(path), "--tokens", "128", "--db", database]
    assert "note: 2 tensors: q6_k stands for Q5_0" in run(arguments).err
    assert [(request.problem.label, request.calls) for request in tune.requests] == [
        ("256x128x256 q4_0", 2),
        ("64x128x256 q8_0", 1),
        ("256x256x512 mxfp4 experts=8", 1),
        ("128x8x256 nt constant=b", 1),
        ("512x128x256 q6_k", 2),
        ("1000x1x256 q6_k", 1),
    ]


def _explode() -> list[Device]:
    raise RuntimeError("the driver\nsaid no")


def test_an_unexpected_error_is_one_line_with_the_way_to_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(discovery, "discover", _explode)
    monkeypatch.setattr(cli, "_forget_output", lambda: None)
    assert main(["devices"]) == 1
    line = "autotune: error: unexpected RuntimeError: the driver said no (set AUTOTUNE_TRACEBACK=1 to see where)\n"
    assert capfd.readouterr().err == line
    monkeypatch.setenv("AUTOTUNE_TRACEBACK", "1")
    assert main(["devices"]) == 1
    error = capfd.readouterr().err
    assert "Traceback (most recent call last)" in error
    assert error.endswith(line)


def test_ctrl_c_before_a_search_ends_quietly(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def interrupt() -> list[Device]:
        raise KeyboardInterrupt

    monkeypatch.setattr(discovery, "discover", interrupt)
    assert run(["devices"], 130).err == ""


@pytest.mark.parametrize("arguments", ["presets", "presets --json"])
def test_a_closed_pipe_is_no_error(arguments: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        done = subprocess.run(
            [sys.executable, "-m", "autotune", *arguments.split()], stdout=output, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) in ((-signal.SIGPIPE, ""), (128 + signal.SIGPIPE, ""))


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_one_line(unbuffered: str) -> None:
    if not Path("/dev/full").is_char_device():
        pytest.skip("needs /dev/full")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "autotune", "presets"],
            stdout=full, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "No space left" in done.stderr
    assert "unexpected" not in done.stderr


@pytest.mark.parametrize("closed", ["<&- >&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_error(closed: str) -> None:
    done = subprocess.run(["bash", "-c", f"{sys.executable} -m autotune presets {closed}"], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_output_survives_a_poor_encoding() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    done = _command("presets", "bert-base", env=environment)
    assert done.returncode == 0
    assert "attention scores" in done.stdout


@pytest.mark.parametrize("name", ["missing/table.json", "folder"])
def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        write(tmp_path / name, "text")
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"]


def test_commands_need_no_docstrings() -> None:
    done = subprocess.run([sys.executable, "-OO", "-m", "autotune", "presets"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "resnet50" in done.stdout


def test_pipes_and_devices_are_written_to_and_links_stay(tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target.json", tmp_path / "link.json", tmp_path / "pipe"
    target.write_text("old")
    link.symlink_to(target)
    write(link, "new")
    assert (link.is_symlink(), target.read_text()) == (True, "new")
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as reader:
        write(pipe, "text")
        assert (pipe.is_fifo(), reader.read()) == (True, "text")
    with target.open("a") as log:  # as a shell opens what >> names
        write(Path(f"/dev/fd/{log.fileno()}"), "er")
    assert target.read_text() == "newer"


INSTALL = 'in the checkout of autotune: pip install ".[%s]"'


@pytest.mark.parametrize(
    ("error", "message"),
    [
        pytest.param(
            OSError(5, "Input/output error"),
            "unexpected OSError: [Errno 5] Input/output error (set AUTOTUNE_TRACEBACK=1 to see where)",
            id="of the system, and not blamed on the output unless that fails",
        ),
        (OSError(28, "No space left on device"), "No space left on device (make room, or write elsewhere)"),
        (ModuleNotFoundError(name="optuna"), f"optuna is not installed ({INSTALL % 'tune'})"),
        (ModuleNotFoundError(name="sqlalchemy.orm"), f"sqlalchemy.orm is not installed ({INSTALL % 'tune'})"),
        (ModuleNotFoundError(name="fastapi"), f"fastapi is not installed ({INSTALL % 'service'})"),
    ],
)
def test_an_error_that_no_command_expects_is_one_line(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    def presets_command(_: object) -> int:
        """Fail."""
        raise error

    monkeypatch.setattr(presets, "presets_command", Command(presets_command, (), ()))
    assert run(["presets"], 1).err == f"autotune: error: {message}\n"


SLIM = """
import sys
for name in "sqlalchemy alembic optuna rich fastapi starlette pydantic uvicorn".split():
    sys.modules[name] = None
from autotune.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--help"], "usage: autotune"),
        (["presets"], "mobilenetv2"),
        (["lookup", "--device", "nvidia-h200", "512", "512", "512"], "algorithm"),
        (["show", "--device", "nvidia-h200", "512", "512", "512"], "global size"),
    ],
)
def test_commands_that_need_no_database_work_in_a_slim_installation(
    arguments: list[str], expected: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": ""}
    done = _command(*arguments, env=environment, python=("-c", SLIM))
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
    without = _command("status", env=environment, python=("-c", SLIM))
    assert without.returncode == 1 and 'pip install ".[tune]"' in without.stderr and without.stderr.count("\n") == 1


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text("old and longer")
    write(path, "new")
    assert [(found.name, found.read_text()) for found in tmp_path.iterdir()] == [("table.json", "new")]


# Arguments


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10min", 600), ("90s", 90), ("10m", 600), ("1.5h", 5400), ("1h30m", 5400), ("2M5S", 125), (" 0.5s ", 0.5)],
)
def test_budget_reads_times(text: str, seconds: float) -> None:
    assert parse_duration("--budget", text) == seconds


@pytest.mark.parametrize(
    "text",
    ["1m2h", "5 m", "m", "1e9", "\u0665m", "9" * 5000, "inf", "1d", "0h0m", "-5m", "soon", "99999h", "nan", "", "10"],
)
def test_budget_refuses_the_rest(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration("--budget", text)


def test_rhythms_are_work_and_pause() -> None:
    assert parse_rhythm("8ms/33ms") == (8e6, 33e6)
    assert parse_rhythm(" 500us/1.5s ") == (5e5, 1.5e9)
    for text in ("8ms", "8/33", "8ms/0ms", "0us/1s", "8ms/33ms/1s", "1s/11s", "8 ms/33ms"):
        with pytest.raises(UsageError, match="--rhythm: expected work and pause such as 8ms/33ms"):
            parse_rhythm(text)


# devices and presets


@pytest.mark.usefixtures("tune")
def test_devices_tells_limits_and_traps(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(["devices"]).out
    for text in (
        "0:0  adreno-730", "Qualcomm, Adreno 730", "E031.40", "16 KiB", "16384 x 16384", "64, 128", "64 pixels",
        "beware", "events, a tick is 52 ns at most, reported as 1 us",
        "25 us each in a row, 1.4 ms until one is known to have ended",
    ):  # fmt: skip
        assert text in out
    print_devices([DEVICE], {}, sys.stdout, {"0:0": Calibration(timer=Timer.HOST, reason="event times are zero")})
    assert "the host's clock, since event times are zero" in capsys.readouterr().out
    print_devices([DEVICE], {}, sys.stdout, {"0:0": "calibration took more than 20 s"})
    assert "not calibrated: calibration took more than 20 s" in capsys.readouterr().out


@pytest.mark.usefixtures("tune")
def test_devices_as_json(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (device,) = json.loads(run(["devices", "--json"]).out)
    assert device["clocks"] == {**vars(CLOCKS["0:0"]), "timer": "event"}
    monkeypatch.setattr(clocks, "try_calibration", lambda _: "killed by SIGSEGV")
    assert json.loads(run(["devices", "--json"]).out)[0]["clocks"] == {"trouble": "killed by SIGSEGV"}
    assert json.loads(run(["devices", "--json", "--no-clocks"]).out)[0]["clocks"] is None
    assert (device["slug"], device["limits"]["local_memory_bytes"]) == ("adreno-730", 16 * 1024)
    assert device["profile"]
    assert isinstance(device["traps"], list)


def test_device_names_are_never_markup_or_escapes() -> None:
    stream = io.StringIO()
    hostile = replace(DEVICE, name="[red]x[/red] :smile:", model="[bold")
    print_devices([hostile, hostile], {}, stream)
    assert stream.getvalue().count("[red]x[/red] :smile:") == 2


def test_presets_lists_all_and_one(run: Run) -> None:
    out = run(["presets"]).out
    assert all(name in out for name in ("resnet50", "mobilenetv2", "bert-base", "llama-1b-prefill", "llama-1b-decode"))
    (requests,) = json.loads(run(["presets", "resnet50", "--json"]).out).values()
    assert requests[0] == {
        "problem": GemmProblem(m=64, n=12544, k=147).to_dict(), "calls": 1, "label": "conv1"
    }  # fmt: skip


# run


def test_run_merges_all_sources_and_passes_its_options_on(
    tune: FakeTune, tmp_path: Path, database: str, run: Run
) -> None:
    path = tmp_path / "shapes.txt"
    path.write_text("128,768,768 x2 mine\n")
    arguments = [
        "run", "--device", "730", "--shape", "8,8,8", "4x4x4", "--shape", "8,8,8", "--shapes", str(path),
        "--preset", "bert-base", "--trials", "7", "--budget", "1m", "--algorithm", "dot", "naive", "--seed", "3",
        "--db", database,
    ]  # fmt: skip
    captured = run(arguments)
    found = [(request.problem.label, request.calls, request.label) for request in tune.requests[:3]]
    assert found == [
        ("8x8x8", 2, ""), ("4x4x4", 1, ""), ("128x768x768", 50, "mine, query, key, value, attention output")
    ]  # fmt: skip
    assert tune.budget == Budget(trials=7, seconds=60)
    assert (tune.options["algorithms"], tune.options["seed"]) == (["dot", "naive"], 3)
    assert "continuing: 85 trials stored" in captured.err
    assert "before (default)" in captured.out
    assert "continuing" not in captured.out


def test_run_reads_words_of_shapes_and_tunes_another_family(
    tune: FakeTune, tmp_path: Path, database: str, run: Run
) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("64,1000 max float16 x3 rows\n")
    assert "vs naive" in run(["run", "--device", "730", "--shape", "8,8,8", "9,9,9 nt batch=4", "--db", database]).out
    assert [request.problem.label for request in tune.requests] == ["8x8x8", "9x9x9 nt batch=4"]
    told = run([*REDUCE, "--shape", "64,1000", "--shapes", str(path), "--trials", "1", "--db", database])
    expected = ReduceProblem(batch=64, channels=1000, operation="max", dtype="float16")
    assert tune.requests == [
        Request(problem=ReduceProblem(batch=64, channels=1000)), Request(problem=expected, calls=3, label="rows")
    ]  # fmt: skip
    assert "vs serial" in told.out
    assert "best 0.2563 GB/s" in told.err  # 64 rows of 1001 numbers of 4 bytes in 1 ms
    both = [*REDUCE, "--shape", "8,8", "--preset", "bert-base", "--trials", "1", "--db", database]
    assert "vs baseline" in run(both).out


@pytest.mark.parametrize(("family", "label"), [("gemm", "512x512x512"), ("reduce", "512x512 sum")])
@pytest.mark.usefixtures("tune")
def test_compile_takes_512_for_every_size_when_no_shape_is_given(
    family: str, label: str, database: str, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    def refuse(device: Device, problem: Problem, *_: Any, **__: Any) -> None:
        raise AutotuneError(f"{device.slug} is asked to build {problem.label}")

    monkeypatch.setattr(compilation, "compile_space", refuse)
    error = run(["compile", "--device", "adreno", "--family", family, "--quiet", "--db", database], 1).err
    assert error == f"autotune: error: adreno-730 is asked to build {label}\n"


def test_compile_says_beforehand_how_much_it_will_build(
    database: str, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AutotuneError("not built")

    monkeypatch.setattr(compilation, "compile_space", refuse)
    monkeypatch.setattr(discovery, "discover", lambda: [DEVICE])
    build = ["compile", "--device", "adreno", "--algorithm", "naive", "--db", database, "--jobs", "2"]
    told, *_ = run(build, 1).err.splitlines()
    assert re.match(r"\d+ configurations, of which those with equal sources are built once: up to \d+ s at one", told)
    assert run([*build, "--sample", "3"], 1).err == "autotune: error: not built\n"


def test_run_says_which_budget_it_takes(tune: FakeTune, database: str, run: Run) -> None:
    assert "100 new trials" in run([*RUN, "--db", database]).err
    assert tune.budget == Budget(trials=100)


def test_run_takes_an_end_by_gain_and_a_sampler(tune: FakeTune, database: str, run: Run) -> None:
    run([*RUN, "--until-gain", "2%", "--quiet", "--db", database])
    assert tune.budget == Budget(until_gain=0.02), "and no number of trials besides"
    assert tune.options.get("sampler") is None
    named = ["--sampler", "tpe", "--sampler-options", '{"n_startup_trials": 4}']
    run([*RUN, "--trials", "5", *named, "--quiet", "--db", database])
    assert tune.options["sampler"] == SamplerChoice(name="tpe", options={"n_startup_trials": 4})
    told = run([*RUN, "--sampler", "exhaustive", "--quiet", "--db", database]).err
    assert tune.budget == Budget(), "nothing is refused"
    assert re.search(r"exhaustive: \d{5,} configurations in all, [0-9.]+ (hours|days)", told)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--until-gain", "0"], "expected a share above 0 and below 1, got '0'"),
        (["--until-gain", "100%"], "expected a share above 0 and below 1, got '100%'"),
        (["--until-gain", "1"], "expected a share above 0 and below 1, got '1'"),
        (["--until-gain", "1%", "--sampler", "random"], "--until-gain needs --sampler ours"),
        (["--sampler", "grid"], "--sampler: unknown sampler 'grid'"),
        (["--sampler-options", "{}x"], "--sampler-options: not valid JSON"),
    ],
)
def test_run_refuses_ends_and_samplers_that_there_are_not(
    tune: FakeTune, run: Run, arguments: list[str], message: str
) -> None:
    error = run([*RUN, *arguments], 2).err
    assert message in error and error.count("\n") == 1
    assert tune.requests == []


def test_run_table_names_every_parameter_of_a_single_winner(tune: FakeTune, database: str, run: Run) -> None:
    captured = run([*RUN, "--trials", "2", "--quiet", "--db", database])
    assert captured.err == ""
    assert "2x (1.9 to 2.1)" in captured.out
    assert "10x" in captured.out
    assert "dot(vector_width=4)" in captured.out
    assert max(map(len, captured.out.splitlines())) < 120


def test_run_as_json_keeps_standard_output_clean(tune: FakeTune, database: str, run: Run) -> None:
    captured = run([*RUN, "--trials", "2", "--json", "--db", database])
    result = json.loads(captured.out)
    assert "trial 1/2" in captured.err
    assert (result["device"], result["is_complete"]) == ("adreno-730", True)
    (outcome,) = result["outcomes"]
    assert outcome["problem"]["m"] == 8
    assert outcome["winner"]["configuration"] == {"algorithm": "dot", "vector_width": 4}
    assert outcome["failures"] == {"timed out": 1}
    assert result["total"] == {"default_ns": 2e6, "tuned_ns": 1e6}


def test_run_leaves_out_what_a_network_asks_for_and_the_device_cannot_hold(
    tune: FakeTune, database: str, run: Run
) -> None:
    told = run(["run", "--device", "adreno", "--preset", "llama-1b-decode", "--trials", "1", "--db", database]).err
    assert "left out: 1x128256x2048: B needs 1002 MiB" in told
    assert len(tune.requests) == 6


def test_run_leaves_out_what_a_file_lists_for_other_devices(
    tune: FakeTune, database: str, tmp_path: Path, run: Run
) -> None:
    path = tmp_path / "shapes.txt"
    path.write_text("8,8,8\n1,128256,2048\n")
    arguments = ["run", "--device", "adreno", "--shapes", str(path), "--trials", "1", "--db", database]
    assert "left out: 1x128256x2048: B needs 1002 MiB" in run(arguments).err
    assert [request.problem.label for request in tune.requests] == ["8x8x8"]
    path.write_text("1,128256,2048\n")
    told = run(arguments, 2).err
    assert "left out: 1x128256x2048" in told and "error: no shape fits the device" in told
    assert "error: 1x128256x2048: B needs" in run([*RUN, "--shape", "1,128256,2048"], 2).err


def test_run_without_any_winner_fails(tune: FakeTune, database: str, run: Run) -> None:
    tune.wins = False
    captured = run([*RUN, "--trials", "2", "--db", database], 1)
    assert "no configuration gave correct results for 8x8x8" in captured.err
    assert "none" in captured.out
    tune.is_default_open = True
    captured = run([*RUN, "--trials", "2", "--db", database], 1)
    assert "the search ended before the default was measured for 8x8x8" in captured.err
    assert "give a longer --budget" in captured.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_stops_keeps_and_says_how_to_go_on(
    tune: FakeTune, database: str, capfd: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    tune.during = lambda: os.kill(os.getpid(), number)
    former = signal.getsignal(number)
    arguments = [*RUN, "9,9,9", "--trials", "2", "--db", database]
    assert main(arguments) == 130
    captured = capfd.readouterr()
    assert "stopping after the running trial" in captured.err
    assert f"autotune run --device adreno --shape 8,8,8 9,9,9 --trials 2 --db {database}" in captured.err
    assert "8x8x8" in captured.out
    assert "9x9x9" not in captured.out
    assert signal.getsignal(number) == former


def test_a_run_tells_what_the_last_one_lost_and_retries_when_asked(tune: FakeTune, database: str, run: Run) -> None:
    configuration = find_family("gemm").baseline
    with Store.open(database) as store:
        gone = replace(new_owner(), process_start="another boot 1")
        store.begin_trial(DEVICE, GemmProblem(m=8, n=8, k=8), configuration, gone)
    told = run([*RUN, "--trials", "2", "--db", database]).err
    assert "quarantined: 1 kernel that was running when an earlier run was killed, of 8x8x8 on adreno-730" in told
    assert "--retry-quarantined" in told
    assert tune.options["retries_quarantined"] is False
    assert "in flight" not in run([*RUN, "--trials", "2", "--db", database, "--retry-quarantined"]).err
    assert tune.options["retries_quarantined"] is True


def test_json_of_an_interrupted_run_says_so(tune: FakeTune, database: str, capfd: pytest.CaptureFixture[str]) -> None:
    tune.during = lambda: os.kill(os.getpid(), signal.SIGINT)
    assert main([*RUN, "--trials", "2", "--json", "--db", database]) == 130
    assert json.loads(capfd.readouterr().out)["is_complete"] is False


@pytest.mark.parametrize(
    ("ignored", "expected"), [(False, (130, "True\ncleared\n")), (True, (0, "False\nalive\nalive\n"))]
)
def test_the_second_interrupt_unwinds_and_the_third_ends_unless_interrupts_are_ignored(
    ignored: bool, expected: tuple[int, str]
) -> None:
    code = (
        "import os, signal, sys\n"
        f"if {ignored}: signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from autotune.cli.interrupts import Interrupts\n"
        "with Interrupts('the running trial') as interrupts:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print(interrupts.are_requested, flush=True)\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        print('alive')\n"
        "    except KeyboardInterrupt:\n"
        "        print('cleared', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('alive')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == expected


def test_a_deadline_ends_the_search_in_time(tune: FakeTune, database: str) -> None:
    assert main([*RUN, "--deadline", "100s", "--db", database]) == 0
    assert tune.budget.seconds is not None
    assert tune.budget.trials is None and 50 < tune.budget.seconds < 80, "finals and the report take time, too"
    assert main([*RUN, "--deadline", "100s", "--budget", "20s", "--db", database]) == 0
    assert tune.budget.seconds == 20


def test_what_a_deadline_breaks_off_has_its_own_exit_status(
    tune: FakeTune, database: str, capfd: pytest.CaptureFixture[str]
) -> None:
    tune.during = lambda: os.kill(os.getpid(), signal.SIGALRM)
    assert main([*RUN, "--deadline", "1h", "--json", "--db", database]) == 124
    told = capfd.readouterr()
    assert "the deadline is near" in told.err and json.loads(told.out)["is_complete"] is False

    def stuck() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGALRM)

    tune.during = stuck
    assert main([*RUN, "--deadline", "1h", "--db", database]) == 124
    assert "the deadline is reached; every stored trial is kept" in capfd.readouterr().err


def test_a_deadline_requests_a_stop_then_interrupts_then_ends_the_process() -> None:
    code = (
        "import time\n"
        "from autotune.cli.interrupts import DeadlineInterrupt, Interrupts\n"
        "with Interrupts('the running trial', began=time.monotonic(), deadline_s=0.5) as interrupts:\n"
        "    while not interrupts.are_requested:\n"
        "        pass\n"
        "    print(interrupts.is_late, flush=True)\n"
        "    try:\n"
        "        while True:\n"
        "            pass\n"
        "    except DeadlineInterrupt:\n"
        "        print('interrupted', flush=True)\n"
        "    while True:\n"
        "        pass\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (124, "True\ninterrupted\n")


# lookup and export


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("512 512 512", GemmProblem(m=512, n=512, k=512)),
        ("512,512,512", GemmProblem(m=512, n=512, k=512)),
        ("512x512x512", GemmProblem(m=512, n=512, k=512)),
        ("512, 512, 512", GemmProblem(m=512, n=512, k=512)),
        ("512 512 512 nt float16 batch=4", GemmProblem(m=512, n=512, k=512, trans_b=1, mode="float16", batch=4)),
        ("512,512,512 tn", GemmProblem(m=512, n=512, k=512, trans_a=1)),
        ("--family reduce 512 768 max", ReduceProblem(batch=512, channels=768, operation="max")),
        (
            "--family reduce 512,768 mean float16",
            ReduceProblem(batch=512, channels=768, operation="mean", dtype="float16"),
        ),
        ("--family reduce 512x768", ReduceProblem(batch=512, channels=768)),
    ],
)
@pytest.mark.usefixtures("tune")
def test_lookup_reads_a_shape_in_words(words: str, problem: Problem, tables: Path, run: Run) -> None:
    answer = json.loads(run(["lookup", "--device", "adreno", *words.split(), "--table", str(tables), "--json"]).out)
    assert (answer["device"], answer["problem"]) == ("adreno-730", problem.to_dict())
    quoted = [words] if "--" not in words else [*words.split(maxsplit=2)]
    assert json.loads(run(["lookup", "--device", "adreno", *quoted, "--table", str(tables), "--json"]).out) == answer


def test_lookup_of_an_untuned_device_of_this_machine_is_its_default(
    tune: FakeTune, tables: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """With its own limits: of its slug alone nobody could tell that it has images."""
    here = replace(DEVICE, slug="adreno-740", model="Adreno 740")
    monkeypatch.setattr(discovery, "discover", lambda: [here])
    told = run(["lookup", "--device", "740", "512,512,512 tn", "--table", str(tables), "--json"])
    assert "note: nothing was measured on adreno-740; there are measurements of adreno-730" in told.err
    answer = json.loads(told.out)
    profile = find_profile(here)
    default = find_family("gemm").default(
        GemmProblem(m=512, n=512, k=512, trans_a=1), here.limits, profile.starting("gemm")
    )
    assert (answer["device"], answer["match"]) == ("adreno-740", "default")
    assert answer["configuration"] == default.to_dict()
    assert "no measurements for adreno-740 in tables.json" in answer["because"]
    sibling = json.loads(run(["lookup", "--device", "740", "8,8,8", "--table", str(tables), "--json"]).out)
    assert (sibling["match"], sibling["source_device"]) == ("sibling", "adreno-730")


@pytest.mark.parametrize("device", ["adreno-999", " Mali-G999 "])
def test_lookup_of_a_device_that_nobody_knows_is_what_python_answers(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setattr(discovery, "discover", lambda: [DEVICE])
    empty, slug = tmp_path / "empty.sqlite", device.strip().lower()
    Store.open(empty).close()
    lookup = ["lookup", "--device", device, "512,512,512", "--db", str(empty)]
    out, err = run([*lookup, "--json"])
    expected = TuningTable.open(empty).find(slug, m=512, n=512, k=512)
    assert (json.loads(out)["match"], json.loads(out)["configuration"]) == (
        "presumed",
        expected.configuration.to_dict(),
    )
    default = f"the built-in default for the public limits of {slug.partition('-')[0]}"
    assert err == f"note: 512x512x512 is not tuned on {slug}; this is {default} (autotune run tunes it)\n"
    assert f"there is only the built-in default for 512x512x512 on {slug}" in run([*lookup, "--tuned"], 1).err


def test_what_is_there_is_never_suggested_instead_of_itself() -> None:
    assert did_you_mean("run", ["run", "runs"]) == ""
    assert did_you_mean("zebra", ["run", "runs"]) == ""


def test_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["help", "run"])
    assert ended.value.code == 0 and "usage: autotune run" in capsys.readouterr().out


def test_lookup_of_what_names_no_device_or_several_fails(
    tables: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setattr(discovery, "discover", list)
    for name in ("7:0", "Adreno (TM) 999", "a" * 65, ""):
        assert "no device fits" in run(["lookup", "--device", name, "512,512,512", "--table", str(tables)], 2).err
    both = [replace(DEVICE, slug=f"adreno-{number}") for number in (740, 750)]
    monkeypatch.setattr(TuningTable, "devices", both)
    error = run(["lookup", "--device", "adreno", "512,512,512", "--table", str(tables)], 2).err
    assert "2 devices fit 'adreno'" in error


def test_run_tunes_what_lookups_missed_most_and_forgets_it(
    tune: FakeTune, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    misses = ("run", "--device", "adreno", "--db", database, "--trials", "1", "--misses", "--quiet")
    assert "lists no miss on adreno-730" in run(misses, 2).err
    log = MissLog(default_file())
    often, once, elsewhere = (GemmProblem(m=size, n=8, k=8) for size in (7, 5, 3))
    for slug, problem in (("adreno-730", once), ("mali-g78", elsewhere), ("adreno-730", often)):
        log.add(slug, problem)
    log.write()
    another = MissLog(default_file())
    another.add("adreno-730", often)
    another.write()
    run([*misses, "--shape", "1,2,3"])
    asked = [(request.problem.size_vector, request.calls) for request in tune.requests]
    assert asked == [((1, 2, 3, 1), 1), ((7, 8, 8, 1), 2), ((5, 8, 8, 1), 1)]
    assert read_misses(default_file()) == {Miss("mali-g78", elsewhere): 1}


@pytest.fixture
def stored(database: str) -> str:
    """A database with a winner of each family."""
    gemm = _winner(GemmProblem(m=8, n=8, k=8), configuration=NAIVE)
    reduce = _winner(ReduceProblem(batch=64, channels=1000), configuration=find_family("reduce").baseline)
    with Store.open(database) as store:
        assert store.import_winners([gemm, reduce], [DEVICE]) == (2, 0)
    return database


@pytest.fixture
def tables(stored: str, tmp_path: Path, run: Run) -> Path:
    path = tmp_path / "tables.json"
    run(["export", "--format", "json", "--output", str(path), "--db", stored])
    return path


def _families(table: str) -> list[list[str]]:
    return [[entry["family"] for entry in device["entries"]] for device in json.loads(table)["devices"]]


def test_json_holds_every_family_and_comes_back_whole(stored: str, tables: Path, tmp_path: Path, run: Run) -> None:
    assert _families(tables.read_text()) == [["gemm", "reduce"]]
    other = str(tmp_path / "other.sqlite")
    assert run(["import", str(tables), "--db", other]).out == "2 imported, 0 not imported\n"
    assert run(["export", "--format", "json", "--db", other]).out == tables.read_text()
    assert _families(run(["export", "--format", "json", "--family", "reduce", "--db", stored]).out) == [["reduce"]]


def test_other_forms_hold_every_family_that_they_can(stored: str, run: Run) -> None:
    text = run(["export", "--format", "markdown", "--db", stored]).out
    assert "| 8x8x8 |" in text and "| 64x1000 sum |" in text
    captured = run(["export", "--format", "c", "--db", stored])
    assert "autotune_find_gemm_adreno_730" in captured.out and "autotune_find_reduce_adreno_730" in captured.out
    assert captured.err == ""
    wanted = "one kernel family, and gemm, reduce are stored (choose one, such as --family gemm)"
    assert wanted in run(["export", "--format", "csv", "--db", stored], 2).err
    header, row = run(["export", "--format", "csv", "--family", "reduce", "--db", stored]).out.splitlines()
    assert header.startswith("device,family,batch,channels,") and row.startswith("adreno-730,reduce,64,1000,sum,")


@pytest.mark.parametrize("form", ["json", "csv", "markdown", "sqlite"])
def test_export_of_a_device_without_a_table_names_those_there_are(
    tune: FakeTune,
    stored: str,
    tmp_path: Path,
    form: str,
    monkeypatch: pytest.MonkeyPatch,
    run: Run,
) -> None:
    monkeypatch.setattr(discovery, "discover", lambda: [replace(DEVICE, slug="adreno-740")])
    output = tmp_path / "table"
    error = run(["export", "--device", "adreno", "--format", form, "--output", str(output), "--db", stored], 2).err
    assert "nothing is stored for adreno-740 (there are adreno-730, " in error
    assert not output.exists()


@pytest.mark.parametrize("form", ["json", "csv", "markdown", "c"])
def test_export_of_an_empty_database_is_an_empty_table(database: str, form: str, run: Run) -> None:
    Store.open(database).close()
    captured = run(["export", "--format", form, "--db", database])
    assert (len(captured.out) > 10, captured.err) == (True, "")


# Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


REQUEST = Request(problem=GemmProblem(m=100, n=100, k=50), label="fc")


def test_every_event_is_shown() -> None:
    assert all(hasattr(PlainProgress, name) for name in KINDS)


def test_plain_progress_tells_better_trials_and_then_every_ten_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    listener = PlainProgress(Budget(trials=4, seconds=100), stream, clock)
    listener(_started(REQUEST, 1, 2, 0))
    clock.now += 1
    listener(_finished(REQUEST, _trial(1e6), 1, 1e6))
    clock.now += 1
    listener(_finished(REQUEST, _trial(None), 2, 1e6, [TrialState.TIMED_OUT]))
    clock.now += 10
    listener(_finished(REQUEST, _trial(2e6), 3, 1e6, [TrialState.TIMED_OUT]))
    listener(DeviceDrifted(request=REQUEST, slowdown=1.4, rest_s=10.0))
    listener(DeviceDrifted(request=REQUEST, slowdown=1.0, rest_s=0.0))
    listener(FinalsStarted(request=REQUEST, finalists=4))
    listener(ProblemFinished(request=REQUEST, outcome=_outcome(REQUEST, _winner(GemmProblem(m=100, n=100, k=50)))))
    assert stream.getvalue().splitlines() == [
        "[1/2] 100x100x50 (fc)",
        "  searching 5000 configurations",
        "  trial 1/4, best 1 GFLOP/s, about 0:07 of trials to go",
        "  a trial timed out, and its process was replaced",
        "  trial 3/4, best 1 GFLOP/s, 1 failed (1 timed out), about 0:20 of trials to go",
        "  the device runs 1.4 times slower than at the start: times are corrected; pausing for 0:10",
        "  the device runs again as fast as at the start",
        "  comparing the best 4, the default among them",
        "  1 GFLOP/s with dot, 1 ms, 2x (1.9 to 2.1) vs default (2 trials, 1 failed (1 timed out))",
    ]


def test_progress_tells_the_first_loss_of_the_measuring_process_of_each_kind() -> None:
    stream = io.StringIO()
    listener = PlainProgress(Budget(), stream, Clock())
    listener(_started(REQUEST, 1, 1, 0))
    ends = (TrialState.CRASHED, TrialState.CRASHED, TrialState.WRONG_RESULT, TrialState.TIMED_OUT)
    for number, state in enumerate(ends, start=1):
        trial = Trial(configuration=START, state=state, message=f"run: number {number}")
        listener(_finished(REQUEST, trial, number, float("inf"), ends[:number]))
    listener(_finished(REQUEST, trial, 5, float("inf")))  # counts of a service need not fit
    assert stream.getvalue().splitlines()[2:] == [
        "  a trial crashed, and its process was replaced (run: number 1)",
        "  a trial timed out, and its process was replaced (run: number 4)",
    ]


def test_plain_progress_by_time_alone_counts_down_and_says_what_exceeds_it() -> None:
    stream, clock = io.StringIO(), Clock()
    listener = PlainProgress(Budget(seconds=30), stream, clock)
    clock.now += 20  # checking the device
    listener(_started(REQUEST, 1, 1, 3))
    clock.now += 10
    listener(_finished(REQUEST, _trial(None), 1, float("inf"), [TrialState.TIMED_OUT]))
    clock.now += 90
    listener(_finished(REQUEST, _trial(1e6), 2, 1e6, [TrialState.TIMED_OUT]))
    assert stream.getvalue().splitlines() == [
        "[1/1] 100x100x50 (fc)",
        "  searching 5000 configurations; continuing: 3 trials stored",
        "  a trial timed out, and its process was replaced",
        "  trial 2, best 1 GFLOP/s, 1 failed (1 timed out), 1:10 past the budget",
    ]


def test_plain_progress_names_the_problem_again_where_slices_and_finals_change_it() -> None:
    stream, clock = io.StringIO(), Clock()
    listener = PlainProgress(Budget(seconds=100), stream, clock)
    other = Request(problem=GemmProblem(m=10, n=10, k=10), calls=3)
    for number, request in enumerate((REQUEST, other), start=1):
        listener(_started(request, number, 2, 0))
        listener(_finished(request, _trial(1e6), 1, 1e6))
    listener(GainEstimated(request=REQUEST, gain_left=0.034))
    listener(ShareStarted(request=REQUEST, calls=4, default_ns=8e6, best_ns=4e6))
    clock.now += 1
    listener(_finished(REQUEST, _trial(5e5), 2, 5e5))
    listener(ShareStarted(request=REQUEST, calls=4, default_ns=8e6, best_ns=3.5e6))
    winner = _winner(other.problem)
    listener(ProblemFinished(request=other, outcome=replace(_outcome(other, winner), gain_left=0.0004, failures={})))
    assert stream.getvalue().splitlines() == [
        "[1/2] 100x100x50 (fc)",
        "  searching 5000 configurations",
        "  trial 1, best 1 GFLOP/s, 1:40 left",
        "[2/2] 10x10x10",
        "  searching 5000 configurations",
        "  trial 1, best 0.002 GFLOP/s, 1:40 left",
        "[1/2] 100x100x50 (fc)",
        "  continues: may still gain 3.4%; the best single trials would save 50% of the time",
        "  trial 2, best 2 GFLOP/s, may still gain 3.4%, 1:39 left",
        "  continues: may still gain 3.4%; the best single trials would save 56% of the time",
        "[2/2] 10x10x10",
        "  0.002 GFLOP/s with dot, 1 ms, 2x (1.9 to 2.1) vs default (2 trials, may still gain <0.1%)",
    ]


class TestLiveProgress:
    def _listener(self, budget: Budget, clock: Clock, said: list[str] | None = None) -> LiveProgress:
        listener = LiveProgress(budget, lambda: "run", clock)
        listener.say = (said if said is not None else []).append
        return listener

    def test_it_tells_what_is_done_now_and_how_much_of_the_budget_is_spent(self) -> None:
        clock = Clock()
        listener = self._listener(Budget(seconds=100), clock)
        assert listener.picture() == Picture(line="starting", total=1.0, left="1:40 left")
        listener(_started(REQUEST, 1, 2, 0))
        listener(_finished(REQUEST, _trial(1e6), 1, 1e6))
        clock.now += 40
        assert listener.picture() == Picture(
            title="0 of 2 shapes", done=0.4, total=1.0, left="1:00 left",
            line="100x100x50  measuring  trial 1, best 1 GFLOP/s",
        )  # fmt: skip
        clock.now += 65
        listener(FinalsStarted(request=REQUEST, finalists=6))
        picture = listener.picture()
        assert (picture.done, picture.left) == (1.0, "0:05 past the budget")
        assert picture.line == "100x100x50  comparing, best 1 GFLOP/s"

    def test_each_size_leaves_one_line_whatever_happens_before(self) -> None:
        said: list[str] = []
        with_two = self._listener(Budget(trials=2), Clock(), said)
        requests = [REQUEST, Request(problem=GemmProblem(m=10, n=10, k=10))]
        FakeTune()(DEVICE, requests, None, Budget(), with_two, should_stop=lambda: False)
        assert [line.split(":")[0] for line in said] == ["[1/2] 100x100x50 (fc)", "[2/2] 10x10x10"]
        assert with_two.picture().title == "2 of 2 shapes" and with_two.picture().done == 1.0

    def test_a_bar_is_drawn_anew_by_itself_within_the_columns_of_the_terminal(self) -> None:
        stream, clock = io.StringIO(), Clock()
        console = Console(file=stream, force_terminal=True, width=60, markup=False, _environ={"TERM": "xterm"})
        listener = self._listener(Budget(seconds=100), clock)
        bar = LiveBar(stream, listener.picture, console)
        listener(_started(REQUEST, 1, 1, 0))
        listener(_finished(REQUEST, _trial(None), 1, float("inf"), [TrialState.TIMED_OUT]))

        def drawn() -> list[str]:
            with console.capture() as capture:
                console.print(bar.get_renderable())
            return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capture.get()).splitlines()

        first = drawn()
        clock.now += 1
        second = drawn()
        assert first[0].endswith("1:40 left") and second[0].endswith("1:39 left"), "no event came between the two"
        assert second[1].startswith("100x100x50  measuring  trial 1, 1 failed")
        assert all(len(line) <= 60 for line in first + second)


def test_progress_chooses_by_where_it_leads() -> None:
    with progress(Budget(), io.StringIO(), is_quiet=False) as listener:
        assert isinstance(listener, PlainProgress)
    with progress(Budget(), Terminal(), is_quiet=False) as listener:
        assert isinstance(listener, LiveProgress) == (os.environ.get("TERM", "") not in ("dumb", "unknown"))
    stream = io.StringIO()
    with progress(Budget(), stream, is_quiet=True) as listener:
        FakeTune()(DEVICE, [REQUEST], None, Budget(), listener, should_stop=lambda: False)
    assert stream.getvalue() == ""


def test_texts_for_people() -> None:
    assert [time_text(ns) for ns in (999, 1234, 5.6789e6, 1e9)] == ["999 ns", "1.234 us", "5.679 ms", "1 s"]
    assert [duration_text(s) for s in (-1, 59.6, 3723)] == ["0:00", "1:00", "1:02:03"]
    assert [bytes_text(n) for n in (100, 32768, 3 * 2**29)] == ["100 bytes", "32 KiB", "1.5 GiB"]
    assert failures_text({"timed out": 1, "crashed": 2}) == "3 failed (1 timed out, 2 crashed)"
    assert failures_text({}) == ""
    problem = GemmProblem(m=1, n=1, k=1)
    assert gain_text(_winner(problem, is_default=True)) == "= default"
    assert gain_text(_winner(problem, samples=0)) == "provisional"
    assert gain_text(_winner(problem)) == "2x (1.9 to 2.1)"
    assert gain_text(_winner(problem, is_default=True, verdict=Verdict.TIE)) == "= default"
    assert gain_text(_winner(problem, verdict=Verdict.DEFAULT_FAILED)) == "default fails"
    assert verdict_text(_winner(problem)) == "2x (1.9 to 2.1) vs default"
    assert verdict_text(_winner(problem, verifications=1)) == "2x (1.9 to 2.1) vs default, verified once"
    assert doubt_text(_winner(problem, verifications=30)) == ", verified 30 times", "of 60"
    assert doubt_text(_winner(problem, 1e9, verifications=20)) == doubt_text(_winner(problem, samples=0)) == ""
    nothing_faster = "the default; nothing faster was found"
    assert verdict_text(_winner(problem, is_default=True, verdict=Verdict.TIE)) == nothing_faster
    seldom = _winner(problem, is_default=True, verifications=7)
    assert verdict_text(seldom) == f"{nothing_faster}, verified 7 times"
    print_outcomes([_outcome(REQUEST, seldom)], text := io.StringIO())
    assert "= default, verified 7 times" in text.getvalue()
    assert verdict_text(_winner(problem, is_default=True, verdict=Verdict.DEFAULT)) == nothing_faster
    assert verdict_text(_winner(problem, verdict=Verdict.DEFAULT_FAILED)) == "the default does not run on this driver"


def test_rate_is_of_memory_where_memory_bounds() -> None:
    assert GemmProblem(m=100, n=100, k=50).rate_text(1e6) == "1 GFLOP/s"
    assert ReduceProblem(batch=1000, channels=249).rate_text(1e6) == "1 GB/s"
    assert ReduceProblem(batch=1000, channels=249, dtype="float16").rate_text(1e6) == "0.5 GB/s"


def test_the_table_of_a_run_tells_gain_tie_and_samples() -> None:
    problems = [GemmProblem(m=size, n=1, k=1) for size in (1, 2, 3, 4)]
    won = [
        _winner(problems[0]), _winner(problems[1], is_default=True, verdict=Verdict.TIE, verifications=20),
        _winner(problems[2], samples=0, verifications=0, verdict=Verdict.PROVISIONAL), None,
    ]  # fmt: skip
    stream = io.StringIO()
    print_outcomes([_outcome(Request(problem=p), w) for p, w in zip(problems, won, strict=True)], stream)
    header, _, *rows = [[cell.strip() for cell in line.split("|")] for line in stream.getvalue().splitlines()[:6]]
    columns = [header.index(name) for name in ("vs default", "samples", "verifications")]
    assert [[row[column] for column in columns] for row in rows] == [
        ["2x (1.9 to 2.1)", "11", "60"], ["= default, verified 20 times", "11", "20"], ["provisional", "", ""],
        ["-", "", ""],
    ]  # fmt: skip


def test_the_table_tells_what_each_size_spent_and_what_is_left() -> None:
    outcome = replace(_outcome(REQUEST, _winner(REQUEST.problem)), seconds=83.4, gain_left=0.012)
    stream = io.StringIO()
    print_outcomes([outcome, _outcome(REQUEST, None)], stream)
    header, _, first, second, *_ = stream.getvalue().splitlines()
    assert "| trials | spent | may still gain |" in header
    assert "|      2 | 1:23  | 1.2% " in first
    assert "1:23" not in second


def test_total_weighs_by_calls_and_says_what_it_leaves_out() -> None:
    problem, other = GemmProblem(m=1, n=1, k=1), GemmProblem(m=2, n=2, k=2)
    outcomes = [
        _outcome(Request(problem=problem, calls=10), _winner(problem, 1e6)),
        _outcome(Request(problem=other, calls=2), _winner(other, 5e6, default_ns=5e6, is_default=True)),
        _outcome(Request(problem=other), None),
    ]
    expected = (
        "total of 12 calls: 30 ms before (default), 20 ms after: 1.5x; "
        "1 of 3 shapes have no confirmed winner and are not counted"
    )
    assert total_text(outcomes) == expected


def test_a_run_of_a_model_tells_tokens_a_second_and_prints_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    problems = [GemmProblem(m=1, n=1, k=1), GemmProblem(m=2, n=2, k=2)]
    won = [_outcome(Request(problem=problem, calls=10, label="a|b"), _winner(problem, 1e6)) for problem in problems]
    print_outcomes(won, sys.stdout, is_markdown=True, tokens=4)
    head, rule, first, second, blank, total, rate = capsys.readouterr().out.splitlines()
    assert {line.replace("\\|", "").count("|") for line in (head, rule, first, second)} == {head.count("|")}
    assert head.startswith("| shape | time |") and rule.startswith("| --- | --: |") and blank == ""
    assert total.startswith("total of 20 calls: 40 ms before") and "a\\|b" in first
    assert rate == "with these products alone, 100 tokens/s before, 200 after"
    print_outcomes([*won, _outcome(REQUEST, None)], sys.stdout, tokens=4)
    assert "tokens/s" not in capsys.readouterr().out, "some products have no time"


@pytest.mark.parametrize(
    ("presets", "files", "tokens", "expected"),
    [
        (["llama-3.2-1b-q4_0-decode"], [], None, 1),
        (["llama-3.2-1b-q4_0-decode", "resnet50"], [], None, 0),
        (["resnet50"], [], None, 0),
        ([], [Path("model.gguf")], 32, 32),
        ([], [Path("model.gguf")], None, 1),
        ([], [Path("shapes.txt")], None, 0),
    ],
)
def test_tokens_of_a_step_are_those_of_one_model(
    presets: list[str], files: list[Path], tokens: int | None, expected: int
) -> None:
    assert step_tokens(presets, files, tokens) == expected


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def _lines_at(width: int, monkeypatch: pytest.MonkeyPatch, *, is_wide: bool = False) -> list[str]:
    """The table of a run as a terminal of so many columns shows it."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    problems = [GemmProblem(m=384, n=3136, k=size) for size in (64, 576)]
    winners = [_winner(problems[0]), _winner(problems[1], is_default=True, verdict=Verdict.TIE)]
    outcomes = [_outcome(Request(problem=p, label="conv2"), w) for p, w in zip(problems, winners, strict=True)]
    stream = Terminal()
    print_outcomes([replace(outcome, seconds=20.0, gain_left=0.1) for outcome in outcomes], stream, is_wide=is_wide)
    return stream.getvalue().splitlines()


def test_a_table_drops_columns_that_do_not_fit_and_never_breaks_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    header, rule, first, second, *total = _lines_at(80, monkeypatch)
    assert header.split("  ")[0] == "shape" and {"rate", "vs default", "kernel"} <= set(re.split(r" {2,}", header))
    assert re.split(r" {2,}", first)[:5] == ["384x3136x64", "1 ms", "154.1 GFLOP/s", "2x (1.9 to 2.1)", "dot"]
    assert "= default" in second and set(rule) == {"─"}
    assert all(len(line) <= 80 and line == line.rstrip() for line in (header, rule, first, second, *total))
    narrow = _lines_at(30, monkeypatch)
    assert narrow[0].split() == ["shape", "time"]
    wide = _lines_at(80, monkeypatch, is_wide=True)
    assert {"samples", "verifications", "spent", "from"} <= set(wide[0].split())


def test_prose_in_a_table_breaks_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    Page(stream).table(
        ("name", "what it is"), [("one", "a sentence that is longer than a line of forty")], ends_in_prose=True
    )
    assert stream.getvalue().splitlines()[2:] == ["one   a sentence that is longer than a", "      line of forty"]


def test_a_pipe_gets_every_column_without_trailing_blanks() -> None:
    stream = io.StringIO()
    print_outcomes([_outcome(REQUEST, _winner(REQUEST.problem)), _outcome(REQUEST, None)], stream)
    lines = stream.getvalue().splitlines()
    assert "verifications" in lines[0] and all(line == line.rstrip() for line in lines)


class TestShow:
    SHOW = ("show", "--device", "nvidia-h200", "512,512,512")

    def test_it_holds_all_that_own_host_code_needs(self, run: Run) -> None:
        shown = json.loads(run([*self.SHOW, "--json"]).out)
        source = run([*self.SHOW, "--source"]).out
        assert source.strip() == shown["source"].strip()
        sizes = {buffer["name"]: buffer["size_bytes"] for buffer in shown["buffers"] if buffer["role"] != "scratch"}
        assert sizes["c"] == 512 * 512 * 4
        for launch in shown["launches"]:
            found = re.search(rf"void\s+{launch['kernel']}\s*\(([^)]*)\)", source)
            assert found, "each kernel is in the source"
            assert len(launch["arguments"]) == found[1].count(",") + 1, "with as many arguments"
            local = launch["local_size"] or [1] * len(launch["global_size"])
            assert all(size % group == 0 for size, group in zip(launch["global_size"], local, strict=True))
        assert isinstance(shown["build_options"], list)

    def test_it_tells_people_sizes_and_the_order_of_arguments(self, run: Run) -> None:
        shown = run(list(self.SHOW)).out
        assert "build options" in shown and "global size" in shown and "local size" in shown
        assert re.search(r"^gemm\w*\(.*float32 alpha, float32 beta\)$", shown, re.MULTILINE)

    def test_numbers_are_told_to_the_last_digit(self, run: Run) -> None:
        assert "int32 1806336" in run(["show", "--device", "adreno-730", "64,3136,576"]).out


def test_misses_are_listed_and_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    log = MissLog(default_file())
    log.add("adreno-730", GemmProblem(m=8, n=9, k=10))
    log.write()
    assert "8x9x10" in run(["misses"]).out
    assert "no lookup has missed" in run(["misses", "--device", "mali-g610"]).err
    assert run(["misses", "--clear"]).out == "1 forgotten\n" and not read_misses(default_file())


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (Budget(seconds=60), "tuning 2 shapes on adreno-730: about 1:00\n"),
        (
            Budget(seconds=4),
            "about 0:10 whatever the budget, since each takes two trials and a comparison, about 5 s\n",
        ),
        (Budget(trials=100), "100 trials each, about 3 minutes at one a second\n"),
        (Budget(until_gain=0.01), "until nothing is left to gain\n"),
    ],
)
def test_a_run_says_how_long_it_will_take(budget: Budget, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_duration(DEVICE, [REQUEST, REQUEST], budget)
    assert capsys.readouterr().err.endswith(expected)


# With the real device


@pytest.mark.long
def test_tune_interrupt_resume_look_up_export_and_import(tmp_path: Path) -> None:
    """The whole way on PoCL, each command a process of its own."""
    database, table = tmp_path / "tuned.sqlite", tmp_path / "table.json"
    run = ("run", "--device", "cpu", "--shape", "33,17,9", "--algorithm", "naive", "dot", "--db", str(database))
    assert _interrupted(*run, "--budget", "100s") == 130
    resumed = _command(*run, "--trials", "2", "--json", python=("-c", SHORT_FINALS))
    assert resumed.returncode == 0, resumed.stderr
    assert "continuing: " in resumed.stderr
    (outcome,) = json.loads(resumed.stdout)["outcomes"]
    assert (outcome["new_trials"], outcome["winner"]["is_final"]) == (2, True)
    with sqlite3.connect(database) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()

    exact = _command("lookup", "--device", "cpu", "33", "17", "9", "--json", "--db", str(database))
    assert json.loads(exact.stdout)["configuration"] == outcome["winner"]["configuration"]
    near = _command("lookup", "--device", "cpu", "34", "17", "9", "--explain", "--db", str(database))
    assert "34x17x9 was not measured" in near.stdout, near.stderr

    for form in ("json", "csv", "markdown", "c", "sqlite"):
        output = tmp_path / f"table.{form}"
        done = _command("export", "--device", "cpu", "--format", form, "--output", str(output), "--db", str(database))
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert output.stat().st_size > 100

    other = tmp_path / "other.sqlite"
    assert _command("import", str(table), "--db", str(other)).stdout == "1 imported, 0 not imported\n"
    assert (
        _command("import", str(table), "--db", str(other)).stdout
        == "0 imported, 1 not imported, because the stored ones are confirmed or faster\n"
    )
    slug = json.loads(exact.stdout)["device"]
    again = _command("export", "--device", slug, "--format", "json", "--db", str(other))
    assert again.stdout == table.read_text()
    foreign = _command("lookup", "--device", slug, "33", "17", "9", "--table", str(table), "--json")
    assert json.loads(foreign.stdout)["configuration"] == outcome["winner"]["configuration"]


def _interrupted(*arguments: str) -> int:
    """Exit status of a command that gets SIGINT after its first trial."""
    with subprocess.Popen(
        [sys.executable, "-m", "autotune", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "  trial " in line:
                break
        process.send_signal(signal.SIGINT)
        assert "run the same command again" in process.stderr.read()
        return process.wait(timeout=HANG_S)


@pytest.mark.parametrize(
    ("content", "status"), [(b"not a database, but a text of some length\n" * 50, 1), (None, 1)], ids=["text", "folder"]
)
def test_database_that_is_none_is_one_clear_line(tmp_path: Path, content: bytes | None, status: int, run: Run) -> None:
    path = tmp_path / "tuned.sqlite"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    commands = [
        ("run", "--device", "cpu", "--shape", "8,8,8", "--trials", "1"), ("export", "--format", "json"),
        ("lookup", "--device", "cpu", "8", "8", "8"),
    ]  # fmt: skip
    for command in commands:
        printed = run([*command, "--db", str(path)], status)
        assert printed.out == ""
        assert printed.err.startswith("autotune: error: ") and "unexpected" not in printed.err
        assert printed.err.count("\n") == 1
    assert content is None or path.read_bytes() == content


def test_ctrl_c_while_the_command_loads_shows_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str, *rest: Any) -> Any:
        if name == "autotune.cli":
            raise KeyboardInterrupt
        return real(name, *rest)

    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", interrupted)
    assert loading.run() == 130


def test_what_needs_tuned_sizes_makes_no_database(pocl: Device, tmp_path: Path, run: Run) -> None:
    place = tmp_path / "mistyped.sqlite"
    error = run(["verify", "--device", pocl.selector, "--db", str(place)], 1).err
    assert error.startswith(f"autotune: error: there is no database {place}")
    assert not place.exists()
