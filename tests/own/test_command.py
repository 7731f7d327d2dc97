"""Command files: what is wrong with them, how their commands are measured, and what comes of tuning them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError, WorkerError
from autotune.kernels import FILES, find_family
from autotune.model.device import Device
from autotune.model.trial import Job, Request, Trial, TrialState
from autotune.networks.presets import preset
from autotune.own.cli.init import READY
from autotune.own.command import worker
from autotune.own.command.family import CommandFamily
from autotune.own.command.format import read_command_file
from autotune.own.command.worker import BEFORE, CommandWorker
from autotune.own.tuning import use_file
from autotune.search import worker_of_commands
from factories import Run
from fakes import INVENTED_PROCESSOR
from waiting import HANG_S, wait_for

PROGRAM = """
import json, os, signal, sys, time
threads, tile = int(os.environ["THREADS"]), int(sys.argv[1])
if os.environ.get("LOG"):
    print(threads, tile, file=open(os.environ["LOG"], "a"))
how = os.environ.get("HOW", "")
if how == "fail":
    sys.exit("no such device")
if how == "crash":
    os.abort()
if how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "hang":
    signal.pause()
if how == "end autotune" and len(open(os.environ["LOG"]).readlines()) == 6:
    os.kill(os.getppid(), signal.SIGKILL)
speed = 100 - 3 * abs(threads - 4) - abs(tile - 32)
print("loading the model ...")
print(json.dumps([{"name": "a"}, {"speed": float("nan") if how == "nan" else speed}], indent=1))
print(f"last: {speed / 2} us, then {speed} us")
print("result: wrong" if (threads, tile) == (4, 32) else "result: right")
"""
FILE = """
name = "program"
sizes = { n = 10 }
parameters = { THREADS = [1, 2, 4, 8], TILE = [8, 16, 32, 64] }
default = { TILE = 16 }
[command]
run = ["PYTHON", "-S", "program.py", "{TILE}", "size {n} {{braces}}"]
environment = { THREADS = "{THREADS}" }
expect = "result: right"
[metric]
json = "[1].speed"
better = "higher"
unit = "tokens/s"
""".replace("PYTHON", sys.executable)


@pytest.fixture
def folder(tmp_path: Path, fresh_families: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the program, of which one run is enough for a trial."""
    monkeypatch.setenv(FILES, "")
    monkeypatch.setattr(worker, "LONG_S", 0.0)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def family_of(folder: Path, text: str = FILE) -> CommandFamily:
    (folder / "program.toml").write_text(text)
    family = use_file(folder / "program.toml")
    assert isinstance(family, CommandFamily)
    return family


def measured(family: CommandFamily, configuration: Any = None, **changes: Any) -> Trial:
    job = Job(
        selector="", problem=family.requests[0].problem, configuration=configuration or family.usual,
        **{"samples": 1, "verify": True, "run_limit_s": family.file.command.limit_s, **changes},
    )  # fmt: skip
    with CommandWorker(family) as one:
        return one.run(job)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('run = ["PYTHON"', 'ran = ["PYTHON"', "unknown member 'ran'.*run"),
        ("{TILE}", "{TILES}", r"line 7: command.run: '\{TILES\}' uses TILES.*did you mean TILE"),
        ("{TILE}", "{TILE!r}", "braces stand for names"),
        ('"{TILE}"', '"16"', "line 4: parameters.TILE: has no effect"),
        ("[1].speed", 'x"\npattern = "(a)', "metric: has both pattern and json"),
        ('json = "[1].speed"', 'pattern = "a(b"', "not a regular expression"),
        ('json = "[1].speed"', 'pattern = "ab"', "needs one group"),
        ('json = "[1].speed"', "", "how long a command runs is better lower"),
        ('better = "higher"', 'better = "more"', "must be higher or lower"),
        ('better = "higher"', "", "a time is in s, ms, us, ns, not 'tokens/s'"),
        ("[command]", '[command]\nfiles = { "a.h" = "a.h.j2" }', "there is no template .*a.h.j2"),
        ("sizes =", "size =", "size: is not a key of a command file.*sizes"),
        ("sizes = { n = 10 }", "sizes = {}", "needs at least one size"),
        ("default = { TILE = 16 }", "default = { TILE = 17 }", "17 is not among"),
        ("[command]", "[command]\nlimit_s = 0", "limit_s: must be"),
    ],
)  # fmt: skip
def test_errors_name_file_line_and_key(folder: Path, before: str, after: str, message: str) -> None:
    text = FILE.replace(sys.executable, "PYTHON")
    assert before in text
    with pytest.raises(UsageError, match=message) as raised:
        family_of(folder, text.replace(before, after, 1))
    assert "program.toml" in str(raised.value)


@pytest.mark.parametrize(
    ("metric", "time_ns", "rate"),
    [
        ('json = "[1].speed"\nbetter = "higher"\nunit = "tokens/s"', 1e9 / 75, "75 tokens/s"),
        ("pattern = '([0-9.]+) us'\nunit = \"us\"", 75e3, "75 us"),
        ("pattern = 'last: ([0-9.]+)'", 37.5e9, "37.5 s"),
    ],
)
def test_the_number_is_read_from_the_output(folder: Path, metric: str, time_ns: float, rate: str) -> None:
    family = family_of(folder, FILE[: FILE.index("[metric]")] + "[metric]\n" + metric)
    trial = measured(family)
    assert trial.state is TrialState.COMPLETE and trial.time_ns == pytest.approx(time_ns)
    assert trial.measurement and trial.measurement.samples_ns == (trial.time_ns,)
    assert family.requests[0].problem.rate_text(trial.time_ns) == rate


def test_without_a_number_the_time_of_the_command_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(0, 1000, 7))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(moments)))
    family = family_of(folder, FILE[: FILE.index("[metric]")])
    assert measured(family).time_ns == 14e9, "the clock is asked once between: how much time is left"


@pytest.mark.parametrize(
    ("how", "state", "message"),
    [
        ("fail", TrialState.LAUNCH_FAILED, "run: .* ended with exit status 1. no such device"),
        ("nan", TrialState.LAUNCH_FAILED, "nan is not a number that can be improved"),
        ("crash", TrialState.CRASHED, "killed by SIGABRT"),
        ("killed", TrialState.CUT_SHORT, "killed by SIGKILL"),
    ],
)
def test_a_command_that_fails_ends_the_trial(
    folder: Path, monkeypatch: pytest.MonkeyPatch, how: str, state: TrialState, message: str
) -> None:
    monkeypatch.setenv("HOW", how)
    trial = measured(family_of(folder))
    assert trial.state is state and re.search(message, trial.message), trial


@pytest.mark.parametrize(
    ("limit_s", "is_busy", "is_cut_off", "state"),
    [
        (0.2, False, False, TrialState.TIMED_OUT),
        (0.2, True, False, TrialState.CUT_SHORT),
        (0.2, False, True, TrialState.TIMED_OUT),
        (600.0, False, False, TrialState.CUT_SHORT),
        (600.0, False, True, TrialState.TOO_SLOW),
    ],
)
def test_a_command_that_hangs_is_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limit_s: float, is_busy: bool, is_cut_off: bool, state: TrialState
) -> None:
    monkeypatch.setenv("HOW", "hang")
    monkeypatch.setattr(worker, "is_busy", lambda: is_busy)
    family = family_of(folder, FILE.replace("[command]", f"[command]\nlimit_s = {limit_s}"))
    trial = measured(family, run_limit_s=0.2 if limit_s == 600.0 else 600.0, is_cut_off=is_cut_off)
    assert trial.state is state and re.search(r"took more than 0\.\d+ s", trial.message)


def test_a_program_that_cannot_be_started_ends_the_search(folder: Path) -> None:
    with pytest.raises(WorkerError, match=r"cannot run \./nowhere in"):
        measured(family_of(folder, FILE.replace(sys.executable, "./nowhere")))


def test_output_that_is_not_as_expected_is_a_wrong_result(folder: Path) -> None:
    family = family_of(folder)
    wrong = type(family.usual).of("program", THREADS=4, TILE=32)
    trial = measured(family, wrong)
    assert trial.state is TrialState.WRONG_RESULT and "lacks 'result: right'" in trial.message


def test_a_check_is_run_as_often_as_the_winner_is_verified(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOG", str(folder / "log"))
    check = f'[command]\ncheck = ["{sys.executable}", "program.py", "7"]'
    family = family_of(folder, FILE.replace("[command]", check))
    assert measured(family, verifications=3).state is TrialState.COMPLETE
    assert (folder / "log").read_text().splitlines() == ["1 7", "1 7", "1 7", "1 16"]
    fails = check.replace("program.py", "nothing.py")
    assert measured(family_of(folder, FILE.replace("[command]", fails))).state is TrialState.WRONG_RESULT
    (folder / "log").unlink()
    assert measured(family_of(folder), verifications=3).state is TrialState.COMPLETE
    assert len((folder / "log").read_text().splitlines()) == 3, "without a check, every output is looked at"


BUILT = FILE.replace(
    "[command]",
    f"""[command]
files = {{ "tile.py" = "tile.py.j2" }}
build = ["{sys.executable}", "-c", "import tile; open('built', 'a').write(str(tile.TILE) + ' ')"]""",
).replace('"{TILE}", ', '"16", ')


def test_files_are_written_built_once_and_given_back(folder: Path) -> None:
    (folder / "tile.py.j2").write_text("TILE = {{ TILE }}\n{% if TILE > 16 %}LARGE = {{ n }}\n{% endif %}")
    (folder / "tile.py").write_text("TILE = 0  # as it was\n")
    family = family_of(folder, BUILT)
    problem, of = family.requests[0].problem, type(family.usual).of
    with CommandWorker(family) as one:
        for threads, tile in ((1, 16), (2, 16), (1, 64), (1, 16)):
            trial = one.run(
                Job(selector="", problem=problem, configuration=of("program", THREADS=threads, TILE=tile), samples=1)
            )
            assert trial.state is TrialState.COMPLETE, trial
            assert f"TILE = {tile}\n" in (folder / "tile.py").read_text()
    assert (folder / "built").read_text() == "16 64 16 ", "what needs no other build is not built again"
    assert [path.name for path in folder.glob(f"*{BEFORE}")] == []
    assert (folder / "tile.py").read_text() == "TILE = 0  # as it was\n"
    assert family.use(problem, of("program", THREADS=2, TILE=64)).splitlines()[1:] == [
        "--- a/tile.py", "+++ b/tile.py", "@@ -1 +1,2 @@", "-TILE = 16", "+TILE = 64", "+LARGE = 10",
    ]  # fmt: skip
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    (folder / "tile.py.j2").write_text("TILE = {{ TILE }} +\n")
    trial = measured(family_of(folder, BUILT))
    assert trial.state is TrialState.COMPILE_FAILED and "exit status 1" in trial.message


def test_what_is_tuned_is_better_right_kept_and_shown(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOG", str(folder / "log"))
    family_of(folder)
    path, database = str(folder / "program.toml"), str(folder / "tuned.sqlite")
    command = ["tune", path, "--device", "adreno-730", "--trials", "16", "--db", database]
    printed = run(command)
    assert "94 tokens/s" in printed.out
    best = f"THREADS=2 {sys.executable} -S program.py 32 'size 10 {{braces}}'"
    show = ["show", "--device", "adreno-730", "--family", path, "10", "--db", database]
    assert f"10: {best}" in printed.out, "what is fastest is wrong"
    count = len((folder / "log").read_text().splitlines())
    again = json.loads(run([*command, "--json", "--quiet"]).out)["outcomes"][0]
    assert again["new_trials"] == 0 and again["winner"]["configuration"]["THREADS"] == 2
    assert len((folder / "log").read_text().splitlines()) == count, "what was measured is not run again"
    assert run(show).out.splitlines() == ["# 10 was measured on adreno-730", best]
    assert json.loads(run([*show, "--json"]).out)["use"] == best
    assert "| 94 tokens/s" in run(["export", "--format", "markdown", "--db", database]).out


@pytest.mark.long
def test_a_winner_is_verified_by_its_command(folder: Path, run: Run) -> None:
    family_of(folder)
    where = ["--device", "adreno-730", "--db", str(folder / "tuned.sqlite")]
    command = ["tune", str(folder / "program.toml"), *where, "--trials", "16", "--json"]
    [before] = json.loads(run(command).out)["outcomes"]
    [checked] = json.loads(run(["verify", "--family", str(folder / "program.toml"), *where, "--json"]).out)
    assert checked["result"] == "still holds" and checked["after"]["configuration"] == before["winner"]["configuration"]
    [after] = json.loads(run(command).out)["outcomes"]
    assert after["new_trials"] == 0 and after["winner"]["configuration"] == before["winner"]["configuration"]


def test_what_needs_kernels_refuses_commands(folder: Path, run: Run, pocl: Device) -> None:
    family_of(folder)
    path = str(folder / "program.toml")
    for command in (
        ["compile", "--device", pocl.slug, "--family", path, "--shape", "10"],
        [
            "bundle",
            "--device",
            "adreno-730",
            "--family",
            path,
            "--shape",
            "10",
            "--budget",
            "5m",
            "-o",
            str(folder / "job.zip"),
        ],
    ):
        assert "program is a command, not a kernel" in run(command, 2).err
    assert "describes a command, not a kernel" in run(["check", path], 2).err
    requests = [Request(problem=find_family("program").problem_type.parse("10")), *preset("resnet50")]
    with pytest.raises(UsageError, match="program is a command, which is tuned by itself"):
        worker_of_commands(requests)


def test_nothing_follows_the_end(folder: Path) -> None:
    (folder / "tile.py.j2").write_text("TILE = {{ TILE }}\n")
    (folder / "tile.py").write_text("TILE = 0\n")
    family = family_of(folder, BUILT)
    job = Job(selector="", problem=family.requests[0].problem, configuration=family.usual)
    ended = CommandWorker(family)
    ended.close()
    trial = ended.run(job)
    assert (trial.state, trial.message) == (TrialState.CUT_SHORT, "the search has ended")
    assert (folder / "tile.py").read_text() == "TILE = 0\n" and not (folder / "built").exists()


def test_what_runs_is_ended_from_another_thread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOW", "hang")
    monkeypatch.setenv("LOG", str(folder / "log"))
    family = family_of(folder)
    job = Job(selector="", problem=family.requests[0].problem, configuration=family.usual, run_limit_s=HANG_S)
    with ThreadPoolExecutor(1) as pool, CommandWorker(family) as one:
        pending = pool.submit(one.run, job)
        wait_for((folder / "log").exists)
        one.close()
        assert pending.result(HANG_S).state is TrialState.CUT_SHORT


def test_a_killed_run_leaves_files_for_the_next_to_give_back(folder: Path) -> None:
    (folder / "tile.py.j2").write_text("TILE = {{ TILE }}\n")
    (folder / "tile.py").write_text("TILE = 0\n")
    family = family_of(folder, BUILT)
    job = Job(selector="", problem=family.requests[0].problem, configuration=family.usual, samples=1)
    assert CommandWorker(family).run(job).state is TrialState.COMPLETE
    assert (folder / "tile.py").read_text() == "TILE = 16\n", "it was not closed"
    with CommandWorker(family) as one:
        assert one.run(job).state is TrialState.COMPLETE
    assert (folder / "tile.py").read_text() == "TILE = 0\n"
    assert sorted(path.name for path in folder.glob("tile.py*")) == ["tile.py", "tile.py.j2"]


def test_a_build_beyond_its_limit_is_cut_short(folder: Path) -> None:
    slow = BUILT.replace("import tile; ", "import time; time.sleep(600); ")
    (folder / "tile.py.j2").write_text("TILE = {{ TILE }}\n")
    trial = measured(family_of(folder, slow), build_limit_s=0.1)
    assert trial.state is TrialState.CUT_SHORT and "build: " in trial.message
    assert not (folder / "tile.py").exists(), "there was none before"


def test_templates_are_read_as_they_are(folder: Path) -> None:
    text = '#define TILE {{ TILE }}\nR"(\n{% raw %}{{1, 2}}{% endraw %}\n)"\n'
    (folder / "tile.py.j2").write_text(text)
    family = family_of(folder, BUILT)
    values = family.values_of(family.requests[0].problem, family.usual)
    assert family.files(values) == {"tile.py": '#define TILE 16\nR"(\n{{1, 2}})"\n'}
    (folder / "tile.py.j2").write_text("#define TILE {{ TILE }}\n{{1, 2}, {3, 4}}\n")
    with pytest.raises(UsageError, match=r"program\.toml: template of"):
        family_of(folder, BUILT)


def test_how_to_run_a_winner_names_folder_and_build(folder: Path) -> None:
    (folder / "sub").mkdir()
    text = FILE.replace("[command]", '[command]\nfolder = "sub"\nbuild = ["make", "TILE={TILE}"]')
    family = family_of(folder, text)
    used = family.use(family.requests[0].problem, family.usual)
    assert used.startswith(f"cd sub && make TILE=16 && THREADS=1 {sys.executable} -S program.py 16")


@pytest.mark.long
def test_a_killed_search_loses_the_trial_in_flight_alone(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOG", str(folder / "log"))
    family_of(folder)
    database = str(folder / "tuned.sqlite")
    command = ["tune", str(folder / "program.toml"), "--device", "adreno-730", "--trials", "16", "--db", database]
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *command],
        env={**os.environ, "HOW": "end autotune"}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    before = (folder / "log").read_text().splitlines()
    again = run([*command, "--json"])
    assert "quarantined: 1 kernel that was running when an earlier run was killed" in again.err
    [outcome] = json.loads(again.out)["outcomes"]
    assert outcome["resumed_trials"] == len(set(before)) - 1 and outcome["winner"]["configuration"]["THREADS"] == 2
    after = (folder / "log").read_text().splitlines()[len(before) :]
    assert before[-1] not in after, "what was running is not run again"
    assert set(before) | set(after) == {f"{threads} {tile}" for threads in (1, 2, 4, 8) for tile in (8, 16, 32, 64)}


def test_other_commands_make_other_trials(folder: Path) -> None:
    from autotune.kernels.render import template_hash

    hashes = {
        template_hash(family_of(folder, text), "program")
        for text in (FILE, FILE.replace("{TILE}", "-t {TILE}"), FILE.replace("higher", "lower").replace("tokens/", ""))
    }
    assert len(hashes) == 3


def test_ready_files_can_be_copied_and_read(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(FILES, "")
    names = run(["init", "--for", "list"]).out.split()
    assert names == sorted(path.stem for path in READY.glob("*.toml")) and len(names) == 5
    for name in names:
        run(["init", "--for", name])
        if name == "test-backend-ops":
            with pytest.raises(UsageError, match="there is no template"):
                read_command_file(tmp_path / f"{name}.toml")
            (tmp_path / "constants.h.j2").write_text("{{ ROWS }} {{ SUB_GROUPS }}")
        family = use_file(tmp_path / f"{name}.toml")
        assert not family.violations(family.requests[0].problem, family.usual, INVENTED_PROCESSOR.limits)
        assert isinstance(family, CommandFamily) and family.use(family.requests[0].problem, family.usual)
    assert "exists and was left" in run(["init", "--for", "mnn"], 2).err
    assert "there are clblast, llama-bench" in run(["init", "--for", "tvm"], 2).err
    os.environ[FILES] = ""
    find_family.cache_clear()
