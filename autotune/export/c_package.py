"""C99: a header with tables, and a folder of code that looks up, builds and runs kernels, with sources and a library.

The library in `templates/c` is the same for every package. The lookups, one for each family, and the kernels are
generated: for each configuration that a lookup may return, and each kind of problem that was measured or is plain, the
sources for every variant of sizes.
"""

import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain

from autotune.device.profile import find_profile
from autotune.errors import TableError
from autotune.export.c_family import FamilyInC, check_distinct, identifier
from autotune.export.c_plan import AlgorithmPlanner
from autotune.export.choices import write_choices
from autotune.export.contents import DeviceTable, plain_part
from autotune.kernels import find_family
from autotune.kernels.render import names_read, render, render_c
from autotune.lookup.answer import Match
from autotune.lookup.chain import relatives
from autotune.model.configuration import Configuration
from autotune.model.problem import Problem
from autotune.model.trial import Winner
from autotune.paths import data_folder
from autotune.space.plan_formula import parts_of

_HASH_FACTOR = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio."""
_FREE_SLOTS = 4
"""Least number of slots per entry: the search for a missing entry mostly ends at the first slot."""
_NO_SOURCE = 65535
_MOST_IN_LINE = 4000
_LINES_OF_RUN = 12
"""Average number of lines in a run."""

RenderListener = Callable[[str, int, int], object]
"""Listens to how many of a family's configurations are rendered: its name, that number, and their number."""


def write_c(tables: Sequence[DeviceTable], family: str) -> str:
    """Return a header with a function `autotune_find_<family>_<device>` for each device, with the answers of
    `TuningTable.find`. Siblings and other devices of the same vendor are searched for among the devices of the header.

    Everything is static and inside functions, so that the header may be included from anywhere, C++ too, without
    warnings about unused names. Of several included headers, one for each device, the types come from the first.
    For a family without a planner in C, it is the header of `choices`. Raises TableError when two devices have one name
    in C, UsageError when neither is possible.
    """
    if find_family(family).c_export is None:
        return write_choices(tables, family)
    c = FamilyInC(find_family(family))
    check_distinct(table.device.slug for table in tables)
    plain = {table.device.slug: plain_part(table) for table in tables}
    name = identifier(tables[0].device.slug) if len(tables) == 1 else "tables"
    return render_c(
        "table.h",
        c=c,
        rules=c.rules,
        prefix=c.prefix,
        macro=c.macro,
        guard=f"AUTOTUNE_{family}_{name}_H".upper(),
        left_out=sum(len(table.winners) - len(plain[table.device.slug].winners) for table in tables),
        devices=[_Device(table, c, plain) for table in plain.values()],
        hash_factor=_HASH_FACTOR,
        checksum=lambda text: f"0x{zlib.crc32(text.encode()):08x}",
    )


class _Device:
    """What the header holds of one device; `others` are its devices by slug."""

    def __init__(self, table: DeviceTable, c: FamilyInC, others: dict[str, DeviceTable]) -> None:
        device = table.device
        self.device = device
        self.name = identifier(device.slug)
        self.title = _comment(f"{device.slug}: {device.vendor} {device.model}, driver {device.driver}")
        self.limits = device.limits.constraint_values()
        self.winners = table.winners
        self.slots = _slots(table.winners)
        self.candidates = c.candidates(table)
        self.default_match = Match.of_default(device).name
        devices = {slug: other.device for slug, other in others.items()}
        self.relatives = [
            (match.name, identifier(other.slug))
            for match, other in relatives(device, sorted(devices), devices.get)
            if others[other.slug].winners
        ]
        """The devices that are asked after this one, each with what its answer is called."""


def _comment(text: str) -> str:
    """Replace characters that could end a comment, start another, or splice lines."""
    return re.sub(r"[^A-Za-z0-9 .,:;()+_=@#-]", "_", text)


def _slots(winners: Sequence[Winner]) -> list[int]:
    """Return a hash table with open addressing over sizes, which C searches as it is built here.

    It holds numbers of winners, from 1 on, or 0 where it is free; its length is a power of two. A winner is in the slot
    of the hash of its sizes or, if that is taken, in the next free one.
    """
    found = [0] * (1 << (_FREE_SLOTS * len(winners)).bit_length())
    for number, winner in enumerate(winners, 1):
        value = 0
        for size in winner.problem.size_vector:
            value = (value + size) * _HASH_FACTOR % 2**64
        place = (value >> 32) % len(found)
        while found[place]:
            place = (place + 1) % len(found)
        found[place] = number
    return found


def package_files(
    tables: Mapping[str, Sequence[DeviceTable]], listener: RenderListener = lambda _family, _done, _total: None
) -> dict[str, str]:
    """Return file contents by name, from the tables of each family, all with the same devices in the same order.

    Large tables take minutes, of which `listener` hears.
    Raises TableError, UsageError for a family that has no library in C.
    """
    names = sorted(tables)
    if not any(tables.values()):
        raise TableError("nothing is stored to export", hint="tune something with autotune run first")
    devices = [table.device for table in tables[names[0]]]
    check_distinct(device.slug for device in devices)
    library = data_folder("templates") / "c"
    files = {path.name: path.read_text(encoding="ascii") for path in sorted(library.glob("*.[ch]"))}
    files |= {f"autotune_{name}.h": write_c(tables[name], name) for name in names}
    pool = SourcePool()
    families = [
        _Family(FamilyInC(find_family(name)), list(map(plain_part, tables[name])), pool, listener) for name in names
    ]
    if len(pool.sources) >= _NO_SOURCE:
        raise TableError(
            f"a package may have {_NO_SOURCE - 1} kernel sources, not {len(pool.sources)}",
            hint="export one device or one family at a time",
        )
    plans = [family.c.rules.plan for family in families]
    files["autotune_families.h"] = render_c(
        "autotune_families.h",
        families=[family.c for family in families],
        buffers=max(len(plan.buffers) for plan in plans),
        launches=max(len(plan.launches) for plan in plans),
        arguments=max(len(parts_of(launch.arguments)) for plan in plans for launch in plan.launches),
    )
    files["autotune_kernels.h"] = render_c(
        "autotune_kernels.h",
        families=families,
        devices=[
            (quoted(d.slug), identifier(d.slug), _joined(find_profile(d).build_options), quoted(d.name))
            for d in devices
        ],
        pool=pool,
        no_source=_NO_SOURCE,
    )
    return files


class SourcePool:
    """Many kernel sources as C data: each distinct line and each distinct run of lines is stored once.

    Compilers need not accept a string of more than 4095 characters, and variants of a kernel have most of their lines
    in common. So a source is a list of runs, and a run is a list of lines. The checksum of a line decides whether a run
    ends after it, so that runs end at the same lines in all sources.
    """

    def __init__(self) -> None:
        self.lines: dict[str, int] = {}
        self.runs: dict[tuple[int, ...], int] = {}
        self.sources: dict[tuple[int, ...], int] = {}
        self._known: dict[str, int] = {}

    def add(self, text: str) -> int:
        """Return the number of a text. Raises TableError for a line that C compilers need not accept."""
        if text not in self._known:
            source = tuple(self.runs.setdefault(run, len(self.runs)) for run in self._runs(text))
            self._known[text] = self.sources.setdefault(source, len(self.sources))
        return self._known[text]

    def _runs(self, text: str) -> Iterator[tuple[int, ...]]:
        run: list[int] = []
        for line in text.splitlines(keepends=True):
            run.append(self.lines.setdefault(_quoted_line(line), len(self.lines)))
            if zlib.crc32(line.encode()) % _LINES_OF_RUN == 0:
                yield tuple(run)
                run = []
        if run:
            yield tuple(run)

    @staticmethod
    def lists(found: Iterable[Sequence[int]]) -> dict[str, list[int]]:
        """Return lists as one, with the place where each starts and where the last ends."""
        lists = list(found)
        return {"joined": list(chain(*lists)), "starts": list(accumulate(map(len, lists), initial=0))}

    @staticmethod
    def kind_of(numbered: Collection[object]) -> str:
        """Return the C type of the numbers of these."""
        return "unsigned short" if len(numbered) <= 65535 else "unsigned int"


@cache  # each line occurs some hundred times in a package
def _quoted_line(line: str) -> str:
    if len(line) > _MOST_IN_LINE or not line.isascii():
        raise TableError(f"a line of a kernel cannot be written in C: {line[:60]!r}")
    return f'"{quoted(line)}"'


def quoted(text: str) -> str:
    """Escape a text for use between quotation marks in C."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?").replace("\n", "\\n").replace("\t", "\\t")
    return re.sub(r"[^ -~]", "_", plain)


def _joined(options: Iterable[str]) -> str:
    return quoted(" ".join(options))


@dataclass(frozen=True, kw_only=True)
class _Kernel:
    """A configuration for one kind of problem, with the number of its source for each variant of sizes."""

    values: str
    options: str
    sources: list[int]


class _Family:
    """Every configuration of a family that a lookup of the package may return, with its sources."""

    def __init__(self, c: FamilyInC, tables: Sequence[DeviceTable], pool: SourcePool, listener: RenderListener) -> None:
        self.c = c
        self.name = c.family.name
        self._pool = pool
        self._rendered: dict[object, int] = {}
        self.planners = [(identifier(a.name), AlgorithmPlanner(c, a).body()) for a in c.family.algorithms]
        examples = [c.plain, *(winner.problem for table in tables for winner in table.winners)]
        kinds = list({example.kind: example for example in examples}.values())
        self.kernels: list[_Kernel] = []
        configurations = self._configurations(tables)
        for done, configuration in enumerate(configurations):
            listener(self.name, done, len(configurations))
            for example in kinds:
                self.kernels += self._kernel(configuration, example)

    def _configurations(self, tables: Sequence[DeviceTable]) -> list[Configuration]:
        """Return the configurations without duplicates, the plainest first."""
        found = [self.c.family.baseline]
        for table in tables:
            found += [winner.configuration for winner in table.winners]
            found += self.c.candidates(table)
        return list(dict.fromkeys(found))

    def _kernel(self, configuration: Configuration, example: Problem) -> Iterator[_Kernel]:
        """Yield the kernel, unless the configuration cannot run this kind of problem at all."""
        family, rules = self.c.family, self.c.rules
        values = example.constraint_values()
        of_kind = {n: v for n, v in values.items() if n in rules.kind or n not in self.c.fields}
        known = {**dict(configuration.values), **of_kind}
        for constraint in family.algorithm(configuration.algorithm).constraints:
            # A constraint on the kind of the problem alone, such as its type, rules a kernel out for all sizes.
            if constraint.condition.names <= known.keys() and not constraint.condition(known):
                return
        found: dict[int, int] = {}
        for problem in rules.samples(configuration, example):
            number = rules.plan.variant_of(problem, configuration)
            if number not in found:
                found[number] = self._source(configuration, problem)
        kind = (self.c.literal(getattr(example, field)) for field in rules.kind)
        options = family.plan(example, configuration).build_options
        yield _Kernel(
            values=", ".join([self.c.configuration(configuration), *kind]),
            # Macros (-D) depend on the sizes: the library adds them.
            options=_joined(option for option in options if not option.startswith("-D")),
            sources=[found.get(number, _NO_SOURCE) for number in range(rules.plan.variant_count)],
        )

    def _source(self, configuration: Configuration, problem: Problem) -> int:
        family = self.c.family
        plan = family.plan(problem, configuration)
        read = names_read(family, configuration.algorithm)
        values = (*configuration.values, *plan.template_values)
        place = (configuration.algorithm, *sorted((name, value) for name, value in values if name in read))
        if place not in self._rendered:
            self._rendered[place] = self._pool.add(render(family, configuration, plan))
        return self._rendered[place]
