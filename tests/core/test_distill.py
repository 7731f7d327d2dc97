"""Rules distilled from the tables of many devices: how they are made, judged, refused and written down."""

import itertools
import json
import random
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main
from autotune.distill.cases import Case, read_cases
from autotune.distill.rules import Node, Rule, Split, distill, judge, mean_of
from autotune.errors import AutotuneError, TableError, UsageError
from autotune.export.rule_text import write_rule
from autotune.kernels.gemm import GemmProblem
from autotune.model.configuration import Configuration
from autotune.paths import data_folder
from autotune.store import Store
from factories import device, naive, product, provenance, trial, winner

SMALL, LARGE, WIDE, SAFE = (
    Configuration.of("product", tile=8, loads="plain"),
    Configuration.of("product", tile=64, loads="plain"),
    Configuration.of("product", tile=64, loads="image"),
    Configuration.of("product", tile=16, loads="plain"),
)


def case(name: str, times: Sequence[float], *, m: float = 64.0, default: float = nan, **facts: str | float) -> Case:
    """A case in which SMALL, LARGE, WIDE and SAFE take these times; those of 0 were not measured."""
    known = {c: time for c, time in zip((SMALL, LARGE, WIDE, SAFE), times, strict=True) if time}
    return Case(device=name, device_facts=facts, sizes={"m": m, "n": 64.0}, times=known, default=default)


def phones(count: int = 6) -> list[Case]:
    """GPUs of two makers: one prefers images, the other may not use them; large tiles are for large sizes."""
    found = []
    for number, m in itertools.product(range(count), (16.0, 64.0, 256.0, 1024.0, 4096.0)):
        vendor, is_large = ("qualcomm", "arm")[number % 2], m > 128
        wide = 1.0 if vendor == "qualcomm" else inf
        times = (1.5, 1.2, wide, 1.3) if is_large else (1.0, 3.0, 3.0, 1.3)
        found.append(case(f"gpu-{number}", times, m=m, vendor=vendor, compute_units=float(1 + number)))
    return found


def depth_of(node: Node) -> int:
    return 1 + max(depth_of(node.yes), depth_of(node.no)) if isinstance(node, Split) else 0


class TestDistill:
    def test_finds_what_decides_and_holds_on_devices_left_out(self) -> None:
        rule = distill("product", phones(), 8, 5)
        facts = {"n": 64, "compute_units": 99}
        for vendor, large in (("qualcomm", WIDE), ("arm", LARGE)):
            assert rule.kernels[rule.choose({**facts, "m": 20, "vendor": vendor})] == SMALL
            assert rule.kernels[rule.choose({**facts, "m": 3000, "vendor": vendor})] == large
        judged = judge(phones(), 8, 5)
        by_device, by_size = mean_of(judged["device"]), mean_of(judged["size"])
        assert by_device.rule > 0.97
        assert by_device.best == pytest.approx(1)
        assert by_device.single < 0.85
        assert by_size.rule > by_size.single
        assert {line.left_out for line in judged["device"]} == {f"gpu-{number}" for number in range(6)}
        assert {line.cases for line in judged["size"]} == {6}

    def test_takes_no_chance_with_what_single_devices_prefer(self) -> None:
        """Each device has a favourite that is poor elsewhere: nothing says which is right for another."""
        times = ([1, 4, 4, 1.1], [4, 1, 4, 1.1], [4, 4, 1, 1.1])
        cases = [case(f"gpu-{n}", t, compute_units=float(n + 1)) for n, t in enumerate(times)]
        rule = distill("product", cases, 8, 5)
        assert rule.root == 0
        assert rule.kernels[0] == SAFE
        assert set(rule.kernels) == {SMALL, LARGE, WIDE, SAFE}  # the others are worth trying on a device
        lines = judge(cases, 8, 5)["device"]
        assert [line.rule for line in lines] == pytest.approx([1 / 1.1] * 3)
        assert [line.nearest for line in lines] == pytest.approx([1 / 4] * 3)
        assert "size" not in judge(cases, 8, 5)

    def test_leaves_out_what_fails_somewhere(self) -> None:
        cases = [case("one", [1, 1.4, 1.5, 2]), case("two", [inf, 1, 1.5, 2]), case("three", [inf, 1, 1.5, 2])]
        assert distill("product", cases, 1, 5).kernels == (LARGE,)

    def test_measured_beats_estimated(self) -> None:
        """Winners alone: a configuration that differs from a winner in one step counts less than the winner itself."""
        cases = [case("one", [1, 0, 0, 0]), case("two", [1, 0, 0, 0]), case("three", [0, 0, 0, 1])]
        assert distill("product", cases, 1, 5).kernels == (SMALL,)
        line = judge(cases, 1, 5)["device"][2]
        assert (line.measured, line.default) == (0, None)
        assert 0.8 < line.rule < 0.9  # one step from 8 to 16: the loss that one step costs in recorded spaces

    def test_never_nominates_what_only_the_left_out_device_knows(self) -> None:
        cases = [*(case(f"gpu-{n}", [1, 0, 0, 2]) for n in range(3)), case("odd", [0, 0, 1, 0])]
        odd = judge(cases, 8, 5)["device"][-1]
        assert (odd.left_out, odd.measured) == ("odd", 0)
        assert odd.best < 1

    @pytest.mark.parametrize(("most", "depth"), [(1, 5), (2, 5), (8, 0), (8, 1), (3, 2)])
    def test_bounds_kernels_and_depth(self, most: int, depth: int) -> None:
        numbers = random.Random(most)
        cases = [
            case(
                f"gpu-{n}", [numbers.uniform(1, 9) for _ in range(4)],
                m=2.0 ** numbers.randrange(4, 12), compute_units=float(numbers.randrange(1, 9)),
            )
            for n in range(12)
        ]  # fmt: skip
        rule = distill("product", cases, most, depth)
        assert len(rule.kernels) <= most
        assert depth_of(rule.root) <= depth

    def test_order_of_cases_makes_no_difference(self) -> None:
        cases = phones()
        mixed = random.Random(1).sample(cases, len(cases))
        assert distill("product", cases, 8, 5) == distill("product", mixed, 8, 5)

    def test_refuses_a_rule_that_loses_to_the_default(self) -> None:
        cases = [case(f"gpu-{n}", [1, 3, 3, 2], m=16.0, default=2) for n in range(3)]
        cases += [case(f"gpu-{n}", [3, 1, 3, 2], m=1024.0, default=2) for n in range(3)]
        without_safe = [replace(one, times={c: t for c, t in one.times.items() if c != SAFE}) for one in cases]
        lost = r"loses to the default: 0\.67 of its speed at m=\d+ n=64 on gpu-0, and in 2 more cases"
        with pytest.raises(AutotuneError, match=lost):
            distill("product", without_safe, 1, 5)
        assert distill("product", without_safe, 2, 5).root != 0
        # It takes what loses nowhere, even if something else is faster in the mean.
        assert distill("product", cases, 1, 5).kernels == (SAFE,)


RULE = Rule(
    kernel="product",
    kernels=(SMALL, LARGE, WIDE, SAFE),
    root=Split(
        feature="m * n",
        bound=65536.0,
        yes=Split(feature="vendor", bound="arm", yes=0, no=Split(feature="m", bound=36.5, yes=1, no=0)),
        no=Split(
            feature="compute_units",
            bound=6.0,
            yes=Split(feature="m * n * k", bound=2.0**27, yes=1, no=3),
            no=Split(feature="precision", bound="float16", yes=2, no=1),
        ),
    ),
)


def questions(count: int) -> list[dict[str, Any]]:
    numbers = random.Random(5)
    edges = (1, 36, 37, 255, 256, 257, 512, 1024)
    return [
        {
            **{name: numbers.choice(edges) for name in "mnk"},
            "compute_units": numbers.randrange(1, 12),
            "precision": numbers.choice(("float32", "float16")),
            "vendor": numbers.choice(("arm", "qualcomm", "")),
        }
        for _ in range(count)
    ]


class TestText:
    def test_python_answers_as_the_rule(self) -> None:
        module: dict[str, Any] = {}
        exec(write_rule(RULE, {}, ".py"), module)
        assert [dict(kernel) for kernel in module["KERNELS"]] == [kernel.to_dict() for kernel in RULE.kernels]
        asked = questions(300)
        answers = [module["choose"](**facts) for facts in asked]
        assert answers == [RULE.choose(facts) for facts in asked]
        assert set(answers) == {0, 1, 2, 3}

    @pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
    def test_c_answers_as_the_rule(self, tmp_path: Path) -> None:
        (tmp_path / "rule.h").write_text(write_rule(RULE, {}, ".h"))
        asked = questions(300)
        calls = "\n".join(
            "put(autotune_product_choose({}));".format(
                ", ".join(f'"{v}"' if isinstance(v, str) else str(v) for v in (facts[n] for n in RULE.inputs))
            )
            for facts in asked
        )
        (tmp_path / "main.c").write_text(
            '#include <stdio.h>\n#include "rule.h"\n#include "rule.h"\n'
            "static void put(int number) {\n"
            "    struct autotune_product_kernel found = autotune_product_kernel(number);\n"
            '    printf("%d %s %d %s\\n", number, found.loads, found.tile, found.options);\n}\n'
            f"int main(void) {{\n{calls}\nreturn AUTOTUNE_PRODUCT_KERNELS;\n}}\n"
        )
        command = ["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-o", "main", "main.c"]
        subprocess.run(command, cwd=tmp_path, check=True)
        done = subprocess.run([tmp_path / "main"], capture_output=True, text=True)
        assert done.returncode == 4
        chosen = [RULE.choose(facts) for facts in asked]
        assert done.stdout.splitlines() == [
            f"{n} {k['loads']} {k['tile']} -Dloads={k['loads']} -Dtile={k['tile']}"
            for n, k in ((n, RULE.kernels[n]) for n in chosen)
        ]

    def test_json_holds_the_tree_and_the_report(self) -> None:
        judged = judge(phones(2)[::2], 8, 5)
        plain = json.loads(write_rule(RULE, judged, ".json"))
        assert plain["kernels"][0] == {"algorithm": "product", "loads": "plain", "tile": 8}
        assert plain["rule"]["yes"] == {
            "feature": "vendor", "bound": "arm", "yes": 0,
            "no": {"feature": "m", "bound": 36.5, "yes": 1, "no": 0},
        }  # fmt: skip
        assert [line["left_out"] for line in plain["left_out"]["device"]] == ["gpu-0", "gpu-1"]

    def test_refuses_other_endings_and_values_that_options_cannot_hold(self) -> None:
        with pytest.raises(UsageError, match=r"ends in '\.txt'"):
            write_rule(RULE, {}, ".txt")
        spaced = Rule(kernel="product", kernels=(Configuration.of("product", loads="a b"),), root=0)
        with pytest.raises(UsageError, match="cannot be an option"):
            write_rule(spaced, {}, ".h")


def document(**changes: Any) -> dict[str, Any]:
    """Measurements of one kernel on two devices."""
    rows = [{"configuration": {"tile": tile}, "time_ms": time} for tile, time in ((8, 1.0), (16, 2), (32, None))]
    devices = [
        {"device": name, "facts": {"vendor": name}, "problems": [{"sizes": {"m": 64, "type": "half"}, "rows": rows}]}
        for name in ("arm", "amd")
    ]
    return {"format": "autotune-measurements", "schema_version": 1, "kernel": "blur", "devices": devices, **changes}


def changed(change: Callable[[Any], object]) -> dict[str, Any]:
    """The measurements after a change of the first device."""
    found: dict[str, Any] = json.loads(json.dumps(document()))
    change(found["devices"][0])
    return found


class TestReading:
    def _read(self, folder: Path, *contents: object, family: str | None = None) -> tuple[str, list[Case]]:
        paths = [folder / f"{number}.json" for number in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return read_cases(paths, family)

    def test_reads_measurements_of_others(self, tmp_path: Path) -> None:
        kernel, cases = self._read(tmp_path, document())
        assert kernel == "blur"
        assert [case.device for case in cases] == ["amd", "arm"]
        assert cases[0].label == "m=64 half"
        assert cases[0].facts == {"m": 64.0, "type": "half", "vendor": "amd"}
        tiles = [Configuration.of("blur", tile=tile) for tile in (8, 16, 32)]
        assert cases[0].times == dict(zip(tiles, (1, 2, inf), strict=True))

    def test_a_later_file_replaces_a_case(self, tmp_path: Path) -> None:
        rows = [{"configuration": {"tile": 4}, "time_ms": 1}]
        newer = changed(lambda first: first["problems"][0].update(rows=rows, default_ms=3))
        _, cases = self._read(tmp_path, document(), newer)
        assert [case.times for case in cases][1] == {Configuration.of("blur", tile=4): 1}
        assert cases[1].default == 3

    def test_a_case_in_which_nothing_runs_says_nothing(self, tmp_path: Path) -> None:
        rows = [{"configuration": {"tile": 4}, "time_ms": None}]
        _, cases = self._read(tmp_path, changed(lambda first: first["problems"][0].update(rows=rows)))
        assert [case.device for case in cases] == ["amd"]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("[", "not JSON"),
            ({}, "format is missing"),
            (document(format="other"), "neither a table of autotune nor measurements"),
            (document(schema_version=2), "schema_version: must be from 1 to 1"),
            (document(kernel="x(); int y"), "kernel: must be a name"),
            (document(more=1), "unknown member 'more'"),
            (document(devices=[]), "measure nothing"),
            (changed(lambda d: d["facts"].update({"int": 1})), r"devices\[0\]: the name int is reserved"),
            (changed(lambda d: d["facts"].update({"a*/": 1})), r"devices\[0\]: the name 'a\*/' must be a name"),
            (changed(lambda d: d["facts"].update({"m": 1})), "the name m is given twice"),
            (changed(lambda d: d["facts"].update(vendor='"; system("')), r"facts\.vendor: may have letters"),
            (changed(lambda d: d["facts"].update(vendor=True)), r"facts\.vendor: must be a number"),
            (changed(lambda d: d["facts"].update(units=1e300)), r"facts\.units: must be from"),
            (changed(lambda d: d["problems"][0].update(rows=[])), r"problems\[0\]\.rows: needs at least one"),
            (changed(lambda d: d["problems"][0]["rows"][0].update(time_ms=0)), r"rows\[0\]\.time_ms: must be above 0"),
            (changed(lambda d: d["problems"][0]["rows"][0].update(time_ms=1e99)), r"time_ms: must be above 0 and at"),
            (changed(lambda d: d["problems"][0]["rows"][0].update(configuration={"class": 1})), "class is reserved"),
            (changed(lambda d: d["problems"][0]["rows"][0].update(configuration={"a": 1.5})), "a: must be a whole"),
            (changed(lambda d: d["problems"][0]["rows"][0].update(configuration={"a": "b\\"})), "a: may have letters"),
        ],
    )
    def test_refuses_hostile_measurements(self, tmp_path: Path, content: object, message: str) -> None:
        with pytest.raises(TableError, match=message):
            self._read(tmp_path, content)

    def test_refuses_several_kernels(self, tmp_path: Path) -> None:
        with pytest.raises(TableError, match="several kernels: blur, sum"):
            self._read(tmp_path, document(), document(kernel="sum"))
        with pytest.raises(TableError, match="measures blur, not gemm"):
            self._read(tmp_path, document(), family="gemm")

    def test_reads_tables_with_what_a_rule_may_ask(self) -> None:
        kernel, cases = read_cases([data_folder("db") / "tables" / "nvidia-h200.json"], "gemm")
        assert kernel == "gemm"
        assert len(cases) > 100
        assert {case.facts["compute_units"] for case in cases} == {132}
        assert cases[0].facts.keys() >= {"m", "n", "k", "mode", "layout", "device_family", "is_cpu"}
        assert all(len(case.times) == 1 for case in cases)
        assert not cases[0].is_legal(naive(2**20, 1))

    def test_reads_every_trial_of_a_database(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("autotune.codec.MAX_BYTES", 1000)  # of documents only
        phone, problem = device(), product(64, 64, 64)
        fast, slow = naive(8, 8), naive(4, 4)
        with Store.open(tmp_path / "phone.sqlite") as store:
            for configuration, ending in ((fast, 1000.0), (slow, 3000.0)):
                store.add_trial(phone, problem, trial(configuration, ending), provenance())
            store.record_winner(winner(phone, problem, fast, 1000.0))
        kernel, (found,) = read_cases([tmp_path / "phone.sqlite"])
        assert (kernel, found.device) == (GemmProblem.family, phone.slug)
        assert sorted(found.times.values()) == [1000, 3000]


class TestCommand:
    def test_writes_a_rule_and_prints_what_is_lost(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "blur.json").write_text(json.dumps(document()))
        arguments = ["distill", str(tmp_path / "blur.json"), "-o", str(tmp_path / "rule.py")]
        assert main(arguments) == 0
        printed = capsys.readouterr()
        assert "1 kernels for blur, from 2 problems on 2 devices" in printed.out
        assert "arm " in printed.out
        assert printed.err == f"wrote {tmp_path / 'rule.py'}\n"
        assert "def choose():" in (tmp_path / "rule.py").read_text()
        assert main(arguments) == 0  # its own file may be replaced

    def test_says_where_the_default_does_better(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        best = iter((8, 16))
        content = document()
        for found in content["devices"]:
            tile = next(best)
            found["problems"][0].update(rows=[{"configuration": {"tile": tile}, "time_ms": 1}], default_ms=1.1)
        (tmp_path / "blur.json").write_text(json.dumps(content))
        assert main(["distill", str(tmp_path / "blur.json")]) == 0
        assert "the default does better than the rule (measured in 0%, else estimated)" in capsys.readouterr().err

    def test_overwrites_nothing_of_others(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "blur.json").write_text(json.dumps(document()))
        (tmp_path / "rule.h").write_text("int mine;\n")
        arguments = ["distill", str(tmp_path / "blur.json"), "-o", str(tmp_path / "rule.h")]
        assert main(arguments) == 2
        assert "is not a table of autotune" in capsys.readouterr().err
        assert main([*arguments, "--force"]) == 0
        assert main(["distill", str(tmp_path / "blur.json"), "-o", str(tmp_path / "rule.txt")]) == 2
