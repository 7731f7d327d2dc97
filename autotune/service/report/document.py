"""Reports: one HTML file with what the service's page shows of devices, which needs neither service nor network.

It holds the page's own scripts and styles, and the data as JSON. Its content security policy names these by their
hashes and allows nothing else, so that no text of the data can become code.
"""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from autotune import __version__
from autotune.codec import write
from autotune.export.contents import DeviceTable, entry_with_sizes
from autotune.export.formats import MARK
from autotune.paths import PAGE
from autotune.service.report.gains import tuned_networks

_STYLES = ("style.css", "parts.css", "report.css")
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|const|class) (\w+))", re.MULTILINE)


def write_report(tables: Sequence[DeviceTable], _family: str = "") -> str:
    """Return a page about devices with their winners of any families. Equal tables give equal pages."""
    script, style = _script(), "\n".join((PAGE / name).read_text(encoding="utf-8") for name in _STYLES)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    data = json.dumps({"version": __version__, "devices": [_plain_device(table) for table in tables]}, allow_nan=False)
    title = f"Tuning of {', '.join(table.device.slug for table in tables) or 'no device'}"
    return f"""<!doctype html>
{MARK}
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<main id="main"><noscript>This report draws itself with the JavaScript that it holds;
<code>autotune report --svg FOLDER</code> writes its pictures for programs without JavaScript.</noscript></main>
<script type="application/json" id="data">{_in_script(data)}</script>
<script>{script}</script>
</body>
</html>
"""


def _plain_device(table: DeviceTable) -> dict[str, Any]:
    families = {}
    for name in sorted({winner.problem.family for winner in table.winners}):
        winners = [winner for winner in table.winners if winner.problem.family == name]
        networks = [write(network) for network in tuned_networks(winners)]
        families[name] = {"entries": [entry_with_sizes(winner) for winner in winners], "networks": networks}
    counts = {"trials": dict(table.trials), "repeats": table.repeats}
    return {**write(table.device), **counts, "families": families}


def _in_script(data: str) -> str:
    """Escape JSON so that no text in it can end the element that it stands in."""
    return data.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _script() -> str:
    """Return the module of reports and all that it imports, each as a function, in one script without imports."""
    modules: dict[str, str] = {}

    def add(name: str) -> None:
        if name in modules:
            return
        text = (PAGE / f"{name}.js").read_text(encoding="utf-8")
        for _, imported in _IMPORT.findall(text):
            add(imported)
        body = _EXPORT.sub("", _IMPORT.sub(r"const {\1} = modules.\2;", text))
        exports = ", ".join(_EXPORT.findall(text))
        modules[name] = f"modules.{name} = (() => {{\n{body}return {{ {exports} }};\n}})();\n"

    add("report")
    return f'"use strict";\nconst modules = {{}};\n{"".join(modules.values())}'


def _hash(text: str) -> str:
    """Return how a content security policy names a script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
