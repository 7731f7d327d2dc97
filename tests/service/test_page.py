"""The page in a browser: submit a job, watch it finish, open the table, download it; tokens, phones, hostile names.

A real service over HTTP, a worker with an invented device, and headless Chromium where there is one.
"""

import json
import re
import sqlite3
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("playwright")

from playwright.sync_api import Browser, Page, expect

from autotune.kernels.gemm import GemmProblem
from autotune.model.configuration import Configuration
from autotune.model.trial import Job, TrialState
from autotune.service.access import Role
from autotune.service.remote import Client
from autotune.service.server import Server
from autotune.service.store import ServiceStore
from factories import provenance, trial, winner
from fakes import INVENTED_PROCESSOR
from invented_service import HandMade, invented_time, offering, serving
from kernel_files import registered
from small_kernels import AXPY
from waiting import HANG_S

SLUG = INVENTED_PROCESSOR.slug
WRITING, READING = "writing-token-of-a-test", "reading-token-of-a-test"
HOSTILE = "<img src=x onerror=alert(1)>"


pytestmark = pytest.mark.long
expect.set_options(timeout=1000 * HANG_S)


class Pace:
    """While it is closed, a few trials pass, and the others wait."""

    passing = 5
    is_open = threading.Event()
    is_open.set()


def paced_time(job: Job) -> float | TrialState:
    """Some fail."""
    if not Pace.is_open.is_set():
        Pace.passing -= 1
        assert Pace.passing >= 0 or Pace.is_open.wait(HANG_S)
    return TrialState.WRONG_RESULT if dict(job.configuration.values).get("unroll") in (2, 8) else invented_time(job)


@contextmanager
def serving_page(folder: Path, tokens: Mapping[Role, str] = MappingProxyType({})) -> Iterator[Server]:
    """A service that knows the invented device, with these tokens."""
    files = {role: folder / role.value for role in tokens}
    for role, token in tokens.items():
        files[role].write_text(token)
    with ServiceStore.open(folder / "db.sqlite") as store:
        store.add_device(INVENTED_PROCESSOR)
    with serving(folder / "db.sqlite", files) as server:
        yield server


class Seen:
    """A page, and what the browser complained about."""

    def __init__(self, browser: Browser, url: str, **how: Any) -> None:
        self.context = browser.new_context(base_url=url, accept_downloads=True, **how)
        self.context.set_default_timeout(1000 * HANG_S)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda told: self.complaints.append(told.text) if told.type == "error" else None)

    def open(self, address: str) -> Page:
        self.page.goto(f"/{address}")
        expect(self.page.locator(".view:not([aria-busy])")).to_be_visible()
        return self.page


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service with a worker, and one finished job."""
    with (
        serving_page(tmp_path_factory.mktemp("page")) as server,
        offering(server.url, "bench", paced_time),
    ):
        with Client(server.url) as client:
            job = client.submit(SLUG, shapes=[f"96,96,96 {HOSTILE}"], trials=30)
            for _ in client.follow(job["id"]):
                pass
        yield server


@pytest.fixture
def seen(browser: Browser, served: Server) -> Iterator[Seen]:
    """A page of that service, which must not make the browser complain."""
    found = Seen(browser, served.url)
    yield found
    found.context.close()
    assert found.complaints == []


@pytest.fixture
def paced() -> Iterator[threading.Event]:
    """The pace, closed."""
    Pace.is_open.clear()
    yield Pace.is_open
    Pace.is_open.set()


def test_job_is_submitted_watched_and_its_table_downloaded(seen: Seen, paced: threading.Event) -> None:
    page = seen.open("#/devices")
    page.get_by_role("link", name="New job").click()
    page.get_by_label("Device").select_option(SLUG)
    page.get_by_role("textbox", name="Sizes").fill("64,64,64 x3 conv")
    page.get_by_label("Trials for each size").fill("30")
    page.get_by_role("button", name="Submit job").click()

    expect(page.get_by_role("heading", name="Job")).to_be_visible()
    row = page.get_by_role("row", name="64x64x64")
    expect(row).to_contain_text("running")
    expect(row).to_contain_text("of 30")
    expect(row).to_contain_text("search")
    expect(row).to_contain_text("configurations")
    paced.set()
    expect(page.locator(".history canvas")).to_be_visible()
    expect(page.locator(".heading .state")).to_have_text("done")
    expect(row).to_contain_text("wrong result")
    expect(page.get_by_role("button", name="Cancel job")).to_have_count(0)

    page.get_by_role("link", name=SLUG).click()
    row = page.get_by_role("table", name="Tuned sizes").get_by_role("row", name="64x64x64")
    expect(row).to_contain_text("microtile")
    page.get_by_label("Size", exact=True).first.fill("no such size")
    expect(row).to_have_count(0)
    page.get_by_label("Size", exact=True).first.fill("64x64")
    expect(row).to_have_count(1)
    for text, check in DOWNLOADS.items():
        with page.expect_download() as waiting:
            page.get_by_role("button", name=text, exact=True).click()
        check(Path(waiting.value.path()))


def _is_sqlite(path: Path) -> None:
    assert sqlite3.connect(path).execute("SELECT count(*) FROM best_configurations").fetchone()[0] >= 1


def _is_json(path: Path) -> None:
    (device,) = json.loads(path.read_text())["devices"]
    assert device["slug"] == SLUG
    assert (64, 64, 64) in {tuple(e["problem"][name] for name in "mnk") for e in device["entries"]}


def _holds(text: str) -> Callable[[Path], None]:
    def check(path: Path) -> None:
        assert text in path.read_text()

    return check


DOWNLOADS: dict[str, Callable[[Path], None]] = {
    "JSON": _is_json,
    "CSV": _holds("gain_over_default"),
    "Markdown": _holds("| shape |"),
    "C header": _holds("#ifndef AUTOTUNE_GEMM_POCL_INVENTED_H"),
    "SQLite": _is_sqlite,
    "HTML report": _holds("Content-Security-Policy"),
}


def test_size_shows_its_search_its_rivals_and_what_mattered(seen: Seen) -> None:
    page = seen.open(f"#/device/{SLUG}")
    page.get_by_role("table", name="Tuned sizes").get_by_role("link", name="96x96x96").click()
    expect(page.get_by_role("heading", name="96x96x96")).to_be_visible()
    rivals = page.get_by_role("table", name="The winner against others")
    expect(rivals.get_by_role("row", name="naive (plainest)")).to_contain_text("ms")
    assert page.locator(".shares tbody th").all_text_contents()[0].startswith("algorithm")
    expect(page.locator(".shares tbody")).to_contain_text("micro_tile_m")
    page.locator(".chart").focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".readout")).to_contain_text(re.compile(r"^Trial \d+: .*\w+\(.*=.*\)$"))
    page.get_by_text("trials").and_(page.locator("summary")).click()
    expect(page.get_by_role("table", name="Trials").get_by_text("wrong result").first).to_be_visible()


def test_device_shows_what_tuning_gained_and_keeps_the_filters_in_the_address(seen: Seen) -> None:
    page = seen.open(f"#/device/{SLUG}")
    expect(page.locator(".tiles")).to_contain_text("Median gain over default")
    expect(page.get_by_role("table", name="Sizes of gemm by their gain")).to_contain_text("or a tie")
    points = page.get_by_role("application")
    points.focus()
    page.keyboard.press("End")
    expect(page.locator(".told")).to_contain_text("of the limit")
    page.get_by_role("searchbox", name="Size").fill("no such size")
    page.reload()
    expect(page.get_by_role("searchbox", name="Size")).to_have_value("no such size")
    expect(page.locator(".summary")).to_contain_text("0 of ")
    page.get_by_role("searchbox", name="Size").fill("")
    page.get_by_role("button", name="Time", exact=True).click()
    expect(page.get_by_role("columnheader", name="Time")).to_have_attribute("aria-sort", "ascending")
    points.focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="The finals")).to_be_visible()


def test_all_devices_show_what_they_did_over_time(seen: Seen) -> None:
    page = seen.open("#/devices")
    worked = page.locator("figure", has=page.get_by_role("link", name=SLUG, exact=True))
    expect(worked).to_contain_text(re.compile(r"[\d,]+ trials, \d+\.\d% failed"))


def test_the_kernel_of_a_size_is_shown_to_copy(seen: Seen) -> None:
    seen.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = seen.open(f"#/size/{SLUG}?family=gemm&shape=96x96x96")
    page.get_by_text("Use it").click()
    line = page.locator(".snippet", has_text="Command line")
    line.get_by_role("button", name="Copy").click()
    expect(line.get_by_role("button")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == f"autotune show --device {SLUG} 96x96x96"
    expect(page.get_by_role("region", name="Kernel source")).to_contain_text("__kernel")
    slider = page.get_by_role("slider", name="to rank")
    slider.focus()
    page.keyboard.press("Home")
    status = page.get_by_role("status").filter(has_text=" of ")
    expect(status).to_have_text(re.compile(r"^1 of \d+ trials, "))
    page.keyboard.press("End")
    values = page.get_by_role("combobox", name="Values of micro_tile_m")
    values.focus()
    page.keyboard.type("8")
    expect(values.locator("option:checked")).to_have_text("8")
    expect(values).to_be_focused()
    left, known = map(int, re.findall(r"\d+", status.inner_text())[:2])
    assert 0 < left < known
    assert page.locator("polyline.path:not(.faded)").count() == left
    page.locator('.level[data-name="micro_tile_m"]').first.click()
    expect(values).not_to_have_value("")
    expect(values.locator("option:checked")).not_to_have_text("8")


def test_ended_job_keeps_a_chart_for_each_size_and_one_that_waits_says_why(seen: Seen, served: Server) -> None:
    page = seen.open("#/job/1")
    expect(page.get_by_role("img", name="Search at 96x96x96")).to_be_visible()
    served.service.store.add_device(replace(INVENTED_PROCESSOR, slug="adreno-730"))
    with Client(served.url) as client:
        job = client.submit("adreno-730", shapes=["64,64,64"], trials=3)
        page = seen.open(f"#/job/{job['id']}")
        expect(page.locator(".waits")).to_have_text("No worker offers adreno-730 here now.")
        assert served.service.store.jobs.take("adreno-730", "w9", "an earlier model")
        served.service.store.jobs.recover([])  # the worker has gone: the job has begun, and waits
        worker = HandMade(served.url, "w9", device=replace(INVENTED_PROCESSOR, slug="adreno-730"))
        worker.answer()
        page.reload()
        expect(page.locator(".waits")).to_contain_text("It was begun with another driver")
        client.cancel(job["id"])


def test_quarantine_is_shown_and_can_be_allowed_again(seen: Seen, served: Server) -> None:
    device = replace(INVENTED_PROCESSOR, slug="mali-g57")
    store = served.service.store
    crashed = trial(Configuration.of("microtile", unroll=1), TrialState.CRASHED, message="killed by SIGSEGV")
    store.add_trial(device, GemmProblem(m=8, n=8, k=8), crashed, provenance())
    page = seen.open("#/device/mali-g57")
    page.get_by_text("Why trials failed").click()
    expect(page.get_by_role("table", name="What trials failed with").get_by_role("rowheader")).to_have_text(
        "killed by SIGSEGV"
    )
    row = page.get_by_role("table", name="Configurations in quarantine").get_by_role("row", name="8x8x8")
    expect(row).to_contain_text("killed by SIGSEGV")
    row.get_by_role("button", name="Allow again").click()
    expect(row).to_have_count(0)
    assert store.quarantined("mali-g57") == []


def test_unknown_address_leads_back_and_a_theme_stays(seen: Seen) -> None:
    page = seen.open("#/job/99999")
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    seen.complaints.clear()  # the browser notes the answer 404
    page = seen.open("#/nonsense")
    page.get_by_role("combobox", name="Theme").select_option("dark")
    page.get_by_role("link", name="All devices").click()
    expect(page.get_by_role("heading", name="Devices")).to_be_visible()
    page.reload()
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("combobox", name="Theme").select_option("light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def test_two_devices_are_compared(seen: Seen, served: Server) -> None:
    other = replace(INVENTED_PROCESSOR, slug="intel-uhd")
    store = served.service.store
    store.add_device(other)
    (one,) = [w for w in store.best(SLUG, "gemm") if w.problem == GemmProblem(m=96, n=96, k=96)]
    store.record_winner(replace(one, device=other.slug, time_ns=one.time_ns / 2, default_ns=one.default_ns / 2))
    page = seen.open(f"#/compare?a={SLUG}&b={other.slug}")
    row = page.get_by_role("table", name="Sizes on").get_by_role("row", name="96x96x96")
    expect(row).to_contain_text("2.00")
    expect(row).to_contain_text("the same")


def test_two_sizes_of_a_device_and_two_drivers_are_compared(seen: Seen, served: Server) -> None:
    device = replace(INVENTED_PROCESSOR, slug="mali-g78")
    store = served.service.store
    wide, narrow = (Configuration.of("microtile", micro_tile_m=tile, unroll=1) for tile in (8, 2))
    for size, fast, slow in ((32, wide, narrow), (48, narrow, wide)):
        problem = GemmProblem(m=size, n=size, k=size)
        for configuration, time_ns in ((fast, 1000.0), (slow, 1500.0)):
            for driver, factor in (("1.0", 1.0), ("2.0", 0.5)):
                of_driver = replace(device, driver=driver)
                store.add_trial(of_driver, problem, trial(configuration, time_ns * factor), provenance(driver))
        store.record_winner(winner(device.slug, problem, fast, 500.0))
    page = seen.open("#/size/mali-g78?family=gemm&shape=32x32x32")
    page.get_by_role("link", name="Compare").click()
    row = page.get_by_role("table", name="Parameter").get_by_role("row", name="micro_tile_m")
    expect(row.locator("strong")).to_have_text(["8", "2"])
    expect(page.locator(".facts")).to_contain_text("1.50\u00d7 of the best time")
    page.get_by_role("application").focus()
    page.keyboard.press("End")
    expect(page.locator(".told")).to_contain_text("1.50\u00d7 of the best at 32x32x32")
    page.get_by_role("link", name="Drivers of a device").click()
    row = page.get_by_role("table", name="Sizes on 1.0 and on 2.0").get_by_role("row", name="48x48x48")
    expect(row).to_contain_text("2.00\u00d7")
    chosen = page.locator("select[name=a]")
    chosen.focus()
    page.keyboard.press("ArrowDown")
    expect(page).to_have_url(re.compile("a=2.0&b=2.0"))
    expect(chosen).to_be_focused()  # although the view is a new one


CONTROLS = """[...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")]
    .filter((one) => one.checkVisibility() && !one.disabled)"""
FOCUSED = f"""() => {{
    const one = document.activeElement;
    return [{CONTROLS}.indexOf(one), getComputedStyle(one).outlineStyle !== "none"];
}}"""


@pytest.mark.parametrize(
    "address",
    [
        "#/devices", f"#/device/{SLUG}", f"#/size/{SLUG}?family=gemm&shape=96x96x96", "#/jobs", "#/job/1",
        "#/new", f"#/compare?what=sizes&device={SLUG}", "#/nonsense",
    ],
)  # fmt: skip
def test_the_tab_key_reaches_every_control_and_shows_where_it_is(seen: Seen, address: str) -> None:
    page = seen.open(address)
    page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    count = page.evaluate(f"{CONTROLS}.length")
    page.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(count):
        page.keyboard.press("Tab")
        index, is_marked = page.evaluate(FOCUSED)
        assert is_marked, page.evaluate("document.activeElement.outerHTML")
        reached.add(index)
    assert reached == set(range(count))


def test_the_keyboard_alone_tunes_a_size_and_copies_its_kernel(seen: Seen) -> None:
    seen.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = seen.open("#/devices")

    def tab_to(name: str) -> None:
        for _ in range(100):
            page.keyboard.press("Tab")
            told = page.evaluate("(({ name, textContent }) => [name, textContent.trim()])(document.activeElement)")
            if name in told:
                return
        raise AssertionError(f"Tab does not reach {name}")

    tab_to("New job")
    page.keyboard.press("Enter")
    expect(page.get_by_role("textbox", name="Sizes")).to_be_visible()
    tab_to("device")
    page.keyboard.type(SLUG)  # other tests leave devices that nobody offers
    expect(page.get_by_label("Device")).to_have_value(SLUG)
    tab_to("shapes")
    page.keyboard.type("80,80,80")
    tab_to("trials")
    page.keyboard.press("Control+A")
    page.keyboard.type("5")
    assert page.evaluate("document.activeElement.value") == "5"
    tab_to("Submit job")
    page.keyboard.press("Enter")
    expect(page.locator(".heading .state")).to_have_text("done")
    tab_to("80x80x80")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="80x80x80")).to_be_visible()
    tab_to("Use it: configuration, Python, C, command line, kernel source")
    page.keyboard.press("Space")
    tab_to("Copy")
    page.keyboard.press("Enter")
    page.wait_for_function("navigator.clipboard.readText().then((text) => JSON.parse(text || '{}').algorithm)")


def test_text_of_others_stays_text(seen: Seen) -> None:
    page = seen.open("#/job/1")
    expect(page.locator("tbody small").first).to_have_text(HOSTILE)
    assert page.locator("main img").count() == 0


def test_job_is_cancelled_and_a_wrong_shape_refused(seen: Seen) -> None:
    page = seen.open("#/new")
    page.get_by_role("textbox", name="Sizes").fill("no shape")
    page.get_by_role("button", name="Submit job").click()
    expect(page.get_by_role("alert")).to_contain_text("is not a shape")
    seen.complaints.clear()  # the browser notes the answer 400
    page.get_by_role("textbox", name="Sizes").fill("128,128,128")
    page.get_by_label("Trials for each size").fill("100000")
    page.get_by_role("button", name="Submit job").click()
    page.get_by_role("button", name="Cancel job").click()
    expect(page.locator(".heading .state")).to_have_text("cancelled")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_only_tables_scroll_sideways(browser: Browser, served: Server, scheme: Any) -> None:
    seen = Seen(browser, served.url, viewport={"width": 390, "height": 844}, color_scheme=scheme)
    size = f"#/size/{SLUG}?family=gemm&shape=96x96x96"
    for address in ("#/devices", "#/jobs", "#/job/1", "#/new", f"#/device/{SLUG}", size):
        page = seen.open(address)
        page.reload()
        expect(page.locator(".view:not([aria-busy])")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == 390, address
    seen.context.close()
    assert seen.complaints == []


def test_token_is_asked_for_and_one_for_reading_does_not_write(browser: Browser, tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(serving_page(tmp_path, {Role.ADMIN: WRITING, Role.READER: READING}))
        seen = Seen(browser, server.url)
        stack.callback(seen.context.close)
        page = seen.page
        page.goto("/#/new")
        dialog = page.get_by_role("dialog")
        for told in ("wrong-token-of-a-test", READING):
            dialog.get_by_label("Token", exact=True).fill(told)
            dialog.get_by_role("button", name="Continue").click()
        expect(page.get_by_label("Device")).to_contain_text(SLUG)
        page.get_by_role("textbox", name="Sizes").fill("64,64,64")
        page.get_by_role("button", name="Submit job").click()
        expect(page.get_by_role("alert")).to_contain_text("for reading only")
        page.get_by_role("button", name="Forget the token").click()
        dialog.get_by_label("Token", exact=True).fill(WRITING)
        dialog.get_by_role("button", name="Continue").click()
        page.get_by_role("textbox", name="Sizes").fill("64,64,64")
        page.get_by_role("button", name="Submit job").click()
        expect(page.locator(".heading .state")).to_have_text("queued")
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        assert WRITING not in page.content()


def test_lost_service_is_shown_and_found_again(browser: Browser, tmp_path: Path) -> None:
    with serving_page(tmp_path) as server:
        seen = Seen(browser, server.url)
        seen.page.clock.install()
        page = seen.open("#/devices")
        expect(page.locator("#connection")).to_have_text("live")
        page.route("**/api/devices", lambda route: route.abort())
        page.clock.fast_forward(3000)
        expect(page.locator("#connection")).to_have_text("connection lost, trying again")
        page.unroute("**/api/devices")
        page.clock.fast_forward(3000)
        expect(page.locator("#connection")).to_have_text("live")
        seen.context.close()


def test_each_line_of_a_new_job_is_checked_while_it_is_typed(seen: Seen) -> None:
    page = seen.open(f"#/new?device={SLUG}")
    sizes = page.get_by_role("textbox", name="Sizes")
    sizes.fill("64,64,64\n\nno shape\n8,8,8")
    fault = page.get_by_role("button", name="Line 3")
    expect(fault).to_contain_text("is not a shape")
    expect(sizes).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("status").filter(has_text="2 sizes, about")).to_be_visible()
    fault.press("Enter")
    expect(sizes).to_be_focused()
    page.keyboard.type("4,4,4")
    expect(fault).to_have_count(0)
    expect(page.get_by_role("status").filter(has_text="3 sizes, about")).to_be_visible()
    assert sizes.input_value() == "64,64,64\n\n4,4,4\n8,8,8"


def test_presets_are_those_of_the_family_and_models_fold(seen: Seen) -> None:
    page = seen.open(f"#/new?device={SLUG}")
    expect(page.get_by_label("resnet50")).to_be_visible()
    expect(page.locator("details")).to_have_count(0)
    page.get_by_label("Family").select_option("qgemm")
    expect(page.get_by_label("resnet50")).to_have_count(0)
    wanted = page.get_by_label("qwen3-0.6b-q4_0-decode")
    expect(wanted).to_be_hidden()
    page.get_by_text("qwen3-0.6b", exact=True).click()
    wanted.check()
    expect(page.locator(".summary")).to_contain_text("6 sizes")
    page.get_by_label("Family").select_option("reduce")
    expect(page.get_by_text("Presets: the products")).to_be_hidden()


def test_kernel_file_is_tuned_from_the_page(browser: Browser, tmp_path: Path) -> None:
    """The service knows the kernel by AUTOTUNE_FAMILIES, and so does its worker."""
    (tmp_path / "axpy.cl").write_text(AXPY[1])
    (tmp_path / "axpy.toml").write_text(textwrap.dedent(AXPY[0]))
    with (
        registered(tmp_path / "axpy.toml"),
        serving_page(tmp_path) as server,
        offering(server.url, "bench", paced_time),
    ):
        seen = Seen(browser, server.url)
        page = seen.open(f"#/new?device={SLUG}&family=axpy")
        page.get_by_role("textbox", name="Sizes").fill("500 x2 step")
        page.get_by_label("Trials for each size").fill("5")
        page.get_by_role("button", name="Submit job").click()
        expect(page.locator(".heading .state")).to_have_text("done")
        page.get_by_role("link", name=SLUG).click()
        row = page.get_by_role("table", name="Tuned sizes").get_by_role("row", name="500")
        expect(row).to_contain_text("axpy")
        with page.expect_download() as waiting:
            page.get_by_role("button", name="C header", exact=True).click()
        assert "axpy_choose" in Path(waiting.value.path()).read_text()
        seen.context.close()
        assert seen.complaints == []
