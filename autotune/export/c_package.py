"""A folder of C99 code that looks up, builds and runs kernels: tables and models, all kernel sources, and a library.

The library in `templates/c` is the same for every package. The lookups, one for each family, and the kernels are
generated: for each configuration that a lookup may return, and each kind of problem that was measured or is plain, the
sources for every variant of sizes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from string import Template

from autotune.device.profile import find_profile
from autotune.errors import TableError
from autotune.export.c_header import Writer, check_distinct, identifier, write_c
from autotune.export.c_problem import problem_rules
from autotune.export.c_sources import SourcePool, numbers, quoted
from autotune.export.c_variants import VARIANTS
from autotune.export.contents import DeviceTable, plain_part
from autotune.kernels import find_family
from autotune.kernels.render import names_read, render
from autotune.model.configuration import Configuration
from autotune.model.problem import Problem
from autotune.paths import data_folder
from autotune.space.family import KernelFamily

FAMILIES = ("gemm", "reduce")
"""Families with a library in C, in the order of its files."""

_NO_SOURCE = 65535

_FAMILY = Template("""\
struct autotune_${family}_kernel {
    struct autotune_${family}_configuration configuration;
${kind}
    const char *options;
};

enum { ${macro}_KERNELS = ${count} };

/* The first is the plainest. */
static const struct autotune_${family}_kernel autotune_${family}_kernels[] = {
${kernels}
};

/* Numbers of sources by kernel and by what the sizes call for. */
static const unsigned short autotune_${family}_variants[][${variants}] = {
${table}
};
""")

_DEVICES = Template("""\
struct autotune_device_entry {
    const char *name, *options;
${members}
};

enum { AUTOTUNE_DEVICE_COUNT = ${count}, AUTOTUNE_NO_SOURCE = ${no_source} };

static const struct autotune_device_entry autotune_devices[] = {
${devices}
};
""")


def package_files(tables: Mapping[str, Sequence[DeviceTable]]) -> dict[str, str]:
    """Return file contents by name, from the tables of each family, all with the same devices in the same order.

    Raises TableError, UsageError for a family that has no library in C.
    """
    families = [name for name in FAMILIES if name in tables]
    if not any(tables[name] for name in families):
        raise TableError("nothing is stored to export", hint="tune something with autotune run first")
    devices = [table.device for table in tables[families[0]]]
    check_distinct(device.slug for device in devices)
    library = data_folder("templates") / "c"
    files = {path.name: path.read_text(encoding="ascii") for path in sorted(library.glob("*.[ch]"))}
    for name in families:
        files[f"autotune_{name}.h"] = write_c(list(tables[name]), name)
    files["autotune_families.h"] = _families(families)
    pool = SourcePool()
    kernels = [_Kernels(find_family(name), list(map(plain_part, tables[name])), pool).to_c() for name in families]
    if len(pool) >= _NO_SOURCE:
        raise TableError(
            f"a package may have {_NO_SOURCE - 1} kernel sources, not {len(pool)}",
            hint="export one device or one family at a time",
        )
    members = "\n".join(
        f"    enum autotune_match (*find_{name})(const struct autotune_{name}_problem *,"
        f" struct autotune_{name}_configuration *);\n"
        f"    void (*default_{name})(const struct autotune_{name}_problem *, struct autotune_{name}_configuration *);"
        for name in families
    )
    entries = [_entry(device.slug, find_profile(device).build_options, families) for device in devices]
    about = _DEVICES.substitute(members=members, count=len(devices), no_source=_NO_SOURCE, devices=",\n".join(entries))
    files["autotune_kernels.h"] = "\n".join(
        ["/* Kernels and devices of this package, for autotune.c alone. */", pool.to_c(), about, *kernels]
    )
    return files


def _families(names: Iterable[str]) -> str:
    parts = [f'#define AUTOTUNE_HAS_{name.upper()} 1\n#include "autotune_{name}.h"\n' for name in names]
    return "\n".join(["/* What this package holds. */", *parts])


def _entry(slug: str, options: Iterable[str], families: Iterable[str]) -> str:
    device = identifier(slug)
    functions = [f"autotune_find_{name}_problem_{device}, autotune_{name}_default_{device}" for name in families]
    return f'    {{"{quoted(slug)}", "{quoted(" ".join(options))}", {", ".join(functions)}}}'


class _Kernels:
    """Every configuration of a family that a lookup of the package may return, with its sources."""

    def __init__(self, family: KernelFamily, tables: Sequence[DeviceTable], pool: SourcePool) -> None:
        self._family = family
        self._tables = tables
        self._pool = pool
        self._writer = Writer(family, problem_rules(family.name))
        self._variants = VARIANTS[family.name]
        self._rendered: dict[object, int] = {}

    def to_c(self) -> str:
        kernels, variants = [], []
        kind_fields = self._writer.rules.kind
        for configuration in self._configurations():
            for example in self._kinds():
                found = self._sources(configuration, example)
                if not found:
                    continue
                kind = ", ".join(self._writer.literal(getattr(example, field)) for field in kind_fields)
                options = quoted(" ".join(self._options(configuration, example)))
                kernels.append(f'    {{{self._writer.configuration(configuration)}, {kind}, "{options}"}}')
                row = (found.get(number, _NO_SOURCE) for number in range(self._variants.count))
                variants.append(f"    {{\n{numbers(row)}}}")
        return _FAMILY.substitute(
            family=self._family.name,
            macro=self._writer.macro,
            kind="\n".join(f"    {self._writer.type_of(field, 'long long')} {field};" for field in kind_fields),
            count=len(kernels),
            kernels=",\n".join(kernels),
            variants=self._variants.count,
            table=",\n".join(variants),
        )

    def _configurations(self) -> list[Configuration]:
        """Return the configurations without duplicates, the plainest first."""
        found = [self._family.baseline]
        for table in self._tables:
            found += [winner.configuration for winner in table.winners]
            found += [c for predictor in table.predictors for c in predictor.configurations]
            found += self._writer.candidates(table.device)
        return list(dict.fromkeys(found))

    def _kinds(self) -> list[Problem]:
        """Return one example of each kind of problem."""
        examples = [self._variants.plain, *(w.problem for table in self._tables for w in table.winners)]
        return list({example.kind: example for example in examples}.values())

    def _sources(self, configuration: Configuration, example: Problem) -> dict[int, int]:
        """Return source numbers by variant; empty if the configuration cannot run this kind of problem at all."""
        found: dict[int, int] = {}
        for problem in self._samples(configuration, example):
            plan = self._family.plan(problem, configuration)
            values = dict(plan.template_values)
            number = self._variants.number(values)
            if number in found:
                continue
            read = names_read(self._family, configuration.algorithm)
            place = (configuration, tuple(sorted((n, v) for n, v in values.items() if n in read)))
            if place not in self._rendered:
                self._rendered[place] = self._pool.add(render(self._family, configuration, plan))
            found[number] = self._rendered[place]
        return found

    def _samples(self, configuration: Configuration, example: Problem) -> Iterator[Problem]:
        values = example.constraint_values()
        for constraint in self._family.algorithm(configuration.algorithm).constraints:
            # A constraint on the kind of the problem alone, such as its type, rules a kernel out for all sizes.
            known = {**dict(configuration.values), **{n: values[n] for n in self._of_kind(values)}}
            if constraint.condition.names <= known.keys() and not constraint.condition(known):
                return
        yield from self._variants.samples(configuration, example)

    def _of_kind(self, values: Mapping[str, object]) -> list[str]:
        rules = self._writer.rules
        derived = [name for name in values if name not in self._writer.fields]
        return [*rules.kind, *derived]

    def _options(self, configuration: Configuration, example: Problem) -> tuple[str, ...]:
        options = self._family.plan(example, configuration).build_options
        # Macros (-D) depend on the sizes: the library adds them.
        return tuple(option for option in options if not option.startswith("-D"))
