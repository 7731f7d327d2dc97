"""The manual and the README: their code runs, their links lead somewhere, and each way to read them works.

A block of ``python`` or ``console`` runs unless the words after the language say why not:

- ``(not run: REASON)``: needs something that tests have not got, such as a phone;
- ``(other output: REASON)``: its commands run, but its output is from another run and is not compared.

A block of ``c`` is written to the file that it names.

The blocks of a page run in order, in one folder with a home of its own. The output of a command must be the lines that
are shown under it, where any are; ``...`` stands for anything, and a figure for any figure, a time for any time.
"""

import os
import re
import runpy
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest

from autotune.cli.arguments import make_parser
from autotune.errors import UsageError
from autotune.manual import FOLDER, PICTURES, TOPICS, for_terminal, read_manual, read_topic
from autotune.model.device import Device
from factories import Run
from waiting import HANG_S

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(FOLDER / f"{topic}.md" for topic in TOPICS)]
NOT_RUN = re.compile(r"\(not run: \w.*\)")
OTHER_OUTPUT = re.compile(r"\(other output: \w.*\)")
NUMBER = r"\d+(?:[.,:x]\d+)*(?: (?:ns|us|ms|s|[MGT]FLOP/s|[MGT]B/s)\b)?"
BUDGETS = (("--budget \\S+", "--budget 2s"), ("--trials \\d+", "--trials 2"))
"""What commands are given instead, to take less time."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    line: int
    info: str
    text: str

    @property
    def language(self) -> str:
        return self.info.partition(" ")[0]

    @property
    def mark(self) -> str:
        """What its first line says after the language."""
        return self.info.partition(" ")[2]


def blocks(text: str) -> Iterator[Block]:
    for found in re.finditer(r"^```(.*)\n((?:.*\n)*?)```$", text, re.MULTILINE):
        yield Block(line=text.count("\n", 0, found.start()) + 1, info=found[1], text=found[2])


def commands(text: str) -> list[tuple[str, list[str]]]:
    """The commands of a console block, each with the lines that are shown under it."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def matches(shown: list[str], output: str) -> bool:
    pattern = "".join("(?:.*\n)*?" if line.strip() == "..." else f"{_line_pattern(line)}\n" for line in shown)
    lines = "".join(f"{' '.join(line.split())}\n" for line in output.splitlines())
    return not shown or re.fullmatch(pattern, lines) is not None


def _line_pattern(line: str) -> str:
    parts = re.split(rf"(\.\.\.|{NUMBER})", " ".join(line.split()))
    return "".join(".*" if part == "..." else NUMBER if i % 2 else re.escape(part) for i, part in enumerate(parts))


@pytest.fixture
def environment(tmp_path: Path, pocl: Device) -> dict[str, str]:
    """Of a user who has installed autotune and PoCL, and has a home without anything in it."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, arguments in (("autotune", "-m autotune "), ("python", "")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
        (tools / name).chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    return {**kept, "HOME": str(home), "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_runs_and_prints_what_is_shown(page: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    def run_at(what: str, command: list[str]) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=HANG_S)
        assert done.returncode == 0, f"{where}: {what}: {done.stdout}{done.stderr}"
        return done

    for block in blocks(page.read_text(encoding="utf-8")):
        if not block.language or NOT_RUN.fullmatch(block.mark):
            continue
        where = f"{page.name}:{block.line}"
        if block.language == "c":
            (folder / block.mark).write_text(block.text)
            continue
        if block.language == "python":
            run_at("its code", [sys.executable, "-c", block.text])
            continue
        for command, shown in commands(block.text):
            for pattern, replacement in BUDGETS:
                command = re.sub(pattern, replacement, command)
            done = run_at(command, ["sh", "-c", f"{command} 2>&1"])
            if not OTHER_OUTPUT.fullmatch(block.mark):
                assert matches(shown, done.stdout), f"{where}: {command} prints\n{done.stdout}"


def test_the_page_of_the_python_interface_is_what_the_docstrings_say() -> None:
    script = Path(__file__).parents[2] / "scripts/python_reference"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_that_does_not_run_says_why(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        assert block.language in ("python", "console", "c", ""), f"{page.name}:{block.line}"
        known = NOT_RUN.fullmatch(block.mark) or OTHER_OUTPUT.fullmatch(block.mark)
        if block.language == "c":
            known = known or re.fullmatch(r"\w+\.c", block.mark)
        assert known or (not block.mark and block.language != "c"), f"{page.name}:{block.line}: {block.info}"
        if block.language == "console":
            assert block.text.startswith("$ "), f"{page.name}:{block.line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_and_pictures_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        assert path.exists(), f"{page.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)", path.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in anchors, f"{page.name}: {target}"


@pytest.mark.parametrize(
    ("shown", "output", "does_match"),
    [
        (["time 12.5 us"], "time   13 us\n", True),
        (["time 12.5 us"], "time 1.3 ms\n", True),
        (["size 12 B"], "size 12 KiB\n", False),
        (["a", "...", "z"], "a\nb\nc\nz\n", True),
        (["a", "z"], "a\nb\nz\n", False),
        (["  row ... end"], "row 1 2 end\n", True),
        (["a", "..."], "b\n", False),
        ([], "something\n", True),
    ],
)
def test_output_is_compared_but_for_numbers(shown: list[str], output: str, does_match: bool) -> None:
    assert matches(shown, output) is does_match


def test_readme_is_short_and_shows_what_one_gets() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    first_screen = "\n".join(text.splitlines()[:60])
    assert "search.svg" in first_screen and "gemm.svg" in first_screen
    assert "scripts/quickstart" in first_screen and "scripts/test" in first_screen
    for topic in TOPICS:
        assert f"autotune/manual/{topic}.md" in text, topic


def test_every_page_is_a_topic_and_every_picture_is_shown() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == set(TOPICS)
    assert not set(TOPICS) & set(make_parser().commands), "help NAME would mean two things"
    for topic in read_manual():
        assert re.match(r"# \w", topic.text), topic.name
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for picture in PICTURES:
        assert picture.name in text


def test_reference_lists_every_command() -> None:
    table = read_topic("reference").text.partition("## Exit status")[0]
    for command in make_parser().commands:
        assert f"`{command}" in table, command


def test_map_names_every_module() -> None:
    (drawn,) = (block.text for block in blocks(read_topic("architecture").text) if not block.language)
    named = {line.split()[0].rstrip("/") for line in drawn.splitlines() if line and not line.startswith(" ")}
    package = ROOT / "autotune"
    modules = {path.name for path in package.glob("*.py") if not path.name.startswith("_")}
    modules |= {path.parent.name for path in package.glob("*/__init__.py")}
    assert named == modules


def test_figures_and_pictures_are_those_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["figures", "--check"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "scripts" / "figures"), run_name="__main__")
    assert ended.value.code == 0


class TestHelp:
    def test_a_topic_is_printed_as_markdown_into_a_pipe(self, run: Run) -> None:
        assert run(["help", "tuning"]).out == read_topic("tuning").text

    def test_topics_are_listed(self, run: Run) -> None:
        out = run(["help"]).out
        assert "usage: autotune" in out
        for topic in read_manual():
            assert f"{topic.name} " in out and topic.title in out

    @pytest.mark.parametrize(("word", "guess"), [("tunning", "tuning"), ("servise", "service"), ("lokup", "lookup")])
    def test_an_unknown_topic_names_close_ones_and_lists_all(self, word: str, guess: str, run: Run) -> None:
        error = run(["help", word], 2).err
        assert f"there is no topic or command '{word}'" in error and f"did you mean {guess}?" in error
        assert all(topic in error for topic in TOPICS)
        assert error.count("\n") == 1

    def test_a_terminal_gets_it_rendered(self, tmp_path: Path) -> None:
        pytest.importorskip("rich")
        code = (
            "import os, pty, sys\n"
            "status = pty.spawn([sys.executable, '-m', 'autotune', 'help', 'tuning'])\n"
            "sys.exit(os.waitstatus_to_exitcode(status))"
        )
        environment = {**os.environ, "TERM": "xterm-256color", "PAGER": "cat", "COLUMNS": "80", "NO_COLOR": ""}
        done = subprocess.run(
            [sys.executable, "-c", code], env={**environment, "PYTHONPATH": str(ROOT)}, cwd=tmp_path, text=True,
            capture_output=True, stdin=subprocess.DEVNULL, timeout=HANG_S,
        )  # fmt: skip
        assert done.returncode == 0
        assert "\x1b[" in done.stdout and "Choosing the device" in done.stdout
        assert "## Choosing" not in done.stdout and "](" not in done.stdout

    def test_links_become_commands_in_a_terminal(self) -> None:
        text = "[figures](figures.md#x), [script](../../scripts/quickstart), [here](#x), ![speed](gemm.svg)"
        assert for_terminal(text) == (
            "figures (`autotune help figures`), script (`scripts/quickstart`), here, "
            "*Picture, shown by autotune serve: speed.*"
        )

    def test_the_manual_has_no_topic_outside_its_folder(self) -> None:
        with pytest.raises(UsageError, match="no topic"):
            read_topic("../errors")


class TestService:
    @pytest.fixture(scope="class")
    def pages(self) -> dict[str, str]:
        pytest.importorskip("fastapi")
        from autotune.service.manual_pages import manual_pages

        return {name: data.decode(errors="replace") for name, data in manual_pages().items()}

    def test_every_topic_and_picture_has_a_page(self, pages: dict[str, str]) -> None:
        assert set(pages) == {*TOPICS, *(path.name for path in PICTURES)}

    def test_pages_have_only_what_the_policy_allows(self, pages: dict[str, str]) -> None:
        for name in TOPICS:
            seen = _Seen()
            seen.feed(pages[name])
            assert not seen.forbidden, name
            for target in seen.targets:
                place = target.partition("#")[0]
                assert place in {"", "../", *pages} or place.startswith(("https://", "../page/")), target

    def test_markup_in_the_markdown_stays_text(self) -> None:
        pytest.importorskip("fastapi")
        from autotune.service.manual_pages import _to_html

        html = _to_html(
            "<script>alert(1)</script> [x](javascript:alert(1)) [y](../../etc/passwd) <img src=x onerror=alert(1)>\n\n"
            "| a |\n|--:|\n| [z](tuning.md#how) |\n"
        )
        assert "<script" not in html and "<img" not in html
        assert "style=" not in html and 'class="right"' in html
        assert re.findall(r'href="([^"]*)"', html) == ["tuning#how"]


class _Seen(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.forbidden: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "style" or name.startswith("on"):
                self.forbidden.append(f"{tag} {name}")
            if name in ("href", "src"):
                self.targets.append(value or "")
        if tag in ("script", "style", "iframe", "object", "form"):
            self.forbidden.append(tag)


@pytest.mark.long
def test_wheel_and_sdist_hold_the_manual(tmp_path: Path) -> None:
    for target in ("wheel", "sdist"):
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", tmp_path],
            cwd=ROOT, check=True, capture_output=True,
        )  # fmt: skip
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    names = {path.name for path in FOLDER.iterdir() if path.suffix == ".md" or path in PICTURES}
    assert {f"autotune/manual/{name}" for name in names} <= set(zipfile.ZipFile(wheel).namelist())
    listed = subprocess.run(["tar", "tzf", sdist], check=True, capture_output=True, text=True).stdout.splitlines()
    assert {name for name in names if any(path.endswith(f"autotune/manual/{name}") for path in listed)} == names
