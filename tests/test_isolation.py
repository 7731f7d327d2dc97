"""A test that takes its process along is one failed test: those before and after it are as if it had not been there."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
CONFTEST = """
import pytest
from isolation import fail_missing_tools, install

def pytest_configure(config):
    install(config)

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return fail_missing_tools((yield))

@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return fail_missing_tools((yield))

@pytest.fixture(scope="module")
def process():
    import os
    return os.getpid()
"""
EVIL = """
import ctypes, os, sys, time
import pytest

def test_before(process):
    assert process == os.getpid() != int(os.environ["PARENT"])

def test_aborts(process):
    print("the driver says so", file=sys.stderr, flush=True)
    os.write(2, b"LLVM ERROR: Cannot select\\n")
    os.abort()

def test_after(process, tmp_path):
    assert process == os.getpid()

def test_reads_nowhere():
    ctypes.string_at(8)

def test_exits():
    os._exit(3)

@pytest.mark.limit(1)
def test_hangs_for_ever():
    time.sleep(1000)

@pytest.mark.parametrize("text", ["a::b[c]", "\\u00e9 \\n"])
def test_fails_as_ever(text):
    print("said in Python")
    os.system("echo said by a child")
    assert text == "other", "compared"
"""


def run(folder: Path, *options: str, evil: str = EVIL, **environment: str) -> str:
    (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (folder / "test_evil.py").write_text(evil, encoding="utf-8")
    starter = "import os, sys, pytest; os.environ['PARENT'] = str(os.getpid()); sys.exit(pytest.main(sys.argv[1:]))"
    command = [
        sys.executable,
        "-c",
        starter,
        "--rootdir",
        ".",
        "-c",
        os.devnull,
        "--color=no",
        "-p",
        "no:cacheprovider",
    ]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV", "CI"))}
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *options, "test_evil.py"],
        cwd=folder, capture_output=True, text=True, timeout=100,
        env={**inherited, "PYTHONPATH": str(TESTS), **environment},
    )  # fmt: skip
    return done.stdout + done.stderr


def test_a_crash_and_a_hang_are_failed_tests_with_their_last_words(tmp_path: Path) -> None:
    told = run(tmp_path)
    assert "6 failed, 2 passed" in told
    assert "the test ended its process by SIGABRT" in told and "LLVM ERROR: Cannot select" in told
    assert "the test ended its process by SIGSEGV" in told and "in string_at" in told, "where it was"
    assert "the test ended its process with exit status 3" in told
    assert "the test took more than 1 s" in told and "in test_hangs_for_ever" in told, "where it was"
    for words in ("E       AssertionError: compared\n", "\nsaid in Python\n", "\nsaid by a child\n"):
        assert told.count(words) == 2


def test_workers_of_xdist_survive_too(tmp_path: Path) -> None:
    told = run(tmp_path, "--numprocesses", "2")
    assert "6 failed, 2 passed" in told and "crashed while running" not in told


SKIPS = """
import pytest

def test_needs_a_tool():
    pytest.skip("no hammer here: apt install hammer")

def test_needs_a_device():
    pytest.skip("not covered: this device orders nothing")
"""


def test_where_everything_is_installed_a_missing_tool_is_a_failure(tmp_path: Path) -> None:
    assert "2 skipped" in run(tmp_path, evil=SKIPS)
    told = run(tmp_path, evil=SKIPS, CI="true")
    assert "1 failed, 1 skipped" in told and "no hammer here: apt install hammer" in told


def test_so_is_one_that_a_whole_module_needs(tmp_path: Path) -> None:
    module = 'import pytest\npytest.importorskip("no_such_package")\n'
    assert "1 skipped" in run(tmp_path, evil=module)
    assert "1 error" in run(tmp_path, evil=module, CI="true")


TRACED = """
import os, sys, threading
import pytest

def nothing(*_):
    return None

os.environ["COVERAGE_PROCESS_CONFIG"] = "of a test"
sys.settrace(nothing)
threading.settrace(nothing)

@pytest.fixture(params=["sqlite", "postgresql"])
def place(request):
    return request.param

def is_traced():
    here = [sys.gettrace(), threading.gettrace(), os.environ.get("COVERAGE_PROCESS_CONFIG")]
    assert all(here) or not any(here)
    return all(here)

@pytest.mark.parametrize(("number", "other"), [(1, 1), (2, 2), (3, 3)])
@pytest.mark.parametrize("third", [1, 2])
def test_arguments(place, number, other, third):
    assert is_traced() == (number == third == 1), place

@pytest.mark.parametrize("number", [1, 2])
def test_other_arguments(number):
    assert is_traced() == (number == 1)

def test_without_arguments():
    assert is_traced()
"""


def test_only_the_first_arguments_of_a_test_are_traced_and_every_parameter_of_a_fixture(tmp_path: Path) -> None:
    assert "15 passed" in run(tmp_path, evil=TRACED)
