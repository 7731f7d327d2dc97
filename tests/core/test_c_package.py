"""The C package: its choices and plans beside Python's, and its products on PoCL beside NumPy's."""

import ctypes
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

import factories
import transpose_family
from autotune.cli import main
from autotune.device.opencl import Session
from autotune.display import progress
from autotune.errors import DeviceSelectionError, TableError, UsageError
from autotune.export import c_package, export_package, export_table
from autotune.export.c_family import FamilyInC
from autotune.export.c_package import package_files
from autotune.export.contents import DeviceTable
from autotune.kernels import find_family
from autotune.kernels.attention import AttentionProblem
from autotune.kernels.combination import COMBINE, SECOND_LAUNCH
from autotune.kernels.conv import ConvProblem
from autotune.kernels.gemm import GemmProblem
from autotune.kernels.qgemm import QGemmProblem
from autotune.kernels.reduce import Reduce, ReduceProblem
from autotune.kernels.render import render
from autotune.kernels.rows import RowsProblem
from autotune.lookup import Match, TuningTable
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.plan import Buffer, Launch, LocalMemory, Plan, Role, Scalar
from autotune.model.problem import ELEMENT_TYPES, Problem
from autotune.paths import data_folder
from autotune.space.family import CExport, KernelFamily
from autotune.space.search_space import SearchSpace
from autotune.store import Store
from factories import random_configuration, winner

WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")
HEADERS = any((Path(folder) / "CL" / "cl.h").exists() for folder in ("/usr/include", "/usr/local/include"))
LOADERS = sorted((Path(cl.__file__).parent / ".libs").glob("libOpenCL*"))

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here"),
    pytest.mark.skipif(not HEADERS, reason="no headers of OpenCL here: apt install ocl-icd-opencl-dev"),
    pytest.mark.skipif(not LOADERS, reason="pyopencl came without a loader to link with"),
]

ADRENO = Device(
    slug="adreno-730", vendor="Qualcomm", model="Adreno 730", family="adreno", driver="OpenCL 3.0",
    limits=DeviceLimits(
        compute_units=4, max_work_group_size=1024, max_work_item_sizes=(1024, 1024, 1024), local_memory_bytes=32768,
        has_images=True, max_image_width=2048, max_image_height=2048, ordering_standard=200,
    ),
)  # fmt: skip
MALI = Device(
    slug="mali-g610", vendor="ARM", model="Mali-G610", family="mali",
    limits=DeviceLimits(
        compute_units=4, max_work_group_size=1024, max_work_item_sizes=(1024, 1024, 1024), local_memory_bytes=32768,
        has_sub_groups=True, sub_group_sizes=(16,), has_float16=True, has_matrix_units=True, has_ptx_integer_dot=True,
    ),
)  # fmt: skip
SIZES = (1, 2, 7, 16, 48, 64, 100, 128, 512, 768, 1000, 1024, 4096)
SEEN = """
#include "autotune.c"

/* Everything of a plan as numbers, for a test to compare. */
int seen_plan(const struct autotune_plan *plan, const char **kernels, long long *numbers) {
    int count = 0, launch, place, buffer;
    numbers[count++] = plan->buffer_count;
    for (buffer = 0; buffer < plan->buffer_count; buffer++) {
        const struct autotune_buffer *b = &plan->buffers[buffer];
        numbers[count++] = b->operand;
        numbers[count++] = b->view_of;
        numbers[count++] = b->width;
        numbers[count++] = b->height;
        numbers[count++] = b->view_of >= 0 ? b->pitch_bytes : b->width ? 0 : b->bytes;
        numbers[count++] = b->is_zeroed;
        numbers[count++] = b->is_line;
        numbers[count++] = b->packed;
        numbers[count++] = b->width ? (long long)b->order - CL_R : 0;
    }
    numbers[count++] = plan->launch_count;
    for (launch = 0; launch < plan->launch_count; launch++) {
        const struct autotune_launch *l = &plan->launches[launch];
        kernels[launch] = l->kernel;
        numbers[count++] = l->packs;
        numbers[count++] = (long long)l->dimensions;
        for (place = 0; place < (int)l->dimensions; place++) {
            numbers[count++] = (long long)l->global_size[place];
            numbers[count++] = l->has_local_size ? (long long)l->local_size[place] : 0;
        }
        numbers[count++] = l->argument_count;
        for (place = 0; place < l->argument_count; place++) {
            numbers[count++] = (long long)l->arguments[place].kind;
            numbers[count++] = l->arguments[place].value;
        }
    }
    numbers[count++] = plan->variant;
    return count;
}

/* As if a call had not gone through: counters of the problem that was used last do not start at zero. */
int spoil_counters(struct autotune_library *library, cl_command_queue queue) {
    const struct ready *const ready = library->ready;
    const cl_int wrong = 1000;
    int number, count = 0;
    for (number = 0; number < ready->plan.buffer_count; number++) {
        if (!ready->plan.buffers[number].is_zeroed) continue;
        if (clEnqueueWriteBuffer(queue, ready->memory[number], CL_TRUE, 0, sizeof wrong, &wrong, 0, NULL, NULL) == 0)
            count++;
    }
    return count;
}

/* The program that is left of options that are too long, and how it failed. */
cl_program left_of_long_options(struct autotune_library *library, cl_int *error) {
    cl_program program = NULL;
    char options[600];
    memset(options, ' ', sizeof options);
    options[sizeof options - 1] = 0;
    *error = compile(library, 0, options, &program);
    return program;
}
"""
SEEN_FAMILY = """
int seen_%(f)s(struct autotune_library *library, const struct autotune_%(f)s_problem *problem,
        struct autotune_choice *choice, const char **kernels, long long *numbers, int *count) {
    struct ready ready;
    enum autotune_status status;
    memset(&ready, 0, sizeof ready);
    ready.family = &autotune_family_%(f)s;
    ready.problem.%(f)s = *problem;
    if (!autotune_%(f)s_complete(&ready.problem.%(f)s)) return AUTOTUNE_NO_PROBLEM;
    status = choose_any(library, &ready, choice);
    *count = seen_plan(&ready.plan, kernels, numbers);
    return (int)status;
}

int planned_%(f)s(const struct autotune_%(f)s_problem *problem, const struct autotune_%(f)s_configuration *c,
        const char **kernels, long long *numbers) {
    struct autotune_plan plan;
    autotune_plan_%(f)s(problem, c, &plan);
    return seen_plan(&plan, kernels, numbers);
}
"""


class Choice(ctypes.Structure):
    _fields_ = (("match", ctypes.c_int), ("source", ctypes.c_int), ("launches", ctypes.c_int))


class Library:
    """A package compiled and loaded into this process, for one device."""

    def __init__(self, folder: Path, device: Device, families: tuple[str, ...], place: Session | None = None) -> None:
        seen = SEEN + "".join(SEEN_FAMILY % {"f": f} for f in families)
        (folder / "seen.c").write_text(seen)
        name = f"seen_{device.slug}.so"
        example = ("-Dmain=example", "main.c")
        done = subprocess.run(
            ["cc", *WARNINGS, "-O1", "-shared", "-fPIC", "seen.c", *example, str(LOADERS[0]), "-lm", "-o", name],
            capture_output=True, text=True, cwd=folder,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        self.c = ctypes.CDLL(str(folder / name))
        self.handle = ctypes.c_void_p()
        self.texts: dict[int, str] = {}
        context = ctypes.c_void_p(place.queue.context.int_ptr if place else None)
        device_id = ctypes.c_void_p(place.queue.device.int_ptr if place else None)
        self.opened = self.c.autotune_open(device.slug.encode(), context, device_id, ctypes.byref(self.handle))

    def choose(self, problem: Problem) -> tuple[int, Choice, tuple[list[str], list[int]]]:
        """Status, choice and plan."""
        choice, count = Choice(), ctypes.c_int()
        kernels, numbers = (ctypes.c_char_p * 4)(), (ctypes.c_longlong * 256)()  # as many as any plan here has
        ask = getattr(self.c, f"seen_{problem.family}")
        asked = to_structure(problem)
        status = ask(self.handle, ctypes.byref(asked), ctypes.byref(choice), kernels, numbers, ctypes.byref(count))
        names = [name.decode() for name in kernels if name]
        return status, choice, (names, list(numbers[: count.value]))

    def plan(self, problem: Problem, configuration: Configuration) -> tuple[list[str], list[int]]:
        """Of any configuration, whether or not it may be used."""
        kernels, numbers = (ctypes.c_char_p * 4)(), (ctypes.c_longlong * 256)()
        ask = getattr(self.c, f"planned_{problem.family}")
        given = to_members(find_family(problem.family), configuration)
        count = ask(ctypes.byref(to_structure(problem)), ctypes.byref(given), kernels, numbers)
        return [name.decode() for name in kernels if name], list(numbers[:count])

    def text(self, source: int) -> str:
        if source not in self.texts:
            lines: list[str] = []
            kind = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)
            self.c.autotune_read_source(source, kind(lambda line, _: lines.append(line.decode())), None)
            self.texts[source] = "".join(lines)
        return self.texts[source]

    def log(self) -> str:
        self.c.autotune_log.restype = ctypes.c_char_p
        return str(self.c.autotune_log(self.handle).decode(errors="replace"))


def c_export(family: KernelFamily) -> CExport:
    assert family.c_export
    return family.c_export


def words_of(family: KernelFamily) -> list[str]:
    """In the order of their numbers."""
    declared = [value for a in family.algorithms for p in a.parameters for value in p.values]
    known = {w for values in c_export(family).words.values() for w in values}
    return ["", *sorted(known | {value for value in declared if isinstance(value, str)})]


def to_members(family: KernelFamily, configuration: Configuration) -> Any:
    """A configuration in C: the number of its algorithm, then every parameter of the family; all are int."""
    words, chosen = words_of(family), dict(configuration.values)
    values = [chosen.get(name, 0) for name in family.parameter_names]
    numbers = [words.index(value) if isinstance(value, str) else value for value in values]
    algorithm = [a.name for a in family.algorithms].index(configuration.algorithm) + 1
    return (ctypes.c_int * (1 + len(numbers)))(algorithm, *numbers)


def to_structure(problem: Problem) -> ctypes.Structure:
    """In the members' order."""
    words = words_of(find_family(problem.family))
    members: list[tuple[str, Any]] = [
        (f.name, ctypes.c_int if f.type is str else ctypes.c_longlong) for f in fields(problem)
    ]
    kind = type("Problem", (ctypes.Structure,), {"_fields_": members})
    values = problem.to_dict().values()
    found = kind(*(words.index(value) if isinstance(value, str) else value for value in values))
    assert isinstance(found, ctypes.Structure)
    return found


CHANNELS = {"R": 0, "RG": 2, "RGBA": 5}
"""Orders of channels in OpenCL, counted from the first."""


def plan_numbers(family: KernelFamily, problem: Problem, configuration: Configuration) -> tuple[list[str], list[int]]:
    """As `seen_plan` gives them."""
    plan, rules = family.plan(problem, configuration), c_export(family)
    order = {buffer.name: number for number, buffer in enumerate(plan.buffers)}
    operands = list(dict.fromkeys(b.name for b in rules.plan.buffers if b.role in (Role.INPUT, Role.OUTPUT)))
    packing = [launch for launch in plan.launches if problem.is_constant(launch.prepares)]
    filled = {argument for launch in packing for argument in launch.arguments}
    packed = [b.name for b in plan.buffers if b.role is Role.SCRATCH and b.name in filled]
    numbers = [len(plan.buffers)]
    for buffer in plan.buffers:
        numbers += [operands.index(buffer.name) if buffer.name in operands else -1, order.get(buffer.view_of, -1)]
        numbers += [buffer.image_width, buffer.image_height, shown_bytes(buffer)]
        numbers += [int(buffer.is_zeroed), int(buffer.is_line)]
        numbers.append(packed.index(buffer.name) if buffer.name in packed else -1)
        numbers.append(CHANNELS["RGBA"[: buffer.channels]] if buffer.image_width else 0)
    numbers.append(len(plan.launches))
    for launch in plan.launches:
        numbers += [int(launch in packing), len(launch.global_size)]
        for place, size in enumerate(launch.global_size):
            numbers += [size, launch.local_size[place] if launch.local_size else 0]
        numbers.append(len(launch.arguments))
        numbers += [number for argument in arguments(launch, order, list(rules.plan.scalars)) for number in argument]
    numbers.append(rules.plan.variant_of(problem, configuration))
    return [launch.kernel for launch in plan.launches], numbers


def shown_bytes(buffer: Buffer) -> int:
    if buffer.view_of:
        return int(buffer.row_pitch) * ELEMENT_TYPES[buffer.dtype].size_bytes
    return 0 if buffer.image_width else int(buffer.size_bytes)


def arguments(launch: Launch, order: dict[str, int], scalars: list[str]) -> Iterator[tuple[int, int]]:
    for argument in launch.arguments:
        if isinstance(argument, str):
            yield 0, order[argument]
        elif isinstance(argument, LocalMemory):
            yield 3, argument.size_bytes
        else:
            assert isinstance(argument, Scalar)
            yield (2, scalars.index(argument.name)) if argument.name else (1, int(argument.value))


MATCHES = (None, Match.EXACT, Match.SIBLING, Match.VENDOR, Match.DEFAULT, Match.PRESUMED)
"""In the order of their numbers in C."""


def check_choice(library: Library, problem: Problem, match: Match, configuration: Configuration) -> int:
    """That C would do what Python does; the number of the source."""
    family = find_family(problem.family)
    status, choice, planned = library.choose(problem)
    assert status == 0, problem
    assert choice.match == MATCHES.index(match), problem
    plan = family.plan(problem, configuration)
    assert planned == plan_numbers(family, problem, configuration), (problem, configuration)
    assert choice.launches == sum(not problem.is_constant(launch.prepares) for launch in plan.launches)
    assert library.text(choice.source) == render(family, configuration, plan), (problem, configuration)
    return int(choice.source)


ATTENDED: tuple[dict[str, Any], ...] = (
    {"head": "64", "causality": "causal"}, {"head": "128", "kv_type": "q8_0", "sinks": "sinks", "bias": "mask"},
)  # fmt: skip


CONVOLVED = ("bias relu", "layout=nchw", "bias relu groups=2 stride=2")


def fill(store: Store, device: Device, count: int, numbers: random.Random) -> None:
    """With winners of all algorithms for problems of a few kinds."""
    store.add_device(device)
    kinds: list[dict[str, Any]] = [{}, {}, {"trans_b": 1}, {"mode": "int8"}, {"trans_a": 1, "batch": 3}]
    for number in range(count):
        m, n, k = (numbers.choice(SIZES) for _ in "mnk")
        problem = GemmProblem(m=m, n=n, k=k, **kinds[number % len(kinds)])
        store.record_winner(winner(device, problem, random_configuration(device, problem, numbers)))
    for number in range(count // 2):
        rows = ReduceProblem(
            batch=numbers.choice((1, 5, 64, 1000)), channels=numbers.choice((7, 64, 1000, 4096, 100_000)),
            operation=("mean", "max")[number % 2],
        )  # fmt: skip
        store.record_winner(winner(device, rows, random_configuration(device, rows, numbers)))
        operation = RowsProblem(
            batch=numbers.choice((1, 5, 64, 1000)), channels=numbers.choice((64, 1000, 4096)),
            heads=2 if number % 3 == 2 else 1, operation=("rms_norm", "softmax_row_mask", "rope")[number % 3],
        )  # fmt: skip
        store.record_winner(winner(device, operation, random_configuration(device, operation, numbers)))
        looked = AttentionProblem(
            kv_heads=2, group=4, q_length=numbers.choice((1, 8, 100)), kv_length=numbers.choice((100, 1000)),
            **ATTENDED[number % len(ATTENDED)],
        )  # fmt: skip
        store.record_winner(winner(device, looked, random_configuration(device, looked, numbers)))
        image = ConvProblem.parse(f"1,{14 + number},14,32,48,3x3 pad=1 {CONVOLVED[number % len(CONVOLVED)]}")
        store.record_winner(winner(device, image, random_configuration(device, image, numbers)))
    for number in range(count):
        m, n, k = (numbers.choice(sizes) for sizes in ((64, 100, 2048), (1, 3, 64), (256, 2048)))
        weights = QGemmProblem(
            m=m, n=n, k=k, weights=("q4_0", "q4_k", "int4z-g64", "q4_0")[number % 4],
            mode=("float32", "int8", "float32")[number % 3], experts=numbers.choice((1, 1, 4)),
        )  # fmt: skip
        store.record_winner(winner(device, weights, random_configuration(device, weights, numbers)))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store.open(tmp_path_factory.mktemp("tuned") / "tuned.sqlite")
    for device, count in ((ADRENO, 12), (MALI, 5)):
        fill(store, device, count, random.Random(len(device.slug)))
    return store


FAMILIES = ("attention", "conv", "gemm", "qgemm", "reduce", "rows")
RELATIVE = factories.device("adreno-740")


@pytest.fixture(scope="module")
def libraries(tuned: Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Library]:
    """By device."""
    folder = tmp_path_factory.mktemp("libraries")
    export_package(tuned, None, FAMILIES, folder, also=[RELATIVE.slug])
    return {device.slug: Library(folder, device, FAMILIES) for device in (ADRENO, MALI, RELATIVE)}


def asked(numbers: random.Random, count: int) -> Iterator[Problem]:
    for number in range(count):
        batch = numbers.choice((1, 1, 2))
        m, n, k = (numbers.choice((1, 4, 30, 63, 64, 100, 128, 257, 512, 1001, 2048)) for _ in "mnk")
        gap = numbers.choice((0, 0, 1, 4))
        kind: dict[str, Any] = ({}, {}, {"trans_b": 1}, {"mode": "int8"}, {"trans_a": 1})[number % 5]
        yield GemmProblem(m=m, n=n, k=k, batch=batch, ldc=n + gap, **kind)
        yield ReduceProblem(
            batch=numbers.choice((1, 2, 7, 64, 1000, 5000)), channels=numbers.choice((1, 3, 5, 12, 64, 100, 999, 4096)),
            operation=numbers.choice(("sum", "mean", "max")),
        )  # fmt: skip
        operation = numbers.choice(("rms_norm", "softmax_row_mask", "rope"))
        yield RowsProblem(
            batch=numbers.choice((1, 2, 7, 64, 1000, 5000)), channels=numbers.choice((4, 12, 64, 100, 1000, 4096)),
            operation=operation, heads=numbers.choice((1, 2)) if operation == "rope" else 1,
        )  # fmt: skip
        queries, keys, window = numbers.choice((1, 2, 9, 70)), numbers.choice((1, 40, 1000, 5000)), (0, 0, 9)
        yield AttentionProblem(
            kv_heads=numbers.choice((1, 8)), group=numbers.choice((1, 4, 7)), q_length=queries, kv_length=keys,
            batch=batch, window=numbers.choice(window), capacity=keys + gap, **numbers.choice(ATTENDED),
        )  # fmt: skip
        side, groups = numbers.choice((1, 3, 5, 7)), numbers.choice((1, 1, 4))
        channels, filters = 4 * numbers.choice((1, 8, 9)), 4 * numbers.choice((1, 8, 11))
        if numbers.random() < 0.3:
            groups = filters = channels
        words = f"pad={numbers.choice((0, 1)) if side < 7 else 1} stride={numbers.choice((1, 2, 3))} groups={groups}"
        sizes = f"{batch},{numbers.choice((7, 14, 56))},{7 * batch},{channels},{filters}"
        yield ConvProblem.parse(f"{sizes},{side}x{side} {words} {numbers.choice(CONVOLVED[:2])}")
        yield QGemmProblem(
            m=m, n=numbers.choice((1, 2, 3, 8, 65)), k=numbers.choice((32, 64, 1024)), experts=batch * batch,
            weights="q4_0", mode=numbers.choice(("float32", "float32", "int8")),
        )  # fmt: skip


@pytest.mark.long
def test_c_chooses_and_plans_as_python_does(tuned: Store, libraries: dict[str, Library], tmp_path: Path) -> None:
    for family in FAMILIES:
        (tmp_path / f"{family}.json").write_text(str(export_table(tuned, None, family, "json")))
    tables = {family: TuningTable.open(tmp_path / f"{family}.json") for family in FAMILIES}
    matches: set[Match] = set()
    sources: set[int] = set()
    for slug, library in libraries.items():
        assert library.opened == 0
        numbers = random.Random(11)
        measured = [w.problem for w in tuned.best(slug)]
        near = [p.resized([size + size // 9 for size in p.size_vector]) for p in measured]
        problems = [*asked(numbers, 120), *measured, *near]
        for problem in problems:
            found = tables[problem.family].find(slug, problem)
            sources.add(check_choice(library, problem, found.match, found.configuration))
            matches.add(found.match)
    assert {Match.EXACT, Match.SIBLING, Match.DEFAULT} <= matches
    assert len(sources) > 50


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_c_plans_every_value_of_every_parameter(libraries: dict[str, Library], name: str) -> None:
    """As Python does, whether or not the configuration could be used; so that no planner lacks a new parameter."""
    library = libraries[MALI.slug]
    family, numbers = find_family(name), random.Random(8)
    problems = [problem for problem in asked(numbers, 40) if problem.family == name]
    for algorithm in family.algorithms:
        for forced in algorithm.parameters:
            for value in forced.values:
                for _ in range(4):
                    drawn = {p.name: numbers.choice(p.values) for p in algorithm.parameters} | {forced.name: value}
                    if drawn.get("work_group_m") == 0 or drawn.get("work_group_n") == 0:
                        drawn |= {"work_group_m": 0, "work_group_n": 0}  # the driver chooses both or none
                    configuration, problem = Configuration.of(algorithm.name, **drawn), numbers.choice(problems)
                    if lacks_buffers(family.plan(problem, configuration)):
                        continue  # an image of pixels that no image has
                    expected = plan_numbers(family, problem, configuration)
                    assert library.plan(problem, configuration) == expected, (problem, configuration)


def lacks_buffers(plan: Plan) -> bool:
    passed = {argument for launch in plan.launches for argument in launch.arguments if isinstance(argument, str)}
    return not passed <= {buffer.name for buffer in plan.buffers}


@pytest.mark.long
def test_what_was_not_exported_has_a_status_of_its_own(tuned: Store, tmp_path: Path) -> None:
    export_package(tuned, "mali-g610", ("gemm",), tmp_path)
    library = Library(tmp_path, MALI, ("gemm",))
    assert library.choose(GemmProblem(m=5, n=5, k=5, mode="float16"))[0] == 3  # AUTOTUNE_NO_KERNEL
    odd = to_structure(GemmProblem(m=5, n=5, k=5))
    odd.m = 0
    assert library.c.autotune_gemm_prepare(library.handle, ctypes.byref(odd)) == 2  # AUTOTUNE_NO_PROBLEM
    other = Library(tmp_path, ADRENO, ("gemm",))
    assert (other.opened, other.handle.value) == (1, None)  # AUTOTUNE_NO_DEVICE


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_samples_meet_every_variant(name: str) -> None:
    """Of configurations drawn at random, at sizes drawn at random."""
    numbers = random.Random(4)
    family = find_family(name)
    rules = c_export(family)
    limits = replace(ADRENO.limits, has_sub_groups=True, has_matrix_units=True)
    problems = [p for p in asked(numbers, 60) if p.family == name]
    for example in problems[:25]:
        space = SearchSpace(family, example, limits)
        configuration = space[numbers.randrange(len(space))]
        met = {rules.plan.variant_of(p, configuration) for p in rules.samples(configuration, example)}
        for problem in problems:
            if problem.kind == example.kind and not family.violations(problem, configuration, limits):
                assert rules.plan.variant_of(problem, configuration) in met


@pytest.mark.long
def test_a_family_from_elsewhere_is_exported_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family, numbers = transpose_family.FAMILY, random.Random(5)
    for module in (c_package, sys.modules[__name__]):
        monkeypatch.setattr(module, "find_family", lambda _: family)
    for name, text in package_files({family.name: [DeviceTable(device=MALI, winners=())]}).items():
        (tmp_path / name).write_text(text)
    library = Library(tmp_path, MALI, (family.name,))
    for _ in range(50):
        problem = family.problem_type.from_dict({name: numbers.randrange(1, 3000) for name in ("rows", "columns")})
        check_choice(library, problem, Match.DEFAULT, family.default(problem, MALI.limits, ()))
        plain = Configuration.of("plain", rows_per_item=numbers.choice((1, 2, 16)))
        assert library.plan(problem, plain) == plan_numbers(family, problem, plain)
    too_long = to_structure(problem)
    too_long.rows = 32769
    assert library.c.autotune_transpose_prepare(library.handle, ctypes.byref(too_long)) == 2  # AUTOTUNE_NO_PROBLEM


def test_a_family_without_a_c_export_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reduce, "c_export", None)
    with pytest.raises(UsageError, match="reduce cannot be exported to C"):
        FamilyInC(Reduce())


# On PoCL


@pytest.fixture(scope="module")
def session(pocl: Device) -> Session:
    return Session(pocl.selector)


ONE_LAUNCH = tuple(value for value in COMBINE.values if isinstance(value, str) and value != SECOND_LAUNCH)
PRODUCTS = (
    "64,48,96", "33,50,29", "65,33,17 batch=3", "40,36,44 nt", "1,300,210", "24,56,32 int8", "37,43,21 ldc=47 ldb=44",
    "80,80,80", "72,40,50", "72,40,57", "37,35,290 tn ldc=36", "3,270,600 tn", "1,300,210 nt", "300,1,210 tn",
    "4,270,300 nt ldc=280",
)  # fmt: skip
MADE_FOR: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("64,48,96", "local_tile", "", ()),
    ("40,36,44 nt", "dot", "", ()),
    ("24,56,32 int8", "microtile", "", ()),
    ("1,300,210", "row", "", ()),
    ("300,1,210 tn", "row", "", ()),
    ("1,300,210 nt", "column", "", ()),
    ("4,270,300 nt ldc=280", "column", "", ()),
    ("80,80,80", "microtile", "b_storage", ("image", "image_view")),
    ("72,40,50", "panel", "", ()),
    ("37,35,290 tn ldc=36", "local_tile", "combine", ONE_LAUNCH),
    ("3,270,600 tn", "row", "combine", ONE_LAUNCH),
)
"""Problem, algorithm, and what values of a parameter, where it is named, a configuration is to have."""
MADE_FOR_WEIGHTS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("70,1,512 q4_k", "own_rows", "w_storage", ("image",)),
    ("70,3,512 q4_k", "own_rows", "x_storage", ("image",)),
    ("70,66,512 q4_k", "local_tile", "", ()),
    ("70,2,512 q4_k", "shared_rows", "layout", ("file",)),
    ("72,1,256 q6_k", "shared_rows", "layout", ("rows",)),
    ("33,5,96 mxfp4 int8", "own_rows", "w_storage", ("buffer",)),
    ("36,20,128 int4z-g64 experts=4", "shared_rows", "", ()),
    ("36,70,128 q8_0 experts=3 float16", "local_tile", "", ()),
)
WEIGHTS = tuple(text for text, *_ in MADE_FOR_WEIGHTS)


ROW_OPERATIONS = (
    ("9,300,rms_norm_add_weight", "local_tree"), ("12,96,rope_halves heads=3", "spread"),
    ("7,130,softmax_mask float16", "serial"), ("5,70,layer_norm", "local_tree"),
)  # fmt: skip


CONVOLUTIONS = (
    ("1,14,13,12,20,3x3 pad=1 bias relu", "winograd"), ("2,9,8,12,20,5x5 pad=2 stride=2 bias relu", "implicit"),
    ("1,14,13,24,24,3x3 pad=1 groups=24 bias relu", "depthwise"), ("1,7,9,16,8,1x1 residual leaky", "direct"),
    ("1,7,9,6,10,3x3 layout=nc4hw4 bias", "direct"),
)  # fmt: skip


def draw(device: Device, problem: Problem, algorithm: str, name: str, values: tuple[str, ...]) -> Configuration:
    """One with such a value of the parameter, where one is named."""
    numbers = random.Random(2)
    space = SearchSpace(find_family(problem.family), problem, device.limits, algorithms=[algorithm])
    drawn = (space[numbers.randrange(len(space))] for _ in range(5000))
    return next(c for c in drawn if not name or c[name] in values)


@pytest.fixture(scope="module")
def made(pocl: Device) -> dict[Problem, Configuration]:
    """What is measured in the package for PoCL; one launch where that promises an order."""
    found: dict[Problem, Configuration] = {
        GemmProblem.parse(text): draw(pocl, GemmProblem.parse(text), algorithm, name, values)
        for text, algorithm, name, values in MADE_FOR
        if name != "combine" or pocl.limits.ordering
    }
    for text, algorithm, name, values in MADE_FOR_WEIGHTS:
        weights = QGemmProblem.parse(text)
        found[weights] = draw(pocl, weights, algorithm, name, values)
    for text, joins in (("9,300,mean", (SECOND_LAUNCH,)), ("2,5000,sum", ONE_LAUNCH)):
        if joins != ONE_LAUNCH or pocl.limits.ordering:
            rows = ReduceProblem.parse(text)
            found[rows] = draw(pocl, rows, "split_row", "combine", joins)
    for text, algorithm in ROW_OPERATIONS:
        operation = RowsProblem.parse(text)
        found[operation] = draw(pocl, operation, algorithm, "", ())
    for text, algorithm in (("8/2,1,300,64 causal", "decode"), ("4/2,40,70,128 kv=q8_0 sinks mask", "columns")):
        looked = AttentionProblem.parse(text)
        found[looked] = draw(pocl, looked, algorithm, "", ())
    for text, algorithm in CONVOLUTIONS:
        image = ConvProblem.parse(text)
        found[image] = draw(pocl, image, algorithm, "", ())
    return found


@pytest.fixture(scope="module")
def on_pocl(
    pocl: Device, made: dict[Problem, Configuration], session: Session, tmp_path_factory: pytest.TempPathFactory
) -> Library:
    folder = tmp_path_factory.mktemp("package")
    with Store.open(folder / "tuned.sqlite") as store:
        store.add_device(pocl)
        for problem, configuration in made.items():
            store.record_winner(winner(pocl, problem, configuration))
        export_package(store, pocl.slug, FAMILIES, folder / "c")
    library = Library(folder / "c", pocl, FAMILIES, session)
    assert library.opened == 0
    return library


@pytest.mark.long
def test_what_was_measured_is_what_runs(on_pocl: Library, made: dict[Problem, Configuration]) -> None:
    for problem, configuration in made.items():
        check_choice(on_pocl, problem, Match.EXACT, configuration)


@pytest.mark.long
@pytest.mark.parametrize(("seed", "text"), list(enumerate(PRODUCTS)))
def test_products_are_right(on_pocl: Library, session: Session, seed: int, text: str) -> None:
    problem = GemmProblem.parse(text)
    case = find_family("gemm").make_case(problem, seed)
    alpha, beta = case.scalars["alpha"], case.scalars["beta"]
    memory = [to_device(session, case.inputs[name]) for name in "abc"]
    handles = [ctypes.c_void_p(one.int_ptr) for one in memory]
    queue = ctypes.c_void_p(session.queue.int_ptr)
    for _ in range(2):  # the second time everything is there
        session.write(memory[2], case.inputs["c"])
        status = on_pocl.c.autotune_gemm(
            on_pocl.handle, queue, ctypes.byref(to_structure(problem)), ctypes.c_double(alpha), ctypes.c_double(beta),
            *handles, None,
        )  # fmt: skip
        assert status == 0, (status, on_pocl.log())
        result = np.empty_like(case.inputs["c"])
        session.read(memory[2], result)
        assert case.error_ratio({"c": result}) <= 1.0


class Weights:
    """A product with constant weights, on the device; its operands are those of a case."""

    def __init__(self, library: Library, session: Session, text: str, seed: int = 1) -> None:
        self.library, self.session = library, session
        self.queue = ctypes.c_void_p(session.queue.int_ptr)
        self.case = find_family("qgemm").make_case(QGemmProblem.parse(text), seed)
        self.problem = to_structure(QGemmProblem.parse(text))
        self.memory = {name: to_device(session, values) for name, values in self.case.inputs.items()}
        self.packed = ctypes.c_void_p()

    def pack(self, problem: ctypes.Structure | None = None, event: Any = None) -> int:
        asked, weights = ctypes.byref(problem or self.problem), ctypes.c_void_p(self.memory["weights"].int_ptr)
        pack = self.library.c.autotune_qgemm_pack
        return int(pack(self.library.handle, self.queue, asked, weights, ctypes.byref(self.packed), event))

    def unpack(self) -> tuple[int, bool]:
        """The status of unpacking into other memory, and whether that has the bytes of the file."""
        found = np.zeros_like(self.case.inputs["weights"])
        memory = to_device(self.session, found)
        unpack = self.library.c.autotune_qgemm_unpack
        into = ctypes.c_void_p(memory.int_ptr)
        status = unpack(self.library.handle, self.queue, ctypes.byref(self.problem), self.packed, into, None)
        self.session.read(memory, found)
        return int(status), np.array_equal(found, self.case.inputs["weights"])

    def call(self, memory: dict[str, Any] | None = None, problem: ctypes.Structure | None = None) -> int:
        given = {**self.memory, **(memory or {})}
        operands = [ctypes.c_void_p(given[n].int_ptr if n in given else None) for n in ("x", "starts", "y")]
        asked = ctypes.byref(problem or self.problem)
        run = self.library.c.autotune_qgemm
        return int(run(self.library.handle, self.queue, asked, self.packed, *operands, None))

    def is_right(self) -> bool:
        result = np.empty_like(self.case.inputs["y"])
        self.session.read(self.memory["y"], result)
        self.session.write(self.memory["y"], self.case.inputs["y"])
        return self.case.error_ratio({"y": result}) <= 1.0

    def packed_bytes(self) -> int:
        self.library.c.autotune_packed_bytes.restype = ctypes.c_longlong
        return int(self.library.c.autotune_packed_bytes(self.packed))

    def lose_weights(self) -> None:
        """Overwrite the originals, which what was packed does not notice."""
        self.session.write(self.memory["weights"], np.zeros_like(self.case.inputs["weights"]))

    def release(self) -> None:
        self.library.c.autotune_release_packed(self.packed)


@pytest.mark.long
@pytest.mark.parametrize(("seed", "text"), list(enumerate((*WEIGHTS, "50,2,64 q4_0"))))
def test_products_with_packed_weights_are_right(on_pocl: Library, session: Session, seed: int, text: str) -> None:
    one = Weights(on_pocl, session, text, seed)
    assert one.call() == 7  # AUTOTUNE_NOT_PACKED
    for _ in range(2):
        assert one.pack() == 0, on_pocl.log()
        assert one.call() == 0, on_pocl.log()
        assert one.is_right()
        assert one.unpack() == ((0, True) if one.packed_bytes() else (7, False))
    one.release()


@pytest.mark.long
def test_weights_are_packed_once_for_each_order_that_kernels_read(
    on_pocl: Library, session: Session, made: dict[Problem, Configuration]
) -> None:
    column, rows, tiles = (
        Weights(on_pocl, session, text) for text in ("70,1,512 q4_k", "70,3,512 q4_k", "70,66,512 q4_k")
    )
    orders = {made[QGemmProblem.parse(t)]["packed_words"] for t in ("70,1,512 q4_k", "70,3,512 q4_k", "70,66,512 q4_k")}
    event = ctypes.c_void_p()
    assert column.pack(event=ctypes.byref(event)) == 0
    assert event.value
    cl.Event.from_int_ptr(event.value, retain=False).wait()
    once = column.packed_bytes()
    assert once == 70 * 2 * 148
    for other in (rows, tiles):
        assert column.pack(other.problem) == 0
    assert column.packed_bytes() == len(orders) * once
    others = ("70,1,256 q4_k", "71,1,512 q4_k", "70,1,512 q6_k", "70,1,512 q4_k experts=2")
    wrong = [to_structure(QGemmProblem.parse(text)) for text in others]
    assert [column.call(problem=problem) for problem in wrong] == [7] * 4  # AUTOTUNE_NOT_PACKED
    column.lose_weights()
    assert column.call() == 0 and column.is_right()
    on_pocl.c.autotune_release_originals(column.packed)
    assert column.call() == 0 and column.is_right()
    assert column.unpack() == (0, True)
    as_stored = to_structure(QGemmProblem.parse("70,2,512 q4_k"))  # its kernel reads them as they are in the file
    assert column.call(problem=as_stored) == 7  # AUTOTUNE_NOT_PACKED
    assert [column.call(problem=problem) for problem in wrong] == [7] * 4
    column.release()


@pytest.mark.long
def test_two_matrices_of_one_size_keep_apart(on_pocl: Library, session: Session) -> None:
    layers = [Weights(on_pocl, session, "70,1,512 q4_k", seed) for seed in (5, 6)]
    for layer in layers:
        assert layer.pack() == 0
    for layer in (*layers, *layers):
        assert layer.call() == 0 and layer.is_right()
    for layer in layers:
        layer.release()


@pytest.mark.long
def test_an_operand_that_is_missing_is_an_error(on_pocl: Library, session: Session) -> None:
    one = Weights(on_pocl, session, "70,1,512 q4_k")
    assert one.pack() == 0
    del one.memory["x"]
    assert one.call() == 6  # AUTOTUNE_OPENCL
    one.release()


def reduce_on(library: Library, session: Session, text: str, queue: cl.CommandQueue) -> tuple[int, bool]:
    """The status of a reduction, and whether its result is right."""
    problem = ReduceProblem.parse(text)
    case = find_family("reduce").make_case(problem, 1)
    memory = [to_device(session, case.inputs[name]) for name in ("input", "output")]
    status = library.c.autotune_reduce(
        library.handle, ctypes.c_void_p(queue.int_ptr), ctypes.byref(to_structure(problem)),
        *(ctypes.c_void_p(one.int_ptr) for one in memory), None,
    )  # fmt: skip
    result = np.empty_like(case.inputs["output"])
    session.read(memory[1], result)
    return status, case.error_ratio({"output": result}) <= 1.0


@pytest.mark.long
@pytest.mark.parametrize("text", ["9,300,mean", "5,1000,sum", "700,33,sum", "2,5000,sum"])
def test_reductions_are_right(on_pocl: Library, session: Session, text: str) -> None:
    for _ in range(2):
        assert reduce_on(on_pocl, session, text, session.queue) == (0, True), on_pocl.log()


@pytest.mark.long
@pytest.mark.parametrize(
    "text", [*(text for text, _ in ROW_OPERATIONS), "33,517,rms_norm", "9,300,softmax_mask float16"]
)
def test_row_operations_are_right(on_pocl: Library, session: Session, text: str) -> None:
    """Of measured kinds, at measured sizes and others; operands that an operation does not have are NULL."""
    check_operands(on_pocl, session, RowsProblem.parse(text))


def check_operands(library: Library, session: Session, problem: Problem) -> None:
    """A call on memory for each operand gives the right results."""
    family = find_family(problem.family)
    case = family.make_case(problem, 1)
    formula = c_export(family).plan
    has = {buffer.name: buffer.role for buffer in family.plan(problem, family.baseline).buffers}
    memory = {name: to_device(session, case.inputs[name]) for name in has}
    handles = [memory[b.name].int_ptr if b.name in memory else None for b in formula.buffers]
    status = getattr(library.c, f"autotune_{problem.family}")(
        library.handle, ctypes.c_void_p(session.queue.int_ptr), ctypes.byref(to_structure(problem)),
        *(ctypes.c_double(case.scalars[name]) for name in formula.scalars), *map(ctypes.c_void_p, handles), None,
    )  # fmt: skip
    assert status == 0, (status, library.log())
    results = {name: np.empty_like(case.inputs[name]) for name, role in has.items() if role is Role.OUTPUT}
    for name, result in results.items():
        session.read(memory[name], result)
    assert case.error_ratio(results) <= 1.0


@pytest.mark.long
@pytest.mark.parametrize("text", [*(text for text, _ in CONVOLUTIONS), "1,12,11,8,12,3x3 stride=2", "1,1,1,4,4,1x1"])
def test_convolutions_are_right(on_pocl: Library, session: Session, text: str) -> None:
    """With weights packed once; operands that a problem does not have are NULL."""
    problem = ConvProblem.parse(text)
    case, asked = find_family("conv").make_case(problem, 1), ctypes.byref(to_structure(problem))
    memory = {name: to_device(session, values) for name, values in case.inputs.items()}
    handles = {name: ctypes.c_void_p(one.int_ptr) for name, one in memory.items()}
    queue, packed = ctypes.c_void_p(session.queue.int_ptr), ctypes.c_void_p()
    pack, run = on_pocl.c.autotune_conv_pack, on_pocl.c.autotune_conv
    assert pack(on_pocl.handle, queue, asked, handles["weights"], ctypes.byref(packed), None) == 0, on_pocl.log()
    operands = [handles.get(name) for name in ("input", "bias", "residual", "output")]
    slope = ctypes.c_double(case.scalars["slope"])
    assert run(on_pocl.handle, queue, asked, slope, packed, *operands, None) == 0, on_pocl.log()
    found = np.empty_like(case.inputs["output"])
    session.read(memory["output"], found)
    assert case.error_ratio({"output": found}) <= 1.0
    on_pocl.c.autotune_release_packed(packed)


ATTENTIONS = ("8/2,1,300,64 causal", "4/2,9,70,128 kv=q8_0 sinks mask capacity=80", "4/2,5,90,64 causal window=20")


@pytest.mark.long
@pytest.mark.parametrize("text", ATTENTIONS)
def test_attention_is_right(on_pocl: Library, session: Session, text: str) -> None:
    """As for row operations; the scalars are those of measurements."""
    check_operands(on_pocl, session, AttentionProblem.parse(text))


@pytest.mark.long
def test_options_that_are_too_long_leave_no_program(on_pocl: Library) -> None:
    on_pocl.c.left_of_long_options.restype, error = ctypes.c_void_p, ctypes.c_int()
    assert on_pocl.c.left_of_long_options(on_pocl.handle, ctypes.byref(error)) is None
    assert error.value == -43  # CL_INVALID_BUILD_OPTIONS


@pytest.mark.long
def test_counters_are_zero_again_after_a_call_that_failed(pocl: Device, on_pocl: Library, session: Session) -> None:
    if not pocl.limits.ordering:
        pytest.skip("not covered: this PoCL promises no order among work-groups")
    text, elsewhere = "2,5000,sum", cl.CommandQueue(cl.Context([session.queue.device]))
    queue = ctypes.c_void_p(session.queue.int_ptr)
    assert reduce_on(on_pocl, session, text, session.queue) == (0, True)
    assert on_pocl.c.spoil_counters(on_pocl.handle, queue) == 1
    assert reduce_on(on_pocl, session, text, session.queue) == (0, False), "the counters were not spoiled"
    assert reduce_on(on_pocl, session, text, elsewhere)[0] == 6  # AUTOTUNE_OPENCL: a queue of another context
    assert reduce_on(on_pocl, session, text, session.queue) == (0, True)


def to_device(session: Session, values: Any) -> Any:
    memory = cl.Buffer(session.queue.context, cl.mem_flags.READ_WRITE, values.nbytes)
    session.write(memory, values)
    return memory


@pytest.mark.long
def test_the_example_runs(on_pocl: Library, capfd: pytest.CaptureFixture[str]) -> None:
    """In this process, where PoCL is mended where it must be."""
    words = (ctypes.c_char_p * 4)(b"example", b"72", b"40", b"49")
    assert on_pocl.c.example(4, words) == 0
    ctypes.CDLL(None).fflush(None)  # C buffers what does not go to a terminal
    assert "72 x 40 x 49: default, largest error 0" in capfd.readouterr().out


@pytest.mark.long
def test_the_example_refuses_sizes_that_are_none(on_pocl: Library, capfd: pytest.CaptureFixture[str]) -> None:
    for wrong in (b"-3", b"0", b"abc"):
        assert on_pocl.c.example(4, (ctypes.c_char_p * 4)(b"example", wrong, b"4", b"5")) == 1
        assert "sizes are whole numbers" in capfd.readouterr().err


@pytest.mark.long
def test_what_the_driver_refuses_gives_way_to_the_default(
    pocl: Device, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = GemmProblem(m=32, n=32, k=32)
    monkeypatch.setattr(c_package, "render", spoilt)
    with Store.open(tmp_path / "tuned.sqlite") as store:
        store.add_device(pocl)
        store.record_winner(winner(pocl, problem, SPOILT))
        export_package(store, pocl.slug, ("gemm",), tmp_path / "c")
    library = Library(tmp_path / "c", pocl, ("gemm",), session)
    exact, default = 1, 4
    assert library.choose(problem)[1].match == exact
    assert library.c.autotune_gemm_prepare(library.handle, ctypes.byref(to_structure(problem))) == 0
    assert library.choose(problem)[1].match == default, "what the driver took"
    assert "nonsense" in library.log()


SPOILT = Configuration.of("naive", work_group_m=8, work_group_n=8)


def spoilt(family: Any, configuration: Configuration, plan: Plan) -> str:
    text = render(family, configuration, plan)
    return f"nonsense {text}" if configuration.algorithm == SPOILT.algorithm else text


NAMED = """
#include <stdio.h>
#include "autotune_device.h"
int main(int count, char **words) {
    int which;
    for (which = 3; which < count; which++)
        if (autotune_is_named(words[1], words[which], (unsigned)atoi(words[2]))) return 0;
    return 1;
}
"""
DRIVERS_NAMES = (
    ("QUALCOMM Adreno(TM)", "OpenCL 3.0 Adreno(TM) 730", "OpenCL C 3.0 Adreno(TM) 730", 4, "adreno-730"),
    ("QUALCOMM Adreno(TM) 730", "OpenCL 3.0 QUALCOMM build: commit", "OpenCL C 2.0 Adreno(TM) 730", 4, "adreno-730"),
    ("QUALCOMM Adreno(TM)", "OpenCL 3.0 Adreno(TM) 740", "OpenCL C 3.0 Adreno(TM) 740", 6, "none"),
    ("Qualcomm(R) Adreno(TM) X1-85 GPU", "OpenCL 3.0", "OpenCL C 3.0 Adreno(TM) X1-85", 6, "adreno-x1-85"),
    ("Mali-G710 r0p0", "OpenCL 3.0 v1.r38p1", "OpenCL C 3.0", 10, "mali-g710-mc10"),
    ("Mali-G710 MC10 r0p0", "OpenCL 3.0", "OpenCL C 3.0", 10, "mali-g710-mc10"),
    ("Mali-G710 r0p0", "OpenCL 3.0", "OpenCL C 3.0", 7, "none"),
    ("gfx1100:sramecc+:xnack-", "OpenCL 2.0", "OpenCL C 2.0", 48, "amd-gfx1100-cu48"),
    ("gfx1100:sramecc+:xnack-", "OpenCL 2.0", "OpenCL C 2.0", 1, "none"),
    ("AMD Radeon R9 380", "OpenCL 2.0", "OpenCL C 2.0", 28, "amd-radeon-r9-380"),
    ("NVIDIA GeForce RTX 3080 Ti", "OpenCL 3.0 CUDA", "OpenCL C 1.2", 80, "none"),
    ("NVIDIA GeForce RTX 3080", "OpenCL 3.0 CUDA", "OpenCL C 1.2", 68, "nvidia-geforce-rtx-3080"),
    ("", "", "", 0, "none"),
)


@pytest.mark.long
def test_a_program_finds_its_device_by_what_the_driver_reports(tmp_path: Path) -> None:
    (tmp_path / "named.c").write_text(NAMED)
    build = ["cc", *WARNINGS, f"-I{data_folder('templates') / 'c'}", "named.c", "-o", "named"]
    subprocess.run(build, check=True, cwd=tmp_path)
    known = sorted({slug for *_, slug in DRIVERS_NAMES if slug != "none"})
    for name, version, c_version, units, slug in DRIVERS_NAMES:
        words = [str(units), name, version, c_version]
        found = [one for one in known if subprocess.run([tmp_path / "named", one, *words]).returncode == 0]
        assert found == ([] if slug == "none" else [slug]), words


# The command


@pytest.mark.long
def test_the_command_writes_the_folder(
    tuned: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    export = ["export", "--format", "c", "--db", tuned.location]
    monkeypatch.setattr(progress, "PLAIN_LINE_EVERY_S", 0.0)
    assert main([*export, "--device", "mali-g610", "--family", "gemm", "--kernels", str(tmp_path / "c")]) == 0
    said = capsys.readouterr().err
    assert re.search(r"gemm: 3 of \d+ configurations rendered\n", said) and "wrote" in said
    names = {path.name for path in (tmp_path / "c").iterdir()}
    assert {"autotune.h", "autotune.c", "main.c", "autotune_gemm.h", "autotune_kernels.h"} <= names
    assert "autotune_reduce.h" not in names
    assert main([*export, "--kernels", str(tmp_path / "c"), "--output", "x.h"]) == 2
    assert main([*export, "--also", "adreno-740"]) == 2
    (tmp_path / "file").write_text("")
    assert main([*export, "--device", "mali-g610", "--family", "gemm", "--kernels", str(tmp_path / "file")]) == 1


def test_nothing_and_unknown_devices_are_refused(tmp_path: Path) -> None:
    with Store.open(tmp_path / "empty.sqlite") as empty:
        with pytest.raises(TableError, match="nothing is stored"):
            export_package(empty, None, ("gemm",), tmp_path / "c")
        with pytest.raises(DeviceSelectionError, match="no-such"):
            export_package(empty, "no-such", ("gemm",), tmp_path / "c")
    assert not (tmp_path / "c").exists()
