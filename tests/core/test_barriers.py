"""Every barrier of the templates is needed: without it, Oclgrind reports a race in kernels that it finds sound."""

import copy
import re
from collections import defaultdict
from pathlib import Path

import pytest

from autotune.kernels import find_family
from autotune.kernels.gemm import FAMILY as GEMM
from autotune.kernels.gemm import GemmProblem
from autotune.kernels.render import render
from autotune.model.configuration import Configuration
from autotune.space.family import KernelFamily
from core.test_gate import (
    ALGORITHMS,
    ORDERING_PRELUDE,
    SMALL_TILE,
    Oclgrind,
    interpreting_cost,
    samples_for_oclgrind,
    without_races_of_groups,
)
from covering import Sample

pytestmark = pytest.mark.long

BARRIER = re.compile(r"\bbarrier\(.*?\);")
MARK = re.compile(r"/\* barrier (\S+) \*/")
AFTER_PARTS = "last_group.cl.j2:30"
"""Orders what a work-group wrote before what others read, and Oclgrind runs work-groups one after the other."""

WORKER = """
import sys
sys.path.insert(0, {tests!r})
import autotune.measure.measurer as measure
from autotune.device.opencl import Session
from autotune.measure.worker import serve
from core.test_barriers import marked, without
render, build = measure.render, Session.build
measure.render = lambda family, *given: {prelude!r} + without({place!r}, render(marked(family), *given))
Session.build = lambda session, source, options: build(session, source, [o for o in options if "-cl-std" not in o])
serve()
"""


def marked(family: KernelFamily) -> KernelFamily:
    """Return the family with a comment before each barrier of its templates, which names the place."""

    def of_line(name: str, line: int, text: str) -> str:
        return BARRIER.sub(lambda call: f"/* barrier {name}:{line} */ {call[0]}", text)

    found = copy.copy(family)
    found.__dict__["templates"] = {
        name: "\n".join(of_line(name, line, text) for line, text in enumerate(template.split("\n"), 1))
        for name, template in family.templates.items()
    }
    return found


def without(place: str, source: str) -> str:
    """Return a source without the barrier of a place in the templates."""
    return re.sub(rf"/\* barrier {re.escape(place)} \*/ {BARRIER.pattern}", ";", source)


def places_of(sample: Sample, family: KernelFamily) -> set[str]:
    """Return the places of the barriers that a configuration's source has."""
    plan = family.plan(sample.problem, sample.configuration)
    return set(MARK.findall(render(marked(family), sample.configuration, plan)))


def has_race(folder: Path, place: str, samples: list[Sample]) -> bool:
    """Return whether Oclgrind reports a race within a work-group of one of the configurations without a barrier."""
    tests = str(Path(__file__).resolve().parent.parent)
    oclgrind = Oclgrind("races", folder, WORKER.format(tests=tests, place=place, prelude=ORDERING_PRELUDE))
    with oclgrind.worker:
        return any("data race at" in without_races_of_groups(oclgrind.findings(sample)) for sample in samples)


@pytest.mark.parametrize(("family", "algorithm"), ALGORITHMS)
def test_no_barrier_can_be_left_out(tmp_path: Path, family: str, algorithm: str) -> None:
    places = defaultdict(list)
    for sample in sorted(samples_for_oclgrind(find_family(family), algorithm, "races"), key=interpreting_cost):
        for place in places_of(sample, find_family(family)):
            places[place].append(sample)
    if not places:
        pytest.skip(f"not covered: Oclgrind has no configuration of {family} {algorithm} with a barrier")
    assert [place for place, samples in sorted(places.items()) if not has_race(tmp_path, place, samples)] == []


def test_no_barrier_where_parts_are_joined_can_be_left_out(tmp_path: Path) -> None:
    values = {**SMALL_TILE, "stages": 1, "split_k": 2, "combine": "last_group_cl2"}
    configuration = GEMM.complete(Configuration.of("local_tile", **values))
    sample = Sample(problem=GemmProblem.parse("2,2,8"), configuration=configuration)
    places = {place for place in places_of(sample, GEMM) if place.startswith("last_group")} - {AFTER_PARTS}
    assert len(places) == 1
    assert not has_race(tmp_path, "none", [sample])
    assert has_race(tmp_path, places.pop(), [sample])
