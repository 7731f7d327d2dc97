"""Reports: one HTML file that needs nothing else, and drawings; numbers as the commands and the page tell them."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from autotune.device import discovery
from autotune.export.contents import DeviceTable
from autotune.kernels import find_family
from autotune.kernels.reduce import ReduceProblem
from autotune.lookup.json_table import read_contents
from autotune.model.device import Device, DeviceLimits
from autotune.model.problem import Problem
from autotune.model.trial import TrialState, Verdict, Winner
from autotune.networks.presets import preset
from autotune.paths import PAGE, data_folder
from autotune.service.report.document import write_report
from autotune.service.report.gains import EDGES, STEPS, gains_text, share_of_limit, sizes_by_gain, step, tuned_networks
from autotune.service.report.pictures import pictures
from autotune.service.report.svg import WIDTH, fitting
from autotune.service.store import ServiceStore
from factories import Run, naive, product, provenance, trial, winner

if TYPE_CHECKING:
    from playwright.sync_api import Browser

H200 = data_folder("db") / "tables" / "nvidia-h200.json"
HOSTILE = "</script><img src=http://evil.example/x onerror=alert(1)>&amp;\"'"
DEVICE = Device(
    slug="adreno-730", vendor=HOSTILE, model=HOSTILE, name=HOSTILE, family="adreno", driver=HOSTILE,
    limits=DeviceLimits(compute_units=4, extensions=(HOSTILE,)),
)  # fmt: skip
CHOSEN = naive(8, 8)


def won(problem: Problem, gain: float = 2.0, time_ns: float = 1e6, **changes: Any) -> Winner:
    return winner(DEVICE, problem, CHOSEN, time_ns=time_ns, default_ns=gain * time_ns, **changes)


WINNERS = (
    *(won(request.problem, 1.3, baseline_ns=9e6) for request in preset("bert-base")[:3]),
    won(product(8, 8, 8), 1.0, verdict=Verdict.TIE, is_default=True, provenance=provenance(driver=HOSTILE)),
    won(product(4096, 4096, 4096), 40.0),
    won(product(77, 77, 77), 1.0, verdict=Verdict.DEFAULT_FAILED),
    won(product(12345, 12345, 12345, mode="float16", trans_b=1, batch=12), 1.1, time_ns=1e12),
)
TABLE = DeviceTable(device=DEVICE, winners=WINNERS, trials={"complete": 7, "crashed": 2})


class Seen(HTMLParser):
    """The tags of a page with their attributes, and the text of its scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags:
            self.texts.append((self.tags[-1][0], data))

    def of(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag and text.strip()]


def data_of(page: str) -> Any:
    data, _ = Seen(page).of("script")
    return json.loads(data)


def test_a_page_needs_nothing_outside_itself() -> None:
    page = write_report([TABLE])
    seen = Seen(page)
    assert not [attrs for _, attrs in seen.tags if attrs.keys() & {"src", "href", "style", "srcset", "action"}]
    assert not [name for _, attrs in seen.tags for name in attrs if name.startswith("on")]
    _, script = seen.of("script")
    (style,) = seen.of("style")
    namespace = "http://www.w3.org/2000/svg"  # a name, which nothing fetches
    for code in (script, style):
        assert not re.search(r"(?:https?:)?//[\w-]+\.\w|@import|url\(", code.replace(namespace, ""))
    (policy,) = [attrs["content"] or "" for _, attrs in seen.tags if attrs.get("http-equiv")]
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives["default-src"] == "'none'" and "unsafe" not in policy and "http" not in policy
    for name, text in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert directives[name] == f"'sha256-{digest}'", "the browser would not use it"


def test_the_script_has_no_modules_left_and_cannot_end_early() -> None:
    _, script = Seen(write_report([TABLE])).of("script")
    assert not re.search(r"^\s*(?:import|export)\b", script, re.MULTILINE)
    assert "</" not in re.sub(r"//.*", "", script) and "<!--" not in script
    assert [name for name in ("dom", "charts", "overview", "report") if f"modules.{name} = " not in script] == []


def test_what_others_wrote_stays_text() -> None:
    page = write_report([TABLE])
    seen = Seen(page)
    assert [tag for tag, _ in seen.tags if tag in ("img", "script")] == ["script", "script"]
    assert "evil" not in page.replace(r"http://evil.example/x onerror=alert(1)\u003e", "")
    (device,) = data_of(page)["devices"]
    assert device["name"] == device["driver"] == HOSTILE


def test_equal_tables_give_equal_pages_and_none_gives_one_too() -> None:
    assert write_report([TABLE]) == write_report([TABLE])
    assert data_of(write_report([]))["devices"] == []


@pytest.fixture
def database(db_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With winners of two families, and with failures."""
    monkeypatch.setattr(discovery, "discover", list)
    with ServiceStore.open(db_file) as store:
        store.add_device(DEVICE)
        store.add_device(replace(DEVICE, slug="mali-g57"))
        reduced = winner(DEVICE, ReduceProblem(batch=64, channels=64), find_family("reduce").baseline)
        for one in (*WINNERS, reduced):
            store.record_winner(one)
        for state in (TrialState.CRASHED, TrialState.TIMED_OUT, 5.0):
            store.add_trial(DEVICE, product(8, 8, 8), trial(naive(1, 1), state), provenance())
        store.add_trial(DEVICE, product(8, 8, 8), trial(naive(1, 1), 5.0), provenance(), "final")
    return db_file


def test_numbers_are_those_of_the_commands(database: Path, tmp_path: Path, run: Run) -> None:
    where = ["--device", "adreno-730", "--db", str(database)]
    told = run(["report", *where, "-o", str(tmp_path / "report.html")])
    assert told.out == "" and told.err == f"wrote {tmp_path / 'report.html'}\n"
    (device,) = data_of((tmp_path / "report.html").read_text())["devices"]
    (status,) = json.loads(run(["status", *where, "--json"]).out)
    entries = [entry for family in device["families"].values() for entry in family["entries"]]
    verdicts = [entry["verdict"] for entry in entries]
    assert {word: verdicts.count(word) for word in verdicts} == status["verdicts"]
    assert device["trials"] == status["trials"] and device["repeats"] == status["repeats"] == 1
    assert len(entries) == status["problems"]
    for entry in entries:
        asked = ["lookup", *where, "--family", entry["family"], entry["shape"], "--json"]
        assert json.loads(run(asked).out)["time_ns"] == entry["time_ns"]
    assert run(["report", *where]).out == (tmp_path / "report.html").read_text()


@pytest.mark.long
def test_a_report_is_the_service_s_data(database: Path, tmp_path: Path) -> None:
    """What the page asks the service for; both come from the same functions."""
    pytest.importorskip("fastapi")
    from starlette.testclient import TestClient

    from autotune.service.access import Access
    from autotune.service.app import make_app
    from autotune.service.core import Service

    with (
        ServiceStore.open(database) as store,
        TestClient(make_app(Service(store), Access()), base_url="http://x") as api,
    ):
        path = "/api/devices/adreno-730"
        page = api.get("/api/export/html?device=adreno-730", headers={"Host": "localhost"})
        (device,) = data_of(page.text)["devices"]
        assert "attachment" in page.headers["content-disposition"]
        for family, found in device["families"].items():
            listed = api.get(f"{path}/winners?family={family}", headers={"Host": "localhost"}).json()["entries"]
            assert sorted(found["entries"], key=str) == sorted(listed, key=str)
        networks = api.get(f"{path}/networks", headers={"Host": "localhost"}).json()["networks"]
        assert device["families"]["gemm"]["networks"] == networks != []


@pytest.mark.long
def test_a_published_table_is_reported_without_a_database_and_without_packages_of_the_service(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "for name in 'fastapi starlette pydantic uvicorn markdown_it httptools'.split():\n"
        "    sys.modules[name] = None\n"
        "from autotune.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "report", "--device", "nvidia-h200", "-o", "new.html", "--svg", "a/b"],
        cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": ""}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (device,) = data_of((tmp_path / "new.html").read_text())["devices"]
    shipped = read_contents(H200)
    assert sum(len(family["entries"]) for family in device["families"].values()) == len(shipped.winners)
    names = {path.name for path in (tmp_path / "a" / "b").iterdir()}
    assert {"nvidia-h200-gemm-gains.svg", "nvidia-h200-gemm-limit.svg"} <= names
    assert not (tmp_path / ".local").exists()


def test_errors_say_what_to_do(database: Path, tmp_path: Path, run: Run) -> None:
    def refused(*arguments: str, status: int = 2) -> str:
        return run(["report", "--db", str(database), *arguments], status).err

    assert "(did you mean nvidia-h200?)" in refused("--device", "nvidia-h202")
    assert "nothing is tuned on mali-g57 yet (" in refused("--device", "mali-g57", status=1)
    reductions = refused("--device", "mali-g57", "--family", "reduce", status=1)
    assert "nothing of reduce is tuned on mali-g57 yet (" in reductions
    mine = tmp_path / "adreno-730-gemm-limit.svg"
    mine.write_text("<svg>mine</svg>")
    ours = ["--device", "adreno-730"]
    assert "limit.svg already exists" in refused(*ours, "--svg", str(tmp_path), "-o", str(tmp_path / "page.html"))
    assert [path.suffix for path in tmp_path.iterdir() if path != database] == [".svg"], "all or none is written"
    assert "cannot be written: File exists" in refused(*ours, "--svg", str(mine))
    assert "cannot be written: No such file" in refused(*ours, "-o", str(tmp_path / "none" / "page.html"))
    for _ in range(2):  # what autotune has written is replaced without being asked
        run(["report", "--db", str(database), *ours, "--svg", str(tmp_path), "-o", str(tmp_path / "p.html"), "--force"])
    run(["report", "--db", str(database), *ours, "--svg", str(tmp_path), "-o", str(tmp_path / "p.html")])
    assert "mine" not in mine.read_text()


# The drawings


def shipped_table() -> DeviceTable:
    contents = read_contents(H200)
    winners = tuple(one for one in contents.winners if one.problem.family == "gemm")
    return DeviceTable(device=contents.devices[0], winners=winners)


@pytest.mark.parametrize(
    "table", [TABLE, shipped_table(), replace(TABLE, winners=WINNERS[3:4])], ids=["odd", "h200", "one"]
)
def test_drawings_are_well_formed_told_in_words_and_within_their_frame(table: DeviceTable) -> None:
    drawn = pictures(table.device.slug, "gemm", table.winners)
    assert {name.rpartition("-")[2] for name in drawn} >= {"gains.svg", "limit.svg"}
    for name, text in drawn.items():
        root = ElementTree.fromstring(text)
        tag = "{http://www.w3.org/2000/svg}"
        assert root.findtext(f"{tag}title") and len(root.findtext(f"{tag}desc") or "") > 40, name
        assert table.device.slug in name
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for element in root.iter():
            assert not element.attrib.keys() & {"href", "style"}
            if element.tag == f"{tag}text":
                left, right = _ends(element)
                assert 0 <= left <= right <= width and 10 <= float(element.attrib["y"]) < height, element.text
            if element.tag == f"{tag}circle":
                assert 0 < float(element.attrib["cx"]) < width and 0 < float(element.attrib["cy"]) < height
            if element.tag == f"{tag}rect":
                assert float(element.attrib["x"]) + float(element.attrib["width"]) <= width


def _ends(element: ElementTree.Element) -> tuple[float, float]:
    """Where a text begins and ends, if letters are as wide as most are."""
    size = {"title": 16, "note": 12, "tick": 12}.get(element.attrib["class"], 13)
    long = 0.55 * size * len(element.text or "")
    x = float(element.attrib["x"])
    return {"start": (x, x + long), "end": (x - long, x), "middle": (x - long / 2, x + long / 2)}[
        element.attrib["text-anchor"]
    ]


def test_nothing_is_drawn_of_nothing() -> None:
    assert pictures("adreno-730", "gemm", ()) == {}


def test_long_words_are_shortened() -> None:
    assert fitting("short", WIDTH) == "short"
    assert fitting("x" * 500, 78) == "xxxxxxxxx…"


def test_gains_are_counted_as_on_the_page() -> None:
    script = (PAGE / "overview.js").read_text()
    edges = re.search(r"const EDGES = \[(.*), Infinity\]", script)
    steps = re.search(r"const GAINS = \[(.*)\];", script)
    assert edges and steps
    assert tuple(map(float, edges[1].split(","))) == EDGES
    assert tuple(map(float, re.findall(r"\[([\d.]+), ", steps[1]))) == STEPS


def test_gains_in_numbers() -> None:
    assert sizes_by_gain(WINNERS) == [1, 0, 1, 3, 0, 0, 0, 0, 1]
    assert [step(one) for one in WINNERS] == [2, 2, 2, 0, 3, 0, 1]
    ordinary = [won(product(8, 8, 8), 2.0, 10.0), won(product(9, 9, 9), 1.0, 90.0), won(product(7, 7, 7), 1.5, 100.0)]
    assert gains_text(ordinary) == "1.5x in the median, 1.3x in total"
    assert gains_text([WINNERS[5]]) == "", "there is no default to compare with"


def test_the_limit_is_the_best_rate_of_a_type_or_the_best_bandwidth() -> None:
    fast = won(product(1024, 1024, 1024), time_ns=1e6)
    half = won(product(1024, 1024, 1024, trans_b=1), time_ns=2e6)
    other = won(product(1024, 1024, 1024, mode="float16"), time_ns=4e6)
    of_memory = won(product(1, 4096, 4096), time_ns=1e5)
    share = share_of_limit([fast, half, other, of_memory])
    assert [share(one) for one in (fast, half, other, of_memory)] == [1, 0.5, 1, 1]


def test_networks_are_totalled_over_their_tuned_layers() -> None:
    (network,) = tuned_networks(WINNERS)
    calls = sum(request.calls for request in preset("bert-base")[:3])
    assert (network.name, network.tuned, len(network.layers)) == ("bert-base", 3, len(preset("bert-base")))
    assert network.time_ns == pytest.approx(calls * 1e6) and network.default_ns == pytest.approx(calls * 1.3e6)


# In a browser


@pytest.mark.long
def test_a_page_opens_from_disk_and_draws_itself(tmp_path: Path, browser: "Browser") -> None:
    from playwright.sync_api import expect

    (tmp_path / "report.html").write_text(write_report([TABLE]), encoding="utf-8")
    complaints, asked = list[str](), list[str]()
    page = browser.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda told: complaints.append(told.text))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((tmp_path / "report.html").as_uri())
    expect(page.get_by_role("heading", name="Tuning of adreno-730")).to_be_visible()
    expect(page.locator(".facts").first).to_contain_text(HOSTILE)
    expect(page.locator(".facts").first).to_contain_text("9 trials")
    expect(page.locator(".tiles")).to_contain_text("5 of 7")
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") == width
    counts = page.get_by_role("table", name="Sizes of gemm by their gain").get_by_role("cell").all_text_contents()
    assert list(map(int, counts)) == sizes_by_gain(WINNERS)
    page.get_by_role("application").focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")  # where the service shows a size, the report shows its row
    rows = page.get_by_role("table", name="Tuned sizes").locator("tbody tr")
    expect(rows).to_have_count(1)
    rows.locator("summary").click()
    expect(rows).to_contain_text(f"{CHOSEN.algorithm}(work_group_m=8, work_group_n=8)")
    assert complaints == [] and asked == [(tmp_path / "report.html").as_uri()]
