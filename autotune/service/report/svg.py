"""Drawings as SVG in plain Python, readable on light and dark pages: those of reports and those of the manual.

Each has a ground of its own and takes its colors from the reader's preferred color scheme.
"""

import math
from collections.abc import Callable, Iterable
from html import escape

from autotune.export.formats import MARK

WIDTH = 780
MARGIN = 24
_LETTER = 0.6
"""Width of a letter as a share of the font's size, more than most have. A bold one counts as of a larger font."""

_STYLE = """\
text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,Helvetica,Arial,sans-serif;fill:#1f2328}
.title{font-size:16px;font-weight:600}.note,.tick{fill:#59636e;font-size:12px}
.ground{fill:#fff;stroke:#d1d9e0}.box{fill:#f6f8fa;stroke:#d1d9e0}.grid{stroke:#e4e8ec}.mark{stroke:#59636e;stroke-width:1.5}
.ours{fill:#0969da;stroke:#0969da}.theirs{fill:#9a6700;stroke:#9a6700}.other{fill:#818b98;stroke:#818b98}
.line{fill:none;stroke-width:2.5}.text{stroke:none}.pale{fill:#54aeff;stroke:none}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.note,.tick{fill:#9198a1}.ground{fill:#151b23;stroke:#3d444d}.box{fill:#212830;stroke:#3d444d}
.grid{stroke:#2a313c}.mark{stroke:#9198a1}.ours{fill:#4493f8;stroke:#4493f8}.theirs{fill:#d29922;stroke:#d29922}
.other{fill:#767f89;stroke:#767f89}.pale{fill:#1f6feb}.line{fill:none}}
.line{fill:none}.text{stroke:none}"""


def drawing(height: float, title: str, note: str, parts: Iterable[str], description: str = "") -> str:
    """Return a drawing with its title and a note below it.

    The description, the note if left out, tells in words what the parts show to those who do not see them.
    """
    sizes = f'viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {sizes} role="img">',
        MARK,
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(description or note)}</desc>",
        f"<style>{_STYLE}</style>",
        f'<rect class="ground" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="8"/>',
        text(MARGIN, 32, fitting(title, WIDTH - 2 * MARGIN, 18), "title"),
        text(MARGIN, 52, fitting(note, WIDTH - 2 * MARGIN, 12), "note"),
    ]
    return "\n".join([*lines, *parts, "</svg>", ""])


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def dot(x: float, y: float, kind: str, radius: float = 4) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.3g}" class="{kind}"/>'


def bar(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" class="{kind}"/>'


def fitting(content: str, width: float, size: float = 13) -> str:
    """Return a text, shortened if it could be wider than so many pixels in a font of this size."""
    most = int(width / (_LETTER * size))
    return content if len(content) <= most else f"{content[: most - 1]}…"


def logarithmic(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Return the scale that maps low to start and high to end."""
    return lambda value: start + (end - start) * math.log(value / low) / math.log(high / low)
