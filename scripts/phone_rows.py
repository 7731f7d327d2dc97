"""Rows of public measurements of phones, one reader for each file of a folder such as scripts/bench_phones takes."""

import csv
import gzip
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from autotune.kernels.gemm import GemmProblem
from autotune.phone.bundle.collect import collect
from autotune.phone.bundle.result import read_result
from autotune.store import Store

_MODES = {"float32": "float32", "float16": "float16", "Single": "float32", "Half": "float16", "f32": "float32",
          "f16": "float16"}  # fmt: skip
_SIZES = {"Xgemm": 1024, "XgemmDirect": 256}
"""At which CLBlast's tuner runs each kernel, cubed."""


@dataclass(frozen=True, kw_only=True)
class Winner:
    """What won at a size on a real device, or what a rival rule answers there."""

    origin: str
    slug: str
    problem: GemmProblem
    outputs: int
    """Of a work-item."""
    work_group: int = 0
    """Work-items; 0 if not stated."""
    reads_image: bool | None = None
    """Whether B, or both operands, are images; None if the origin's kernels cannot."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """How long a product took on a real device, by kernels of others."""

    slug: str
    problem: GemmProblem
    time_us: float


def winners(folder: Path) -> list[Winner]:
    """Return all rows that state a winner. B is constant: these are weights, or tuned without their copy."""
    return [*_tvm(folder), *_clblast(folder), *_acl(folder), *_mnn(folder)]


def timed(folder: Path) -> Iterator[Timed]:
    """Yield products with their times."""
    for row in _rows(folder / "gemm.csv.gz"):
        yield Timed(slug=_slug(row["gpu"]), problem=_problem(row, row["dtype"]), time_us=float(row["time_us"]))


def pairs(folder: Path) -> list[dict[str, str]]:
    """Return the published pairs A/B as they are."""
    return list(_rows(folder / "pairs.csv.gz"))


def collected(results: Sequence[Path]) -> Iterator[Winner]:
    """Yield the winners of GEMM in results of bundles; each device is an origin."""
    for path in results:
        with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "collected.sqlite") as store:
            found = collect(read_result(path), store)
        for outcome in found.outcomes:
            problem, winner = outcome.request.problem, outcome.winner
            if winner is None or not isinstance(problem, GemmProblem):
                continue
            values = dict(winner.configuration.values)
            tile, group = (
                [int(values.get(f"{name}_{axis}", 1)) for axis in "mnk"] for name in ("micro_tile", "work_group")
            )
            yield Winner(
                origin=f"collected, {found.device.slug}",
                slug=found.device.slug,
                problem=problem,
                outputs=tile[0] * tile[1],
                work_group=prod(group),
                reads_image=values.get("b_storage") in ("image", "image_view") if "b_storage" in values else None,
            )


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _tvm(folder: Path) -> Iterator[Winner]:
    for row in _rows(folder / "gemm.csv.gz"):
        if row["outputs_per_item_m"] and row["work_group"]:
            slug = _slug(row["gpu"])
            yield Winner(
                origin=f"TVM, {_family(slug)}",
                slug=slug,
                problem=_problem(row, row["dtype"]),
                outputs=int(row["outputs_per_item_m"]) * int(row["outputs_per_item_n"]),
                work_group=int(row["work_group"]),
                reads_image=True if "image" in row["kernel"] else None,
            )


def _clblast(folder: Path) -> Iterator[Winner]:
    """Yield winners of single devices, not those of a group of devices."""
    for row in _rows(folder / "clblast_winners.csv.gz"):
        adreno = re.search(r"Adreno\(TM\) (\w+)", row["architecture"])
        mali = re.search(r"Mali-\w+(?: MC\d+)?", row["device"])
        is_phone = "Adreno" in row["device"] or "Mali" in row["device"]
        if row["kernel"] not in _SIZES or row["precision"] not in _MODES or not is_phone:
            continue
        name = f"adreno-{adreno[1]}" if adreno else mali[0] if mali else "adreno-unknown"
        chosen = {name: int(value) for name, value in (part.split("=") for part in row["parameters"].split())}
        size, is_direct = _SIZES[row["kernel"]], row["kernel"] == "XgemmDirect"
        wide, high = ("WGD", "WGD") if is_direct else ("NWG", "MWG")
        items_n, items_m = (chosen[f"{axis}DIMC{'D' if is_direct else ''}"] for axis in "NM")
        slug = _slug(name)
        yield Winner(
            origin=f"CLBlast, {_family(slug)}",
            slug=slug,
            problem=GemmProblem(m=size, n=size, k=size, mode=_MODES[row["precision"]], constant="b"),
            outputs=(chosen[wide] // items_n) * (chosen[high] // items_m),
            work_group=items_n * items_m,
        )


def _acl(folder: Path) -> Iterator[Winner]:
    for row in _rows(folder / "acl_winners.csv.gz"):
        if row["dtype"] in _MODES:
            yield Winner(
                origin="Arm's library, mali",
                slug=_slug(f"Mali-{row['gpu']}"),
                problem=_problem(row, row["dtype"], batch=int(row["b"])),
                outputs=int(row["m0"]) * int(row["n0"]),
                reads_image=row["rhs_as_image"] == "1" if "best" in row["table"] else None,
            )


def _mnn(folder: Path) -> Iterator[Winner]:
    for row in _rows(folder / "mnn_rule.csv.gz"):
        slug = row["gpu"].lower()
        sizes = {name: int(row[name.upper()]) for name in "mnk"}
        yield Winner(
            origin=f"MNN's rule, {slug}",
            slug=slug,
            problem=GemmProblem(**sizes, batch=int(row["batch"]), constant="b"),
            outputs=int(row["outputs_per_item"]),
            work_group=int(row["work_group"]),
        )


def _problem(row: dict[str, str], dtype: str, batch: int = 1) -> GemmProblem:
    return GemmProblem(m=int(row["m"]), n=int(row["n"]), k=int(row["k"]), batch=batch, mode=_MODES[dtype], constant="b")


def _slug(name: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower())
    return re.sub(r"-mp(\d+)$", r"-mc\1", slug.removesuffix("-2022"))


def _family(slug: str) -> str:
    return slug.partition("-")[0]
