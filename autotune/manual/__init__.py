"""The manual: Markdown files next to this module, printed by `autotune help TOPIC` and served by `autotune serve`.

Standard library only, so that a slim installation has its manual too.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import UsageError, did_you_mean

TOPICS = (
    "start",
    "phones",
    "tuning",
    "models",
    "winners",
    "quantised",
    "attention",
    "convolution",
    "kernels",
    "own",
    "commands",
    "service",
    "operations",
    "measuring",
    "figures",
    "python",
    "reference",
    "glossary",
    "architecture",
)
"""In reading order; each is a file `TOPIC.md`."""

FOLDER = Path(__file__).parent
PICTURES = tuple(sorted(path for path in FOLDER.iterdir() if path.suffix in (".svg", ".png")))

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


@dataclass(frozen=True, kw_only=True)
class Topic:
    """One page of the manual."""

    name: str
    text: str
    """Markdown."""

    @property
    def title(self) -> str:
        """The text of the first heading."""
        return self.text.partition("\n")[0].removeprefix("# ")


def read_topic(name: str) -> Topic:
    """Return the page of a topic. Raises UsageError, whose hint lists the topics."""
    if name not in TOPICS:
        hints = (did_you_mean(name, TOPICS), f"the topics are {', '.join(TOPICS)}")
        raise UsageError(f"there is no topic {name[:80]!r} in the manual", hint="; ".join(filter(None, hints)))
    return Topic(name=name, text=(FOLDER / f"{name}.md").read_text(encoding="utf-8"))


def read_manual() -> tuple[Topic, ...]:
    """Return every page, in reading order."""
    return tuple(read_topic(name) for name in TOPICS)


def topic_of_link(target: str) -> str | None:
    """Return the topic that a link inside the manual leads to: `tuning` for `tuning.md#budgets`, else None."""
    name, suffix, _ = target.partition("#")[0].partition(".md")
    return name if suffix and name in TOPICS else None


def for_terminal(text: str) -> str:
    """Return Markdown without links: a page is named by its command, a file by its path, a picture by its caption."""
    return _LINK.sub(_spelled_out, text)


def _spelled_out(link: re.Match[str]) -> str:
    is_picture, text, target = link.groups()
    if is_picture:
        return f"*Picture, shown by autotune serve: {text}.*"
    if topic := topic_of_link(target):
        return f"{text} (`autotune help {topic}`)"
    return text if target.startswith("#") else f"{text} (`{target.removeprefix('../../')}`)"
