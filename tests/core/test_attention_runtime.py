"""`Attention` on arrays: a growing cache, layouts, operands on the device, and what does not fit."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyopencl.array as cla
import pytest

from autotune.errors import ProblemError
from autotune.kernels.attention import AttentionProblem
from autotune.kernels.qgemm.blocks import dequantise, random_weights
from autotune.kernels.qgemm.formats import FORMATS
from autotune.lookup import TuningTable
from autotune.lookup.contents import entries_of
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.runtime import Attention, KeyValues, Scores
from factories import winner


@pytest.fixture(scope="module")
def attention(pocl: Device, tmp_path_factory: pytest.TempPathFactory) -> Attention:
    return Attention(pocl.selector, table=TuningTable([pocl], []), binaries=tmp_path_factory.mktemp("programs"))


def expected(q: Any, k: Any, v: Any, lengths: Any, *, causal: bool = False) -> Any:
    """By heads, in float64."""
    result = np.zeros((*q.shape[:3], v.shape[3]))
    for sequence, head, query in np.ndindex(*q.shape[:3]):
        end = lengths[sequence] - q.shape[2] + query + 1 if causal else lengths[sequence]
        if end > 0:
            own = head // (q.shape[1] // k.shape[1])
            scores = (
                k[sequence, own, :end].astype(float) @ q[sequence, head, query].astype(float) / math.sqrt(q.shape[3])
            )
            weights = np.exp(scores - scores.max())
            result[sequence, head, query] = weights / weights.sum() @ v[sequence, own, :end]
    return result


def drawn(*shape: int, dtype: str = "float32") -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape, np.float32).astype(dtype)


class TestRuntime:
    def test_numpy_operands(self, attention: Attention) -> None:
        q, k, v = drawn(2, 4, 3, 64), drawn(2, 2, 70, 64), drawn(2, 2, 70, 64)[:, :, ::-1]
        for lengths in (50, [70, 0]):
            found = attention(q, KeyValues(k=k, v=v), lengths, scores=Scores(causal=True))
            right = expected(q, k, v, np.broadcast_to(lengths, 2), causal=True)
            np.testing.assert_allclose(found, right, atol=1e-5)
        np.testing.assert_allclose(attention(q, KeyValues(k=k, v=v)), expected(q, k, v, [70, 70]), atol=1e-5)

    def test_a_cache_that_grows_asks_for_few_kernels(self, attention: Attention) -> None:
        q, k, v = drawn(1, 4, 1, 64), drawn(1, 2, 600, 64), drawn(1, 2, 600, 64)
        cache, requests = KeyValues(k=k, v=v), len(attention._engine.requests)
        for length in (1, 63, 64, 65, 100, 127, 129, 255, 300, 511, 513, 599):
            np.testing.assert_allclose(attention(q, cache, length), expected(q, k, v, [length]), atol=1e-5)
        assert len(attention._engine.requests) == requests + 5

    def test_what_was_tuned_serves_every_capacity(self, pocl: Device, tmp_path: Any) -> None:
        tuned = Configuration.of("naive", work_group_size=1)
        table = TuningTable([pocl], entries_of([pocl], [winner(pocl, AttentionProblem.parse("4/2,1,128,64"), tuned)]))
        attention = Attention(pocl.selector, table=table, binaries=tmp_path)
        q, k = drawn(1, 4, 1, 64), drawn(1, 2, 600, 64)
        attention(q, KeyValues(k=k, v=k), 100)
        choice = attention.choice(q, KeyValues(k=k, v=k), 100)
        assert choice and choice.configuration == tuned

    @pytest.mark.parametrize("layout", ["tokens", "pages"])
    def test_other_layouts_masks_and_sinks(self, attention: Attention, layout: str) -> None:
        q, k, v = drawn(1, 5, 4, 64), drawn(1, 32, 2, 64), drawn(1, 32, 2, 64)
        cache = KeyValues(k=k, v=v, layout="tokens")
        if layout == "pages":
            table = np.array([[2, 0, 3, 1]], np.int32)
            paged = [np.empty((4, 8, 2, 64), np.float32) for _ in range(2)]
            for to, given in zip(paged, (k, v), strict=True):
                to[table[0]] = given.reshape(4, 8, 2, 64)
            cache = KeyValues(k=paged[0], v=paged[1], layout="pages", table=table)
        mask = np.where(np.arange(32) < 10, 0, -np.inf).astype(np.float32)
        found = attention(q, cache, 30, mask=np.broadcast_to(mask, (1, 5, 32)), sinks=np.full(4, -99, np.float32))
        q, k, v = (given.swapaxes(1, 2) for given in (q, k, v))
        right = expected(q, k, v, [10]).swapaxes(1, 2)
        np.testing.assert_allclose(found, right, atol=1e-5)

    def test_operands_on_the_device_and_bound_calls(self, attention: Attention) -> None:
        queue = attention.queue
        q, k, v = drawn(1, 4, 1, 64), drawn(1, 1, 100, 64, dtype="float16"), drawn(1, 1, 100, 64, dtype="float16")
        cache = KeyValues(k=cla.to_device(queue, k), v=cla.to_device(queue, v))
        lengths, out = cla.to_device(queue, np.array([70], np.int32)), cla.zeros(queue, (1, 4, 1, 64), np.float32)
        given, copied = cla.to_device(queue, q), attention.stats.bytes_copied
        assert attention(given, cache, lengths, out, longest=70) is out
        np.testing.assert_allclose(out.get(), expected(q, k, v, [70]), atol=1e-5)
        bound = attention.bind(given, cache, lengths, out, longest=70)
        for length in (71, 100):
            lengths.fill(length)
            np.testing.assert_allclose(bound().get(), expected(q, k, v, [length]), atol=1e-5)
        assert attention.stats.bytes_copied == copied

    def test_blocks(self, attention: Attention) -> None:
        one, rng = FORMATS["q8_0"], np.random.default_rng(1)
        stored = [random_weights(one, 2 * 50, 64, rng) for _ in range(2)]
        k, v = (np.subtract(*dequantise(raw, one, 2 * 50, 64)).reshape(1, 2, 50, 64) for raw in stored)
        q, rows = drawn(1, 4, 2, 64), [raw.reshape(1, 2, 50, -1) for raw in stored]
        found = attention(q, KeyValues(k=rows[0], v=rows[1], blocks="q8_0"), 40)
        np.testing.assert_allclose(found, expected(q, k, v, [40]), atol=1e-4)

    def test_says_what_does_not_fit(self, attention: Attention) -> None:
        calls: tuple[tuple[Callable[[], object], str], ...]
        q, k = drawn(1, 4, 1, 64), drawn(1, 2, 50, 64)
        cache, odd = KeyValues(k=k, v=k), drawn(1, 2, 9, 60)
        calls = (
            (lambda: attention(q[0], cache), "each has four axes"),
            (lambda: attention(drawn(1, 3, 1, 64), cache), "heads or sizes do not match"),
            (lambda: attention(drawn(2, 4, 1, 64), cache), "q has 2 sequences, the cache 1"),
            (lambda: attention(odd, KeyValues(k=odd, v=odd)), "heads of 60"),
            (lambda: attention(q, cache, [1, 2]), "pass an integer, or 1 of them"),
            (lambda: attention(q, cache, -1), "lengths are -1"),
            (lambda: attention(q, cache, sinks=np.zeros(3, np.float32)), r"sink is float32 of shape \(3,\)"),
            (lambda: attention(q, KeyValues(k=k, v=k, layout="pages")), "a cache in pages needs a table"),
            (lambda: attention(q, KeyValues(k=k, v=k, blocks="q9")), "is not one of q8_0, q4_0"),
            (lambda: attention(q, cache, out=q), "out shares memory with q"),
        )
        for call, message in calls:
            with pytest.raises(ProblemError, match=message):
                call()
