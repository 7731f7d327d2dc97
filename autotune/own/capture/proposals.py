"""What of a captured kernel may vary: numbers that its source or its build options define, and the work-group."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotune.own.kernel_file.draft import values_near
from autotune.own.kernel_file.preprocessor import NUMBER, preprocess, without_comments
from autotune.own.kernel_file.syntax import REQUIRED, Code, Unit

MOST_PARAMETERS = 20
_AXES = ("WORK_GROUP_X", "WORK_GROUP_Y", "WORK_GROUP_Z")
_DEFINE = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+\(?(\d+)[uU]?\)?[ \t]*(?://.*|/\*.*\*/[ \t]*)?$", re.MULTILINE
)
_GROUPS = re.compile(
    r"\b(get_local_\w+|get_group_id|get_num_groups|get_enqueued_local_size|(?:work_group_)?barrier|__local|local"
    r"|work_group_\w+|sub_group_\w+|intel_sub_group\w+|get_sub_group\w*|reqd_work_group_size)\b"
)
_TYPE = re.compile(r"PRECISION|VERSION|TYPE", re.IGNORECASE)
"""Names of numbers that choose types, with which arguments of other types would go."""
_NAMES_OF_GROUPS = re.compile(r"LOCAL|WG|WORK|GROUP|TILE|TS|BLOCK|LWS", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Parameters with their values, and the launch sizes as formulas."""

    parameters: Mapping[str, Sequence[int]]
    default: Mapping[str, int]
    global_size: str
    local_size: str
    """Empty if the driver always chooses."""
    driver_chooses: str = ""
    """The condition under which the driver chooses, although `local_size` is given."""
    constraints: Mapping[str, str] = field(default_factory=dict)


def numbers_of(options: Sequence[str]) -> dict[str, int]:
    """Return the integers that build options define, by name."""
    matches = (re.fullmatch(r"-D(\w+)=(\d{1,9})", option) for option in options)
    return {match[1]: int(match[2]) for match in matches if match}


def split_options(options: str) -> list[str]:
    """Return the options of a compiler, each ``-D`` and ``-I`` together with what it defines or names."""
    try:
        words = shlex.split(options)
    except ValueError:
        words = options.split()
    found: list[str] = []
    for word in words:
        if found and found[-1] in ("-D", "-I"):
            found[-1] += word
        else:
            found.append(word)
    return found


def guarded(source: str, names: Sequence[str]) -> str:
    """Return the source with the definitions of these names only where they are not defined before."""

    def guard(found: re.Match[str]) -> str:
        return f"#ifndef {found[1]}\n{found[0]}\n#endif" if found[1] in names else found[0]

    return _DEFINE.sub(guard, source)


def text_of(kernel: str, source: str) -> str:
    """Return the text of a kernel with that of the functions it uses, in which macros but for numbers are replaced."""
    unit = Unit(preprocess(without_comments(source), lambda _: True))
    code = sum((found.code for found in unit.kernels if found.name == kernel), Code(unit))
    return (code + unit.helpers(code)).text or unit.text


def propose(
    kernel: str,
    source: str,
    macros: Mapping[str, str],
    defined: Mapping[str, int],
    global_size: Sequence[int],
    local_size: Sequence[int],
    sizes: Mapping[str, int],
) -> Proposal:
    """Return the parameters of a kernel: numbers of the source and those that options `defined`, and the work-group.

    `macros` are in effect at the end of the source. `sizes` are numbers by name: the global size is written with their
    names where it equals one, or one divided by a parameter.
    """
    text = text_of(kernel, source)
    known = _numbers(source, macros, defined)
    uses = {name: len(re.findall(rf"\b{name}\b", text)) for name in known}
    numbers = {name: value for name, value in known.items() if uses[name]}
    groups: dict[str, list[int]] = {}
    tied: dict[int, str] = {}
    if _GROUPS.search(text):
        tied = _tied(text, numbers, local_size)
        for name in {word for part in REQUIRED.findall(text) for word in re.findall(r"\w+", part)} - {*tied.values()}:
            numbers.pop(name, None)
    else:
        groups = _free_groups(global_size, local_size)
    values = {name: values_near(name, value, source) for name, value in numbers.items()}
    items = [
        _items(count, local_size[i] if i in tied else 0, tied.get(i, ""), sizes, numbers)
        for i, count in enumerate(global_size)
    ]
    for place, name in tied.items():
        if name not in items[place]:
            values[name] = [v for v in values[name] if global_size[place] % v == 0 or v == numbers[name]]
    order = [*tied.values(), *sorted(values, key=lambda name: -uses[name])]
    chosen = [name for name in dict.fromkeys(order) if len(values[name]) > 1][:MOST_PARAMETERS]
    if not groups and not chosen:  # a kernel file has at least one parameter
        groups = {
            name: [size] for name, size in zip(_AXES, local_size or [0] * len(global_size), strict=False)
        }  # fmt: skip
    parameters = {**groups, **{name: values[name] for name in chosen}}
    default = {**dict(zip(groups, local_size or [0] * 3, strict=False)), **{name: numbers[name] for name in chosen}}
    local = [*groups] or [tied[i] if tied.get(i) in chosen else str(size) for i, size in enumerate(local_size)]
    items = [item if {*re.findall(r"[A-Z_a-z]\w*", item)} - {*chosen, *sizes, "ceil_div"} == set() else str(count)
             for item, count in zip(items, global_size, strict=True)]  # fmt: skip
    constraints = {
        f"group_divides_{axis}": f"{item} % max({size}, 1) == 0"
        for axis, item, size in zip("xyz", items, local, strict=False) if item.endswith(")") and size != "1"
    }  # fmt: skip
    if len(groups) > 1 and not local_size:
        none, some = (" and ".join(f"{name} {sign} 0" for name in groups) for sign in ("==", ">"))
        constraints["whole_group"] = f"({none}) or ({some})"
    return Proposal(
        parameters=parameters, default=default,
        global_size=", ".join(items), local_size=", ".join(local),
        driver_chooses=f"{next(iter(groups))} == 0" if groups and not local_size else "", constraints=constraints,
    )  # fmt: skip


def _numbers(source: str, macros: Mapping[str, str], defined: Mapping[str, int]) -> dict[str, int]:
    """Return the integers that the source or the options define, with the values in effect, by name."""
    undefined = {*re.findall(r"#[ \t]*undef[ \t]+(\w+)", source)}
    names = {*(match[1] for match in _DEFINE.finditer(source)), *defined} - undefined
    values = {name: NUMBER.fullmatch(macros.get(name, "").strip()) for name in names}
    return {name: int(value[1]) for name, value in sorted(values.items()) if value and not _TYPE.search(name)}


def _free_groups(global_size: Sequence[int], local_size: Sequence[int]) -> dict[str, list[int]]:
    """Return the work-groups of a kernel that does not use them: divisors of the global size, around those used."""
    found = {}
    for place, (name, items) in enumerate(zip(_AXES, global_size, strict=False)):
        used = local_size[place] if local_size else 0
        powers = [2**i for i in range(11)]
        near = [p for p in powers if (used <= 4 * p and p <= 4 * used if used else p <= 256)]
        found[name] = sorted({*([used] if used else [0]), *(p for p in near if items % p == 0)})
    return found if any(len(values) > 1 for values in found.values()) else {}


def _tied(text: str, numbers: Mapping[str, int], local_size: Sequence[int]) -> dict[int, str]:
    """Return which number a dimension of the work-group is: the one required, or the only one that equals it."""
    required = REQUIRED.search(text)
    words = [word.strip() for word in required[1].split(",")] if required else []
    found = {}
    for place, size in enumerate(local_size):
        if words:
            names = [word for word in words[place : place + 1] if numbers.get(word) == size]
        else:
            names = [name for name, value in numbers.items() if value == size > 1]
            names = names if len(names) == 1 else [name for name in names if _NAMES_OF_GROUPS.search(name)]
        if len(names) == 1:
            found[place] = names[0]
    return found


def _items(count: int, group: int, tied: str, sizes: Mapping[str, int], numbers: Mapping[str, int]) -> str:
    """Return work-items as a size, or as a size divided by the only number that gives them.

    Where the work-group of `group` work-items is the number `tied`, as many groups as a size has parts of another.
    """
    equal = [name for name, size in sizes.items() if size == count > 1]
    shares = count // group if tied else count
    shared = [
        f"ceil_div({size}, {name})" for size, value in sizes.items() for name, number in numbers.items()
        if number > 1 and shares > 1 and shares * number == value and number != group
    ]  # fmt: skip
    if len(shared) == 1 and (tied or not equal):
        return f"{shared[0]} * {tied}" if tied else shared[0]
    return equal[0] if equal else str(count)
