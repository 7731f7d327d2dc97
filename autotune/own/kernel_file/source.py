"""The source of a kernel file's kernels: its files with includes inserted, and the ``#define`` lines before them."""

import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from string import Formatter

from autotune.errors import UsageError
from autotune.own.kernel_file.format import MOST_SOURCE_BYTES, KernelFile
from autotune.own.kernel_file.options import options_of
from autotune.own.kernel_file.unused_kernels import without_unused

TEMPLATE = ".j2"
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]{1,500})[">][^\n]*$', re.MULTILINE)
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b[^\n]*$", re.MULTILINE)
_RAW_STRING = re.compile(r'(?m)^[ \t]*(?:R"\w{0,16}\(|\)\w{0,16}";?)[ \t]*$')
"""Lines with which C++ programs make a source, such as CLBlast's, a raw string."""
_MOST_INCLUDED = 100


def template_of(file: KernelFile, sources: Sequence[str]) -> str:
    """Return the template of an algorithm: definitions of all parameters and `defines`, then the files.

    The files' own ``#define`` lines of these names are left out, or they would win. Raises UsageError when a file
    cannot be read or lies outside the kernel file's folder.
    """
    folder = file.path.parent
    names = [*file.parameters, *file.defines]
    lines = [f"#define {name} {{{{ {name} }}}}" for name in names]
    launches = [*file.all_launches, *filter(None, [file.reference_launch])]
    # Names that a macro may stand for are left, too.
    used = {*(launch.kernel for launch in launches), *names, *re.findall(r"\w+", " ".join(file.build_options))}
    options = [*options_of(file.build_options)]
    lines += [f"#define {name} {_template(text)}" for name, text in filter(None, (one.definition for one in options))]
    texts = ["\n".join(lines)] if not all(name.endswith(TEMPLATE) for name in sources) else []
    for name in sources:
        text = with_includes(inside(folder, name), folder, include_folders(file))
        plain = without_unused(without_definitions(text, names), used)
        own = f'#line 1 "{Path(name).name}"\n{verbatim(plain)}'
        texts.append(text if name.endswith(TEMPLATE) else own)
    return "\n".join(texts)


def include_folders(file: KernelFile) -> list[Path]:
    """Return the folders for includes that the options of a kernel file name, from its own folder."""
    return [file.path.parent / one.value for one in options_of(file.build_options) if one.flag == "-I"]


def _template(option: str) -> str:
    """Return a template whose result is a text of the compiler's options with the values of the names in braces."""
    pieces = ((verbatim(text), name) for text, name, _, _ in Formatter().parse(option))
    return "".join(f"{text}{{{{ {name} }}}}" if name else text for text, name in pieces)


def without_definitions(text: str, names: Sequence[str]) -> str:
    """Return a source without the lines that define these words: the kernel file says what their values are."""
    rest = r"(?:\\\r?\n|//(?:\\\r?\n|.)*|/\*(?s:.{0,4096}?)\*/|.)*$"  # a comment may go on for lines
    pattern = rf"^[ \t]*#[ \t]*(?:define|undef)[ \t]+(?:{'|'.join(names)})\b(?!\(){rest}"
    return re.sub(pattern, lambda found: "\n" * found[0].count("\n"), text, flags=re.MULTILINE)


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file named relative to a folder. Raises UsageError if it lies outside."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise UsageError(f"{name} is outside the folder of the kernel file, {folder}", hint="copy it into the folder")
    return path


def read_text(path: Path) -> str:
    """Return the text of a source. Raises UsageError when it cannot be read."""
    try:
        if path.stat().st_size > MOST_SOURCE_BYTES:
            raise UsageError(f"{path} is larger than {MOST_SOURCE_BYTES // 2**20} MiB")
        return _RAW_STRING.sub("", path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start})", hint="save it as UTF-8") from error


def with_includes(path: Path, folder: Path | None = None, others: Sequence[Path] = ()) -> str:
    """Return the text of a source with the files inserted that it includes, from its own folder or `others`.

    They must be in `folder`, by default its own; what is not there is left to the driver's compiler. Raises UsageError.
    """
    count = 0

    def of(path: Path, within: Sequence[Path] = ()) -> str:
        text, holders = read_text(path), [*within, path]

        def included(found: re.Match[str]) -> str:
            nonlocal count
            places = (place / found[1] for place in (path.parent, *others))
            included = next((place for place in places if place.is_file()), None)
            if included is None:
                return found[0]
            count += 1
            if count > _MOST_INCLUDED:
                raise UsageError(f"{path} includes more than {_MOST_INCLUDED} files, perhaps itself")
            other = inside(root, str(included.resolve()))
            if other in holders and _ONCE.search(read_text(other)):
                return ""
            return once(of(other, holders), other.relative_to(root.resolve()).as_posix())

        return _INCLUDE.sub(included, text)

    root = folder or path.parent
    return of(path)


def once(text: str, name: str) -> str:
    """Return the text of an included file, with a guard of its own name where it says ``#pragma once``.

    In the text of another file, that line would say nothing.
    """
    if not _ONCE.search(text):
        return text
    guard = f"INCLUDED_{zlib.crc32(name.encode()):08X}"
    return f"#ifndef {guard}\n#define {guard}\n{_ONCE.sub('', text)}\n#endif"


def verbatim(text: str) -> str:
    """Return a template whose result is this text."""
    parts = re.split(r"(\{[{%#])", text)
    return "".join(f"{{{{ '{part}' }}}}" if part in ("{{", "{%", "{#") else part for part in parts)
