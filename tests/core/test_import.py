"""JSON tables read as hostile input, and taken into a database."""

import copy
import json
import os
import random
import shutil
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune import codec
from autotune.errors import TableError
from autotune.export import export_table
from autotune.kernels.gemm import GemmProblem
from autotune.lookup.json_table import read_contents
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.trial import Verdict, Winner
from autotune.paths import data_folder
from autotune.store import Store

DOCUMENT: dict[str, Any] = {
    "format": "autotune-table", "schema_version": 1,
    "devices": [
        {
            "slug": "adreno-730", "family": "adreno", "vendor": "Qualcomm", "model": "Adreno® 730",
            "platform": "QUALCOMM Snapdragon(TM)", "name": "QUALCOMM Adreno(TM) 730",
            "version": "OpenCL 3.0 Adreno(TM) 730", "opencl_c_version": "", "driver": "Compiler E031.38.11.14",
            "limits": {"max_work_group_size": 1024, "max_work_item_sizes": [1024, 1024, 64], "has_images": True,
                       "sub_group_sizes": [64, 128], "extensions": ["cl_khr_fp16"]},
            "entries": [
                {
                    "family": "gemm",
                    "problem": {"m": 512, "n": 512, "k": 512},
                    "configuration": {"algorithm": "naive", "work_group_m": 4, "work_group_n": 16},
                    "time_ns": 1e6, "default_ns": 2000000, "gain_over_default": 2.0, "gain_low": 1.9, "gain_high": 2.1,
                    "baseline_ns": None, "samples": 30, "is_default": False, "verdict": "faster", "verifications": 60,
                    "provenance": {"driver": "Compiler E031.38.11.14", "template_hash": "abc", "space_version": 1,
                                   "tool_version": "0.1.0", "measured_at": "2026-01-31T12:00:00Z"},
                },
                {
                    "family": "gemm",
                    "problem": {"m": 1, "n": 7, "k": 3, "mode": "float16", "trans_b": 1},
                    "configuration": {"algorithm": "naive", "work_group_m": 0, "work_group_n": 0},
                    "time_ns": 1000.5, "default_ns": 1000.5, "gain_low": None, "gain_high": None,
                    "baseline_ns": 1000.5, "samples": 0, "is_default": True, "verdict": "provisional",
                    "verifications": 0,
                    "provenance": {"driver": "", "template_hash": "", "space_version": 0,
                                   "tool_version": "", "measured_at": "2026-01-31T12:00:00+00:00"},
                },
            ],
        },
        {"slug": "cpu", "family": "cpu", "vendor": "", "model": "", "platform": "", "name": "", "version": "",
         "opencl_c_version": "", "driver": "", "limits": {}, "entries": []},
    ],
}  # fmt: skip
ENTRY = "devices.0.entries.0."


def read_table(source: str | bytes | Path) -> tuple[list[Device], list[Winner]]:
    contents = read_contents(source)
    return contents.devices, contents.winners


def changed(path: str, value: Any) -> dict[str, Any]:
    """The document with one member set, or taken away for Ellipsis; `path` has numbers and names between dots."""
    document = copy.deepcopy(DOCUMENT)
    *way, last = path.split(".")
    place: Any = document
    for step in way:
        place = place[int(step) if step.isdecimal() else step]
    if value is ...:
        del place[last]
    else:
        place[int(last) if last.isdecimal() else last] = value
    return document


def refusal(source: str | bytes | Path) -> str:
    """The line that says why a table is refused."""
    with pytest.raises(TableError) as caught:
        read_table(source)
    line = str(caught.value)
    assert "\n" not in line and len(line) < 400
    return line


# What is taken


def test_a_table_is_read_whole() -> None:
    devices, winners = read_table(json.dumps(DOCUMENT))
    assert [device.slug for device in devices] == ["adreno-730", "cpu"]
    assert devices[0].limits.max_work_item_sizes == (1024, 1024, 64)
    assert (devices[0].limits.has_images, devices[0].limits.extensions) == (True, ("cl_khr_fp16",))
    first, second = winners
    assert first.problem == GemmProblem(m=512, n=512, k=512)
    assert first.configuration == Configuration.of("naive", work_group_m=4, work_group_n=16)
    assert (first.time_ns, first.default_ns, first.baseline_ns) == (1e6, 2e6, None)
    assert (first.samples, first.is_default, first.source) == (30, False, "imported")
    assert (first.verdict, first.verifications) == (Verdict.FASTER, 60)
    assert second.verdict is Verdict.PROVISIONAL
    assert first.provenance.measured_at == "2026-01-31T12:00:00Z"
    assert second.gain_low != second.gain_low  # not a number: not known
    assert second.problem == GemmProblem(m=1, n=7, k=3, mode="float16", trans_b=1)


def test_the_predictors_of_earlier_versions_are_skipped() -> None:
    document = changed("devices.0.predictors", [{"family": "gemm", "favours": "default"}])
    assert repr(read_table(json.dumps(document))) == repr(read_table(json.dumps(DOCUMENT)))


def test_text_bytes_and_file_are_alike(tmp_path: Path) -> None:
    text = json.dumps(DOCUMENT, ensure_ascii=False, indent=4)
    path = tmp_path / "table.json"
    path.write_text(text, encoding="utf-8")
    whole = read_table(text)[0]
    assert (
        read_table(text.encode())[0] == read_table(b"\xef\xbb\xbf" + text.encode())[0] == read_table(path)[0] == whole
    )


def test_a_pipe_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_text(json.dumps(DOCUMENT)))
    writer.start()
    assert len(read_table(path)[1]) == 2
    writer.join()


def test_exported_imported_and_exported_again_is_identical(tmp_path: Path) -> None:
    devices, winners = read_table(json.dumps(DOCUMENT))
    texts = []
    for number in range(3):
        with Store.open(tmp_path / f"{number}.sqlite") as store:
            assert store.import_winners(winners, devices) == (2, 0)
            text = export_table(store, None, "gemm", "json")
            assert isinstance(text, str)
            texts.append(text)
            assert store.import_winners(winners, devices) == (0, 2)
            assert export_table(store, None, "gemm", "json") == text
        devices, winners = read_table(text)
    assert texts[0] == texts[1] == texts[2]
    assert "Adreno\\u00ae 730" in texts[0] and "imported" not in texts[0]


def test_a_better_measurement_stays(tmp_path: Path) -> None:
    devices, winners = read_table(json.dumps(DOCUMENT))
    with Store.open(tmp_path / "tuned.sqlite") as store:
        store.import_winners(winners, devices)
        for time_ns, taken in ((3e6, False), (5e5, True)):
            entry = {"time_ns": time_ns, "default_ns": time_ns * 2}
            document = copy.deepcopy(DOCUMENT)
            document["devices"][0]["entries"] = [{**document["devices"][0]["entries"][0], **entry}]
            devices, winners = read_table(json.dumps(document))
            assert store.import_winners(winners, devices) == (taken, not taken)
        assert min(winner.time_ns for winner in store.best() if winner.problem.label == "512x512x512") == 5e5


# What is refused

REFUSED: list[tuple[str, Any, str]] = [
    ("format", "another", "is not a tuning table"),
    ("format", ..., "is not a tuning table"),
    ("schema_version", 3, "schema version 3; this version of autotune reads versions up to 2"),
    ("schema_version", 0, "schema_version: must be at least 1"),
    ("schema_version", "1", "schema_version: must be a whole number, not a string"),
    ("schema_version", True, "schema_version: must be a whole number, not a boolean"),
    ("schema_version", ..., "schema_version: must be a whole number, not null"),
    ("more", 1, "has an unknown member 'more'"),
    ("devices", {}, "devices: must be a list, not an object"),
    ("devices.1", None, "devices[1]: must be an object, not null"),
    ("devices.1.slug", "adreno-730", "devices[1]: slug: adreno-730 is already in the table"),
    ("devices.1.slug", "a_b", "devices[1].slug: must be up to 64 lowercase letters"),
    ("devices.1.slug", "a" * 65, "devices[1].slug: must be up to 64"),
    ("devices.1.slug", "", "devices[1].slug: must be"),
    ("devices.1.slug", "../etc", "devices[1].slug: must be"),
    ("devices.0.family", "A B", "devices[0].family: must be"),
    ("devices.0.driver", ..., "devices[0]: driver is missing"),
    ("devices.0.model", 7, "devices[0].model: must be a string, not a number"),
    ("devices.0.model", "a\nb", "devices[0].model: has a control character"),
    ("devices.0.model", "\x1b[2J", "devices[0].model: has a control character"),
    ("devices.0.model", "\u202egnp.exe", "devices[0].model: has a control character"),
    ("devices.0.model", "\ud800", "devices[0].model: has a control character"),
    ("devices.0.model", "x" * 1025, "devices[0].model: is longer than 1024 characters"),
    ("devices.0.selector", "0:0", "devices[0]: has an unknown member 'selector'"),
    ("devices.0.limits", [], "devices[0].limits: must be an object"),
    ("devices.0.limits.speed", 7, "devices[0].limits: has an unknown member 'speed'"),
    ("devices.0.limits.compute_units", 1.5, "devices[0].limits.compute_units: must be a whole number"),
    ("devices.0.limits.compute_units", 0, "devices[0].limits.compute_units: must be from 1 to"),
    ("devices.0.limits.compute_units", -1, "devices[0].limits.compute_units: must be from 1 to"),
    ("devices.0.limits.compute_units", 2**63, "devices[0].limits.compute_units: must be from 1 to"),
    ("devices.0.limits.has_images", 1, "devices[0].limits.has_images: must be true or false"),
    ("devices.0.limits.max_work_item_sizes", [1], "devices[0].limits.max_work_item_sizes: needs at least 2 items"),
    ("devices.0.limits.sub_group_sizes", [0], "devices[0].limits.sub_group_sizes[0]: must be from 1 to"),
    ("devices.0.limits.max_work_item_sizes", 64, "devices[0].limits.max_work_item_sizes: must be a list"),
    ("devices.0.limits.sub_group_sizes", [8, "8"], "devices[0].limits.sub_group_sizes[1]: must be a whole number"),
    ("devices.0.limits.extensions", ["x"] * 1025, "devices[0].limits.extensions: has more than 1024 items"),
    ("devices.0.entries", {}, "devices[0].entries: must be a list"),
    ("devices.0.entries.1", 7, "devices[0].entries[1]: must be an object, not a number"),
    (ENTRY + "source", "measured", "devices[0].entries[0]: has an unknown member 'source'"),
    (ENTRY + "family", "os", "devices[0].entries[0].family: there is no kernel family 'os'"),
    (ENTRY + "family", "gemm.algorithms", "devices[0].entries[0].family: there is no kernel family"),
    (ENTRY + "problem", [], "devices[0].entries[0].problem: must be an object"),
    (ENTRY + "problem.m", 0, "devices[0].entries[0].problem: m must be at least 1"),
    (ENTRY + "problem.m", True, "devices[0].entries[0].problem: gemm size m must be int"),
    (ENTRY + "problem.m", 512.0, "devices[0].entries[0].problem: gemm size m must be int"),
    (ENTRY + "problem.m", 2**40, "devices[0].entries[0].problem: "),
    (ENTRY + "problem.k", ..., "devices[0].entries[0].problem: gemm needs k"),
    (ENTRY + "problem.depth", 7, "devices[0].entries[0].problem: gemm has no size named 'depth'"),
    (ENTRY + "problem.mode", "float\n32", "devices[0].entries[0].problem.mode: has a control character"),
    (ENTRY + "configuration", None, "devices[0].entries[0].configuration: must be an object"),
    (ENTRY + "configuration.algorithm", ..., "devices[0].entries[0].configuration: algorithm is missing"),
    (ENTRY + "configuration.algorithm", "magic", "entries[0].configuration: gemm has no algorithm 'magic'"),
    (ENTRY + "configuration.algorithm", 7, "devices[0].entries[0].configuration.algorithm: must be a string"),
    (ENTRY + "configuration.tile_k", 8, "entries[0].configuration: naive has no parameter 'tile_k'"),
    (ENTRY + "configuration.work_group_m", ..., "entries[0].configuration: parameter 'work_group_m' is missing"),
    (ENTRY + "configuration.work_group_m", 3, "entries[0].configuration: work_group_m=3 is not among 0, 1, 2, 4"),
    (ENTRY + "configuration.work_group_m", True, "configuration.work_group_m: must be a whole number or a string"),
    (ENTRY + "configuration.work_group_m", "4", "entries[0].configuration: work_group_m='4' is not among"),
    (ENTRY + "configuration.work_group_m", 4.0, "configuration.work_group_m: must be a whole number or a string"),
    (ENTRY + "configuration.a\nb", [], "devices[0].entries[0].configuration.a?b: must be a whole number or a string"),
    (ENTRY + "time_ns", 0, "devices[0].entries[0].time_ns: must be above 0"),
    (ENTRY + "time_ns", -1.5, "devices[0].entries[0].time_ns: must be above 0"),
    (ENTRY + "time_ns", 1e16, "devices[0].entries[0].time_ns: must be above 0 and at most 1e+15"),
    (ENTRY + "time_ns", "1", "devices[0].entries[0].time_ns: must be a number, not a string"),
    (ENTRY + "time_ns", True, "devices[0].entries[0].time_ns: must be a number, not a boolean"),
    (ENTRY + "time_ns", None, "devices[0].entries[0].time_ns: must be a number, not null"),
    (ENTRY + "time_ns", 2.6, "entries[0].time_ns: 2.6 ns for 512x512x512 is faster than any device"),
    (ENTRY + "default_ns", None, "devices[0].entries[0].default_ns: must be a number"),
    (ENTRY + "baseline_ns", 0.0, "devices[0].entries[0].baseline_ns: must be above 0"),
    (ENTRY + "gain_low", 2.2, "devices[0].entries[0].gain_low: is above gain_high"),
    (ENTRY + "gain_low", -1, "devices[0].entries[0].gain_low: must be above 0"),
    (ENTRY + "gain_over_default", 20.0, "gain_over_default: does not follow from the times, which give 2.0"),
    (ENTRY + "gain_over_default", None, "gain_over_default: does not follow from the times, which give 2.0"),
    (ENTRY + "gain_over_baseline", 2.0, "gain_over_baseline: does not follow from the times, which give None"),
    (ENTRY + "gflops", 1e9, "gflops: does not follow from the times"),
    (ENTRY + "samples", -1, "devices[0].entries[0].samples: must be from 0"),
    (ENTRY + "verdict", "great", "devices[0].entries[0].verdict: must be one of faster, tie, default"),
    (ENTRY + "verdict", ["tie"], "devices[0].entries[0].verdict: must be a string, not a list"),
    (ENTRY + "verifications", -1, "devices[0].entries[0].verifications: must be from 0"),
    (ENTRY + "samples", 2**31, "devices[0].entries[0].samples: must be from 0"),
    (ENTRY + "is_default", 0, "devices[0].entries[0].is_default: must be true or false"),
    (ENTRY + "provenance", "me", "devices[0].entries[0].provenance: must be an object"),
    (ENTRY + "provenance.measured_at", "yesterday", "provenance.measured_at: must be a moment in UTC"),
    (ENTRY + "provenance.measured_at", "2026-01-31T12:00:00Z\n", "measured_at: has a control character"),
    (ENTRY + "provenance.space_version", 1.0, "provenance.space_version: must be a whole number"),
    (ENTRY + "provenance.tool_version", ..., "devices[0].entries[0].provenance: tool_version is missing"),
    (
        "devices.0.entries.1.problem",
        {"m": 512, "n": 512, "k": 512, "ldc": 512},
        "devices[0].entries[1]: problem: 512x512x512 is already in entries[0]",
    ),
]


@pytest.mark.parametrize(("path", "value", "line"), REFUSED, ids=[f"{p}={str(v)[:12]!r}" for p, v, _ in REFUSED])
def test_what_is_wrong_is_named_with_its_path(path: str, value: Any, line: str) -> None:
    assert line in refusal(json.dumps(changed(path, value)))


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("", "not JSON: Expecting value at line 1"),
        ("{", "not JSON"),
        ("[]", "must be an object, not a list"),
        ("null", "must be an object, not null"),
        ("[" * 1_000_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        (b"\xff\xfe{}", "byte 0 is not UTF-8 text"),
        ('{"format": "autotune-table", "format": 1}', "member 'format' occurs twice"),
        ('{"format": NaN}', "NaN is not a JSON number"),
        ('{"format": -Infinity}', "-Infinity is not a JSON number"),
        ('{"format": ' + "9" * 100_000 + "}", "the number 99999999999999999999... is too large"),
        (json.dumps(DOCUMENT).replace("1000000.0", "1e999"), "entries[0].time_ns: must be above 0"),
        (json.dumps(DOCUMENT)[:-1], "not JSON"),
    ],
    ids=range(13),
)  # fmt: skip
def test_what_is_no_table_is_one_line(source: str | bytes, line: str) -> None:
    assert line in refusal(source)


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    tracemalloc.start()
    try:
        assert f"{path}: a table may have at most 32 MiB" in refusal(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert "at most 32 MiB" in refusal('"' + "x" * 100_000_000 + '"')


def test_a_file_without_end_is_read_to_the_limit_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_BYTES", 10_000)
    assert "/dev/zero: a table may have at most" in refusal(Path("/dev/zero"))


def test_files_are_named_in_errors(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    assert f"{path}: cannot be read: No such file" in refusal(path)
    assert f"{tmp_path}: cannot be read: Is a directory" in refusal(tmp_path)
    path.write_text(json.dumps(changed(ENTRY + "time_ns", 0)))
    assert refusal(path).startswith(f"{path}: devices[0].entries[0].time_ns: ")


def test_many_members_do_not_take_long() -> None:
    members = ",".join(f'"{number}":0' for number in range(200_000))
    assert "member '0' occurs twice" in refusal(f'{{{members},"0":1}}')


def places(value: Any, path: str = "") -> list[str]:
    """The paths of all members and items below a value."""
    if not isinstance(value, dict | list):
        return []
    steps = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for step, inner in steps:
        found += [f"{path}{step}", *places(inner, f"{path}{step}.")]
    return found


JUNK: tuple[Any, ...] = (
    None, True, 0, -1, 1, 7, 2**31, 2**64, 0.5, 1e300, "", "x", "gemm", "naive", "float16", "a\0b", "x" * 5000, [], [1],
    [None] * 3, {}, {"m": 1}, {"algorithm": "dot"}, "2026-01-31T12:00:00Z", "cpu",
)  # fmt: skip


def junk_documents() -> list[dict[str, Any]]:
    """Every member of the document in turn taken away or replaced by what does not belong there, and some twice."""
    single = [changed(path, junk) for path in places(DOCUMENT) for junk in JUNK]
    single += [changed(path, ...) for path in places(DOCUMENT) if not path.rpartition(".")[2].isdecimal()]
    return single


def reads(document: dict[str, Any]) -> bool:
    try:
        devices, winners = read_table(json.dumps(document))
    except TableError as error:
        line = str(error)
    else:
        assert len(devices) <= 2 and len(winners) <= 2
        return True
    assert line.isprintable()
    return False


def test_junk_is_refused_by_table_errors_alone() -> None:
    documents = junk_documents()
    taken = sum(reads(document) for document in documents)
    assert 0 < taken < len(documents) / 5


def test_damaged_bytes_are_refused_by_table_errors_alone() -> None:
    numbers = random.Random(1)
    whole = json.dumps(DOCUMENT).encode()
    refused = 0
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(numbers.randrange(1, 4)):
            place = numbers.randrange(len(data))
            data[place : place + numbers.randrange(3)] = numbers.randbytes(numbers.randrange(3))
        try:
            read_table(bytes(data))
        except TableError:
            refused += 1
    assert refused > 1000


@pytest.mark.long
def test_what_a_table_may_hold_survives_a_database(tmp_path: Path, empty_database: Path) -> None:
    """Whatever is read can be stored, and is exported as it was read."""
    for number, document in enumerate(d for d in junk_documents()[::7] if reads(d)):
        devices, winners = read_table(json.dumps(document))
        with Store.open(shutil.copy(empty_database, tmp_path / f"{number}.sqlite")) as store:
            store.import_winners(winners, devices)
            text = export_table(store, None, "gemm", "json")
        assert isinstance(text, str)
        again, best = read_table(text)
        assert sorted(again, key=lambda device: device.slug) == sorted(devices, key=lambda device: device.slug)
        assert {repr(winner) for winner in best} == {repr(winner) for winner in winners}


# The published schema


@pytest.fixture(scope="module")
def schema_accepts() -> Callable[[Any], bool]:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((data_folder("db") / "table.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    return lambda document: bool(validator.is_valid(document))


def test_the_schema_refuses_nothing_that_is_read(schema_accepts: Callable[[Any], bool]) -> None:
    assert schema_accepts(DOCUMENT) and schema_accepts(changed("devices.0.predictors", []))
    documents = junk_documents()
    assert [d for d in documents if reads(d) and not schema_accepts(d)] == []


def test_the_schema_takes_nothing_that_is_refused_for_its_form(schema_accepts: Callable[[Any], bool]) -> None:
    """Beyond the form lie what a family declares, what stands twice, and what follows from other numbers.

    To JSON Schema 1.0 is a whole number, and a pattern's end in Python lets a line end through.
    """
    beyond = ("already", "kernel family", "problem: ", "configuration.", "has no algorithm",
              "has no parameter", "' is missing", "is not among", "is above gain_high", "does not follow",
              "faster than any device", "space_version: must be a whole", "measured_at: has a control")  # fmt: skip
    wrong = []
    for path, value, line in REFUSED:
        document = changed(path, value)
        if schema_accepts(document) and not any(text in line for text in beyond):
            wrong.append(line)
    assert wrong == []


def test_the_schema_takes_what_is_exported(schema_accepts: Callable[[Any], bool], tmp_path: Path) -> None:
    devices, winners = read_table(json.dumps(DOCUMENT))
    with Store.open(tmp_path / "tuned.sqlite") as store:
        store.import_winners(winners, devices)
        assert schema_accepts(json.loads(export_table(store, None, "gemm", "json")))
