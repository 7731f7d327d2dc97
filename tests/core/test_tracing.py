"""Spans of work: nested, carried from children, and kept only while somebody wants them."""

import sys

import pytest

from autotune import tracing
from autotune.child import Child

CHILD = (
    "from autotune import tracing\n"
    "from autotune import child\n"
    "def answer(message, entering):\n"
    "    entering('work')\n"
    "    with tracing.span('inner'):\n"
    "        return message\n"
    "child.serve(answer)\n"
)


@pytest.fixture(autouse=True)
def nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_recorder", tracing._Recorder())


def test_nothing_is_kept_until_somebody_collects() -> None:
    with tracing.span("before"):
        pass
    tracing.collect()
    with tracing.span("outer"), tracing.span("inner"):
        pass
    inner, outer = tracing.take()
    assert (inner.name, outer.name) == ("inner", "outer")
    assert outer.start <= inner.start <= inner.end <= outer.end
    assert tracing.take() == []


def test_a_span_ends_with_what_is_raised_within() -> None:
    tracing.collect()
    with pytest.raises(KeyError), tracing.span("failing"):
        raise KeyError
    assert [span.name for span in tracing.take()] == ["failing"]


def test_the_latest_are_kept() -> None:
    tracing.collect(2)
    for name in "abc":
        with tracing.span(name):
            pass
    assert [span.name for span in tracing.take()] == ["b", "c"]


def test_an_answer_carries_the_spans_of_the_child() -> None:
    with Child((sys.executable, "-c", CHILD)) as child:
        assert child.ask(1, {"work": 60.0}) == 1
        assert tracing.take() == [], "nobody collects"
        tracing.collect()
        assert child.ask(2, {"work": 60.0}) == 2
        pid = child.pid
    spans = tracing.take()
    assert {span.name for span in spans} == {"inner", "job"}
    assert {span.place >> 32 for span in spans} == {pid}
