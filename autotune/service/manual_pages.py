"""The manual as pages of the service: Markdown turned into HTML that the page's policy allows.

Raw HTML in the Markdown is shown as text. There are no inline styles, and links only to other pages of the manual and
to web addresses: files of the repository are not served, so a link to one becomes its text.
"""

import re
from collections.abc import Sequence
from html import escape
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

from autotune.manual import PICTURES, Topic, read_manual, topic_of_link


def manual_pages() -> dict[str, bytes]:
    """Return the pages by topic and the pictures by file name."""
    topics = read_manual()
    pages = {topic.name: _page(topic, topics).encode() for topic in topics}
    return pages | {path.name: path.read_bytes() for path in PICTURES}


def _page(topic: Topic, topics: Sequence[Topic]) -> str:
    links = "\n".join(
        f'    <a href="{other.name}"{" aria-current=page" if other is topic else ""}>{escape(other.title)}</a>'
        for other in topics
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(topic.title)} - autotune</title>
<link rel="icon" href="../page/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="../page/style.css">
</head>
<body>
<a class="skip" href="#main">To the contents</a>
<header class="top">
  <a class="mark" href="../">autotune</a>
  <nav aria-label="Main">
    <a href="../#/devices">Devices</a>
    <a href="../#/jobs">Jobs</a>
    <a href="start" aria-current="true">Manual</a>
  </nav>
</header>
<div class="manual">
  <nav aria-label="Manual">
{links}
  </nav>
  <main id="main" tabindex="-1">
{_to_html(topic.text)}  </main>
</div>
</body>
</html>
"""


def _to_html(text: str) -> str:
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    for opening, content in pairwise(tokens):
        if opening.type == "heading_open":
            opening.attrSet("id", _anchor(content.content))
    for token in tokens:
        if token.type in ("th_open", "td_open") and (style := token.attrs.pop("style", None)):
            token.attrSet("class", str(style).removeprefix("text-align:"))
        if token.children:
            token.children = _with_allowed_links(token.children)
    html: str = markdown.renderer.render(tokens, markdown.options, {})
    html = html.replace("<pre>", '<pre tabindex="0">')  # what scrolls must be within reach of the keyboard
    return html.replace("<table>", '<div class="scroll" tabindex="0"><table>').replace("</table>", "</table></div>")


def _anchor(heading: str) -> str:
    """Return the anchor that code hosts give to a heading: `how-long-it-takes` for `How long it takes`."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _with_allowed_links(tokens: Sequence[Token]) -> list[Token]:
    kept, is_dropped = [], False
    for token in tokens:
        if token.type == "link_open":
            target = str(token.attrGet("href"))
            if topic := topic_of_link(target):
                token.attrSet("href", target.replace(f"{topic}.md", topic, 1))
            is_dropped = topic is None and not target.startswith(("#", "https://", "http://"))
        if not (is_dropped and token.type in ("link_open", "link_close")):
            kept.append(token)
    return kept
