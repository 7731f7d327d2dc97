"""Products with quantised weights on PoCL: what callers pass, packing and its memory, conversions of GPTQ and AWQ."""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import pyopencl.array as cla
import pytest
from gguf import GGMLQuantizationType, GGUFEndian, GGUFReader, GGUFWriter, dequantize
from numpy.typing import NDArray

from autotune.errors import ProblemError
from autotune.kernels.qgemm import FAMILY, QGemmProblem
from autotune.kernels.qgemm.blocks import dequantise, random_weights
from autotune.kernels.qgemm.formats import FORMATS
from autotune.kernels.render import render
from autotune.lookup import Match, Tuned, TuningTable
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.runtime import Gemm, QGemm, from_awq, from_gptq
from autotune.space.search_space import SearchSpace
from factories import first_short

IN_FILES = [name for name, one in FORMATS.items() if not one.in_arrays]
NAIVE = FAMILY.complete(Configuration.of("naive", relaxed_math="off"))


class ByColumns(TuningTable):
    """A table in which one configuration was measured for one column, and another for more."""

    def __init__(self, device: Device, one: Configuration, more: Configuration) -> None:
        super().__init__([device], [])
        self.device, self.one, self.more = device, one, more

    def find(self, device: str | Device, problem: Problem | None = None, **_: int | None) -> Tuned:
        assert isinstance(problem, QGemmProblem)
        return Tuned(
            configuration=self.one if problem.n == 1 else self.more, match=Match.EXACT, device=self.device.slug,
            problem=problem, source_problem=problem, time_ns=1e4, because="measured", source_device=self.device.slug,
            driver=self.device.driver, version=self.device.version,
        )  # fmt: skip


@pytest.fixture(scope="module")
def make(pocl: Device, binaries: Path) -> Callable[..., QGemm]:
    """A QGemm for which these configurations were measured to be the best, at every size."""

    def qgemm(one: Configuration = NAIVE, more: Configuration | None = None, **settings: Any) -> QGemm:
        selector = "" if "queue" in settings else pocl.selector
        return QGemm(selector, table=ByColumns(pocl, one, more or one), binaries=binaries, **settings)

    return qgemm


def space_of(pocl: Device, problem: QGemmProblem, algorithm: str, **wanted: Any) -> SearchSpace:
    """The valid configurations with some values chosen."""
    overrides = {name: (value,) for name, value in wanted.items()}
    return SearchSpace(FAMILY, problem, pocl.limits, algorithms=[algorithm], overrides=overrides)


def drawn(pocl: Device, problem: QGemmProblem, algorithm: str, **wanted: Any) -> Configuration:
    """A valid configuration with some values chosen."""
    space = space_of(pocl, problem, algorithm, **wanted)
    return space[len(space) // 2]


def activations(*shape: int, dtype: str = "float32") -> Any:
    return np.random.default_rng(shape).uniform(-1, 1, shape).astype(dtype)


def weights_of(name: str, *shape: int) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Random weights, and what they stand for, of the same shape; GGUF's types by the `gguf` package."""
    one, (rows, k) = FORMATS[name], (int(np.prod(shape[:-1])), shape[-1])
    raw = random_weights(one, rows, k, np.random.default_rng([len(name), *shape]))
    if one.in_arrays:
        values, offsets = dequantise(raw, one, rows, k)
        return raw, (values.astype(np.float64) - offsets).reshape(shape)
    values = dequantize(raw.reshape(rows, -1), GGMLQuantizationType[name.upper()])
    return raw, values.astype(np.float64).reshape(shape)


def close(found: Any, x: Any, weights: NDArray[np.float64], relative: float = 1e-5) -> bool:
    """Whether a product is right within rounding, which is relative to the sum of the products' sizes."""
    expected, size = x.astype(np.float64) @ weights.T, np.abs(x).astype(np.float64) @ np.abs(weights).T
    return bool((np.abs(found.astype(np.float64) - expected) <= relative * size + 1e-6).all())


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_with_numpy_arrays(make: Callable[..., QGemm], name: str) -> None:
    raw, values = weights_of(name, 48, 256)
    qgemm = make()
    weights = qgemm.prepare(raw, format=name, shape=(48, 256))
    one, several = activations(256), activations(2, 3, 256)
    assert qgemm(one, weights).shape == (48,) and close(qgemm(one, weights), one, values)
    y = qgemm(several, weights)
    assert y.shape == (2, 3, 48) and close(y, several, values)
    gaps = activations(8, 512)[::2, :256]
    out = np.full((4, 96), np.nan, dtype=np.float32)[:, ::2]
    assert qgemm(gaps, weights, out) is out and close(out, gaps, values)
    assert (qgemm.stats.packings, qgemm.stats.prepared_bytes) == (0, raw.nbytes)


@pytest.mark.parametrize(("mode", "relative"), [("float16", 2e-3), ("int8", 0.02)])
def test_modes(make: Callable[..., QGemm], mode: str, relative: float) -> None:
    raw, values = weights_of("q4_0", 40, 128)
    qgemm = make()
    weights = qgemm.prepare(raw, "Q4_0", (40, 128))
    x = activations(5, 128, dtype="float16" if mode == "float16" else "float32")
    y = qgemm(x, weights, mode=mode)
    assert y.dtype == x.dtype and close(y, x, values, relative)
    assert np.array_equal(y, qgemm(x, weights)) == (mode == "float16")


@pytest.mark.parametrize(
    ("algorithm", "wanted"),
    first_short(
        [
            ("own_rows", {"w_storage": "buffer", "x_storage": "buffer"}),
            ("own_rows", {"w_storage": "image", "x_storage": "image"}),
            ("own_rows", {"w_storage": "image", "x_storage": "buffer"}),
            ("shared_rows", {"layout": "rows"}),
            ("shared_rows", {"layout": "file"}),
        ],
        1,
    ),
)
def test_packed_once_in_every_layout(
    make: Callable[..., QGemm], pocl: Device, algorithm: str, wanted: dict[str, str]
) -> None:
    raw, values = weights_of("q4_k", 64, 512)
    configuration = drawn(pocl, QGemmProblem(m=64, n=1, k=512, weights="q4_k"), algorithm, **wanted)
    qgemm = make(configuration)
    weights = qgemm.prepare(raw, "q4_k", (64, 512))
    assert qgemm.stats.prepared_bytes == 0  # nothing is brought to the device before it is needed
    queue = qgemm.queue
    for x in (activations(512), activations(1, 512), activations(512)):
        assert close(qgemm(x, weights), x, values)
        on_device = qgemm(cla.to_device(queue, x), weights)
        assert isinstance(on_device, cla.Array) and close(on_device.get(), x, values)
    choice = qgemm.choice(activations(512), weights)
    assert choice is not None and choice.configuration == configuration
    is_packed = wanted.get("layout") != "file"
    assert qgemm.stats.packings == is_packed
    growth = FORMATS["q4_k"].packed_growth * 64 * 2
    assert qgemm.stats.prepared_bytes == raw.nbytes + is_packed * growth  # the copy for packing is gone
    assert repr(weights) == f"<PreparedWeights 64 x 512 q4_k, packed in {int(is_packed)} layouts>"


LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("shared_rows", {"layout": "rows"}),
    *(("own_rows", {"packed_words": words, "w_storage": "buffer", "x_storage": "buffer"}) for words in (1, 2, 4)),
]


@pytest.mark.parametrize(
    ("algorithm", "wanted", "name"),
    first_short(
        [
            (algorithm, wanted, name)
            for algorithm, wanted in LAYOUTS
            for name in FORMATS
            if not (algorithm == "shared_rows" and FORMATS[name].in_arrays)  # such weights lie in rows already
        ],
        1,
    ),
)
def test_what_was_packed_becomes_the_bytes_of_the_file_again(
    make: Callable[..., QGemm], pocl: Device, algorithm: str, wanted: dict[str, Any], name: str
) -> None:
    block, rng = FORMATS[name].block, np.random.default_rng(5)
    # The plainest kernel serves all shapes and is built in no time; what packs is the same in all.
    plain = space_of(pocl, QGemmProblem(m=1, n=1, k=block, weights=name), algorithm, **wanted)[0]
    for shape in ((1, block), (7, 3 * block), (3, 13, 5 * block)):
        experts, m, k = (1, *shape)[-3:]
        problem = QGemmProblem(m=m, n=1, k=k, weights=name, experts=experts)
        assert not FAMILY.violations(problem, plain, pocl.limits)
        qgemm = make(plain, verify=False)
        raw = rng.integers(0, 256, problem.weight_bytes, dtype=np.uint8)  # all bits, whatever they stand for
        weights = qgemm.prepare(raw, name, shape)
        with pytest.raises(ProblemError, match="not packed"):
            qgemm.unpack(weights)
        qgemm(activations(1, k), weights, starts=[0, *[1] * experts] if experts > 1 else None)
        assert qgemm.stats.packings == 1
        assert np.array_equal(qgemm.unpack(weights), raw)
    with pytest.raises(ProblemError, match="another QGemm"):
        make().unpack(weights)


@pytest.mark.parametrize("chunk", [1, 2, 4])
@pytest.mark.parametrize("name", first_short(["q4_0", "q8_0", "q4_k", "q6_k", "mxfp4", "int4z-g32"], 1))
def test_vectors_of_integers(make: Callable[..., QGemm], pocl: Device, name: str, chunk: int) -> None:
    problem = QGemmProblem(m=37, n=3, k=512, weights=name, mode="int8")
    lanes = 4 // chunk
    vectors = {"sums": "vector", "chunk": chunk, "lanes": lanes, "unroll": 2, "micro_tile_m": 2, "micro_tile_n": 2}
    qgemm = make(drawn(pocl, problem, "shared_rows", layout="file", **vectors))
    raw, values = weights_of(name, 37, 512)
    x = activations(3, 512)
    assert close(qgemm(x, qgemm.prepare(raw, format=name, shape=(37, 512)), mode="int8"), x, values, 0.02)


def test_the_largest_integers_of_vectors_do_not_overflow(make: Callable[..., QGemm], pocl: Device) -> None:
    problem = QGemmProblem(m=4, n=2, k=64, weights="q8_0", mode="int8")
    qgemm = make(drawn(pocl, problem, "shared_rows", layout="file", sums="vector", lanes=1, chunk=4))
    block = np.concatenate([np.array([1], np.float16).view(np.uint8), np.full(32, -128, np.int8).view(np.uint8)])
    weights = qgemm.prepare(np.tile(block, (4, 2)), format="q8_0", shape=(4, 64))
    x = np.stack([np.full(64, 127.0, np.float32), np.full(64, -127.0, np.float32)])
    expected = np.array([[-128 * 127 * 64] * 4, [128 * 127 * 64] * 4], np.float32)
    assert np.array_equal(qgemm(x, weights, mode="int8"), expected)


@pytest.mark.long
def test_layouts_for_decode_and_prefill_and_their_memory(make: Callable[..., QGemm], pocl: Device) -> None:
    raw, values = weights_of("q8_0", 64, 256)
    one = drawn(pocl, QGemmProblem(m=64, n=1, k=256, weights="q8_0"), "shared_rows", layout="rows")
    more = drawn(pocl, QGemmProblem(m=64, n=16, k=256, weights="q8_0"), "local_tile", packed_words=1)
    qgemm = make(one, more)
    weights = qgemm.prepare(raw, "q8_0", (64, 256))
    for x in (activations(1, 256), activations(16, 256)):
        assert close(qgemm(x, weights), x, values)
        assert close(qgemm(x, weights), x, values)
    assert (qgemm.stats.packings, qgemm.stats.prepared_bytes) == (2, 2 * raw.nbytes)
    weights.release()
    assert qgemm.stats.prepared_bytes == 0
    assert close(qgemm(activations(1, 256), weights), activations(1, 256), values)
    assert (qgemm.stats.packings, qgemm.stats.prepared_bytes) == (3, raw.nbytes)
    del weights
    assert qgemm.stats.prepared_bytes == 0


def test_kernels_share_packed_weights_only_where_they_pack_alike(pocl: Device) -> None:
    limits = replace(pocl.limits, has_matrix_units=True)
    for name in ("q4_0", "q6_k", "int4z-g32"):
        problem = QGemmProblem(m=64, n=16, k=512, weights=name)
        sources: dict[tuple[Any, ...], set[str]] = {}
        for algorithm in FAMILY.algorithms:
            space = SearchSpace(FAMILY, problem, limits, algorithms=[algorithm.name])
            for configuration in space.configurations(np.linspace(0, len(space) - 1, 40).astype(int)):
                plan = FAMILY.plan(problem, configuration)
                packs = tuple(launch for launch in plan.launches if launch.prepares)
                if not packs:
                    continue
                source = render(FAMILY, configuration, plan)
                kernel = source[source.index("__kernel void pack(") :].partition("\n}\n")[0]
                values = dict(configuration.values)
                key = (packs, *map(values.get, FAMILY.packing_parameters))
                sources.setdefault(key, set()).add(re.sub(r"\s+", " ", kernel))
        assert len(sources) > 1 and all(len(found) == 1 for found in sources.values())
        assert len(set().union(*sources.values())) == len(sources)


def test_bound_products_repeat_on_the_same_arrays(make: Callable[..., QGemm], pocl: Device) -> None:
    raw, values = weights_of("q4_0", 64, 256)
    problem = QGemmProblem(m=64, n=1, k=256, weights="q4_0")
    for wanted in ({"w_storage": "image", "x_storage": "image"}, {"w_storage": "buffer", "x_storage": "buffer"}):
        qgemm = make(drawn(pocl, problem, "own_rows", **wanted))
        weights = qgemm.prepare(raw, "q4_0", (64, 256))
        x, out = cla.zeros(qgemm.queue, (256,), np.float32), cla.zeros(qgemm.queue, (64,), np.float32)
        step = qgemm.bind(x, weights, out)
        for seed in range(4):
            x.set(activations(256) + np.float32(seed))
            assert step() is out and close(out.get(), x.get(), values)
        assert (qgemm.stats.calls, qgemm.stats.packings) == (4, 1)
        on_host, result = activations(256), np.empty(64, np.float32)
        repeated = qgemm.bind(on_host, weights, result)
        for _ in range(2):
            assert repeated() is result and close(result, on_host, values)
            on_host += 1


def test_weights_on_the_device_and_in_shared_memory(make: Callable[..., QGemm], pocl: Device) -> None:
    raw, values = weights_of("mxfp4", 64, 256)
    packed = drawn(pocl, QGemmProblem(m=64, n=1, k=256, weights="mxfp4"), "own_rows", w_storage="buffer")
    x = activations(256)
    for configuration in (NAIVE, packed):
        qgemm = make(configuration)
        shared = qgemm.allocate(raw.shape, np.uint8)
        shared[...] = raw
        for given in (shared, cla.to_device(qgemm.queue, raw)):
            weights = qgemm.prepare(given, "mxfp4", (64, 256))
            step = qgemm.bind(cla.to_device(qgemm.queue, x), weights, cla.zeros(qgemm.queue, (64,), np.float32))
            for _ in range(2):
                assert close(qgemm(x, weights), x, values) and close(step().get(), x, values)
            assert np.array_equal(shared, raw)


def test_another_queue(make: Callable[..., QGemm], pocl: Device) -> None:
    raw, values = weights_of("q4_0", 32, 64)
    device = next(d for p in cl.get_platforms() for d in p.get_devices() if "pocl" in d.version.lower())
    context = cl.Context([device])
    ours, theirs = cl.CommandQueue(context), cl.CommandQueue(context)
    qgemm = make(queue=ours, verify=False)
    weights = qgemm.prepare(cla.to_device(theirs, raw), "q4_0", (32, 64))
    x = activations(3, 64)
    y = qgemm(cla.to_device(theirs, x), weights)
    assert close(y.get(), x, values)


@pytest.mark.parametrize("kind", ["list", "int64", "device"])
def test_experts(make: Callable[..., QGemm], kind: str) -> None:
    raw, values = weights_of("q4_0", 4, 24, 64)
    qgemm = make()
    weights = qgemm.prepare(raw, "q4_0", (4, 24, 64))
    assert "4 x 24 x 64" in repr(weights)
    x, bounds = activations(7, 64), [0, 3, 3, 5, 7]
    starts: Any = bounds
    if kind == "int64":
        starts = np.array(bounds)
    elif kind == "device":
        starts = cla.to_device(qgemm.queue, np.array(bounds, dtype=np.int32))
    y = qgemm(x, weights, starts=starts)
    for expert, (first, end) in enumerate(pairwise(bounds)):
        assert close(y[first:end], x[first:end], values[expert])


# GGUF files


@pytest.mark.parametrize("name", IN_FILES)
def test_tensors_of_a_gguf_file(make: Callable[..., QGemm], tmp_path: Path, name: str) -> None:
    raw, values = weights_of(name, 32, 256)
    experts, of_experts = weights_of(name, 3, 16, 256)
    writer = GGUFWriter(tmp_path / "model.gguf", "llama")
    for title, shape, data in (
        ("blk.0.attn_q.weight", (32, -1), raw),
        ("blk.0.ffn_up_exps.weight", (3, 16, -1), experts),
    ):
        writer.add_tensor(title, data.reshape(shape), raw_dtype=GGMLQuantizationType[name.upper()])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    one, several = GGUFReader(tmp_path / "model.gguf").tensors
    qgemm = make()
    x = activations(4, 256)
    assert close(qgemm(x, qgemm.prepare(one)), x, values)
    y = qgemm(x, qgemm.prepare(several), starts=[0, 1, 1, 4])
    assert close(y[:1], x[:1], of_experts[0]) and close(y[1:], x[1:], of_experts[2])


def test_tensors_without_kernels_are_refused(make: Callable[..., QGemm], tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("plain", np.zeros((4, 32), dtype=np.float16))
    writer.add_tensor("odd", np.zeros((4, 22), dtype=np.uint8), raw_dtype=GGMLQuantizationType.Q5_0)
    writer.add_tensor("vector", np.zeros(18, dtype=np.uint8), raw_dtype=GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    plain, odd, vector = GGUFReader(tmp_path / "model.gguf").tensors
    with pytest.raises(ProblemError, match="the tensor odd has type Q5_0; there are kernels for Q4_0, Q8_0"):
        make().prepare(odd)
    with pytest.raises(ProblemError, match="the tensor plain has type F16") as refused:
        make().prepare(plain)
    assert refused.value.hint == "use Gemm for it"
    with pytest.raises(ProblemError, match="the tensor vector has 1 axes"):
        make().prepare(vector)
    with pytest.raises(ProblemError, match="know their format"):
        make().prepare(odd, "q4_0")


def test_tensors_of_a_big_endian_file_are_refused(make: Callable[..., QGemm], tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "llama", endianess=GGUFEndian.BIG)
    raw, _ = weights_of("q4_0", 4, 64)
    writer.add_tensor("blk.0.attn_q.weight", raw.reshape(4, -1), raw_dtype=GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    [tensor] = GGUFReader(tmp_path / "model.gguf").tensors
    with pytest.raises(ProblemError, match=r"the tensor blk.0.attn_q.weight is big-endian"):
        make().prepare(tensor)


# GPTQ and AWQ, by the definitions of their formats


def words(quants: NDArray[Any], order: tuple[int, ...]) -> NDArray[np.int32]:
    """Pack the last axis in int32 words whose nibble i holds number `order[i]` of eight."""
    eights = quants.reshape(*quants.shape[:-1], -1, 8).astype(np.uint32)
    packed = sum((eights[..., place] << np.uint32(4 * i) for i, place in enumerate(order)), start=np.uint32(0))
    return np.asarray(packed, dtype=np.uint32).view(np.int32)


IN_ORDER, OF_AWQ = (0, 1, 2, 3, 4, 5, 6, 7), (0, 2, 4, 6, 1, 3, 5, 7)


@pytest.mark.parametrize(("group", "named"), [(32, 32), (64, 64), (128, 128), (256, 128), (96, 32)])
@pytest.mark.parametrize("is_symmetric", [False, True])
def test_gptq(make: Callable[..., QGemm], group: int, named: int, is_symmetric: bool) -> None:
    k, m = 2 * group, 24
    rng = np.random.default_rng([group, is_symmetric])
    quants, zeros = rng.integers(0, 16, (k, m)), rng.integers(1, 17, (2, m))  # a zero point of 16 is stored as 15
    if is_symmetric:
        zeros[...] = 8
    scales = rng.uniform(0.1, 0.2, (2, m)).astype(np.float16)
    qweight = words(quants.T, IN_ORDER).T
    converted = from_gptq(qweight, words(zeros - 1, IN_ORDER), scales, np.arange(k) // group)
    assert converted.format == f"int4{'' if is_symmetric else 'z'}-g{named}" and converted.shape == (m, k)
    of_each = np.arange(k) // group
    values = (scales[of_each].astype(np.float64) * (quants - zeros[of_each])).T
    qgemm, x = make(), activations(3, k)
    assert close(qgemm(x, qgemm.prepare(converted)), x, values)
    v2 = from_gptq(qweight, words(zeros % 16, IN_ORDER), scales, zeros_less_one=False)
    if is_symmetric:
        assert np.array_equal(v2.data, converted.data)
    foreign = from_gptq(qweight.astype(">i4"), words(zeros - 1, IN_ORDER).astype(">i4"), scales.astype(">f2"))
    assert np.array_equal(foreign.data, converted.data)


def test_awq(make: Callable[..., QGemm], pocl: Device) -> None:
    k, m, group = 256, 64, 64
    rng = np.random.default_rng(0)
    quants, zeros = rng.integers(0, 16, (k, m)), rng.integers(0, 16, (k // group, m))
    scales = rng.uniform(0.1, 0.2, (k // group, m)).astype(np.float16)
    converted = from_awq(words(quants, OF_AWQ), words(zeros, OF_AWQ), scales)
    assert (converted.format, converted.shape) == ("int4z-g64", (m, k))
    of_each = np.arange(k) // group
    values = (scales[of_each].astype(np.float64) * (quants - zeros[of_each])).T
    packed = drawn(pocl, QGemmProblem(m=m, n=1, k=k, weights="int4z-g64"), "own_rows", w_storage="buffer")
    for configuration in (NAIVE, packed):
        qgemm, x = make(configuration), activations(1, k)
        assert close(qgemm(x, qgemm.prepare(converted)), x, values)


def test_a_zero_point_of_16_in_packed_layouts(make: Callable[..., QGemm], pocl: Device) -> None:
    """GPTQ stores zero points less one, so that 16 occurs, which takes five bits."""
    k, m = 256, 64
    rng = np.random.default_rng(1)
    quants, zeros = rng.integers(0, 16, (k, m)), np.full((2, m), 16)
    scales = rng.uniform(0.1, 0.2, (2, m)).astype(np.float16)
    converted = from_gptq(words(quants.T, IN_ORDER).T, words(zeros - 1, IN_ORDER), scales)
    values = (np.repeat(scales, 128, axis=0).astype(np.float64) * (quants - 16.0)).T
    problem = QGemmProblem(m=m, n=1, k=k, weights="int4z-g128")
    for algorithm in ("own_rows", "shared_rows"):
        for mode, relative in (("float32", 1e-5), ("int8", 0.03)):
            qgemm = make(drawn(pocl, problem if mode == "float32" else _in_int8(problem), algorithm))
            x = activations(1, k)
            assert close(qgemm(x, qgemm.prepare(converted), mode=mode), x, values, relative)


def _in_int8(problem: QGemmProblem) -> QGemmProblem:
    return QGemmProblem.from_dict({**problem.to_dict(), "mode": "int8"})


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (lambda w, z, s: (w.astype(np.int64), z, s), "qweight is int64"),
        (lambda w, z, s: (w, z, s[0]), "scales is float16 of shape"),
        (lambda w, z, s: (w, z, s[:, :-1]), "do not go with"),
        (lambda w, z, s: (w[:-1], z, s), "groups have 28 weights"),
        (lambda w, z, s: (w, z[:1], s), "do not go with"),
        (lambda w, z, s: (w[:2], z[:1], s[:1]), "groups have 16 weights"),
        (lambda w, z, s: (w, z[:0], s[:0]), r"qzeros is int32 of shape \(0, 2\)"),
        (lambda w, z, s: (w[:0], z, s), r"qweight is int32 of shape \(0, 16\)"),
        (lambda w, z, s: (w, z, s.astype(np.float32) * 1e6), "infinite or NaN in float16"),
        (lambda w, z, s: (w, z, s * np.nan), "infinite or NaN in float16"),
        (lambda w, z, s: (w, z, s, np.arange(64)[::-1] // 32), "act-order"),
    ],
)
def test_arrays_that_are_not_of_gptq(arrays: Callable[..., tuple[Any, ...]], message: str) -> None:
    good = (np.zeros((8, 16), np.int32), np.zeros((2, 2), np.int32), np.ones((2, 16), np.float16))
    assert from_gptq(*good).shape == (16, 64)
    with pytest.raises(ProblemError, match=message):
        from_gptq(*arrays(*good))


# What does not fit


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(99, np.uint8), "q4_0", (4, 64)), "weights of 4x64 q4_0 take 144 bytes, not 99"),
        ((np.zeros(144, np.uint8), "q4_1", (4, 64)), "no weights 'q4_1'"),
        ((np.zeros(144, np.uint8), "q4_0", (4, 65)), "k must be a multiple of 32, the block of q4_0, not 65"),
        ((np.zeros(144, np.uint8), "q4_k", (4, 64)), "k must be a multiple of 256"),
        ((np.zeros(144, np.uint8), "q4_0", (256,)), r"not \(256,\)"),
        ((np.zeros(144, np.uint8),), "do not tell their format and shape"),
        ((np.zeros(36, np.float32), "q4_0", (4, 64)), "the weights are float32"),
        (([1, 2], "q4_0", (4, 64)), "the weights are a list"),
        ((np.zeros(144, np.uint8), "q4_0", (4.5, 64)), r"not \(4.5, 64\)"),
        ((np.zeros(144, np.uint8), "q4_0", "ab"), "not 'ab'"),
        ((np.zeros(144, np.uint8), "q4_0", 256), "not 256"),
        ((np.zeros(144, np.uint8), 4, (4, 64)), "do not tell their format and shape"),
    ],
)
def test_weights_that_do_not_fit(make: Callable[..., QGemm], arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        make().prepare(*arguments)


def test_operands_that_do_not_fit(make: Callable[..., QGemm], pocl: Device) -> None:
    qgemm = make()
    raw, _ = weights_of("q4_0", 8, 64)
    weights = qgemm.prepare(raw, "q4_0", (8, 64))
    x = activations(2, 64)
    on_device = cla.to_device(qgemm.queue, x)
    shared = qgemm.allocate((2, 16), np.float32)
    calls: tuple[tuple[Callable[[], Any], str], ...] = (
        (lambda: qgemm(activations(2, 32), weights), r"x has shape \(2, 32\): its last axis should be the 64"),
        (lambda: qgemm(np.zeros((0, 64), np.float32), weights), r"x is empty: its shape is \(0, 64\)"),
        (lambda: qgemm(np.float32(1), weights), "x is a float32"),
        (lambda: qgemm(x.astype(np.float64), weights), "x is float64"),
        (lambda: qgemm(x.astype(">f4"), weights), "byte order"),
        (lambda: qgemm(x.astype(np.float16), weights, mode="int8"), "mode int8 needs float32"),
        (lambda: qgemm(x, weights, mode="int4"), "no numeric mode 'int4'"),
        (lambda: qgemm(x, weights, np.zeros((2, 9), np.float32)), r"out is float32 of shape \(2, 9\)"),
        (
            lambda: qgemm(x, raw),  # type: ignore[arg-type]
            "the weights are a ndarray",
        ),
        (lambda: qgemm(x, make().prepare(raw, "q4_0", (8, 64))), "prepared by another QGemm"),
        (lambda: qgemm(x, weights, starts=[0, 2]), "starts must not be passed"),
        (lambda: qgemm(on_device, weights, shared[:, ::2]), "out is not contiguous"),
        (lambda: qgemm(on_device.base_data, weights), "a buffer has no shape"),
        (lambda: qgemm(allocate_image(qgemm), weights), "cannot be in an image"),
    )
    for call, message in calls:
        with pytest.raises(ProblemError, match=message):
            call()
    of_experts = qgemm.prepare(np.concatenate([raw, raw]), "q4_0", (2, 8, 64))
    for starts, message in (
        (None, "2 experts, so starts must be passed"),
        ([0, 2], "must be 3 integers"),
        ([0, 1, 3], "ascend from 0 to the rows of x, which are 2"),
        ([0, 3, 2], "ascend"),
        ([0.0, 1.0, 2.0], "must be 3 integers"),
        (cla.to_device(qgemm.queue, np.zeros(2, np.int32)), "not int32 of"),
    ):
        with pytest.raises(ProblemError, match=message):
            qgemm(x, of_experts, starts=starts)


def allocate_image(qgemm: QGemm) -> Any:
    gemm = Gemm(queue=qgemm.queue, table=TuningTable([], []), verify=False)
    return gemm.allocate((2, 64), np.float32, image=True)


def test_a_kernel_that_nobody_measured_is_checked(pocl: Device, tmp_path: Path) -> None:
    raw, values = weights_of("q6_k", 64, 512)
    qgemm = QGemm(pocl.selector, table=TuningTable([], []), binaries=tmp_path)
    x = activations(512)
    assert close(qgemm(x, qgemm.prepare(raw, "q6_k", (64, 512))), x, values)
    assert (tmp_path / "verdicts.jsonl").read_text().count('"failure":') == 1


def test_quantised_activations_that_are_no_numbers_make_none(make: Callable[..., QGemm]) -> None:
    qgemm = make()
    raw = random_weights(FORMATS["q4_0"], 8, 64, np.random.default_rng(1))
    weights = qgemm.prepare(raw, format="q4_0", shape=(8, 64))
    x = np.ones((5, 64), np.float32)
    x[1, 3], x[2, 40], x[3, 50] = np.nan, np.inf, -np.inf
    x[4] = 1e-38
    y = qgemm(x, weights, mode="int8")
    assert np.isfinite(y[0]).all() and np.isnan(y[1:4]).all()
    assert np.abs(y[4]).max() < 1e-34, "numbers too small for a scale count as zeros"
