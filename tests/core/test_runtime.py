"""Tuned kernels on arrays of every kind, on PoCL; what is copied; what happens where something does not fit."""

import itertools
import json
import os
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyopencl as cl
import pyopencl.array as cla
import pytest
from pyopencl.tools import ImmediateAllocator, MemoryPool

from autotune.device.arrays import Kind, shared_memory
from autotune.device.opencl import Session
from autotune.device.programs import Programs
from autotune.errors import BuildError, DeviceSelectionError, LaunchError, ProblemError, TableError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.kernels.reduce import ReduceProblem
from autotune.lookup import Match, Tuned, TuningTable
from autotune.lookup.database import Timed, read_trials
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.plan import Buffer, Plan, Role
from autotune.model.problem import Problem
from autotune.model.trial import TrialState
from autotune.runtime import (
    Crossover,
    CrossoverPoint,
    Gemm,
    Reduce,
    allocate,
    choice,
    engine,
    executor,
    measure_crossover,
)
from autotune.runtime import gemm as gemm_module
from autotune.runtime.crossover import host_product
from autotune.runtime.executor import MOST_VIEWS, BoundCall, Executor
from autotune.store import Store
from factories import provenance, trial
from waiting import HANG_S, in_threads, join, wait_for

NAIVE = Configuration.of("naive", work_group_m=0, work_group_n=0)
TILE: dict[str, Any] = {
    "micro_tile_m": 4, "micro_tile_n": 8, "vector_width": 4, "unroll": 4, "a_vector_width": 1, "work_group_m": 0,
    "work_group_n": 0, "edges": "guard", "loads": "vload", "multiply_add": "mad", "relaxed_math": "off",
}  # fmt: skip
FROM_IMAGE = FAMILY.complete(Configuration.of("microtile", b_storage="image", **TILE))
FROM_BUFFER = FAMILY.complete(Configuration.of("microtile", b_storage="buffer", **TILE))
PADDED = FAMILY.complete(Configuration.of("microtile", b_storage="buffer", **TILE | {"edges": "pad"}))


@pytest.fixture(scope="module")
def make(pocl: Device, binaries: Path) -> Callable[..., Gemm]:
    """A Gemm for which one configuration was measured to be the best, at every size."""

    def gemm(configuration: Configuration = NAIVE, constants: Match = Match.EXACT, **settings: Any) -> Gemm:
        return Gemm(
            "" if "queue" in settings or "context" in settings else pocl.selector,
            table=EverySize(pocl, configuration, constants),
            binaries=binaries,
            **{"host_blas": False} | settings,
        )

    return gemm


@pytest.fixture(scope="module")
def gemm(make: Callable[..., Gemm]) -> Gemm:
    return make()


@pytest.fixture(scope="module")
def reduce(pocl: Device, binaries: Path) -> Reduce:
    return Reduce(pocl.selector, table=TuningTable([], []), binaries=binaries)


class EverySize(TuningTable):
    """A table in which one configuration was measured at every size, with the driver that is here."""

    def __init__(self, device: Device, configuration: Configuration, constants: Match = Match.EXACT) -> None:
        """`constants` is how it answers for products with constant operands."""
        super().__init__([device], [])
        self.device, self.configuration, self.constants = device, configuration, constants

    def find(self, device: str | Device, problem: Problem | None = None, **_: int | None) -> Tuned:
        assert problem is not None
        match = Match.EXACT if problem == problem.plain else self.constants
        return Tuned(
            configuration=self.configuration, match=match, device=self.device.slug, problem=problem,
            source_problem=problem, time_ns=1e4, because="measured", source_device=self.device.slug,
            driver=self.device.driver, version=self.device.version,
        )  # fmt: skip


def matrix(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    values = np.random.default_rng([seed, *shape]).integers(-8, 8, shape)
    return values.astype(dtype)


def product(a: Any, b: Any, dtype: str = "float32") -> Any:
    """Exact for the small whole numbers of `matrix`."""
    return np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(dtype)


# NumPy


@pytest.mark.parametrize(("trans_a", "trans_b"), list(itertools.product((False, True), repeat=2)))
def test_numpy_products_in_every_layout_said_or_seen(gemm: Gemm, trans_a: bool, trans_b: bool) -> None:
    a, b = matrix(9, 20), matrix(20, 13)
    stored_a, stored_b = a.T.copy() if trans_a else a, b.T.copy() if trans_b else b
    expected = product(a, b)
    assert np.array_equal(gemm(stored_a, stored_b, trans_a=trans_a, trans_b=trans_b), expected)
    seen = gemm(stored_a.T if trans_a else stored_a, stored_b.T if trans_b else stored_b)
    assert np.array_equal(seen, expected)
    both = gemm(a.T if trans_a else a, b.T if trans_b else b, trans_a=trans_a, trans_b=trans_b)
    assert np.array_equal(both, expected), "twice transposed is not transposed"


@pytest.mark.parametrize(
    ("dtype", "mode", "result"), [("float16", "", "float16"), ("int8", "int8", "int32"), ("float32", "", "float32")]
)
def test_types_and_beta(gemm: Gemm, dtype: str, mode: str, result: str) -> None:
    a, b = matrix(9, 20, dtype=dtype), matrix(20, 13, dtype=dtype)
    before = matrix(9, 13, dtype=result, seed=1)
    out = before.copy()
    assert gemm(a, b, out, alpha=2, beta=-3, mode=mode) is out
    assert np.array_equal(out, 2 * product(a, b, result) - 3 * before)


def test_out_is_not_read_without_beta(gemm: Gemm) -> None:
    a, b, out = matrix(9, 20), matrix(20, 13), np.full((9, 13), np.nan, np.float32)
    assert np.array_equal(gemm(a, b, out), product(a, b))


def test_rows_that_are_apart_are_closed_up_and_their_gaps_kept(gemm: Gemm) -> None:
    a, b, out = matrix(9, 32)[:, :20], matrix(20, 24)[:, 3:16], matrix(9, 30)
    before = out.copy()
    gemm(a, b, out[:, 5:18])
    assert np.array_equal(out[:, 5:18], product(a, b))
    assert np.array_equal(np.delete(out, range(5, 18), 1), np.delete(before, range(5, 18), 1))


def test_batches_and_one_b_for_all(gemm: Gemm) -> None:
    a, b = matrix(3, 9, 20), matrix(3, 20, 13)
    assert np.array_equal(gemm(a, b), product(a, b))
    assert np.array_equal(gemm(a, b[0]), product(a, b[0]))
    assert gemm(a[:1], b[:1]).shape == (1, 9, 13)


# pyopencl


def test_pyopencl_arrays_with_pitches_offsets_and_a_batch(gemm: Gemm) -> None:
    a, b = matrix(3, 9, 64), matrix(3, 20, 32)
    on_a, on_b = cla.to_device(gemm.queue, a), cla.to_device(gemm.queue, b)
    copied = gemm.stats.bytes_copied
    out = gemm(on_a[:, :, :20], on_b[:, :, :13])
    assert np.array_equal(out.get(), product(a[:, :, :20], b[:, :, :13]))
    # from an offset of 32 elements, 128 bytes
    out = gemm(on_a[0][:, 32:52], on_b[0][:, :13])
    assert np.array_equal(out.get(), product(a[0][:, 32:52], b[0][:, :13]))
    out.fill(1)
    gemm(on_a[0][:, :20], on_b[0][:, :13], out, beta=1)
    assert np.array_equal(out.get(), product(a[0][:, :20], b[0][:, :13]) + 1)
    assert gemm.stats.bytes_copied == copied


def test_one_b_for_a_batch_needs_matrices_directly_after_another(gemm: Gemm) -> None:
    a, b = matrix(3, 9, 20), matrix(20, 13)
    on_a, on_b = cla.to_device(gemm.queue, a), cla.to_device(gemm.queue, b)
    assert np.array_equal(gemm(on_a, on_b).get(), product(a, b))
    with pytest.raises(ProblemError, match="one b for a batch"):
        gemm(on_a[:, :8], on_b)
    with pytest.raises(ProblemError, match="one b for a batch"):
        gemm(on_a, on_b, cla.zeros(gemm.queue, (3, 10, 13), np.float32)[:, :9])


def test_a_transposed_pyopencl_array(gemm: Gemm) -> None:
    a, b = matrix(20, 9), matrix(20, 13)
    on_a, on_b = cla.to_device(gemm.queue, a), cla.to_device(gemm.queue, b)
    assert np.array_equal(gemm(on_a.T, on_b).get(), product(a.T, b))


def test_an_array_of_another_queue_is_waited_for(gemm: Gemm) -> None:
    other = cl.CommandQueue(gemm.queue.context)
    a, b = matrix(9, 20), matrix(20, 13)
    on_a, on_b = cla.to_device(other, a) + 1, cla.to_device(gemm.queue, b)
    out = gemm(on_a, on_b)
    assert on_a.events[-1] == out.events[-1]  # so that the other queue waits before it writes there
    assert np.array_equal(out.get(), product(a + 1, b))
    host, known = np.empty((9, 13), np.float32), on_a.events[-1]
    gemm(on_a, b, host)
    assert on_a.events[-1] != known and np.array_equal(host, product(a + 1, b))


def test_arrays_of_a_pool_may_begin_anywhere_and_be_shown_as_images(gemm: Gemm) -> None:
    a, b = matrix(9, 20), matrix(40, 64)
    pool = MemoryPool(ImmediateAllocator(gemm.queue))
    on_a, on_b = (cla.to_device(gemm.queue, x, allocator=pool) for x in (a, b))
    assert np.array_equal(gemm(on_a, on_b[:20]).get(), product(a, b[:20]))
    assert np.array_equal(gemm(on_a, on_b[20:]).get(), product(a, b[20:]))
    line = Buffer(
        name="image", role=Role.VIEW, dtype="float32", elements=2560, view_of="b", image_width=640, image_height=1,
        is_line=True,
    )  # fmt: skip
    assert gemm._engine.executor.port.allocate(line, {"b": on_b.base_data}).width == 640


@pytest.mark.parametrize("is_bound", [False, True])
def test_arrays_are_handed_from_queue_to_queue(gemm: Gemm, is_bound: bool) -> None:
    """As pyopencl has it: a copy of an array for another queue has the same events."""
    before, after = (cl.CommandQueue(gemm.queue.context) for _ in range(2))
    a, b = matrix(9, 20), matrix(20, 13)
    on_a, on_b = cla.zeros(gemm.queue, (9, 20), np.float32), cla.to_device(gemm.queue, b)
    out = cla.zeros(gemm.queue, (9, 13), np.float32)
    call = gemm.bind(on_a, on_b, out) if is_bound else partial(gemm, on_a, on_b, out)
    call()
    (out.with_queue(after) * 2).finish()  # what is built is built
    gate = cl.UserEvent(gemm.queue.context)
    try:
        there = on_a.with_queue(before)
        memory: Any = on_a.base_data
        there.add_event(cl.enqueue_copy(before, memory, a, is_blocking=False, wait_for=[gate]))
        call()
        doubled = out.with_queue(after) * 2
    finally:
        gate.set_status(cl.command_execution_status.COMPLETE)
    assert np.array_equal(doubled.get(), 2 * product(a, b))


def test_numpy_with_weights_on_the_device(gemm: Gemm) -> None:
    a, b = matrix(9, 20), matrix(20, 13)
    out = gemm(a, cla.to_device(gemm.queue, b))
    assert isinstance(out, np.ndarray) and np.array_equal(out, product(a, b))


def test_buffers_with_a_problem(gemm: Gemm) -> None:
    problem = GemmProblem(m=9, n=13, k=20, lda=24, ldb=16, ldc=15)
    a, b, c = matrix(9, 24), matrix(20, 16), matrix(9, 15)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    memory = [cl.Buffer(gemm.queue.context, flags, hostbuf=x) for x in (a, b, c)]
    gemm(*memory, problem=problem)
    after = np.empty_like(c)
    cl.enqueue_copy(gemm.queue, after, memory[2])
    assert np.array_equal(after[:, :13], product(a[:, :20], b[:, :13]))
    assert np.array_equal(after[:, 13:], c[:, 13:])
    with pytest.raises(ProblemError, match=r"out holds 540 bytes, .* needs 3"):
        gemm(*memory, problem=replace(problem, ldc=100, stride_c=0))


def test_a_bound_call_gives_an_image_back_to_the_host_every_time(gemm: Gemm) -> None:
    a, b = matrix(9, 20), gemm.allocate((20, 13), np.float32, image=True)
    b[...] = matrix(20, 13)
    call = gemm.bind(cla.to_device(gemm.queue, a), gemm.prepare(b), cla.zeros(gemm.queue, (9, 13), np.float32))
    for _ in range(2):
        assert np.array_equal(call().get(), product(a, b))
    assert call._call is None  # kept launches would leave the image with the device


def test_a_bound_call_repeats(gemm: Gemm) -> None:
    a, b = matrix(9, 20), matrix(20, 13)
    on_a, on_b = cla.to_device(gemm.queue, a), cla.to_device(gemm.queue, b)
    out = cla.zeros(gemm.queue, (9, 13), np.float32)
    call = gemm.bind(on_a, on_b, out, beta=1.0)
    for _ in range(3):
        assert call() is out
    gemm(on_a, on_b, cla.empty_like(out), alpha=5)  # other scalars in between
    call()
    assert np.array_equal(out.get(), 4 * product(a, b))


class Memory:
    """Memory of a caller's."""


def test_images_over_buffers_are_kept_as_long_as_the_caller_keeps_the_buffers() -> None:
    shown: list[int] = []
    nothing = dict.fromkeys(("kernels", "bind", "start"), lambda *_, **__: None)
    port: Any = SimpleNamespace(**nothing, allocate=lambda _, memory: shown.append(id(memory["b"])))
    b = Buffer(name="b", role=Role.INPUT, dtype="float32", elements=64)
    image = replace(b, name="image", role=Role.VIEW, view_of="b", image_width=4, image_height=4)
    call = BoundCall(port, None, Plan(buffers=(b, image), launches=()), ["b"], {})
    layers = [Memory() for _ in range(32)]
    for _ in range(3):
        for memory in layers:
            call.enqueue([memory])
    assert shown == [id(memory) for memory in layers], "the images of all layers are made once"
    known = [weakref.ref(memory) for memory in layers]
    del layers[:30], memory
    call.enqueue([Memory()])
    assert [number for number, held in enumerate(known) if held()] == [30, 31]
    call.enqueue([layers[0]])
    assert len(shown) == 33, "what is still in use keeps its image"
    many = [Memory() for _ in range(MOST_VIEWS)]
    for memory in (*many, many[0]):
        call.enqueue([memory])
    assert len(shown) == 33 + MOST_VIEWS
    call.enqueue([layers[0]])
    assert len(shown) == 34 + MOST_VIEWS, "the one unused for longest made room"


# Shared memory


@pytest.mark.long
@pytest.mark.parametrize("image", [False, True], ids=["buffer", "image"])
def test_a_product_of_1024_cubed_copies_no_byte(make: Callable[..., Gemm], image: bool) -> None:
    gemm = make(FROM_IMAGE if image else FROM_BUFFER)
    assert gemm.device.limits.shares_host_memory
    a, out = gemm.allocate((1024, 1024), np.float32), gemm.allocate((1024, 1024), np.float32)
    b = gemm.allocate((1024, 1024), np.float32, image=image)
    a[...], b[...] = matrix(1024, 1024), matrix(1024, 1024, seed=1)
    assert gemm(a, b, out) is out
    assert gemm.stats.bytes_copied == 0 and gemm.stats.packings == 0
    assert np.array_equal(out, a @ b)
    chosen = gemm.choice(a, b, out)
    assert chosen and chosen.configuration["b_storage"] == ("image" if image else "buffer")
    a[0] = 1  # the host has its memory back
    assert np.array_equal(gemm(a, b, out)[0], b.sum(axis=0, dtype=np.float64).astype(np.float32))


def test_results_beside_shared_operands_are_shared(gemm: Gemm) -> None:
    a, b = gemm.allocate((9, 20), np.float32), gemm.allocate((20, 13), np.float32)
    a[...], b[...] = matrix(9, 20), matrix(20, 13)
    copied = gemm.stats.bytes_copied
    out = gemm(a, b)
    assert gemm.stats.bytes_copied == copied
    assert np.array_equal(gemm(out.T, a), product(out.T, a))  # a result as an operand
    assert gemm.stats.bytes_copied == copied


def test_operands_may_share_one_memory(gemm: Gemm) -> None:
    memory = gemm.allocate((3, 32, 32), np.float32)
    memory[:2] = matrix(2, 32, 32)
    for _ in range(20):
        gemm(memory[0], memory[1], memory[2])
        assert np.array_equal(memory[2], product(memory[0], memory[1]))
        memory[2] = 0


def test_views_into_shared_memory_are_operands(gemm: Gemm) -> None:
    a, b = gemm.allocate((2, 9, 32), np.float32), gemm.allocate((20, 13), np.float32)
    a[...], b[...] = matrix(2, 9, 32), matrix(20, 13)
    copied = gemm.stats.bytes_copied
    assert np.array_equal(gemm(a[0, :, :20], b), product(a[0, :, :20], b))
    with pytest.raises(ProblemError, match=r"a begins 4 bytes into its memory"):
        gemm(a[0, :, 1:21], b)
    assert gemm.stats.bytes_copied == copied


def test_an_image_has_the_pitch_of_its_rows_and_zeros_behind_them(gemm: Gemm) -> None:
    b = gemm.allocate((2, 5, 6), np.float32, image=True)
    assert b.shape == (2, 5, 6) and b.strides[1] >= 32 and b.strides[0] == 5 * b.strides[1]
    assert not np.lib.stride_tricks.as_strided(b, (2, 5, 8)).any()


def test_an_image_serves_where_nothing_measured_reads_one(gemm: Gemm) -> None:
    a, b = matrix(2, 9, 20), gemm.allocate((2, 20, 13), np.float32, image=True)
    b[...] = matrix(2, 20, 13)
    assert np.array_equal(gemm(a, b), product(a, b))
    chosen = gemm.choice(a, b)
    assert chosen and "image" in chosen.because
    assert np.array_equal(gemm(a, gemm.prepare(b)), product(a, b))
    with pytest.raises(ProblemError, match="not a view of it"):
        gemm(a, b[:, ::-1])
    with pytest.raises(ProblemError, match="not a view of it"):
        gemm.prepare(b[:, ::-1])
    with pytest.raises(ProblemError, match="must hold"):
        gemm(matrix(2, 9, 13), b, trans_b=True)
    taller = gemm.allocate((2, 40, 13), np.float32, image=True)
    with pytest.raises(ProblemError, match="not a view of it"):
        gemm(a[0], taller[1, 20:])
    with pytest.raises(ProblemError, match="only b"):
        gemm(b, matrix(2, 13, 4))


def test_allocate_by_itself(pocl: Device) -> None:
    array = allocate((3, 4), "int8", device=pocl.selector)
    assert array.shape == (3, 4) and not array.any()
    for shape, dtype, image in [((0, 3), "float32", False), ((3,), "float32", True), ((3, 4), "float64", True)]:
        with pytest.raises(ProblemError):
            allocate(shape, dtype, image=image, device=pocl.selector)


def test_memory_that_the_driver_moved_is_told(gemm: Gemm) -> None:
    a, b = gemm.allocate((9, 20), np.float32), matrix(20, 13)
    a.base.address += 64
    with pytest.raises(LaunchError, match="a different address"):
        gemm(a, b)


def test_devices_with_memory_of_their_own_have_copies_counted(make: Callable[..., Gemm]) -> None:
    gemm = make()
    limits = replace(gemm.device.limits, shares_host_memory=False)
    separate = Executor(gemm._engine.executor.port, None)
    separate.device = replace(gemm.device, limits=limits)
    gemm._engine.executor = separate
    a, b = gemm.allocate((9, 20), np.float32), gemm.allocate((20, 13), np.float32)
    out = gemm(a, b)
    assert gemm.stats.bytes_copied == 2 * (a.nbytes + b.nbytes + out.nbytes)


# Weights


@pytest.mark.parametrize("configuration", [FROM_IMAGE, PADDED, FROM_BUFFER], ids=["image", "padded", "buffer"])
@pytest.mark.parametrize("place", ["host", "device", "shared"])
def test_weights_are_packed_once(make: Callable[..., Gemm], configuration: Configuration, place: str) -> None:
    gemm = make(configuration)
    a, b = matrix(9, 20), matrix(20, 13)
    shared = gemm.allocate(b.shape, b.dtype)
    shared[...] = b
    weights = gemm.prepare({"host": b, "device": cla.to_device(gemm.queue, b), "shared": shared}[place])
    for _ in range(3):
        assert np.array_equal(gemm(a, weights), product(a, b))
    assert gemm.stats.packings == (configuration is not FROM_BUFFER)
    on_a = cla.to_device(gemm.queue, a)
    if place == "device":
        assert np.array_equal(gemm(on_a, weights).get(), product(a, b))
    once = b.nbytes if place == "host" else 0
    results = 0 if place == "shared" else 3 * 9 * 13 * 4  # beside shared weights they are shared
    assert gemm.stats.bytes_copied == once + 3 * a.nbytes + results
    assert gemm.stats.prepared_bytes >= once + (configuration is not FROM_BUFFER) * b.nbytes
    del weights
    assert gemm.stats.prepared_bytes == 0


def test_transposed_weights(make: Callable[..., Gemm]) -> None:
    gemm = make(FROM_IMAGE)
    a, b = matrix(9, 20), matrix(20, 13)
    weights = gemm.prepare(b.T.copy(), trans_b=True)
    assert np.array_equal(gemm(a, weights), product(a, b))
    assert np.array_equal(gemm(a, gemm.prepare(b.T.copy().T)), product(a, b))
    with pytest.raises(ProblemError, match="was prepared"):
        gemm(a, weights, trans_b=True)
    with pytest.raises(ProblemError, match="by another Gemm"):
        make(FROM_IMAGE)(a, weights)


def test_without_packing_another_configuration_may_win(
    make: Callable[..., Gemm], monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = [
        Timed(configuration=FROM_BUFFER, time_ns=100.0, prepare_ns=0.0),
        Timed(configuration=FROM_IMAGE, time_ns=130.0, prepare_ns=50.0),
        Timed(configuration=PADDED, time_ns=120.0, prepare_ns=40.0),  # A is packed at each call all the same
    ]
    monkeypatch.setattr(choice, "read_trials", lambda *_: trials)
    gemm = make(FROM_BUFFER, constants=Match.DEFAULT)
    a, b = matrix(9, 20), matrix(20, 13)
    weights = gemm.prepare(b)
    gemm(a, b)
    assert np.array_equal(gemm(a, weights), product(a, b))
    per_call, once = gemm.choice(a, b), gemm.choice(a, weights)
    assert per_call and per_call.configuration == FROM_BUFFER
    assert once and once.configuration == FROM_IMAGE and "packing" in once.because


def test_trials_of_a_database_tell_what_packing_cost(pocl: Device, make: Callable[..., Gemm], tmp_path: Path) -> None:
    problem = GemmProblem(m=9, n=13, k=20)
    made = provenance(pocl.driver)
    with Store.open(tmp_path / "trials.sqlite") as store:
        for configuration, time_ns, prepare_ns in ((FROM_BUFFER, 100.0, 0.0), (FROM_IMAGE, 120.0, 40.0)):
            for extra in (-1.0, 0.0, 50.0):
                timed = trial(configuration, time_ns + extra, samples_ns=(1.0,), prepare_ns=prepare_ns)
                store.add_trial(pocl, problem, timed, made)
        store.add_trial(pocl, problem, trial(NAIVE, TrialState.CRASHED), made)
    source = tmp_path / "trials.sqlite"
    assert sorted(read_trials(source, pocl, problem), key=lambda timed: timed.time_ns) == [
        Timed(configuration=FROM_BUFFER, time_ns=100.0, prepare_ns=0.0, template_hash="0" * 12),
        Timed(configuration=FROM_IMAGE, time_ns=120.0, prepare_ns=40.0, template_hash="0" * 12),
    ]
    assert read_trials(source, replace(pocl, slug="another"), problem) == []
    assert read_trials(source, replace(pocl, driver="another"), problem) == []
    assert read_trials(source, replace(pocl, version="another"), problem) == []
    assert read_trials(source, pocl, GemmProblem(m=10, n=13, k=20)) == []
    assert read_trials(tmp_path / "none", pocl, problem) == read_trials(__file__, pocl, problem) == []
    gemm = Gemm(pocl.selector, table=source, host_blas=False)
    weights = gemm.prepare(matrix(20, 13))
    best = next(choice.choices(FAMILY, gemm._engine.table, pocl, problem, choice.Weights.PACKED_ONCE))
    assert best.configuration == FROM_IMAGE and weights.layout.rows == 20


# What does not fit


@pytest.mark.parametrize(
    ("a", "b", "out", "settings", "message"),
    [
        (matrix(3, 4), matrix(5, 6), None, {}, "4 and 5 should be equal"),
        (matrix(3, 4), matrix(4, 6), matrix(3, 5), {}, "out is 3 x 5, the product is 3 x 6"),
        (matrix(3, 4), matrix(4, 6), matrix(3, 6, dtype="float16"), {}, "out is float16"),
        (matrix(3, 4), matrix(4, 6), np.zeros((6, 3), np.float32).T, {}, "stored by columns"),
        (matrix(3, 4), matrix(4, 6, dtype="int8"), None, {}, "a is float32, b is int8"),
        (matrix(3, 4, dtype="float64"), matrix(4, 6, dtype="float64"), None, {}, "product of float64 is not supported"),
        (matrix(3, 4), matrix(4, 6), None, {"mode": "int8"}, "which mode int8 does not accept"),
        (matrix(3, 4), matrix(4, 6), None, {"mode": "bf16"}, "no numeric mode 'bf16'"),
        (matrix(3, 4), matrix(4, 6), None, {"beta": 1.0}, "pass out"),
        (matrix(6, 8)[::2, ::2], matrix(4, 6), None, {}, "neither rows nor columns of a are contiguous"),
        (matrix(3, 4)[::-1], matrix(4, 6), None, {}, None),
        (matrix(3, 4, dtype=">f4"), matrix(4, 6, dtype=">f4"), None, {}, "byte order"),
        (matrix(3, 4), matrix(4, 6), np.broadcast_to(np.zeros((3, 6), np.float32), (3, 6)), {}, "read-only"),
        (matrix(4), matrix(4, 6), None, {}, "a has 1 axes"),
        (matrix(0, 4), matrix(4, 6), None, {}, "a is empty"),
        (matrix(2, 3, 4), matrix(3, 4, 6), None, {}, "batches must have the same length"),
        (matrix(3, 4), matrix(2, 4, 6), None, {}, "batches must have the same length"),
        (matrix(2, 4, 3), matrix(4, 6), None, {"trans_a": True}, "one b for a batch"),
        ([[1.0]], matrix(1, 6), None, {}, "a is a list"),
        (matrix(3, 4, dtype="int8"), matrix(4, 6, dtype="int8"), None, {"alpha": 0.5}, "whole numbers"),
        (matrix(3, 4, dtype="int8"), matrix(4, 6, dtype="int8"), None, {"alpha": float("nan")}, "whole numbers"),
        (matrix(3, 4, dtype="int8"), matrix(4, 6, dtype="int8"), None, {"alpha": 2**31}, "of 32 bits"),
        (matrix(3, 4), matrix(4, 6), None, {"alpha": None}, "alpha is a NoneType"),
        (matrix(3, 4), matrix(4, 6), matrix(3, 6), {"beta": "2"}, "beta is a str"),
        (
            matrix(3, 4, dtype="float16"), matrix(4, 6, dtype="float16"), None, {"mode": "float16-acc16"},
            "has no float16 arithmetic",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(gemm: Gemm, a: Any, b: Any, out: Any, settings: Any, message: str | None) -> None:
    if message is None:  # rows backwards: copied, so that is no matter
        assert np.array_equal(gemm(a, b), product(a, b))
        return
    with pytest.raises(ProblemError, match=message):
        gemm(a, b, out, **settings)


@pytest.mark.parametrize("kind", ["shared", "array"])
def test_a_result_may_lie_beside_an_operand_but_not_in_it(gemm: Gemm, reduce: Reduce, kind: str) -> None:
    values = matrix(64, 64)
    whole = gemm.allocate((64, 64), np.float32) if kind == "shared" else cla.to_device(gemm.queue, values)
    whole[:] = values
    a, b = whole[:32, :32], whole[32:, 32:]
    for name, out in (("a", whole[16:48, :32]), ("b", whole[32:, 32:])):
        with pytest.raises(ProblemError, match=f"out shares memory with {name}"):
            gemm(a, b, out)
    with pytest.raises(ProblemError, match="out shares memory with b"):
        gemm(a, gemm.prepare(b), whole[32:, 16:48])
    with pytest.raises(ProblemError, match="out shares memory with the input"):
        reduce(a, out=whole[5, :32])
    out = gemm(a, b, whole[:32, 32:])
    got = out if isinstance(out, np.ndarray) else whole.get()[:32, 32:]
    assert np.array_equal(got, product(values[:32, :32], values[32:, 32:]))


def test_a_folder_for_programs_may_be_a_text_and_a_size_is_whole(pocl: Device, tmp_path: Path) -> None:
    gemm = Gemm(pocl.selector, table=EverySize(pocl, NAIVE), binaries=str(tmp_path), host_blas=False)
    gemm(matrix(3, 4), matrix(4, 6))
    assert list(tmp_path.iterdir())
    with pytest.raises(TypeError, match="float"):
        gemm.allocate((1.5, 2), np.float32)


def test_what_is_copied_may_overlap(gemm: Gemm) -> None:
    whole = matrix(64, 64)
    expected = product(whole[:32, :32], whole[:32, :32])
    assert np.array_equal(gemm(whole[:32, :32], whole[:32, :32], whole[:32, :32]), expected)


def test_more_that_does_not_fit(gemm: Gemm, make: Callable[..., Gemm]) -> None:
    a, b = gemm.allocate((3, 3), np.float32), gemm.allocate((3, 3), np.float32)
    with pytest.raises(ProblemError, match="overlaps itself or runs backwards"):
        gemm(a[::-1], b)
    with pytest.raises(ProblemError, match="out shares memory with a"):
        gemm(a, b, out=a)
    with pytest.raises(ProblemError, match="a buffer has no shape"):
        gemm(a.base.memory, b)
    with pytest.raises(ProblemError, match="must be buffers"):
        gemm(a, b, problem=GemmProblem(m=3, n=3, k=3))
    context = cl.Context(gemm.queue.context.devices)
    stranger = make(context=context)
    for wrong in (a, cla.zeros(gemm.queue, (3, 3), np.float32)):
        with pytest.raises(ProblemError, match="another OpenCL context"):
            stranger(wrong, b)
    with pytest.raises(ProblemError, match="another OpenCL context"):
        stranger.prepare(a)


def test_which_device(pocl: Device, monkeypatch: pytest.MonkeyPatch, gemm: Gemm) -> None:
    gpu = replace(pocl, family="adreno", slug="adreno-1", selector="9:0")
    monkeypatch.setattr(executor, "discover_here", lambda: [pocl])
    assert executor.default_device("") is pocl
    monkeypatch.setattr(executor, "discover_here", lambda: [pocl, gpu])
    assert executor.default_device("") is gpu
    assert executor.default_device("cpu") is pocl
    monkeypatch.setattr(executor, "discover_here", lambda: [pocl, replace(pocl, selector="9:1", slug="pocl-other")])
    with pytest.raises(DeviceSelectionError, match="2 devices fit 'cpu'"):
        executor.default_device("")
    monkeypatch.setattr(executor, "discover_here", lambda: [pocl, gpu, gpu])
    with pytest.raises(DeviceSelectionError, match="2 devices fit 'gpu'"):
        executor.default_device("")
    with pytest.raises(DeviceSelectionError, match="pass only one of them"):
        Gemm("cpu", queue=gemm.queue)
    unordered = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    with pytest.raises(DeviceSelectionError, match="out of order"):
        Gemm(queue=cl.CommandQueue(gemm.queue.context, properties=unordered))


def test_a_configuration_that_the_device_refuses_gives_way_with_a_word(
    make: Callable[..., Gemm], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    build = Programs.find

    def refuse(self: Programs, recipe: str, options: Any, make_source: Callable[[], str]) -> Any:
        if "vload" in make_source():
            raise BuildError("out of registers")
        return build(self, recipe, options, make_source)

    monkeypatch.setattr(Programs, "find", refuse)
    gemm, a, b = make(FROM_BUFFER), matrix(5, 6), matrix(6, 7)
    assert np.array_equal(gemm(a, b), product(a, b))
    chosen = gemm.choice(a, b)
    assert chosen and chosen.configuration != FROM_BUFFER and "does not work here" in chosen.because
    told = [record.getMessage() for record in caplog.records if "takes its place" in record.getMessage()]
    assert told and all("is not used for 5x7x6" in line and "(out of registers)" in line for line in told)


@pytest.mark.parametrize("refused", ["start", "packing"])
def test_what_a_port_refuses_late_gives_way_too(
    make: Callable[..., Gemm], monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """As behind a link, where only commands that wait tell what was refused before; the program is known already."""
    gemm, a, b = make(PADDED), matrix(9, 20), matrix(20, 13)
    assert np.array_equal(gemm(a, gemm.prepare(b)), product(a, b))
    gemm = make(PADDED)
    start, to_refuse, late = Session.start, [refused], list[str]()

    def carry_out(self: Session, call: Any, *operands: Any) -> None:
        what = "start" if call.memory else "packing"  # which has no scratch
        if what in to_refuse:
            to_refuse.remove(what)
            late.append(what)
        else:
            start(self, call, *operands)

    def tell(of: Callable[..., Any]) -> Callable[..., Any]:
        def waited(self: Session, *operands: Any) -> Any:
            while late:
                raise LaunchError(f"the {late.pop()} was refused")
            return of(self, *operands)

        return waited

    monkeypatch.setattr(Session, "start", carry_out)
    monkeypatch.setattr(Session, "read", tell(Session.read))
    monkeypatch.setattr(Session, "finish", tell(Session.finish))
    weights = gemm.prepare(b)
    for _ in range(2):
        assert np.array_equal(gemm(a, weights), product(a, b))
    chosen = gemm.choice(a, weights)
    assert not to_refuse and chosen and "does not work here" in chosen.because


@pytest.mark.long
def test_a_configuration_illegal_here_is_passed_over(make: Callable[..., Gemm]) -> None:
    groups = Configuration.of("naive", work_group_m=32, work_group_n=128)
    gemm, a, b = make(groups), matrix(40, 20), matrix(20, 130)
    smaller = Executor(gemm._engine.executor.port, None)
    smaller.device = replace(gemm.device, limits=replace(gemm.device.limits, max_work_group_size=16))
    gemm._engine.executor = smaller
    assert np.array_equal(gemm(a, b), product(a, b))
    chosen = gemm.choice(a, b)
    assert chosen and chosen.configuration != groups


def test_old_problems_are_forgotten(make: Callable[..., Gemm], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MOST_READY", 3)
    gemm = make()
    for m in range(1, 8):
        assert np.array_equal(gemm(matrix(m, 20), matrix(20, 13)), product(matrix(m, 20), matrix(20, 13)))
        assert len(gemm._engine._ready) <= 3


def test_forms_of_operands_are_forgotten(make: Callable[..., Gemm], monkeypatch: pytest.MonkeyPatch) -> None:
    """Many may ask for one problem, and what the host does is no problem of the device."""
    monkeypatch.setattr(engine, "MOST_REQUESTS", 3)
    b = matrix(20, 13)
    host = Crossover(points=(CrossoverPoint(problem=GemmProblem(m=8, n=13, k=20), host_ns=1.0, device_ns=2.0),))
    for gemm in (make(), make(host_blas=host)):
        for extra in range(1, 8):
            a = matrix(8, 20 + extra)[:, :20]
            assert np.array_equal(gemm(a, b), product(a, b))
            assert len(gemm._engine.requests) <= 3


# Threads and processes


def test_threads_share_a_gemm(make: Callable[..., Gemm]) -> None:
    gemm = make()
    wrong: list[str] = []

    def work(seed: int) -> None:
        for turn in range(15):
            a, b = matrix(9 + turn % 3, 20, seed=seed), matrix(20, 13, seed=seed)
            alpha = float(seed + 1)
            if not np.array_equal(gemm(a, b, alpha=alpha), alpha * product(a, b)):
                wrong.append(f"{seed} {turn}")

    in_threads(*(partial(work, seed) for seed in range(3)))
    assert wrong == [] and gemm.stats.calls == 45


def test_what_the_host_reads_is_not_given_the_device_by_another_thread(
    make: Callable[..., Gemm], monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = GemmProblem(m=1, n=13, k=20), GemmProblem(m=64, n=13, k=20)
    points = (
        CrossoverPoint(problem=small, host_ns=1.0, device_ns=2.0),
        CrossoverPoint(problem=large, host_ns=2.0, device_ns=1.0),
    )
    gemm = make(host_blas=Crossover(points=points))
    weights = gemm.allocate((20, 13), np.float32)
    is_kept, is_given, is_read, seen = threading.Event(), threading.Event(), threading.Event(), list[bool]()
    start, lock = BoundCall.enqueue, gemm._engine.executor.lock

    class Noted:
        """The device's lock, which says when a thread waits for it."""

        def __enter__(self) -> None:
            if not lock.acquire(blocking=False):
                is_kept.set()
                lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    def noted(*how: Any) -> None:
        start(*how)
        is_given.set()

    def slowly(*operands: Any, **scalars: Any) -> None:
        is_read.set()
        wait_for(lambda: is_kept.is_set() or is_given.is_set())
        seen.append(shared_memory(weights)._mapping is not None)  # type: ignore[union-attr]
        host_product(*operands, **scalars)

    monkeypatch.setattr(gemm._engine.executor, "lock", Noted())
    monkeypatch.setattr(BoundCall, "enqueue", noted)
    monkeypatch.setattr(gemm_module, "host_product", slowly)
    on_host = threading.Thread(target=gemm, args=(matrix(1, 20), weights))
    on_host.start()
    assert is_read.wait(HANG_S)
    gemm(matrix(64, 20), weights)
    join(on_host)
    assert seen == [True] and is_given.is_set()


FIRST_CALL = """
import json, sys
import numpy as np
from autotune.runtime import Gemm
gemm = Gemm(sys.argv[1], binaries=__import__("pathlib").Path(sys.argv[2]), host_blas=False)
a = np.ones((5, 6), np.float32)
c = gemm(a, np.ones((6, 7), np.float32))
right = bool((c == 6).all())
print(json.dumps([right, gemm.stats.programs_compiled, gemm.stats.programs_loaded, "jinja2" in sys.modules]))
"""


@pytest.mark.long
def test_the_next_process_loads_what_this_one_compiled(pocl: Device, tmp_path: Path) -> None:
    def start(number: int) -> Any:
        environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "POCL_CACHE_DIR": str(tmp_path / str(number))}
        (tmp_path / str(number)).mkdir()
        command = [sys.executable, "-c", FIRST_CALL, pocl.selector, str(tmp_path / "binaries")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    assert start(0) == [True, 1, 0, True]
    assert start(1) == [True, 0, 1, False]
    (file,) = (tmp_path / "binaries").glob("*.bin")
    file.write_bytes(file.read_bytes()[:-100])
    assert start(2) == [True, 1, 0, True]


# The host


def test_the_host_does_what_it_was_measured_to_do_faster(make: Callable[..., Gemm]) -> None:
    small = CrossoverPoint(problem=GemmProblem(m=16, n=16, k=16), host_ns=1e3, device_ns=5e4)
    large = CrossoverPoint(problem=GemmProblem(m=512, n=512, k=512), host_ns=5e6, device_ns=1e6)
    gemm = make(host_blas=Crossover(points=(small, large)))
    a, b, out = matrix(9, 20), matrix(20, 13), matrix(9, 13)
    expected = 2 * product(a, b) + out
    gemm(a, b, out, alpha=2, beta=1)
    assert np.array_equal(out, expected) and gemm.stats.host_products == 1 and gemm.stats.bytes_copied == 0
    shared = gemm.allocate((9, 20), np.float32)
    shared[...] = a
    assert np.array_equal(gemm(shared, b), product(a, b)) and gemm.stats.host_products == 2
    assert np.array_equal(gemm(a.T.copy().T, b), product(a, b)) and gemm.stats.host_products == 2  # another layout
    gemm(cla.to_device(gemm.queue, a), cla.to_device(gemm.queue, b))
    gemm(matrix(300, 20), matrix(20, 300))
    assert gemm.stats.host_products == 2
    assert np.array_equal(gemm(a, b, alpha=3), 3 * product(a, b)) and gemm.stats.host_products == 3


def test_the_host_gets_no_more_operations_than_it_was_faster_at() -> None:
    points = (
        CrossoverPoint(problem=GemmProblem(m=64, n=64, k=64), host_ns=1e4, device_ns=6e4),
        CrossoverPoint(problem=GemmProblem(m=96, n=96, k=96, mode="int8"), host_ns=1e4, device_ns=6e4),
    )
    crossover = Crossover(points=points)
    asked = {size: crossover.prefers_host(GemmProblem(m=size, n=size, k=size)) for size in (1, 64, 65, 96, 4096)}
    assert asked == {1: True, 64: True, 65: False, 96: False, 4096: False}
    assert crossover.prefers_host(GemmProblem(m=32, n=128, k=64))


def test_crossovers_are_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "crossover.json"
    assert Crossover.read("adreno-730", path) == Crossover.NEVER
    one = Crossover(points=(CrossoverPoint(problem=GemmProblem(m=8, n=8, k=8), host_ns=1.5, device_ns=2.5),))
    one.write("adreno-730", path)
    Crossover().write("mali-g610", path)
    assert Crossover.read("adreno-730", path) == one and Crossover.read("mali-g610", path) == Crossover()
    for text in ("", "[]", '{"format": "x", "version": 1}', path.read_text().replace("1.5", '"x"')):
        path.write_text(text)
        with pytest.raises(TableError, match=r"crossover\.json"):
            Crossover.read("adreno-730", path)


def test_processes_that_write_crossovers_at_once_lose_none(tmp_path: Path) -> None:
    path, slugs = tmp_path / "crossover.json", [f"mali-g{number}" for number in range(8)]
    point = CrossoverPoint(problem=GemmProblem(m=8, n=8, k=8), host_ns=1.0, device_ns=2.0)
    code = "from pathlib import PosixPath; from autotune.runtime import Crossover\n"
    code += f"for slug in {slugs!r}: Crossover().write(slug, {path!r})"
    with subprocess.Popen([sys.executable, "-c", code]) as other:
        while other.poll() is None:
            Crossover(points=(point,)).write("adreno-730", path)
            Crossover(points=(point,)).write("adreno-740", path)
    assert other.returncode == 0
    assert set(json.loads(path.read_text())["devices"]) == {"adreno-730", "adreno-740", *slugs}


def test_a_crossover_of_a_mode_that_only_another_version_knows_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "crossover.json"
    products = [GemmProblem(m=8, n=8, k=8, mode=mode) for mode in ("float32", "int8")]
    points = tuple(CrossoverPoint(problem=problem, host_ns=1.5, device_ns=2.5) for problem in products)
    Crossover(points=points).write("adreno-730", path)
    path.write_text(path.read_text().replace("int8", "int4"))
    assert Crossover.read("adreno-730", path) == Crossover(points=points[:1])
    Crossover(points=points[1:]).write("mali-g610", path)
    assert Crossover.read("adreno-730", path) == Crossover(points=points[:1])


@pytest.mark.parametrize("shape", ["6,7,5", "6,7,5 tt batch=2", "6,7,5 int8", "6,7,5 tn float16"])
def test_measuring_both_sides(shape: str) -> None:
    problem = GemmProblem.parse(shape)
    seen = []

    def on_device(a: Any, b: Any, out: Any) -> None:
        host_product(problem, a, b, out)
        seen.append(np.array_equal(out, product(a, b, problem.dtype("c"))))

    (point,) = measure_crossover([problem], on_device).points
    assert point.problem == problem and point.host_ns > 0 and point.device_ns > 0
    assert all(seen)


def test_a_gemm_is_a_side_to_measure(gemm: Gemm) -> None:
    problem = GemmProblem.parse("9,13,20 nt")
    calls = gemm.stats.calls
    (point,) = measure_crossover([problem], gemm).points
    assert point.device_ns > 0 and gemm.stats.calls > calls
    assert problem in {ready.problem for ready in gemm._engine._ready.values()}


def test_without_a_home_folder_there_is_no_cache(pocl: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")
    gemm = Gemm(pocl.selector, table=TuningTable([], []))
    assert np.array_equal(gemm(matrix(1, 2), matrix(2, 1)), product(matrix(1, 2), matrix(2, 1)))


def test_the_host_is_as_silent_about_infinities_as_a_device() -> None:
    a, out = np.full((1, 1), 60000, np.float16), np.empty((1, 1), np.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        host_product(GemmProblem(m=1, n=1, k=1, mode="float16"), a, a, out)
    assert np.isposinf(out).all()


def test_whole_numbers_wrap_around_on_the_host_as_on_the_device(gemm: Gemm) -> None:
    a, b = np.full((1, 300), 127, np.int8), np.full((300, 1), 127, np.int8)
    out = np.empty((1, 1), np.int32)
    host_product(GemmProblem(m=1, n=1, k=300, mode="int8"), a, b, out, alpha=1000)
    assert np.array_equal(gemm(a, b, alpha=1000), out)


def test_what_they_are_shows(make: Callable[..., Gemm], reduce: Reduce, pocl: Device) -> None:
    host = CrossoverPoint(problem=GemmProblem(m=100, n=100, k=100), host_ns=1.0, device_ns=2.0)
    assert repr(make()) == f"<Gemm on {pocl.slug}>"
    gemm = make(host_blas=Crossover(points=(host,)))
    assert repr(gemm) == f"<Gemm on {pocl.slug}, by the host's BLAS up to about 2 MFLOP>"
    assert repr(gemm.prepare(matrix(20, 13))) == "<PreparedMatrix 20 x 13 float32, packed in 0 layouts>"
    assert repr(reduce) == f"<Reduce on {pocl.slug}>"


# Reductions


@pytest.mark.parametrize("operation", ["sum", "mean", "max", "min"])
def test_reductions_of_numpy_and_pyopencl_arrays(reduce: Reduce, operation: str) -> None:
    values = matrix(5, 6, 16)
    expected = getattr(values, operation)(axis=-1)
    assert np.allclose(reduce(values, operation), expected)
    on_device = cla.to_device(reduce.queue, values)
    assert np.allclose(reduce(on_device, operation).get(), expected)


def test_a_bound_reduction_is_repeated(reduce: Reduce) -> None:
    values = cla.to_device(reduce.queue, matrix(6, 32))
    out = cla.zeros(reduce.queue, (6,), np.float32)
    calls = reduce.stats.calls
    bound = reduce.bind(values, "max", out)
    for number in range(3):
        values.set(matrix(6, 32) + number)
        assert bound() is out
        assert np.array_equal(out.get(), (matrix(6, 32) + number).max(axis=1))
    assert reduce.stats.calls == calls + 3
    on_host = matrix(6, 32)
    bound = reduce.bind(on_host, "min")
    first = bound()
    assert np.array_equal(first, matrix(6, 32).min(axis=1))
    on_host[:] = 5
    assert bound() is first and (first == 5).all()


def test_reductions_elsewhere(reduce: Reduce) -> None:
    values = reduce.allocate((6, 32), np.float32)
    values[...] = matrix(6, 32)
    copied = reduce.stats.bytes_copied
    assert np.array_equal(reduce(values[:, :16]), values[:, :16].sum(axis=1))  # rows that are apart
    out = reduce.allocate(6, np.float32)
    assert reduce(values, "max", out) is out and np.array_equal(out, values.max(axis=1))
    assert reduce(values[0]) == values[0].sum()
    assert reduce.stats.bytes_copied == copied
    gaps = np.zeros((6, 2), np.float32)
    reduce(values, "min", gaps[:, 0])
    assert np.array_equal(gaps[:, 0], values.min(axis=1)) and not gaps[:, 1].any()
    result = cl.Buffer(reduce.queue.context, cl.mem_flags.READ_WRITE, 24)
    flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
    memory = cl.Buffer(reduce.queue.context, flags, hostbuf=matrix(6, 32))
    reduce(memory, out=result, problem=ReduceProblem(batch=6, channels=32))
    there = np.empty(6, np.float32)
    cl.enqueue_copy(reduce.queue, there, result)
    assert np.array_equal(there, matrix(6, 32).sum(axis=1))
    with pytest.raises(ProblemError, match="out holds 24 bytes"):
        reduce(memory, out=result, problem=ReduceProblem(batch=7, channels=16))


@pytest.mark.parametrize(
    ("values", "operation", "out", "message"),
    [
        (matrix(3, 8)[:, ::2], "sum", None, "last axis is not contiguous"),
        (matrix(3, 8, dtype="int8"), "sum", None, "reduce has no 'int8'"),
        (matrix(3, 8), "median", None, "reduce has no 'median'"),
        (matrix(3, 0), "sum", None, "no rows"),
        (matrix(3, 8, dtype=">f4"), "sum", None, "byte order"),
        (matrix(3, 8), "sum", np.broadcast_to(np.zeros(3, np.float32), 3), "read-only"),
        (np.float32(3), "sum", None, "the input is a float32"),
        (matrix(3, 8), "sum", matrix(4), "out is float32 of shape"),
    ],
)
def test_reductions_that_do_not_fit(reduce: Reduce, values: Any, operation: str, out: Any, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        reduce(values, operation, out)


def test_rows_at_several_distances_cannot_be_reduced_where_they_are(reduce: Reduce) -> None:
    values = reduce.allocate((4, 6, 8), np.float32)
    with pytest.raises(ProblemError, match="not evenly spaced"):
        reduce(values[:, ::2][:, :2])
    assert np.array_equal(reduce(np.asarray(values.copy()[:, :2])), np.zeros((4, 2)))


def test_kinds_are_texts() -> None:
    assert hash(Kind.ARRAY) == hash("array")
