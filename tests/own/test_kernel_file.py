"""Kernel files: a TOML file that describes a kernel of the user's, as every command sees it."""

import itertools
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import time
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import autotune
from autotune.cli import main
from autotune.display.words import remedy_text
from autotune.errors import BuildError, ConfigurationError, ProblemError, UsageError
from autotune.export.choices import write_choices, write_defines
from autotune.export.contents import DeviceTable
from autotune.kernels import FILES, families_of_files, find_family
from autotune.kernels.render import names_read, render
from autotune.lookup import TuningTable
from autotune.lookup.contents import entries_of
from autotune.lookup.legality import Legality
from autotune.measure.worker import Worker
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.problem import ELEMENT_TYPES
from autotune.model.trial import Job, Request, Trial, TrialState
from autotune.own import tuning
from autotune.own.kernel_file.draft import draft
from autotune.own.kernel_file.family import FileFamily
from autotune.own.kernel_file.reading import read_kernel_file
from autotune.own.kernel_file.unused_kernels import without_unused
from autotune.own.tuning import use_kernel_file
from autotune.propose.acquisition import Observations
from autotune.propose.explorer import Explorer
from autotune.propose.prior import UsualWorkGroup
from autotune.propose.proposer import ModelProposer
from autotune.search import Budget, tune
from autotune.space.expression import Expression
from autotune.space.family import Constraint
from autotune.space.search_space import SearchSpace
from autotune.store import Store
from fakes import INVENTED_PROCESSOR, FakeWorker
from kernel_files import measured_afresh

SOURCE = """\
#define PER_ITEM 1
// doubles {{ not a template }} {% for %}
kernel void scale(global const float *x, global float *y, float factor, int n) {
    for (int i = 0; i < PER_ITEM; i++) {
        const int at = get_global_id(0) + i * get_global_size(0);
        if (at < n) y[at] = factor * x[at];
    }
}
kernel void plain(global const float *x, global float *y, float factor, int n) {
    y[get_global_id(0)] = factor * x[get_global_id(0)];
}
"""
FILE = """\
name = "scale"
source = "scale.cl"
sizes = { n = 1000 }
check = [{ n = 1 }, { n = 37 }]
global_size = "round_up(ceil_div(n, PER_ITEM), GROUP)"
local_size = "GROUP"
parameters = { PER_ITEM = [1, 2, 4], GROUP = [16, 32, 64] }
default = { GROUP = 32 }
constraints = { some_work = "PER_ITEM <= n" }
work = { flops = "n", bytes = "8 * n" }
reference = { kernel = "plain", global_size = "n" }

[arguments]
x = { buffer = "float32", size = "n" }
y = { buffer = "float32", size = "n", access = "out" }
factor = { scalar = "float32", value = 2.5 }
n = { scalar = "int32", value = "n" }
"""


@pytest.fixture
def folder(tmp_path: Path, fresh_families: None) -> Path:
    """A folder with the source."""
    (tmp_path / "scale.cl").write_text(SOURCE)
    return tmp_path


def family_of(folder: Path, text: str = FILE) -> FileFamily:
    (folder / "scale.toml").write_text(text)
    return use_kernel_file(folder / "scale.toml")


def trial_of(device: Device, family: FileFamily, shape: str, configuration: Configuration | None = None) -> Trial:
    problem = family.problem_type.parse(shape)
    return measured_afresh(device, problem, configuration or family.usual)


def test_a_file_is_a_family(folder: Path) -> None:
    family = family_of(folder)
    assert find_family("scale") is family
    problem = family.problem_type.parse("1000")
    assert problem == family.problem_type.parse("n=1000") == family.requests[0].problem
    assert (problem.label, problem.flops, problem.bytes_moved) == ("1000", 1000, 8000)
    assert family.problem_type.from_dict(json.loads(problem.key)) == problem
    plan = family.plan(problem, Configuration.of("scale", PER_ITEM=4, GROUP=16))
    assert [(launch.kernel, launch.global_size, launch.local_size) for launch in plan.launches] == [
        ("scale", (256,), (16,))
    ]
    assert [problem.size_vector for problem in family.examples()] == [(1,), (37,), (1000,)]


def next_groups(space: SearchSpace) -> list[int]:
    """Return the work-groups that are proposed after four trials with 128 work-items, by seed."""
    times = {1: 5.0, 4: 5.4, 9: 5.2, 16: 5.3}
    rows = {space.row_of(Configuration.of("scale", PER_ITEM=each, GROUP=128)): time for each, time in times.items()}
    known = Observations(log_times={row: time for row, time in rows.items() if row is not None})
    proposed = [Explorer(space, seed).propose(known) for seed in range(12)]
    return [space[row].number("GROUP") for row in proposed if row is not None]


def test_work_groups_of_a_usual_size_are_tried_first_unless_others_are_faster(folder: Path) -> None:
    text = FILE.replace("[16, 32, 64]", f"{[2**n for n in range(11)]}").replace("[1, 2, 4]", f"{[*range(1, 17)]}")
    family = family_of(folder, text)
    problem, limits = family.problem_type.parse("4096"), DeviceLimits(max_work_group_size=1024)
    gpu = SearchSpace(family, problem, limits)
    usual = UsualWorkGroup(gpu).of(np.arange(len(gpu)))
    groups = np.array([configuration.number("GROUP") for configuration in gpu])
    assert set(groups[usual < 0.06]) == {128, 256} and usual[groups == 8].min() > usual[groups == 32].max() > 0.1

    processor = SearchSpace(family, problem, replace(limits, is_cpu=True))
    on_gpu, on_processor = (
        statistics.mean(abs(math.log2(group) - 7.25) for group in next_groups(space)) for space in (gpu, processor)
    )
    assert on_gpu < 0.6 * on_processor

    proposer = ModelProposer(gpu, seed=0)
    found: list[int] = []
    while len(found) < 24 and (row := proposer.ask()) is not None:
        found.append(gpu[row].number("GROUP"))
        proposer.tell(row, 1000.0 * 1.3 ** math.log2(found[-1]))
    assert statistics.median(found[12:]) <= 4, "measurements overrule what is usual"


def test_only_work_groups_that_parameters_decide_have_a_usual_size(folder: Path) -> None:
    for local_size in ('local_size = "32"', ""):
        text = FILE.replace('local_size = "GROUP"', local_size).replace('"round_up(', '"32 * round_up(')
        [algorithm] = family_of(folder, text).algorithms
        assert algorithm.work_items is None


def test_a_byte_order_mark_is_no_fault(folder: Path) -> None:
    """Editors on Windows write one."""
    assert family_of(folder, f"\ufeff{FILE}").name == family_of(folder, FILE).name


def test_sources_of_windows_editors_are_built(folder: Path, pocl: Device) -> None:
    (folder / "scale.cl").write_bytes(f"\ufeff{SOURCE}".replace("\n", "\r\n").encode())
    trial = trial_of(pocl, family_of(folder, FILE.replace("\n", "\r\n")), "37")
    assert trial.state is TrialState.COMPLETE, trial.message


def test_what_a_compiler_says_is_told_once_and_the_same_each_time(folder: Path, pocl: Device) -> None:
    (folder / "scale.cl").write_text(SOURCE.replace("y[at]", "z[at]"))
    trial = trial_of(pocl, family_of(folder), "37")
    assert trial.message.startswith("clBuildProgram failed: BUILD_PROGRAM_FAILURE: ")
    assert "use of undeclared identifier 'z'" in trial.message
    assert trial.message.count("BUILD_PROGRAM_FAILURE") == 1 and "0x" not in trial.message


def test_a_kernel_that_writes_nothing_is_not_right_even_if_it_is_the_reference(folder: Path, pocl: Device) -> None:
    text = FILE.replace('value = "n" }', "value = -5 }").replace(f"reference = {{ {RIGHT} }}\n", "")
    trial = trial_of(pocl, family_of(folder, text), "37")
    assert trial.state is TrialState.WRONG_RESULT and "y is never written" in trial.message


INTEGERS = re.sub(r"reference = .*\n", "", FILE.replace('"float32", size', '"int32", size'))


@pytest.mark.parametrize(
    ("before", "after", "state", "message"),
    [
        ("y[at] = factor * x[at]", "y[at] += x[at]", TrialState.LAUNCH_FAILED, "y depends on what was in it before"),
        ("if (at < n)", "if (at < n - 99)", TrialState.WRONG_RESULT, "y is never written, unless access = 'inout'"),
        ("if (at < n)", "if (at > 9 && at < n)", TrialState.COMPLETE, "0.27 of the elements of y are never written"),
        ("factor * x[at]", "at % 2 ? INT_MAX : INT_MIN", TrialState.COMPLETE, ""),
    ],
)
def test_outputs_of_integers_that_keep_what_was_there_are_found_without_a_reference(
    folder: Path, pocl: Device, before: str, after: str, state: TrialState, message: str
) -> None:
    source = SOURCE.replace("global const float", "global const int").replace("global float", "global int")
    (folder / "scale.cl").write_text(source.replace(before, after))
    trial = trial_of(pocl, family_of(folder, INTEGERS), "37")
    assert trial.state is state and message in trial.message, trial.message
    assert trial.message or not message


@pytest.mark.long
def test_a_winner_must_be_right_at_the_sizes_of_check(folder: Path, pocl: Device) -> None:
    (folder / "scale.cl").write_text(SOURCE.replace("if (at < n)", "if (at < n && (PER_ITEM < 4 || n % 2 == 0))"))
    family = family_of(folder)
    four = Configuration.of("scale", PER_ITEM=4, GROUP=32)
    job = Job(selector=pocl.selector, problem=family.problem_type.parse("1000"), configuration=four, samples=1)
    with Worker(selector=pocl.selector) as worker:
        assert worker.run(job).state is TrialState.COMPLETE, "right at this size"
        at_stake = replace(job, verifications=2)
        trial = worker.run(at_stake)
        assert trial.state is TrialState.WRONG_RESULT and trial.measurement is None
        assert trial.message.startswith("at 37: the error is inf"), "n=1 has no such configuration"
        assert worker.run(replace(at_stake, configuration=family.usual)).state is TrialState.COMPLETE


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('some_work = "PER_ITEM <= n"', 'whole = "n % GROUP == 0 or PER_ITEM > 1"'),
        ('size = "n" }\ny', 'size = "n", fill = "file", file = "x.npy" }\ny'),
    ],
    ids=["default-does-not-suit", "other-contents"],
)
def test_a_size_of_check_at_which_nothing_can_be_judged_is_no_fault_of_a_winner(
    folder: Path, pocl: Device, before: str, after: str
) -> None:
    np.save(folder / "x.npy", np.ones(960, np.float32))
    text = re.sub(r"reference = .*\n", "", FILE).replace(before, after)
    assert after in text
    family = family_of(folder, text)
    two = Configuration.of("scale", PER_ITEM=2, GROUP=32)
    job = Job(selector=pocl.selector, problem=family.problem_type.parse("960"), configuration=two, verifications=2)
    with Worker(selector=pocl.selector) as worker:
        assert worker.run(job).state is TrialState.COMPLETE


@pytest.mark.long
def test_a_kernel_whose_results_are_no_numbers_is_not_right_because_they_always_are(folder: Path, pocl: Device) -> None:
    (folder / "scale.cl").write_text(SOURCE.replace("factor *", "NAN *"))
    for text in (FILE, FILE.replace(f"reference = {{ {RIGHT} }}\n", "")):
        trial = trial_of(pocl, family_of(folder, text), "40")
        assert trial.state is TrialState.WRONG_RESULT and "1 of the elements of y are NaN" in trial.message
    (folder / "scale.cl").write_text(SOURCE.replace("factor *", "(get_global_id(0) < 10 ? NAN : 1) *"))
    trial = trial_of(pocl, family_of(folder), "40")
    assert trial.state is TrialState.COMPLETE and "0.25 of the elements of y are NaN" in trial.message


def test_a_result_that_is_infinite_everywhere_is_right_where_the_reference_says_so(folder: Path, pocl: Device) -> None:
    """The smallest of nothing, for one: outputs hold infinities before a call, too."""
    (folder / "right.py").write_text("import numpy as np\ndef right(y): return np.full(len(y), np.inf)\n")
    text = FILE.replace(RIGHT, 'python = "right.py:right"')
    family = family_of(folder, text)
    problem = family.problem_type.parse("37")
    for seed in range(2):
        case = family.make_case(problem, seed)
        infinite = np.full(37, np.inf, np.float32)
        assert case.error_ratio({"y": infinite}) == 0 and not case.remark
        infinite[5] = -np.inf
        assert case.error_ratio({"y": infinite}) == np.inf
    unwritten = family.make_case(problem, 1)
    assert unwritten.error_ratio(unwritten.inputs) == np.inf and unwritten.remark.startswith("y is never written")
    (folder / "scale.cl").write_text(SOURCE.replace("factor * x[at]", "INFINITY"))
    trial = trial_of(pocl, family_of(folder, text), "37")
    assert trial.state is TrialState.COMPLETE, trial.message


@pytest.mark.parametrize("valid", ["", ', valid = "index % 2 == 1"'])
def test_of_a_wrong_result_the_first_wrong_element_is_told(folder: Path, valid: str) -> None:
    (folder / "right.py").write_text("import numpy as np\ndef right(y): return np.arange(len(y)) / 4\n")
    text = FILE.replace(RIGHT, 'python = "right.py:right"').replace('"out"', f'"out"{valid}')
    family = family_of(folder, text)
    case = family.make_case(family.problem_type.parse("40"), 0)
    found = np.arange(40, dtype=np.float32) / 4
    found[9] += 1
    found[15] = np.nan
    assert case.error_ratio({"y": found}) == np.inf
    share = "0.1" if valid else "0.05"
    assert case.remark == f"{share} of the elements of y are wrong, the first is y[9]: 3.25 instead of 2.25"
    assert case.error_ratio({"y": np.arange(40, dtype=np.float32) / 4}) == 0 and not case.remark


def test_a_number_that_its_type_does_not_hold_is_told(folder: Path, pocl: Device) -> None:
    trial = trial_of(pocl, family_of(folder, FILE.replace('value = "n"', 'value = "n * 100000000"')), "37")
    assert trial.state is TrialState.LAUNCH_FAILED
    assert "a scalar argument would be 3700000000, which int32 does not hold" in trial.message


@pytest.mark.long
def test_check_doubts_elements_of_another_size_than_the_kernel_declares(
    folder: Path, pocl: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    family_of(folder, FILE.replace(X, X.replace("float32", "float64")))
    main(["check", str(folder / "scale.toml"), "--device", pocl.selector, "--small", "--no-simulator"])
    assert "scale takes global const float *x, and is given elements of float64" in capsys.readouterr().err
    family_of(folder)
    main(["check", str(folder / "scale.toml"), "--device", pocl.selector, "--small", "--no-simulator"])
    assert "is given elements" not in capsys.readouterr().err


@pytest.mark.long
def test_check_says_what_a_refusal_may_mean_and_that_an_output_may_keep_elements(
    folder: Path, pocl: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["check", str(folder / "scale.toml"), "--device", pocl.selector, "--small", "--no-simulator"]
    family_of(folder)
    source = (folder / "scale.cl").read_text()
    (folder / "scale.cl").write_text(source.replace("if (at < n)", "if (at > 0 && at < n)"))
    assert main(command) == 1
    assert "are never written: is global_size too small, or access = 'inout' meant" in capsys.readouterr().out
    if not pocl.limits.has_sub_groups:
        (folder / "scale.cl").write_text(source.replace("if (at < n)", "if (get_sub_group_id() + at < n)"))
        assert main(command) == 1
        assert "has the device sub-groups, as autotune devices tells?" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("word", ["RESTRICT", "__restrict__", "__restrict", "restrict", "const MINE"])
def test_words_after_the_star_hide_no_type(
    folder: Path, pocl: Device, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    defines = "#define RESTRICT restrict\n#define MINE\n"
    (folder / "scale.cl").write_text(defines + SOURCE.replace("*x", f"* {word} x").replace("*y", f"*{word} y"))
    text = draft(folder / "scale.cl")
    assert 'x = { buffer = "float32", size = "n" }\n' in text
    assert 'y = { buffer = "float32", size = "n", access = "out" }\n' in text
    family_of(folder, FILE.replace(X, X.replace("float32", "float64")))
    main(["check", str(folder / "scale.toml"), "--device", pocl.selector, "--small", "--no-simulator"])
    assert f"scale takes global const float * {word} x, and is given elements of float64" in capsys.readouterr().err
    with pytest.raises(UsageError, match=re.escape(f"scale takes a buffer (global const float * {word} x)")):
        family_of(folder, FILE.replace(X, 'x = { image = "float32", size = "n, 1" }'))


def test_configurations_without_work_items_are_left_out_of_the_space(folder: Path, pocl: Device) -> None:
    text = FILE.replace("round_up(ceil_div(n, PER_ITEM), GROUP)", "n // (PER_ITEM * GROUP) * GROUP")
    family = family_of(folder, text)
    space = SearchSpace(family, family.problem_type.parse("100"), pocl.limits)
    assert {(c["PER_ITEM"], c["GROUP"]) for c in space} == {(1, 16), (1, 32), (1, 64), (2, 16), (2, 32), (4, 16)}
    lines = text.splitlines()
    own = "kernel = 'scale', when = 'GROUP > 16', local_size = 'GROUP', global_size = 'n // (PER_ITEM * GROUP) * GROUP'"
    plain = "kernel = 'plain', when = 'GROUP <= 16', global_size = 'n'"
    twice = "\n".join([*lines[:4], f"launches = [{{ {own} }}, {{ {plain} }}]", *lines[6:]])
    family = family_of(folder, twice)
    space = SearchSpace(family, family.problem_type.parse("10"), pocl.limits)
    assert {(c["PER_ITEM"], c["GROUP"]) for c in space} == {(1, 16), (2, 16), (4, 16)}


def test_a_formula_that_divides_by_zero_excludes_a_configuration(folder: Path, pocl: Device) -> None:
    family = family_of(folder, FILE.replace("ceil_div(n, PER_ITEM)", "ceil_div(n, PER_ITEM - 1)").replace(
        "default = { GROUP = 32 }", "default = { PER_ITEM = 2 }"))  # fmt: skip
    problem = family.problem_type.parse("100")
    assert {c["PER_ITEM"] for c in SearchSpace(family, problem, pocl.limits)} == {2, 4}
    broken = family.violations(problem, Configuration.of("scale", PER_ITEM=1, GROUP=16), pocl.limits)
    assert broken == ["a formula of scale.toml divides by zero"]


def test_sizes_may_have_an_x_in_their_names(folder: Path) -> None:
    family = family_of(folder, FILE.replace("{ n = 1000 }", "{ n = 1000, nx = 5 }").replace(' "n + 0"', ""))
    assert family.problem_type.parse("nx=7").size_vector == (1000, 7)
    assert family.problem_type.parse("20x30").size_vector == family.problem_type.parse("20, 30").size_vector == (20, 30)
    for text in ("", "20", "20,30,40", "m=3", "0,1", "99999999999,1", "2;3"):
        with pytest.raises(ProblemError):
            family.problem_type.parse(text)


def test_another_launch_or_option_is_another_version_of_the_space(folder: Path) -> None:
    version = family_of(folder).space_version
    assert family_of(folder, FILE.replace("[1, 2, 4]", "[1, 2, 4, 8]")).space_version == version
    assert family_of(folder, FILE.replace("n, PER_ITEM), GROUP)", "n, PER_ITEM), 64)")).space_version != version
    assert family_of(folder, f'build_options = ["-cl-mad-enable"]\n{FILE}').space_version != version


def test_parameters_replace_the_defines_of_the_source(folder: Path) -> None:
    family = family_of(folder)
    configuration = Configuration.of("scale", PER_ITEM=4, GROUP=16)
    text = render(family, configuration, family.plan(family.requests[0].problem, configuration))
    assert text.count("#define PER_ITEM") == 1 and "#define PER_ITEM 4" in text
    assert "// doubles {{ not a template }} {% for %}" in text, "plain sources are not templates"


def with_local_memory(folder: Path) -> str:
    """A file whose reference takes local memory of no parameter's choice."""
    (folder / "scale.cl").write_text(SOURCE.replace("plain(global", "plain(local float *spare, global"))
    return FILE.replace("[arguments]", "[arguments]\nspare = { local = '4 * n' }")


def test_what_no_parameter_decides_is_held_against_the_limits_of_the_device(folder: Path) -> None:
    lines = with_local_memory(folder).splitlines()
    own = "kernel = 'scale', when = 'GROUP > 16', local_size = '64', global_size = '64'"
    own += ", arguments = ['x', 'y', 'factor', 'n']"
    plain = "kernel = 'plain', when = 'GROUP <= 16', global_size = '64'"
    text = "\n".join([*lines[:4], f"launches = [{{ {own} }}, {{ {plain} }}]", *lines[6:10], *lines[11:]])
    family, left = family_of(folder, text), {}
    for local, most in itertools.product((4000, 3999), (64, 63)):
        limits = DeviceLimits(local_memory_bytes=local, max_work_group_size=most)
        space = SearchSpace(family, family.problem_type.parse("1000"), limits)
        left[local, most] = {c["GROUP"] for c in space}
    assert left == {(4000, 64): {16, 32, 64}, (3999, 64): {32, 64}, (4000, 63): {16}, (3999, 63): set()}


def test_a_size_that_needs_more_local_memory_than_there_is_does_not_fit(folder: Path) -> None:
    text = with_local_memory(folder).replace(f"reference = {{ {RIGHT} }}", 'kernel = "plain"')
    problem = family_of(folder, text).problem_type.parse("1000")
    problem.check_device(DeviceLimits(local_memory_bytes=4000))
    with pytest.raises(ProblemError, match=r"1000 does not fit the device: .*: the device has less local memory"):
        problem.check_device(DeviceLimits(local_memory_bytes=3999))


def test_constraints_hold_in_the_space_those_of_every_device_included(folder: Path, pocl: Device) -> None:
    family = family_of(folder, FILE.replace("GROUP = [16, 32, 64]", "GROUP = [32, 1073741824]"))
    space = SearchSpace(family, family.problem_type.parse("2"), pocl.limits, algorithms=["scale"])
    assert {(c["PER_ITEM"], c["GROUP"]) for c in space} == {(1, 32), (2, 32)}


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('source = "scale.cl"', 'source = "scale.cl', r"scale\.toml is not TOML"),
        ("sizes =", "size =", r"line 3: size: is not a key of a kernel file.*sizes"),
        ("n = 1000", "n = 0", r"line 3: sizes\.n: must be from 1"),
        ("n = 1000", "key = 1000", r"line 3: sizes\.key: this name is reserved"),
        ('"scale"', '"reference"', r"line 1: name: this name is reserved"),
        ("[1, 2, 4]", "[1, 2, 2]", r"line 7: parameters\.PER_ITEM: has a value twice"),
        ("[1, 2, 4]", "[]", r"line 7: parameters\.PER_ITEM: needs at least one item"),
        ("{ GROUP = 32 }", "{ GROUP = 33 }", r"line 8: default\.GROUP: 33 is not among .* 16, 32, 64"),
        ("{ GROUP = 32 }", "{ GROUPS = 32 }", r"line 8: default\.GROUPS: is not a parameter .*GROUP"),
        ('"PER_ITEM <= n"', '"PER_ITEM <="', r"line 9: constraints\.some_work: .*not an expression"),
        ('"PER_ITEM <= n"', "'open(\"x\")'", r"line 9: constraints\.some_work"),
        ('local_size = "GROUP"', 'local_size = "GROUP, 1"', r"line 6: local_size: must have as many dimensions"),
        ('"round_up(ceil_div(n, PER_ITEM), GROUP)"', '"m"', r"line 5: .*'m' uses m, .*there are GROUP, PER_ITEM, n"),
        (
            'buffer = "float32", size = "n" }',
            'buffer = "float", size = "n" }',
            r"line 14: arguments\.x\.buffer: must be",
        ),
        ('buffer = "float32", size = "n" }', 'buffer = "float32" }', r"line 14: arguments\.x: needs a size"),
        ('buffer = "float32", size = "n" }', 'size = "n" }', r"line 14: arguments\.x: needs one of .* has none"),
        (', access = "out"', "", r"arguments: none has access"),
        (
            ', access = "out"',
            ', acess = "out"',
            "line 15: arguments.y: has an unknown member .acess. .did you mean access",
        ),
        ('"PER_ITEM <= n"', '"PER_ITEMS <= n"', r"line 9: constraints\.some_work: .*PER_ITEMS.*did you mean PER_ITEM"),
        ('"PER_ITEM <= n"', '"n / PER_ITEM % 2 == 0"', r"line 9: constraints\.some_work: .*may have a fraction"),
        ('"PER_ITEM <= n"', '"(PER_ITEM <= n"', r"line 9: constraints\.some_work: .*never closed"),
        ('size = "n", access', 'size = "GROUP", access', r"line 15: arguments\.y: 'GROUP' uses GROUP"),
        ('kernel = "plain"', 'kernel = "plain", python = "r.py:f"', r"line 11: reference: has both kernel and python"),
        ('source = "scale.cl"', 'source = "../scale.cl"', "is outside the folder"),
        ('source = "scale.cl"', 'source = "none.cl"', r"none\.cl: No such file"),
        ("PER_ITEM = [1, 2, 4],", "PER_ITEM = [1, 2, 4], OTHER = [1, 2],", "parameter OTHER has no effect"),
        (
            "reference",
            'defines = { T = "float" }\nreference',
            r"defines\.T: .* quotes of its own: \"'float'\"",
        ),
        ("some_work", "'some work'", "must be a name of up to 64"),
        ("reference", 'build_options = ["-DX={m}"]\nreference', "line 11: build_options: '-DX=.m.' uses m"),
        ("reference", 'build_options = ["{n.real}"]\nreference', "line 11: build_options: .* braces stand"),
        ("reference", 'build_options = ["{n:99999999}"]\nreference', "line 11: build_options: .* braces stand"),
        ("[1, 2, 4]", "[1, 2.5]", r"line 7: parameters\.PER_ITEM: has 2\.5, which is neither .*\(write \"2\.5\"\)"),
        ("[1, 2, 4]", "[false, true]", r"line 7: parameters\.PER_ITEM: has false, which .*\(write 0 and 1\)"),
    ],
)
def test_errors_name_file_line_and_key(folder: Path, before: str, after: str, message: str) -> None:
    assert before in FILE
    with pytest.raises(UsageError, match=message) as raised:
        family_of(folder, FILE.replace(before, after, 1))
    assert raised.value.message.count("\n") == 0


TENS = "".join(f"A{number} = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], " for number in range(12))
MANY = "".join(f"A{number} = [1, 2, 3, 4], " for number in range(30))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("[1, 2, 4]", str(list(range(1, 2000))), "has more than 1024 items"),
        ("parameters = {", f"parameters = {{ {TENS}", "line 7: parameters: span .* configurations: at most 1e.11"),
        ("parameters = {", f"parameters = {{ {MANY}", "span .* configurations: at most"),
        ("parameters = {", f"parameters = {{ {MANY} B = [1],", "needs from 1 to 32 parameters"),
        ("sizes = { n = 1000 }", "sizes = { n = 1152921504606846976 }", r"sizes\.n: must be from 1 to"),
        ("n = 1000", f"n = {'9' * 5000}", "has a number of too many digits"),
        ("n = 1000", f"n = 0x{'f' * 5000}", "has a number of too many digits"),
        ('"round_up(ceil_div(n, PER_ITEM), GROUP)"', '"n * n * n * n * n"', "cannot be launched with"),
        ('size = "n", access', 'size = "n * n * n * n * n * n", access', "y would have"),
        ('"round_up(ceil_div(n, PER_ITEM), GROUP)"', '"n // (PER_ITEM - PER_ITEM)"', "divides by zero"),
        ('"PER_ITEM <= n"', f'"{"not " * 200}n"', "is nested too deeply"),
        ('"PER_ITEM <= n"', f'"{"+".join(["n"] * 300)} > 1"', "is nested too deeply"),
    ],
)
def test_hostile_files_are_refused(folder: Path, before: str, after: str, message: str) -> None:
    with pytest.raises((UsageError, ConfigurationError, ProblemError), match=message):
        family_of(folder, FILE.replace(before, after, 1))


def test_a_constraint_may_relate_many_combinations_as_long_as_they_lead_to_few_states(folder: Path) -> None:
    names = [f"A{number}" for number in range(12)]
    values = "".join(f"{name} = [1, 2, 3, 4], " for name in names)
    text = FILE.replace("parameters = {", f"parameters = {{ {values}")
    source = SOURCE + "// " + " ".join(names)
    (folder / "scale.cl").write_text(source)
    family = family_of(folder, text.replace('"PER_ITEM <= n"', f'"{" + ".join(names)} > 47 and A0 > 1"'))
    space = SearchSpace(family, family.requests[0].problem, DeviceLimits())
    assert len(space) == 3 * 3, "all of them are 4"
    odd = " + ".join(f"{5**number} * {name}" for number, name in enumerate(names))
    with pytest.raises(UsageError, match=r"line 9: constraints\.some_work: .* relates too many combinations"):
        family_of(folder, text.replace('"PER_ITEM <= n"', f'"({odd}) % 1000003 > 3"'))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}", "more than 500000 steps"),
        ("{% for i in range(99999999) %}{% endfor %}", "Range too big"),
        ("{{ 'a' * 1000000000 }}", "needs two numbers"),
        ("{{ 9 ** 9 ** 9 }}", "is too large"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ '%1000000000d' % 1 }}", "needs two numbers"),
        ("{% include '/etc/passwd' %}", "passwd"),
        ("{{ 'a'.ljust(99999999999) }}", "more than 512 MiB of memory"),
        (
            "{% set x = namespace(a='a') %}{% for i in range(60) %}{% set x.a = x.a ~ x.a %}{% endfor %}",
            "more than 512 MiB of memory",
        ),
    ],
)
def test_templates_of_files_are_bounded(folder: Path, template: str, message: str) -> None:
    (folder / "scale.cl.j2").write_text(f"{template} // {{{{ PER_ITEM }}}} {{{{ GROUP }}}}\n")
    family = family_of(folder, FILE.replace('"scale.cl"', '"scale.cl.j2"'))
    problem = family.requests[0].problem
    with pytest.raises(BuildError, match=message):
        render(family, family.usual, family.plan(problem, family.usual))


def test_what_a_template_needs_is_given_back(folder: Path) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_AS)
    test_templates_of_files_are_bounded(folder, "{{ 'a'.ljust(99999999999) }}", "more than 512 MiB")
    assert resource.getrlimit(resource.RLIMIT_AS) == before


RIGHT = 'kernel = "plain", global_size = "n"'
X = 'x = { buffer = "float32", size = "n" }'
CONTENTS = 'x = {{ buffer = "float32", size = "n", {} }}'


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (RIGHT, 'python = "right.py:none"', r"right\.py defines no function none"),
        (RIGHT, 'python = "other.py:scaled"', r"other\.py cannot be loaded: FileNotFoundError"),
        (RIGHT, 'python = "right.py:fails"', "right.py: fails failed: ValueError: no answer"),
        (RIGHT, 'python = "right.py:short"', "right.py:short gave 1 elements, y has 37 .*reshape"),
        (RIGHT, 'python = "right.py:asks"', "right.py: asks asks for z, which is none of factor, n, x, y"),
        (RIGHT, 'python = "right.py:square"', "right.py:square gave 4 elements in the shape 2x2, y has 37"),
        (RIGHT, 'python = "right.py:nothing"', "right.py:nothing returned nothing"),
        (RIGHT, 'python = "right.py:others"', "right.py:others returned 'z', the outputs are y"),
        (RIGHT, 'python = "right.py:none_at_all"', "right.py:none_at_all returned nothing, not the numbers of y"),
        (RIGHT, 'python = "right.py:told"', "right.py:told returned elements of <U5, not the numbers of y"),
        (RIGHT, 'python = "right.py:leaves"', "right.py: leaves failed: SystemExit: 3"),
        (RIGHT, 'python = "left.py:scaled"', r"left\.py cannot be loaded: SystemExit: 4"),
        (RIGHT, 'outputs = { y = "none.npy" }', r"none\.npy cannot be read"),
        (RIGHT, 'outputs = { y = "wide.npy" }', r"wide\.npy has 3 elements of float64, wanted 37 of float32"),
        (X, CONTENTS.format("range = [2, 1]"), "x: the range from 2 to 1 is empty"),
        (
            X,
            X.replace("float32", "uint8").replace(" }", ", range = [0, 256] }"),
            r"exceeds uint8.*range = \[0, 255\] at most",
        ),
        (X, CONTENTS.format('fill = "python", python = "right.py:short"'), "right.py:short gave 1 elements"),
        (X, CONTENTS.format('fill = "file", file = "../x.npy"'), r"\.\./x\.npy is outside the folder"),
    ],
)
def test_contents_that_cannot_be_made_are_told_with_their_file(
    folder: Path, before: str, after: str, message: str
) -> None:
    (folder / "right.py").write_text(
        "def fails(x):\n    raise ValueError('no answer')\n"
        "def short():\n    return [1.0]\n"
        "def asks(x, z, *others, w=1, **more):\n    return x\n"
        "def square():\n    import numpy\n    return numpy.ones((2, 2))\n"
        "def nothing():\n    return {}\n"
        "def others(x):\n    return {'z': x}\n"
        "def none_at_all():\n    pass\n"
        "def told():\n    return 'right'\n"
        "def leaves():\n    raise SystemExit(3)\n"
    )
    np.save(folder / "wide.npy", np.zeros(3))
    (folder / "left.py").write_text("import sys\nsys.exit(4)\n")
    assert before in FILE
    family = family_of(folder, FILE.replace(before, after, 1))
    with pytest.raises((ProblemError, UsageError), match=message):
        family.make_case(family.problem_type.parse("37"), 0)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (X, 'x = { line = "float32", size = "n" }', r"line 14: arguments\.x: needs `over`"),
        (X, 'x = { line = "float32", size = "n", over = "z" }', r"line 14: arguments\.x: over: z is not a buffer"),
        (
            X,
            'x = { image = "float64", size = "n, 1" }',
            r"line 14: arguments\.x\.image: must be one of float32, float16,",
        ),
        (X, 'x = { image = "float32", size = "n, 1", channels = 3 }', "line 14: .* a pixel has 1, 2 or 4 channels"),
        (X, 'x = { image = "float32", size = "n, 1", row_pitch = 64 }', "line 14: .* row_pitch needs `over`"),
        (X, "x = { local = 0 }", "line 14: .* local memory has at least 1 byte"),
        ("n = 1000", "n = 1e3", r"sizes\.n: must be a whole number, not one with a fraction or an exponent"),
        ("n = 1000", "n = 2026-01-01", r"sizes\.n: must be a whole number, not a date or time"),
        (X, CONTENTS.format('fill = "file"'), "line 14: .*fill = 'file' and `file` go together"),
        (X, CONTENTS.format('fill = "python"'), "line 14: .*fill = 'python' and `python` go together"),
        (X, CONTENTS.format("range = [1]"), "line 14: .*range needs two numbers"),
        (X, CONTENTS.format('scalar = "int32"'), "line 14: .*needs one of .* both buffer and scalar"),
        (X, X.replace('"n"', '"n, n, n"'), r"line 14: arguments\.x: has more than 2 parts"),
        (X, X.replace('"n"', '"n, n"'), r"line 14: arguments\.x: size: only an image has two parts"),
        (X, 'x = { image = "float32", size = "n" }', r"line 14: arguments\.x: size: has two parts, `columns, rows`"),
        ('"int32", value = "n"', '"int32", value = 1.5', r"line 17: arguments\.n: a number of int32 cannot be 1\.5"),
        ("GROUP = [16, 32, 64]", 'GROUP = [16, "32"]', r"line 7: parameters\.GROUP: mixes numbers and texts"),
        ("GROUP = [16, 32, 64]", "n = [16, 32, 64]", r"parameters\.n: is also the name of a size"),
        ("n = 1000", "n = 1000, in = 8", r"sizes\.in: this name is reserved: choose another"),
        ("{ n = 37 }", "{ m = 37 }", "line 4: check: m is not one of the sizes n"),
        ("work = { flops", "work = { flop", "line 10: work: has an unknown member .flop"),
        ("work = { flops", 'problems = [{ n = "many" }]\nwork = { flops', "line 10: problems: n must be a number"),
        (RIGHT, 'outputs = { x = "x.npy" }', r"reference\.outputs\.x: is not an output"),
        (RIGHT, 'kernel = "plain"', r"line 11: reference\.global_size: is missing"),
        ('name = "scale"', 'name = "Scale"', "line 1: name: must be up to 32 lowercase letters"),
    ],
)
def test_errors_of_entries_name_file_line_and_key(folder: Path, before: str, after: str, message: str) -> None:
    test_errors_name_file_line_and_key(folder, before, after, message)


N = 'n = { scalar = "int32", value = "n" }'
FACTOR = 'factor = { scalar = "float32", value = 2.5 }'


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (f"\n{N}", "", r"scale takes 4 arguments \(x, y, factor, n\), and is given 3 \(x, y, factor\)"),
        (
            N,
            f"{N}\nm = {{ scalar = 'int32', value = 1 }}",
            r"takes 4 arguments .*, and is given 5 \(x, y, factor, n, m\)",
        ),
        (f"{FACTOR}\n{N}", f"{N}\n{FACTOR}", "in the order x, y, factor, n, and is given x, y, n, factor"),
        (N, N.replace("int32", "int64"), r"scale takes a number of int32 \(int n\), and is given n of int64"),
        (FACTOR, FACTOR.replace("float32", "int32").replace("2.5", "2"), r"takes a number of float32 .* of int32"),
        (FACTOR, 'factor = { buffer = "float32", size = 1 }', r"takes a number .*, and is given the buffer factor"),
        (X, 'x = { scalar = "float32", value = 1 }', r"takes memory \(global const float \*x\), .* the scalar x"),
        ('name = "scale"', 'name = "scales"', r"no source has a kernel scales \(there are scale, plain\)"),
        (RIGHT, 'kernel = "plan", global_size = "n"', r"no source has a kernel plan \(there are scale, plain\)"),
        (X, 'x = { image = "float32", size = "n, 1" }', r"takes a buffer \(global const float \*x\), .* the image x"),
    ],
)
def test_arguments_other_than_the_kernel_declares_are_refused(
    folder: Path, before: str, after: str, message: str
) -> None:
    test_errors_name_file_line_and_key(folder, before, after, message)


def test_launches_may_exchange_the_buffers_of_a_kernel(folder: Path, pocl: Device) -> None:
    (folder / "scale.cl").write_text(SOURCE.replace("const float *x", "float *x"))
    (folder / "right.py").write_text("def twice(x, factor):\n    return factor * factor * x\n")
    launch = 'kernel = "scale", global_size = "round_up(ceil_div(n, PER_ITEM), GROUP)", local_size = "GROUP"'
    there, back = (f'{{ {launch}, arguments = ["{a}", "{b}", "factor", "n"] }}' for a, b in ("xy", "yx"))
    text = re.sub("(?m)^(global|local)_size.*\n", "", f"launches = [{there}, {back}]\n{FILE}")
    text = text.replace('"out"', '"scratch"').replace(X, X.replace(" }", ', access = "inout" }'))
    text = text.replace(RIGHT, 'python = "right.py:twice"')
    trial = trial_of(pocl, family_of(folder, text), "37")
    assert trial.state is TrialState.COMPLETE, trial.message
    with pytest.raises(UsageError, match="in the order x, y, factor, n, and is given y, x, factor, n"):
        family_of(folder, text.replace(f"{there}, ", ""))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            SOURCE.replace("global const float *x", "read_only image2d_t x"),
            r"the kind image \(.*\), .* the buffer x",
        ),
        (SOURCE.replace("global const float *x", "image1d_buffer_t x"), r"of the kind line \(.*\), .* the buffer x"),
        (SOURCE.replace("global const float *x", "read_only image3d_t x"), r"cannot give \(read_only image3d_t x\)"),
        (SOURCE.replace("int n)", "read_only pipe int n)"), r"cannot give \(read_only pipe int n\)"),
        (
            SOURCE.replace("float factor, int n)", "void)").replace("global const float *x, global float *y, ", ""),
            "takes 0",
        ),
        (SOURCE.replace("int n)", "sampler_t n)"), r"takes a sampler \(sampler_t n\): declare it in the source"),
        (SOURCE.replace("int n)", "int n, sampler_t s)"), r"takes a sampler \(sampler_t s\): declare it in the source"),
        (f"typedef struct {{ int n; }} S;\n{SOURCE.replace('int n)', 'S n)')}", r"takes a structure \(S n\)"),
        (f"struct S {{ int n; }};\n{SOURCE.replace('int n)', 'struct S n)')}", r"takes a structure \(struct S n\)"),
        (SOURCE.replace("int n)", "int4 n)"), r"takes 4 numbers \(int4 n\), and is given 1 by n: .*0, 0"),
        (f"/* {SOURCE.replace('//', '')} */", r"no source has a kernel scale \(there is none at all\)"),
        ("", r"no source has a kernel scale \(there is none at all\)"),
    ],
)
def test_a_kernel_that_a_file_cannot_call_is_refused(folder: Path, source: str, message: str) -> None:
    (folder / "scale.cl").write_text(source)
    with pytest.raises(UsageError, match=message):
        family_of(folder)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("int n)", "uint n)"),
        ("float *x", "float x[]"),
        ("float *x", "float x[restrict 8]"),
        ("kernel void scale(", "#define number int\nkernel void scale("),
        ("int n) {", "long n) {\n#define long int\n"),
        ("int n) {", "\n#if GROUP > 0\n    int n\n#else\n    long n, int m\n#endif\n) {"),
        ("float factor, int n) {", "REST) {\n#define REST float factor, int n\n"),
        ("kernel void scale(", "#define KERNEL(name) kernel void name\nKERNEL(scale)("),
        ("kernel void scale(", "#define KERNEL(name) kernel void sc##name\nKERNEL(ale)("),
    ],
)
def test_arguments_that_the_preprocessor_decides_are_left_to_the_compiler(
    folder: Path, before: str, after: str
) -> None:
    assert before in SOURCE
    (folder / "scale.cl").write_text(SOURCE.replace(before, after, 1))
    assert family_of(folder).name == "scale"


def test_a_source_that_is_made_to_hang_the_comparison_of_arguments_is_read_at_once(folder: Path) -> None:
    (folder / "scale.cl").write_text(f"{SOURCE}// {'/* ' * 100_000}\nint a = 1; {'typedef ' * 10_000}{'/* ' * 200_000}")
    began = time.process_time()
    family_of(folder)
    assert time.process_time() - began < 7.0


def test_a_kernel_may_get_its_name_from_an_option_of_the_compiler(folder: Path) -> None:
    (folder / "scale.cl").write_text(SOURCE.replace("void scale(", "void CHOSEN("))
    options = 'name = "scale"\nbuild_options = ["-DCHOSEN=scale"]'
    assert family_of(folder, FILE.replace('name = "scale"', options)).name == "scale"


def test_where_nothing_is_right_the_advice_is_a_command(folder: Path) -> None:
    problem = family_of(folder).problem_type.parse("37")
    assert remedy_text(problem, "some-phone") == f"run `autotune check {folder / 'scale.toml'}`, which says more"


def test_a_template_that_is_none_is_named_with_its_line(folder: Path) -> None:
    (folder / "scale.cl.j2").write_text("// {{ PER_ITEM }} {{ GROUP }}\n{% if GROUP > 3 %}\n")
    family = family_of(folder, FILE.replace('"scale.cl"', '"scale.cl.j2"'))
    with pytest.raises(UsageError, match=r"template of scale, line \d: Unexpected end of template"):
        names_read(family, "scale")


@pytest.mark.long
def test_a_default_that_is_not_possible_is_told(folder: Path, pocl: Device, capsys: pytest.CaptureFixture[str]) -> None:
    family_of(folder, FILE.replace("PER_ITEM <= n", "PER_ITEM > 1"))
    options = ["--device", pocl.selector, "--trials", "1", "--db", str(folder / "tuned.sqlite")]
    assert main(["tune", str(folder / "scale.toml"), "--shape", "100", *options]) == 0
    assert "100: the default scale(GROUP=32, PER_ITEM=1) is not possible" in capsys.readouterr().err


def test_a_template_may_define_what_its_parameters_are_for(folder: Path) -> None:
    (folder / "scale.cl.j2").write_text("#define STEPS {{ UNROLL }}\nkernel void scale() { int steps = STEPS; }\n")
    text = FILE.replace('"scale.cl"', '"scale.cl.j2"').replace("PER_ITEM = [", "UNROLL = [1, 2], PER_ITEM = [")
    assert "UNROLL" in family_of(folder, text).algorithms[0].by_name
    with pytest.raises(UsageError, match="the parameter UNROLL has no effect"):
        family_of(folder, text.replace('.j2"', '"'))


def test_sources_that_cannot_be_read_are_named(folder: Path) -> None:
    (folder / "scale.cl").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"scale\.cl is not UTF-8 text \(byte 0\)"):
        family_of(folder)
    (folder / "scale.cl").write_text('#include "scale.cl"\n')
    with pytest.raises(UsageError, match="includes more than 100 files, perhaps itself"):
        family_of(folder)
    (folder / "scale.cl").write_text("x" * (4 * 2**20 + 1))
    with pytest.raises(UsageError, match="is larger than 4 MiB"):
        family_of(folder)


def test_what_is_to_be_included_once_is(folder: Path, pocl: Device) -> None:
    (folder / "one.h").write_text('#pragma once\n#include "both.h"\n')
    (folder / "two.h").write_text('#pragma once\n#include "both.h"\n#include "one.h"\n')
    (folder / "both.h").write_text('# pragma once\n#include "two.h"\nfloat same(float x) { return x; }\n')
    text = SOURCE.replace("= factor", "= same(factor)")
    (folder / "scale.cl").write_text(f'#include "one.h"\n#include "two.h"\n{text}')
    trial = trial_of(pocl, family_of(folder), "37")
    assert trial.state is TrialState.COMPLETE, trial.message


def test_a_comment_after_a_definition_goes_with_it(folder: Path, pocl: Device) -> None:
    defined = "#define PER_ITEM 1 // like a/*.c\n#define GROUP 16 /* work-items\n   of a group */ /* at\n most */\n"
    (folder / "scale.cl").write_text(SOURCE.replace("#define PER_ITEM 1\n", defined))
    trial = trial_of(pocl, family_of(folder), "37")
    assert trial.state is TrialState.COMPLETE, trial.message


def test_sources_include_what_lies_anywhere_in_the_folder(folder: Path) -> None:
    for name, text in {
        "inc/factor.h": "#define FACTOR 2.5f\n",
        "src/scale.cl": f'#include "../inc/factor.h"\n{SOURCE}',
    }.items():
        (folder / name).parent.mkdir()
        (folder / name).write_text(text)
    family = family_of(folder, FILE.replace('"scale.cl"', '"src/scale.cl"'))
    assert "#define FACTOR 2.5f" in render(family, family.usual, family.plan(family.requests[0].problem, family.usual))


def test_a_mapping_takes_the_includes_of_its_sources_along(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    (folder / "factor.h").write_text("#define FACTOR 2.5f\n")
    (folder / "scale.cl").write_text(f'#include "factor.h"\n{SOURCE}')
    path = tuning._written({**tomllib.loads(FILE), "source": str(folder / "scale.cl")}, None)
    family = use_kernel_file(path)
    assert "#define FACTOR 2.5f" in render(family, family.usual, family.plan(family.requests[0].problem, family.usual))


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("n < 7", "1000 does not fit the device: some_work: n < 7"),
        ("PER_ITEM > n", "no configuration of scale is legal for 1000 on this device; its default: some_work"),
    ],
)
def test_a_size_without_any_configuration_is_refused_before_anything_runs(
    folder: Path, pocl: Device, capsys: pytest.CaptureFixture[str], condition: str, message: str
) -> None:
    family_of(folder, FILE.replace("PER_ITEM <= n", condition))
    options = ["--device", pocl.selector, "--trials", "2", "--quiet", "--db", str(folder / "tuned.sqlite")]
    assert main(["tune", str(folder / "scale.toml"), *options]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_a_later_size_without_any_configuration_is_refused_before_the_first_is_measured(
    folder: Path, store: Store
) -> None:
    family = family_of(folder, FILE.replace("PER_ITEM <= n", "100 * PER_ITEM <= n"))
    requests = [Request(problem=family.problem_type.parse(shape)) for shape in ("1000", "10")]
    worker = FakeWorker(lambda _: 1000.0)
    with pytest.raises(ProblemError, match="no configuration of scale is legal for 10 "):
        tune(INVENTED_PROCESSOR, requests, store, Budget(trials=2), worker=worker)
    assert worker.jobs == []


@pytest.mark.long
def test_the_reason_is_told_where_every_configuration_fails(
    folder: Path, pocl: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "scale.cl").write_text(SOURCE.replace("int n)", "uchar n)"))
    family_of(folder, FILE.replace('scalar = "int32", value = "n"', 'scalar = "uint8", value = "n"'))
    options = ["--device", pocl.selector, "--trials", "2", "--quiet", "--db", str(folder / "tuned.sqlite")]
    assert main(["tune", str(folder / "scale.toml"), *options]) != 0
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "no configuration gave correct results for 1000: " in last and "1000" in last and "uint8" in last, last


@pytest.mark.long
def test_every_configuration_is_compared_with_the_reference_kernel(folder: Path, pocl: Device) -> None:
    family = family_of(folder)
    for configuration in (family.usual, Configuration.of("scale", PER_ITEM=4, GROUP=16)):
        assert trial_of(pocl, family, "37", configuration).state is TrialState.COMPLETE
    (folder / "scale.cl").write_text(SOURCE.replace("at < n", "at < n - 1"))
    wrong = trial_of(pocl, family_of(folder), "37")
    assert wrong.state is TrialState.WRONG_RESULT


@pytest.mark.parametrize("at", [0, 40_000, -1])
def test_every_element_of_a_long_output_is_compared(folder: Path, at: int) -> None:
    (folder / "right.py").write_text("def scaled(x):\n    return 2.5 * x\n")
    family = family_of(folder, FILE.replace(RIGHT, 'python = "right.py:scaled"'))
    case = family.make_case(family.problem_type.parse("100000"), 0)
    right = 2.5 * case.inputs["x"]
    assert case.error_ratio({"y": right}) <= 1.0
    for wrong in (right[at] + 1, -right[at] + 1, np.nan, np.inf):
        found = right.copy()
        found[at] = wrong
        assert case.error_ratio({"y": found}) > 1.0


def test_kernels_of_generated_code_have_long_names(folder: Path, pocl: Device) -> None:
    long = "_ZTSZZ4mainENKUlRN4sycl3_V17handlerEE_clES2_EUlNS0_2idILi1EEEE_" + "E" * 150
    (folder / "scale.cl").write_text(SOURCE.replace("void scale(", f"void {long}("))
    assert trial_of(pocl, family_of(folder, f'kernel = "{long}"\n{FILE}'), "37").state is TrialState.COMPLETE
    assert draft(folder / "scale.cl").count(long) == 1
    with pytest.raises(UsageError, match=r"line 1: kernel: must be a name of up to 255 letters"):
        family_of(folder, f'kernel = "{"k" * 256}"\n{FILE}')


def test_a_python_function_is_a_reference(folder: Path, pocl: Device) -> None:
    (folder / "right.py").write_text("def scaled(x, n, factor):\n    assert len(x) == n\n    return factor * x\n")
    text = FILE.replace('kernel = "plain", global_size = "n"', 'python = "right.py:scaled"')
    assert trial_of(pocl, family_of(folder, text), "37").state is TrialState.COMPLETE
    (folder / "right.py").write_text("def scaled(x):\n    return 2.4 * x\n")
    assert trial_of(pocl, family_of(folder, text), "37").state is TrialState.WRONG_RESULT


def test_an_output_that_no_reference_gives_is_told(folder: Path, pocl: Device) -> None:
    text = FILE.replace(RIGHT, 'python = "right.py:scaled"').replace(X, f"{X[:-2]}, access = 'inout' }}")
    (folder / "right.py").write_text("def scaled(x, factor):\n    return {'y': factor * x}\n")
    (folder / "scale.cl").write_text(SOURCE.replace("const float *x", "float *x"))
    trial = trial_of(pocl, family_of(folder, text), "37")
    assert trial.state is TrialState.COMPLETE
    assert trial.message == "x is not compared, as the reference does not give it: is access = 'scratch' meant?"


def test_functions_get_whole_numbers_for_whole_arguments(folder: Path, pocl: Device) -> None:
    (folder / "right.py").write_text("def scaled(x, factor):\n    return sum(x for _ in range(factor))\n")
    (folder / "scale.cl").write_text(SOURCE.replace("float factor", "int factor"))
    text = FILE.replace('kernel = "plain", global_size = "n"', 'python = "right.py:scaled"')
    text = text.replace('scalar = "float32", value = 2.5', 'scalar = "int32", value = 3')
    trial = trial_of(pocl, family_of(folder, text), "37")
    assert trial.state is TrialState.COMPLETE, trial.message


def test_stored_contents_and_outputs_are_used(folder: Path, pocl: Device) -> None:
    x = np.random.default_rng(1).random(37, np.float32)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", np.float32(2.5) * x)
    text = FILE.replace('kernel = "plain", global_size = "n"', 'outputs = { y = "y.npy" }').replace(
        'x = { buffer = "float32", size = "n" }',
        'x = { buffer = "float32", size = "n", fill = "file", file = "x.npy" }',
    )
    assert trial_of(pocl, family_of(folder, text), "37").state is TrialState.COMPLETE
    np.save(folder / "y.npy", x)
    assert trial_of(pocl, family_of(folder, text), "37").state is TrialState.WRONG_RESULT


@pytest.mark.long
def test_tune_check_and_status_serve_a_file(folder: Path, pocl: Device, capsys: pytest.CaptureFixture[str]) -> None:
    family_of(folder)
    file, database = str(folder / "scale.toml"), str(folder / "tuned.sqlite")
    assert main(["check", file, "--device", pocl.selector, "--small", "--no-simulator"]) == 0
    assert "2 runs are right" in capsys.readouterr().out
    assert main(["tune", file, "--device", pocl.selector, "--trials", "3", "--quiet", "--json", "--db", database]) == 0
    [outcome] = json.loads(capsys.readouterr().out)["outcomes"]
    assert outcome["winner"]["problem"]["n"] == 1000
    assert main(["status", "--db", database, "--json"]) == 0
    [status] = json.loads(capsys.readouterr().out)
    assert sum(status["trials"].values()) == outcome["new_trials"] == 3 and status["repeats"] > 0
    assert main(["lookup", "1000", "--family", "scale", "--device", pocl.slug, "--db", database]) == 0
    told = capsys.readouterr()
    assert "match      exact" in told.out and not told.err
    os.environ[FILES] = ""
    find_family.cache_clear()
    families_of_files.cache_clear()
    assert main(["lookup", "1000", "--family", "scale", "--device", pocl.slug, "--db", database]) == 2
    assert "name your kernel's file, or list it in AUTOTUNE_FAMILIES" in capsys.readouterr().err
    assert main(["lookup", "1000", "--family", file, "--device", pocl.slug, "--db", database]) == 0
    assert "match      exact" in capsys.readouterr().out
    (folder / "scale.cl").write_text(SOURCE + "// changed\n")
    find_family.cache_clear()
    assert main(["lookup", "1000", "--family", file, "--device", pocl.slug, "--db", database]) == 0
    assert "another source was measured" in capsys.readouterr().err


def test_lookups_take_values_below_0_and_sizes_for_which_a_constraint_divides_by_0(folder: Path) -> None:
    further = 'defines = { MOVED = "SHIFT" }\nconstraints = { whole = "4 % (n // 16) == 0 and n + SHIFT > 0" }'
    text = re.sub(r"(?m)^constraints.*", further, FILE).replace("PER_ITEM = [", "SHIFT = [-1, 1], PER_ITEM = [")
    family, limits = family_of(folder, text), DeviceLimits(max_work_group_size=64)
    legality = Legality(family, limits)
    for n in (64, 5) * 20:
        problem = family.problem_type.parse(str(n))
        assert bool(family.violations(problem, family.usual, limits)) == (n == 5)
        assert legality.is_valid(family.usual, problem.constraint_values()) == (n == 64)


def test_exported_options_are_all_that_a_build_needs_at_any_size(folder: Path) -> None:
    from factories import device, winner  # here, since a function of this module is run by itself

    further = """
parameters = { PER_ITEM = [1, 2, 4], GROUP = [16, 32, 64], LAYOUT = ["AOS", "SOA"] }
build_options = ["-cl-mad-enable", "-D{LAYOUT}", "-DN={n}", "-I ./inc"]
defines = { WIDE = "GROUP * PER_ITEM", LONG = "n", T = "'float'", FAST = "GROUP > 16" }
"""
    family = family_of(folder, re.sub(r"(?m)^parameters.*", further, FILE))
    problem, usual = family.problem_type.parse("100"), Configuration.of("scale", PER_ITEM=2, GROUP=32, LAYOUT="SOA")
    tables = [DeviceTable(device=device(), winners=(winner(device(), problem, usual),))]
    parameters, defines = "-DGROUP=32 -DLAYOUT=SOA -DPER_ITEM=2", "-DT=float -DFAST=1 -cl-mad-enable -DSOA"
    assert f'"{parameters} -DWIDE=64 {defines} -I ./inc"' in write_choices(tables, "scale"), "for any size"
    of_size = f"{parameters} -DWIDE=64 -DLONG=100 {defines} -DN=100 -I ./inc"
    assert write_defines(tables, "scale").splitlines()[1].endswith(f" scale {of_size}")


def test_options_of_a_compiler_are_exported_of_own_kernels_alone(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from factories import device, naive, product, winner  # here, since a function of this module is run by itself

    family, database = family_of(folder), str(tmp_path / "tuned.sqlite")
    with Store.open(database) as store:
        store.add_device(device())
        store.record_winner(winner(device(), family.problem_type.parse("100"), family.usual))
        store.record_winner(winner(device(), product(64, 64, 64), naive(1, 32)))
    assert main(["export", "--format", "defines", "--db", database]) == 0
    told = capsys.readouterr()
    assert "n=100 scale -DGROUP=32" in told.out and "gemm" not in told.out
    assert "left out: gemm, of which the sources are rendered from templates" in told.err


WHOLE = re.sub(r"(?m)^constraints.*", 'constraints = { whole = "n % (GROUP * PER_ITEM) == 0" }', FILE)


def test_a_default_that_is_illegal_gives_way_to_what_is_legal(folder: Path) -> None:
    family = family_of(folder, WHOLE)
    table, parse = TuningTable([], []), family.problem_type.parse
    for n, is_default in ((1024, True), (16, False), (48, False)):
        chosen = table.find("adreno-730", parse(str(n))).configuration
        assert (chosen == family.usual) == is_default
        assert family.violations(parse(str(n)), chosen, DeviceLimits(max_work_group_size=1024)) == []
    with pytest.raises(ProblemError, match=r"no configuration of scale is legal for 7 .* its default: whole"):
        table.find("adreno-730", parse("7"))


@pytest.mark.long
def test_c_gives_what_is_legal_or_nothing(folder: Path) -> None:
    family_of(folder, WHOLE)
    (folder / "scale.h").write_text(write_choices([], "scale"))
    assert all("GROUP" in options for options in _options_in_c(folder, [("any", 1024), ("any", 16)]))
    assert _options_in_c(folder, [("any", 7)]) == ["NULL"]


@pytest.mark.long
def test_a_c_program_may_name_its_device_as_the_driver_does(folder: Path) -> None:
    from factories import device, winner  # here, since a function of this module is run by itself

    family = family_of(folder)
    devices = {slug: replace(device(), slug=slug) for slug in ("adreno-730", "amd-gfx1100", "mali-g710-mc10")}
    tables = [
        DeviceTable(
            device=one,
            winners=(
                winner(one, family.problem_type.parse("100"), Configuration.of("scale", PER_ITEM=per_item, GROUP=64)),
            ),
        )
        for per_item, one in zip((1, 2, 4), devices.values(), strict=True)
    ]
    (folder / "scale.h").write_text(write_choices(tables, "scale"))
    names = {
        "adreno-730": 1, "QUALCOMM Adreno(TM) 730": 1, "Adreno (TM) 730": 1, "QUALCOMM Adreno(TM)": 0, "adreno-740": 0,
        "amd-gfx1100": 2, "gfx1100:sramecc+:xnack-": 2, "mali-g710-mc10": 4, "Mali-G710 r0p0": 0, "": 0,
    }  # fmt: skip
    found = _options_in_c(folder, [(name, 100) for name in names])
    tuned = [int(options.rpartition("=")[2]) if "GROUP=64" in options else 0 for options in found]
    assert dict(zip(names, tuned, strict=True)) == names


@pytest.mark.long
@pytest.mark.parametrize(
    "constraint",
    ["(n - 9) // SHIFT % 4 > 1", "(n - 9) // 4 % 3 == SHIFT + 4", "(n - 9) % 4 > 1", "n % SHIFT < -1",
     "ceil_div(n - 9, 4) % 3 == 1", "round_up(n - 9, 4) == n - 8", "max(n - 9, -n) // 4 * 4 == n - 11"],
)  # fmt: skip
def test_c_divides_negative_numbers_as_python_does(folder: Path, constraint: str) -> None:
    further = f'defines = {{ MOVED = "SHIFT" }}\nconstraints = {{ divides = "{constraint}" }}'
    text = re.sub(r"(?m)^constraints.*", further, FILE)
    family = family_of(folder, text.replace("PER_ITEM = [", "SHIFT = [-3], PER_ITEM = ["))
    (folder / "scale.h").write_text(write_choices([], "scale"))
    problems = [family.problem_type.parse(str(size)) for size in range(1, 30)]
    legal = [not family.violations(problem, family.usual, DeviceLimits()) for problem in problems]
    found = _options_in_c(folder, [("any", problem.label) for problem in problems])
    assert [options != "NULL" for options in found] == legal
    assert any(legal[:9]) and not all(legal[:9]), "where n - 9 is negative"


def _options_in_c(folder: Path, asked: Sequence[tuple[str, int | str]]) -> list[str]:
    """Return the options that a C program with `scale.h` gets for devices and sizes."""
    shown = "".join(f'    show(scale_choose("{slug}", {size}));\n' for slug, size in asked)
    show = 'static void show(const struct scale_choice *one) { puts(one ? one->options : "NULL"); }\n'
    program = f'#include <stdio.h>\n#include "scale.h"\n{show}int main(void) {{\n{shown}    return 0; }}\n'
    (folder / "main.c").write_text(program)
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    subprocess.run(
        [compiler, "-std=c99", "-Wall", "-Wextra", "-Werror", "-o", folder / "main", folder / "main.c"], check=True
    )
    return subprocess.run([folder / "main"], capture_output=True, text=True, check=True).stdout.splitlines()


def test_no_name_of_a_file_or_macro_of_a_program_breaks_the_exported_header(folder: Path) -> None:
    text = FILE.replace("{ n = 1000 }", "{ n = 1000, count = 3, best = 2 }").replace("[{ n = 1 }, { n = 37 }]", "[]")
    text = text.replace("GROUP = [", "device = [1, 2], register = [1, 2], GROUP = [", 1).replace(
        "[arguments]",
        """
build_options = ["-I", "my headers", "-DMSG=3 + 4", "-DE={device} + {register} + {count}"]
[arguments]""",
    )
    family_of(folder, text)
    names = ("far", "near", "count", "least", "best", "wanted", "i", "j", "text", "name")
    macros = "".join(f"#define {name} 1 +\n" for name in names)
    (folder / "scale.h").write_text("#include <stddef.h>\n#include <string.h>\n" + macros + write_choices([], "scale"))
    [found] = _options_in_c(folder, [("any", "100, 3, 2")])
    assert '-I "my headers" -DMSG="3 + 4"' in found


def test_a_kernel_that_is_not_used_need_not_build(folder: Path, pocl: Device) -> None:
    broken = """
/* A comment { */ __attribute__((always_inline)) float helper(float x) { return x; }
__kernel __attribute__((reqd_work_group_size(8, 1, 1))) void other(global unknown_t *p) {
#if 0
    { }
#endif
    p[0] = "}"[0] + nothing;  // }
}
#ifdef NEVER
kernel void conditional(global float *p) {
#else
kernel void conditional(global float *q) {
#endif
    helper(0);
}
kernel void needed(global float *p) { conditional(p); }
"""
    (folder / "scale.cl").write_text(broken + SOURCE)
    family = family_of(folder)
    assert trial_of(pocl, family, "100").state is TrialState.COMPLETE
    text = render(family, family.usual, family.plan(family.requests[0].problem, family.usual))
    assert "unknown_t" not in text and "float helper(float x)" in text and "conditional" in text
    assert "needed" not in text
    (folder / "scale.cl").write_text(f"#define END }}\n{broken}\n{SOURCE}")
    assert trial_of(pocl, family_of(folder), "100").state is TrialState.COMPILE_FAILED


@pytest.mark.parametrize("part", ["kernel void a{}(", "kernel void a{}() {{", "kernel   ", "#define A{} }}\n", "/* "])
def test_a_source_that_is_made_to_hang_the_search_for_kernels_is_read_at_once(part: str) -> None:
    text = "".join(part.format(number) for number in range(2 * 10**6 // len(part)))
    began = time.monotonic()
    assert without_unused(text, {"b"}) == text
    assert time.monotonic() - began < 10


def test_definitions_with_spaces_and_quotes_reach_the_kernel(folder: Path, pocl: Device) -> None:
    (folder / "my headers").mkdir()
    (folder / "my headers" / "more.h").write_text("#define MORE 1\n")
    options = ["-D", "MORE_OF_IT", "-I", "my headers", '-DMSG="a b"', "-DSUM={GROUP} - {GROUP} + 1"]
    text = FILE.replace("[arguments]", f"build_options = {json.dumps(options)}\n[arguments]")
    source = "#include <more.h>\n" + SOURCE.replace(
        "factor * x[at]", "factor * x[at] * (sizeof(MSG) == 4) * MORE * (SUM)"
    )
    (folder / "scale.cl").write_text(source)
    assert trial_of(pocl, family_of(folder, text), "100").state is TrialState.COMPLETE


@pytest.mark.long
def test_exports_give_the_choice_to_a_c_program(folder: Path, pocl: Device, capsys: pytest.CaptureFixture[str]) -> None:
    family_of(folder)
    file, database = str(folder / "scale.toml"), str(folder / "tuned.sqlite")
    tune = ["tune", file, "--device", pocl.selector, "--shape", "100", "10000", "--trials", "2", "--quiet"]
    assert main([*tune, "--db", database]) == 0
    capsys.readouterr()
    assert main(["export", "--family", "scale", "--format", "defines", "--db", database]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.rsplit(" -D", 2)[0] for line in lines] == [f"{pocl.slug} n={n} scale" for n in (100, 10000)]
    assert main(["export", "--family", "scale", "--format", "c", "--db", database]) == 0
    (folder / "scale.h").write_text(capsys.readouterr().out)
    found = _options_in_c(folder, [(pocl.slug, 120), (pocl.slug, 9000), ("another", 100)])
    assert found == [*(line.partition(" scale ")[2] for line in lines), "-DGROUP=32 -DPER_ITEM=1"]


def test_the_choice_of_a_c_program_meets_the_constraints(folder: Path) -> None:
    """As the lookup does where it knows winners of similar sizes; a limit of the device is known at the export."""
    from factories import device, winner  # here, since a function of this module is run by itself

    constraints = """
constraints.whole = "n % PER_ITEM == 0 and 4096 % n >= 0 and 4096 % (n // 16) < 4096"
constraints.small = "GROUP * PER_ITEM <= max_work_group_size and min(n, 4096) >= GROUP"
"""
    family = family_of(folder, re.sub(r"(?m)^constraints.*", constraints, FILE))
    limits = DeviceLimits(max_work_group_size=128)
    tuned = [("1024", 4, 32), ("1029", 1, 64), ("1034", 2, 64), ("1030", 4, 64)]
    winners = tuple(
        winner(device(), family.problem_type.parse(size), Configuration.of("scale", PER_ITEM=each, GROUP=group))
        for size, each, group in tuned
    )
    header = write_choices([DeviceTable(device=device(limits=limits), winners=winners)], "scale")
    (folder / "scale.h").write_text(header)
    assert "-DGROUP=64 -DPER_ITEM=4" not in header, "it is not valid at its own size"
    table = TuningTable([device(limits=limits)], entries_of([device()], winners))
    sizes = [1, 31, *range(1000, 1050)]
    found = _options_in_c(folder, [(device().slug, size) for size in [*sizes, 0]])
    chosen = []
    for size in sizes:
        try:
            one = table.find(device().slug, family.problem_type.parse(str(size))).configuration
            chosen.append(f"-DGROUP={one['GROUP']} -DPER_ITEM={one['PER_ITEM']}")
        except ProblemError:
            chosen.append("NULL")
    assert {"-DGROUP=32 -DPER_ITEM=4", "-DGROUP=64 -DPER_ITEM=1", "-DGROUP=64 -DPER_ITEM=2", "NULL"} <= {*chosen}
    assert found == [*chosen, chosen[0]]


def test_constraints_that_a_c_program_cannot_check_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from factories import device, winner  # here, since a function of this module is run by itself

    family = family_of(folder)
    [known] = family.algorithms
    beyond = Constraint(name="beyond", condition=Expression("PER_ITEM * halves < 1000"), because="there is too little")
    monkeypatch.setattr(family, "algorithms", (replace(known, constraints=(*known.constraints, beyond)),))
    monkeypatch.setattr(family.problem_type, "constraint_values", lambda one: {**one.to_dict(), "halves": one.n // 2})
    tuned = winner(device(), family.problem_type.parse("100"), Configuration.of("scale", PER_ITEM=4, GROUP=32))
    header = write_choices([DeviceTable(device=device(), winners=(tuned,))], "scale")
    assert "are not checked: beyond. */" in header and "halves" not in header
    assert '"-DGROUP=32 -DPER_ITEM=4"' in header


def doubled(x: object) -> object:
    return 2.5 * x  # type: ignore[operator]


@pytest.mark.long
def test_python_tunes_a_source_with_a_function_as_reference(
    folder: Path, pocl: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    kernel = {**tomllib.loads(FILE), "source": SOURCE, "reference": {}}
    [outcome] = autotune.tune(
        kernel, reference=doubled, device=pocl.selector, shapes=["64"], trials=2, db=folder / "own.sqlite"
    )
    assert outcome.winner and outcome.winner.configuration.algorithm == "scale" and outcome.new_trials == 2
    with pytest.raises(UsageError, match="is not a function of a module"):
        autotune.tune(kernel, reference=lambda x: x, device=pocl.selector)


def test_the_schema_knows_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--schema"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(tomllib.loads(FILE)) < set(found["properties"])
    assert found["properties"]["arguments"]["additionalProperties"]["properties"]["buffer"]["pattern"] == (
        f"^(?:{'|'.join(name for name, number in ELEMENT_TYPES.items() if not number.stored)})$"
    )
    assert sorted(found["required"]) == ["arguments", "name", "parameters", "sizes", "source"]
    described = found["properties"]["launches"]["items"]["properties"]["once"]["description"]
    assert described.startswith("It only prepares constant data")


@pytest.mark.long
def test_a_wrong_default_fails_the_check(folder: Path, pocl: Device, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "scale.cl").write_text(SOURCE.replace("factor * x[at]", "x[at]", 1))
    family_of(folder)
    assert main(["check", str(folder / "scale.toml"), "--device", pocl.selector, "--small", "--no-simulator"]) == 1
    assert "wrong" in capsys.readouterr().out


SIMULATOR = """#!/bin/sh
echo 'oclgrind  37  scale: wrong result: of this run'
case "$*" in *--uninitialized*)
    printf '\nOCLGRIND FATAL ERROR (Uninitialized.cpp:1)\nUnsupported instruction: freeze\n\tKernel: scale\n';;
*)
    printf '\nRead-write data race at global memory address 0x10\n\tKernel: scale\n\tAt line 5 of scale.cl:\n'
    printf '\tAt line 0 (column 0) of scale.cl:\n';;
esac > "$(echo "$*" | sed 's/.*--log \\([^ ]*\\) .*/\\1/')"
exit 1
"""


def test_where_the_simulator_gives_up_races_are_still_looked_for(
    folder: Path, pocl: Device, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    family_of(folder)
    (folder / "bin").mkdir()
    (folder / "bin" / "oclgrind").write_text(SIMULATOR)
    (folder / "bin" / "oclgrind").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=os.pathsep)
    assert main(["check", str(folder / "scale.toml"), "--device", pocl.selector, "--small"]) == 1
    told = capsys.readouterr()
    assert "gave up with --data-races --uninitialized: Unsupported instruction: freeze" in told.err
    assert told.err.count("under Oclgrind: ") == 1, "what the run that gave up computed says nothing"
    assert told.out.splitlines()[-1] == "oclgrind: scale: Read-write data race (line 5 of scale.cl)"


BEHIND_AND_RACING = """\
kernel void scale(global const float *x, global float *y, float factor, int n) {
    local float sums[64];
    const int at = get_global_id(0), lane = get_local_id(0);
    sums[lane] = at < n ? x[at] : 0.0f;
    const float next = sums[(lane + 1) % get_local_size(0)];
    if (at < n) y[at] = factor * x[at] + fmin(fabs(x[at + 1]), 0.0f) + fmin(fabs(next), 0.0f); /* 0 of whatever */
}
kernel void plain(global const float *x, global float *y, float factor, int n) {
    y[get_global_id(0)] = factor * x[get_global_id(0)];
}
"""


@pytest.mark.long
def test_check_under_oclgrind_finds_what_the_device_lets_pass(
    folder: Path, pocl: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    if not shutil.which("oclgrind"):
        pytest.skip("oclgrind is not installed (Debian, Ubuntu: apt install oclgrind)")
    family_of(folder)
    command = ["check", str(folder / "scale.toml"), "--device", pocl.selector, "--small"]
    assert main(command) == 0, capsys.readouterr()
    told = capsys.readouterr()
    assert "looking for races and bad accesses with Oclgrind" in told.err
    assert told.out.splitlines()[-1] == "2 runs are right"
    (folder / "scale.cl").write_text(BEHIND_AND_RACING)
    family_of(folder)
    assert main(command) == 1
    told = capsys.readouterr()
    assert told.out.count("scale: right") == 2, "as far as the device tells"
    complaints = [line for line in told.out.splitlines() if line.startswith("oclgrind: scale: ")]
    for what, places in (("data race", r"line 4\b.* and line 5\b"), ("Invalid read of size 4", r"line 6\b")):
        assert any(re.search(rf"{what} \({places}.* of scale.cl\)", complaint) for complaint in complaints), told


@pytest.mark.long
def test_oclgrind_takes_no_scratch_for_uninitialised(
    folder: Path, pocl: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    if not shutil.which("oclgrind"):
        pytest.skip("oclgrind is not installed (Debian, Ubuntu: apt install oclgrind)")
    launch = 'kernel = "plain"\nglobal_size = "n"\n'
    text = re.sub(r"(?m)^(reference|global_size|local_size) .*\n", "", FILE).replace("PER_ITEM = [1, 2, 4], ", "")
    text = text.replace('some_work = "PER_ITEM <= n"', "") + '[arguments.s]\nbuffer = "float32"\nsize = "n"\n'
    text += f'access = "scratch"\n[[launches]]\n{launch}local_size = "min(n, GROUP)"\n'
    text += f'arguments = ["x", "s", "factor", "n"]\n[[launches]]\n{launch}arguments = ["s", "y", "factor", "n"]\n'
    family_of(folder, text.replace("n = 37", "n = 64"))
    assert main(["check", str(folder / "scale.toml"), "--device", pocl.selector, "--small"]) == 0, capsys.readouterr()


def test_init_writes_a_file_that_needs_little(folder: Path, pocl: Device, capsys: pytest.CaptureFixture[str]) -> None:
    text = draft(folder / "scale.cl")
    assert 'x = { buffer = "float32", size = "n" }' in text
    assert 'y = { buffer = "float32", size = "n", access = "out" }' in text
    assert "PER_ITEM = [1, 2, 4]" in text
    assert main(["init", str(folder / "scale.cl")]) == 0
    assert main(["init", str(folder / "scale.cl")]) == 2, "an existing file is left as it is"
    assert "exists and was left" in capsys.readouterr().err
    assert main(["check", str(folder / "scale.toml"), "--device", pocl.selector, "--no-simulator"]) == 0
    with pytest.raises(UsageError, match=r"no kernel 'scales'"):
        draft(folder / "scale.cl", "scales")


def test_a_kernel_called_like_a_family_of_ours_gets_a_name_of_its_own(
    folder: Path, pocl: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "reduce.cl").write_text("kernel void reduce(global float *y, int n) { y[get_global_id(0)] = n; }\n")
    assert main(["init", str(folder / "reduce.cl")]) == 0
    text = (folder / "reduce.toml").read_text()
    assert 'name = "reduce_kernel"' in text and 'kernel = "reduce"' in text
    assert main(["check", str(folder / "reduce.toml"), "--device", pocl.selector, "--no-simulator"]) == 0
    (folder / "reduce.toml").write_text(text.replace("reduce_kernel", "reduce"))
    assert main(["check", str(folder / "reduce.toml"), "--device", pocl.selector]) == 2
    assert "reduce is a kernel family of autotune's own (choose another name)" in capsys.readouterr().err


GUESSED = """
#define WIDTH 4096
#define HEIGHT 2048
#ifndef FAST
#define FAST 1
#endif
typedef float2 pair;
kernel void other(global float *c) { c[get_global_id(0)] = FAST; }
kernel void smooth(
#if PAIRS == 1
    global float *restrict dst,
#else
    global pair *restrict dst,
#endif
    global const float *src, local float *near, unsigned char shade
) {
    const int x = get_group_id(0) * block_size_x + get_local_id(0), y = get_group_id(1) * block_size_y;
    global float *to = (global float *)(dst + y * WIDTH);
    near[get_local_id(0)] = src[y * WIDTH + x];
    for (int i = 0; i < ROWS; i++) to[x + i * WIDTH] = near[0] + (HEIGHT > 1 ? M_PI_F : 0.5f);
}
"""


def test_init_guesses_what_the_source_leaves_to_its_build(folder: Path) -> None:
    (folder / "guessed.cl").write_text(GUESSED)
    text = draft(folder / "guessed.cl", "smooth")
    (folder / "guessed.toml").write_text(text)
    file = read_kernel_file(folder / "guessed.toml")
    assert (file.global_size, file.local_size) == (
        "round_up(WIDTH, block_size_x), round_up(HEIGHT, block_size_y)", "block_size_x, block_size_y",
    )  # fmt: skip
    assert file.sizes == {"WIDTH": 4096, "HEIGHT": 2048} and file.defines == {"WIDTH": "WIDTH", "HEIGHT": "HEIGHT"}
    some = (16, 4, 8, 32, 64)
    assert file.parameters == {
        "block_size_x": some,
        "block_size_y": some,
        "ROWS": some,
        "PAIRS": (0, 1),
        "FAST": (1, 2, 4),
    }
    assert file.outputs == ["dst"], "through a pointer made from it"
    assert file.arguments["near"].local == "4 * block_size_x * block_size_y"
    assert "# check this: it is global pair *restrict dst" in text
    assert "(--kernel NAME): other" in text


DERIVED = """
#define TILE (8u)
#if WIDTH == 1
typedef float pixel;
#elif WIDTH == 4
typedef float4 pixel;
#endif
#if WIDTH > 1
#define STEP 1
#else
#define STEP 2
#endif
#define ROWS (HIGH/SPLIT)
#define IN __global const
#define KEPT __attribute__((unused))
__attribute__((reqd_work_group_size(WG_X, WG_Y, 1)))
__kernel void blend(IN pixel *restrict src, __global float *sum, unsigned int count, int srcOffset, int stride) {
#if UNROLL > 0
#pragma unroll UNROLL
#endif
    for (int i = 0; i < ROWS; i += STEP)
        sum[get_global_id(0)] += ((IN float *)src)[i * TILE + srcOffset + stride];
}
"""


def test_init_reads_qualifiers_and_empty_lists_and_kernels_of_macros(folder: Path) -> None:
    written = f"#define MADE(name) kernel void name(global float *x) {{ }}\n{SOURCE.replace('*y', '*restrict const y')}"
    (folder / "made.cl").write_text(written)
    text = draft(folder / "made.cl")
    assert 'kernel = "scale"' in text and 'y = { buffer = "float32", size = "n", access = "out" }' in text
    (folder / "none.cl").write_text("kernel void none(void) { }\n")
    assert "void" not in draft(folder / "none.cl")
    (folder / "made.cl").write_text(f"{written.splitlines()[0]}\nMADE(one)\n")
    assert 'kernel = "one"' in draft(folder / "made.cl"), "a kernel that a macro writes"
    (folder / "made.cl").write_text(f"{written.splitlines()[0]}\n")
    with pytest.raises(UsageError, match="defines no kernel"):
        draft(folder / "made.cl")


def test_init_looks_into_macros_conditions_and_includes(folder: Path) -> None:
    (folder / "body.h").write_text(DERIVED)
    (folder / "blend.cl").write_text('#include "body.h"\n')
    text = draft(folder / "blend.cl")
    (folder / "blend.toml").write_text(text)
    file = read_kernel_file(folder / "blend.toml")
    assert file.local_size == "WG_X, WG_Y", "what is required before the kernel's own keyword"
    assert file.sizes == {"count": 1024}, "neither offsets nor strides"
    some = (16, 4, 8, 32, 64)
    assert file.parameters == {
        "TILE": (8, 2, 4, 16, 32),
        "WIDTH": (1, 2, 4),
        "UNROLL": (0, 1),
        "HIGH": some,
        "SPLIT": some,
        "WG_X": some,
        "WG_Y": some,
    }
    assert file.arguments["src"].buffer == "float32" and "# check this: it is IN pixel *restrict src" in text
    assert [file.arguments[name].access for name in ("src", "sum")] == ["in", "inout"]
    assert [file.arguments[name].value for name in ("srcOffset", "stride")] == [0, 1]


@pytest.mark.parametrize(
    "text",
    [
        "kernel void a(int x, " * 400,
        "kernel " * 5000,
        "kernel void " * 5000 + "{",
        "kernel void (((( " * 5000 + "{",
        ("kernel void" + " a(" * 1200 + "{") * 20,
        ("kernel void " + "a))" * 1300 + "{") * 20,
        "/* " * 200_000,
    ],
)
def test_a_source_that_is_made_to_hang_the_draft_is_refused_at_once(tmp_path: Path, text: str) -> None:
    (tmp_path / "hostile.cl").write_text(text)
    began = time.process_time()
    with pytest.raises(UsageError, match="defines no kernel"):
        draft(tmp_path / "hostile.cl")
    assert time.process_time() - began < 5.0
