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
from autotune.export.c_plan import operands_of
from autotune.export.c_sources import SourcePool, numbers, quoted
from autotune.export.contents import DeviceTable, plain_part
from autotune.kernels import find_family
from autotune.kernels.render import names_read, render
from autotune.model.configuration import Configuration
from autotune.model.problem import Problem
from autotune.paths import data_folder
from autotune.space.family import KernelFamily
from autotune.space.plan_formula import PlanFormula, parts_of

_NO_SOURCE = 65535

_FAMILIES = Template("""\
/* What this package holds; autotune.h includes it. */
${includes}
enum {
    AUTOTUNE_MOST_BUFFERS = ${buffers},
    AUTOTUNE_MOST_LAUNCHES = ${launches},
    AUTOTUNE_MOST_ARGUMENTS = ${arguments}
};

/* A problem of any family. */
union autotune_problem {
${problems}
};

/* What a call does: by which step of the lookup, from which of the package's sources, with how many kernels. */
struct autotune_choice {
    enum autotune_match match;
    int source;
    int launches;
};

#ifdef __cplusplus
extern "C" {
#endif

${calls}
#ifdef __cplusplus
}
#endif
""")

_CALLS = Template("""\
/* ${about}
   Fields of the problem that are 0 are filled in. The kernels are enqueued, not waited for; `event`, where not NULL, is
   that of the last. */
enum autotune_status autotune_${family}(
    struct autotune_library *library, cl_command_queue queue, const struct autotune_${family}_problem *problem,
    ${parameters}, cl_event *event);

/* Builds what a call would build. */
enum autotune_status autotune_${family}_prepare(
    struct autotune_library *library, const struct autotune_${family}_problem *problem);

/* What calls of a prepared problem do; of another, what they would do, were the driver to take it. Asks no driver. */
enum autotune_status autotune_${family}_choose(
    struct autotune_library *library, const struct autotune_${family}_problem *problem, struct autotune_choice *choice);
""")

_FAMILY = Template("""\
${planner}
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

static void autotune_${family}_choose_kernel(
        const struct autotune_device_entry *device, int attempt, const union autotune_problem *problem,
        struct autotune_choice *choice, struct autotune_plan *plan, const char **options) {
    const struct autotune_${family}_problem *const p = &problem->${family};
    struct autotune_${family}_configuration found;
    int number;
    memset(&found, 0, sizeof found);
    if (attempt == 0) choice->match = device->find_${family}(p, &found);
    else if (attempt == 1) device->default_${family}(p, &found);
    else found = autotune_${family}_kernels[0].configuration;
    autotune_plan_${family}(p, &found, plan);
    for (number = ${macro}_KERNELS - 1; number >= 0; number--) {
        const struct autotune_${family}_kernel *const kernel = &autotune_${family}_kernels[number];
        if (!(${same_kind})) continue;
        if (memcmp(&kernel->configuration, &found, sizeof found) != 0) continue;
        choice->source = autotune_${family}_variants[number][plan->variant];
        *options = kernel->options;
        return;
    }
}

static int autotune_${family}_complete_any(union autotune_problem *problem) {
    return autotune_${family}_complete(&problem->${family});
}

static int autotune_${family}_is_same_any(const union autotune_problem *one, const union autotune_problem *other) {
    return autotune_${family}_is_same(&one->${family}, &other->${family});
}

static const struct autotune_family autotune_family_${family} = {
    autotune_${family}_complete_any, autotune_${family}_is_same_any, autotune_${family}_choose_kernel
};

enum autotune_status autotune_${family}_prepare(
        struct autotune_library *library, const struct autotune_${family}_problem *problem) {
    union autotune_problem p;
    p.${family} = *problem;
    return prepare_problem(library, &autotune_family_${family}, &p);
}

enum autotune_status autotune_${family}_choose(
        struct autotune_library *library, const struct autotune_${family}_problem *problem,
        struct autotune_choice *choice) {
    union autotune_problem p;
    p.${family} = *problem;
    return choose_problem(library, &autotune_family_${family}, &p, choice);
}

enum autotune_status autotune_${family}(
        struct autotune_library *library, cl_command_queue queue, const struct autotune_${family}_problem *problem,
        ${parameters}, cl_event *event) {
    const double scalars[] = {${scalars}};
    cl_mem operands[${operand_count}];
    union autotune_problem p;
    p.${family} = *problem;
${operands}
    return run_problem(library, &autotune_family_${family}, &p, queue, scalars, operands, event);
}
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
    families = sorted(tables)
    if not any(tables[name] for name in families):
        raise TableError("nothing is stored to export", hint="tune something with autotune run first")
    devices = [table.device for table in tables[families[0]]]
    check_distinct(device.slug for device in devices)
    library = data_folder("templates") / "c"
    files = {path.name: path.read_text(encoding="ascii") for path in sorted(library.glob("*.[ch]"))}
    for name in families:
        files[f"autotune_{name}.h"] = write_c(list(tables[name]), name)
    files["autotune_families.h"] = _families(list(map(Writer, map(find_family, families))))
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


def _families(writers: Sequence[Writer]) -> str:
    names, plans = [writer.family.name for writer in writers], [writer.rules.plan for writer in writers]
    return _FAMILIES.substitute(
        buffers=max(len(plan.buffers) for plan in plans),
        launches=max(len(plan.launches) for plan in plans),
        arguments=max(len(parts_of(launch.arguments)) for plan in plans for launch in plan.launches),
        includes="".join(f'#define AUTOTUNE_HAS_{name.upper()} 1\n#include "autotune_{name}.h"\n' for name in names),
        problems="\n".join(f"    struct autotune_{name}_problem {name};" for name in names),
        calls="\n".join(
            _CALLS.substitute(family=w.family.name, about=w.rules.about, parameters=_parameters(w.rules.plan))
            for w in writers
        ),
    )


def _parameters(plan: PlanFormula) -> str:
    return ", ".join([*(f"double {name}" for name in plan.scalars), *(f"cl_mem {name}" for name in operands_of(plan))])


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
        self._writer = Writer(family)
        self._plan = self._writer.rules.plan
        self._rendered: dict[object, int] = {}

    def to_c(self) -> str:
        kernels, variants = [], []
        operands = operands_of(self._plan)
        kind_fields = self._writer.rules.kind
        for configuration in self._configurations():
            for example in self._kinds():
                found = self._sources(configuration, example)
                if not found:
                    continue
                kind = "".join(f"{self._writer.literal(getattr(example, field))}, " for field in kind_fields)
                options = quoted(" ".join(self._options(configuration, example)))
                kernels.append(f'    {{{self._writer.configuration(configuration)}, {kind}"{options}"}}')
                row = (found.get(number, _NO_SOURCE) for number in range(self._plan.variant_count))
                variants.append(f"    {{\n{numbers(row)}}}")
        return _FAMILY.substitute(
            family=self._family.name,
            macro=self._writer.macro,
            kind="\n".join(f"    {self._writer.type_of(field, 'long long')} {field};" for field in kind_fields),
            count=len(kernels),
            kernels=",\n".join(kernels),
            variants=self._plan.variant_count,
            table=",\n".join(variants),
            planner=self._writer.planner(),
            same_kind=" && ".join(f"kernel->{field} == p->{field}" for field in kind_fields) or "1",
            parameters=_parameters(self._plan),
            scalars=", ".join(self._plan.scalars) or "0.0",
            operand_count=len(operands),
            operands="\n".join(f"    operands[{number}] = {name};" for number, name in enumerate(operands)),
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
        examples = [self._writer.plain, *(w.problem for table in self._tables for w in table.winners)]
        return list({example.kind: example for example in examples}.values())

    def _sources(self, configuration: Configuration, example: Problem) -> dict[int, int]:
        """Return source numbers by variant; empty if the configuration cannot run this kind of problem at all."""
        found: dict[int, int] = {}
        for problem in self._samples(configuration, example):
            number = self._plan.variant_of(problem, configuration)
            if number in found:
                continue
            plan = self._family.plan(problem, configuration)
            values = dict(plan.template_values)
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
        yield from self._writer.rules.samples(configuration, example)

    def _of_kind(self, values: Mapping[str, object]) -> list[str]:
        rules = self._writer.rules
        derived = [name for name in values if name not in self._writer.fields]
        return [*rules.kind, *derived]

    def _options(self, configuration: Configuration, example: Problem) -> tuple[str, ...]:
        options = self._family.plan(example, configuration).build_options
        # Macros (-D) depend on the sizes: the library adds them.
        return tuple(option for option in options if not option.startswith("-D"))
