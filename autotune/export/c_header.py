"""The C99 header: tables, models and their search, with the same answers as `TuningTable.find`.

Siblings and other devices of the same vendor are searched for among the devices of the header.

Everything is static and inside functions, so that the header may be included from anywhere, C++ too, without warnings
about unused names. Of several included headers, one for each device, the types come from the first.
"""

import dataclasses
import re
import zlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from autotune.device.profile import find_profile
from autotune.errors import TableError, UsageError
from autotune.export import c_predict
from autotune.export.c_index import hash_statements, slots
from autotune.export.c_plan import AlgorithmPlanner
from autotune.export.c_text import (
    CANDIDATES,
    DEVICE,
    EXACT,
    MATCH,
    NEAREST,
    OWN_SEARCH,
    OWN_STEP,
    PLANNER,
    RELATIVE_STEP,
    SEARCH,
    SHARED,
    TABLE,
    TYPES,
    VALID,
)
from autotune.export.contents import DeviceTable, plain_part
from autotune.export.text_tables import parameter_names
from autotune.kernels import find_family
from autotune.lookup.answer import MAX_FACTOR
from autotune.lookup.chain import relatives
from autotune.model.configuration import Configuration, Value
from autotune.model.device import Device, DeviceLimits, Fault
from autotune.model.problem import Problem
from autotune.space.expression import Expression
from autotune.space.family import Algorithm, KernelFamily


def write_c(tables: list[DeviceTable], family: str) -> str:
    """Return a header with a function `autotune_find_<family>_<device>` for each device.

    Raises UsageError when the family has no C export, TableError when two devices have one name in C.
    """
    writer = Writer(find_family(family))
    check_distinct(table.device.slug for table in tables)
    left_out = sum(len(table.winners) - len(plain_part(table).winners) for table in tables)
    tables = [plain_part(table) for table in tables]
    name = identifier(tables[0].device.slug) if len(tables) == 1 else "tables"
    guard = f"AUTOTUNE_{family}_{name}_H".upper()
    parts = [
        "/* Tuned configurations of OpenCL kernels, written by autotune. Do not edit: export again. */",
        *([f"/* Left out: {left_out} tuned with constant operands, which C code cannot ask for. */"] * bool(left_out)),
        f"#ifndef {guard}\n#define {guard}\n",
        MATCH,
        writer.types(),
        *([writer.models()] if any(table.predictors for table in tables) else []),
        *(writer.measured(table) for table in tables),
        *(writer.device(table, tables) for table in tables),
        f"#endif /* {guard} */\n",
    ]
    return "\n".join(parts)


def check_distinct(names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(identifier(name), name)
        if other != name:
            raise TableError(f"{other} and {name} have the same name in C", hint="export one device at a time")


def identifier(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", text.lower())


def _comment(text: str) -> str:
    """Replace characters that could end a comment, start another, or splice lines."""
    return re.sub(r"[^A-Za-z0-9 .,:;()+_=@#-]", "_", text)


def _is_measured(table: DeviceTable) -> bool:
    return bool(table.winners or table.predictors)


class Writer:
    """Generates the C text of one kernel family; `prefix` and `macro` begin its names.

    Raises UsageError when the family has no C export.
    """

    def __init__(self, family: KernelFamily) -> None:
        if family.c_export is None:
            raise UsageError(f"{family.name} cannot be exported to C", hint="export it to JSON")
        self.family = family
        self.rules = rules = family.c_export
        self.sizes = family.problem_type.size_axes
        self.prefix = f"autotune_{family.name}"
        self.macro = self.prefix.upper()
        fields = [field for field in dataclasses.fields(family.problem_type) if field.default != ""]  # see plain_part
        self.defaults: dict[str, Value] = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
        self.fields = [f.name for f in fields]
        self.needed = [name for name in self.fields if name not in self.defaults]
        self.parameters = parameter_names(family)
        known = {*self.fields, *DeviceLimits().constraint_values()}
        self.numbers = sorted(name for name in rules.estimate.names - known if not self._derived(name))
        declared = [p for algorithm in family.algorithms for p in algorithm.parameters]
        self.texts = {p.name for p in declared if not p.is_numeric} | rules.words.keys()
        words = {word for values in rules.words.values() for word in values}
        words |= {value for p in declared for value in p.values if isinstance(value, str)}
        self.words = sorted(words)
        check_distinct(self.words)

    def types(self) -> str:
        """Return types, and the functions shared by all devices. A checksum detects headers of other versions."""
        text = SHARED.substitute(
            prefix=self.prefix,
            macro=self.macro,
            algorithms=",\n".join(
                f"    {self._algorithm(a.name)} = {number}" for number, a in enumerate(self.family.algorithms, 1)
            ),
            words=",\n".join(f"    {self.word(word)} = {number}" for number, word in enumerate(self.words, 1)),
            fields="\n".join(f"    {self.type_of(name, 'long long')} {name};" for name in self.fields),
            parameters="\n".join(f"    {self.type_of(name, 'int')} {name};" for name in self.parameters),
            numbers="\n".join(f"    long long {name};" for name in self.numbers),
            complete=self._complete(),
            same=" && ".join(f"a->{name} == b->{name}" for name in self.fields),
            hash=hash_statements(self.sizes),
            same_kind=" && ".join(f"a->{name} == b->{name}" for name in self.rules.kind) or "1",
            ratios="\n".join(f"    distance *= {self.prefix}_ratio(a->{name}, b->{name});" for name in self.sizes),
        )
        return TYPES.substitute(macro=self.macro, checksum=f"0x{zlib.crc32(text.encode()):08x}", text=text)

    def _complete(self) -> str:
        """Return statements that fill in the fields of ``*p`` that are 0, and return 0 for an invalid problem."""
        lines = [
            f"if ({' && '.join(f'p->{name} != {self.word(word)}' for word in words)}) return 0;"
            for name, words in self.rules.words.items()
        ]
        for name, text in self.rules.least.items():
            least = self._of_problem(Expression(text))
            if self.defaults.get(name) == 0:
                lines.append(f"if (p->{name} == 0) p->{name} = {least};")
            lines.append(f"if (p->{name} < {least} || p->{name} > 2147483647LL) return 0;")
        conditions = [self._of_problem(Expression(text)) for text in self.rules.conditions]
        lines.append(f"return {' && '.join(conditions) or '1'};")
        return "".join(f"    {line}\n" for line in lines)

    def _of_problem(self, expression: Expression, number: str = "p->{}") -> str:
        """Return an expression over the fields in C; `number` spells a field that is not a text."""
        return expression.to_c(
            lambda name: f"p->{name}" if name in self.rules.words else number.format(name), self.word
        )

    def planner(self) -> str:
        """Return a function that plans any configuration for a problem, for the library alone."""
        parts, cases = [], []
        for algorithm in self.family.algorithms:
            body = AlgorithmPlanner(self.rules.plan, algorithm, self._meaning_of(algorithm), self.word).body()
            name = f"{self.prefix}_plan_{identifier(algorithm.name)}"
            parts.append(PLANNER.substitute(name=name, prefix=self.prefix, body=body))
            cases.append(f"    case {self._algorithm(algorithm.name)}: {name}(p, c, plan); break;\n")
        body = f"    memset(plan, 0, sizeof *plan);\n    switch (c->algorithm) {{\n{''.join(cases)}    }}\n"
        return "\n".join(
            [*parts, PLANNER.substitute(name=f"autotune_plan_{self.family.name}", prefix=self.prefix, body=body)]
        )

    def _meaning_of(self, algorithm: Algorithm) -> Callable[[str], str]:
        def spell(name: str) -> str:
            meaning = self._meaning(name, algorithm.by_name, {})
            return f"({meaning})" if " " in meaning else meaning

        return spell

    def models(self) -> str:
        """Return the text that the predictors of all devices share."""
        return c_predict.shared(self.prefix, self.macro)

    def measured(self, table: DeviceTable) -> str:
        """Return the check for valid configurations on a device, and the search of its measurements and predictors."""
        device = table.device
        names = self._names(device.slug)
        limits = device.limits.constraint_values()
        valid = VALID.substitute(
            names,
            title=_comment(f"{device.slug}: {device.vendor} {device.model}, driver {device.driver}"),
            cases="".join(
                self._case(algorithm, limits, self.family.faults(device.limits)) for algorithm in self.family.algorithms
            ),
        )
        return f"{valid}\n{self._search(table, names)}" if _is_measured(table) else valid

    def _search(self, table: DeviceTable, names: Mapping[str, str]) -> str:
        functions, uses, far = [], [], []
        for number, predictor in enumerate({p.example.kind: p for p in table.predictors}.values()):
            same = (f"p->{field} == {self.literal(getattr(predictor.example, field))}" for field in self.rules.kind)
            condition = " && ".join(same) or "1"
            if predictor.favours == "default":
                uses.append(c_predict.decline(condition))
            if predictor.favours == "nearest":
                far.append(f"    if (is_own && {condition}) farthest = 1e300;\n")
            if predictor.favours != "predicted":
                continue
            if predictor.left_to_default:
                ones = " || ".join(f"p->{self.sizes[axis]} == 1" for axis in predictor.left_to_default)
                uses.append(c_predict.decline(f"{condition} && ({ones})"))
            name = f"{self.prefix}_rank_{names['device']}_{number}"
            functions.append(
                c_predict.ranking_function(
                    predictor, name, self.prefix, self.sizes, self._of_problem(self.rules.bytes_moved, "(double)p->{}")
                )
            )
            uses.append(c_predict.use(predictor, name, self.prefix, condition, self.configuration, self._multiples))
        search = SEARCH.substitute(names, predicted="".join(uses), **self._of_winners(table, names, "".join(far)))
        return "\n".join([*functions, search])

    def _of_winners(self, table: DeviceTable, names: Mapping[str, str], far: str) -> dict[str, str]:
        if not table.winners:
            return dict.fromkeys(("table", "exact", "nearest"), "")
        found = slots([winner.problem.size_vector for winner in table.winners])
        lines = [", ".join(map(str, found[start : start + 32])) for start in range(0, len(found), 32)]
        numbers = {**names, "count": len(table.winners), "last_slot": len(found) - 1, "far": far}
        return {
            "table": TABLE.substitute(
                names, factor=MAX_FACTOR, entries=self._entries(table), slots=",\n        ".join(lines)
            ),
            "exact": EXACT.substitute(numbers),
            "nearest": NEAREST.substitute(numbers),
        }

    def device(self, table: DeviceTable, others: Sequence[DeviceTable]) -> str:
        """Return the functions that answer for one device; they may use measurements of the `others`."""
        device = table.device
        names = self._names(device.slug)
        limits = device.limits.constraint_values()
        candidates = self.candidates(device)
        return DEVICE.substitute(
            names,
            meanings="".join(
                f"    const long long {name} = {self._meaning(name, self.numbers, limits)};\n"
                for name in sorted(self.rules.estimate.names)
            ),
            estimate=self.rules.estimate.to_c(lambda name: name, self.word),
            baseline=self.configuration(self.family.baseline),
            candidates=CANDIDATES.substitute(
                names,
                candidates=",\n".join(f"        {self._candidate(*candidate)}" for candidate in candidates.items()),
                count=len(candidates),
            )
            if candidates
            else "    (void)p;\n    *configuration = baseline;\n",
            searches=self._searches(table, others, names),
            arguments=", ".join(f"long long {name}" for name in self.needed),
            plain_problem=", ".join(
                name if name in self.needed else self.literal(self.defaults[name]) for name in self.fields
            ),
        )

    def candidates(self, device: Device) -> Mapping[Configuration, Mapping[str, int]]:
        """Return the declared candidates for a device's default, each with its numbers for the estimate."""
        starts = find_profile(device).starting(self.family.name)
        known = self.rules.candidates(tuple(starts), device.limits)
        faults = self.family.faults(device.limits)
        return {
            configuration: numbers
            for configuration, numbers in known.items()
            if not self.family.misfits(configuration) and not any(fault.matches(configuration) for fault in faults)
        }

    def _names(self, slug: str) -> dict[str, str]:
        return {
            "prefix": self.prefix,
            "find": f"autotune_find_{self.family.name}",
            "device": identifier(slug),
        }

    def _searches(self, table: DeviceTable, others: Sequence[DeviceTable], names: Mapping[str, str]) -> str:
        """Return the search of what was measured on the device itself, then on its relatives."""
        known = {**names, "units": str(table.device.limits.compute_units)}
        steps = OWN_STEP.substitute(known) if _is_measured(table) else ""
        by_slug = {other.device.slug: other for other in others}
        devices = {slug: other.device for slug, other in by_slug.items()}
        found = [
            (match, device.slug)
            for match, device in relatives(table.device, sorted(devices), devices.get)
            if _is_measured(by_slug[device.slug])
        ]
        for match, slug in found:
            steps += RELATIVE_STEP.substitute(
                known,
                declined="!declined && " if _is_measured(table) else "",
                other=identifier(slug),
                match=match.name,
            )
        if not steps:
            return ""
        variables = ["declined"] * _is_measured(table) + ["theirs"] * bool(found)
        return OWN_SEARCH.substitute(variables=", ".join(f"{name} = 0" for name in variables), steps=steps)

    def _case(self, algorithm: Algorithm, limits: Mapping[str, int], faults: Sequence[Fault]) -> str:
        names = sorted({name for constraint in algorithm.constraints for name in constraint.condition.names})
        lines = [
            f"        const long long {name} = {self._meaning(name, algorithm.by_name, limits)};\n" for name in names
        ]
        conditions = [c.condition.to_c(lambda name: name, self.word) for c in algorithm.constraints]
        conditions += [self._without(fault) for fault in faults if self._concerns(fault, algorithm)]
        joint = "\n            && ".join(conditions) or "1"
        return f"    case {self._algorithm(algorithm.name)}: {{\n{''.join(lines)}        return {joint};\n    }}\n"

    def _concerns(self, fault: Fault, algorithm: Algorithm) -> bool:
        known = algorithm.by_name.get(fault.parameter)
        has_value = known is not None and fault.value in known.values
        return fault.algorithm in ("", algorithm.name) and (has_value or not fault.parameter)

    def _without(self, fault: Fault) -> str:
        return f"c->{fault.parameter} != {self.literal(fault.value)}" if fault.parameter else "0"

    def _multiples(self, configuration: Configuration) -> str:
        """Return a C condition: the divisibility that the constraints require of the problem alone."""
        given = dict(configuration.values)
        constraints = self.family.algorithm(configuration.algorithm).constraints
        known = [c.condition.given(given) for c in constraints if "%" in c.condition.text]
        asked = [condition for condition in known if condition.names and condition.names <= set(self.fields)]
        return " && ".join(map(self._of_problem, asked)) or "1"

    def _meaning(self, name: str, chosen: Container[str], limits: Mapping[str, int]) -> str:
        """Return a name in C; `chosen` are members of ``*c``. Looked up in the order of `KernelFamily.violations`."""
        if name in chosen:
            return f"c->{name}"
        if name in self.fields:
            return f"p->{name}"
        derived = self._derived(name)
        if derived:
            return derived
        if name not in limits:
            raise TableError(f"{self.family.name} uses {name!r}, which has no equivalent in C")
        return f"{limits[name]}LL"

    def _candidate(self, configuration: Configuration, numbers: Mapping[str, int]) -> str:
        return f"{{{self.configuration(configuration)}, {', '.join(str(numbers[name]) for name in self.numbers)}}}"

    def _derived(self, name: str) -> str:
        """Return C for a value that follows from one text field, such as the bytes of an element; empty for others."""
        found = ""
        for field, words in self.rules.words.items():
            values = {word: self._example(field, word).constraint_values().get(name) for word in words}
            if None in values.values():
                return ""
            if not found or len(set(values.values())) > 1:
                *tested, last = words
                found = "".join(f"p->{field} == {self.word(word)} ? {values[word]} : " for word in tested)
                found += str(values[last])
        return found

    @property
    def plain(self) -> Problem:
        """A problem of the kind that is in every package."""
        return self.family.problem_type.from_dict(dict.fromkeys(self.needed, 1))

    def _example(self, field: str, word: str) -> Problem:
        return self.family.problem_type.from_dict({**dict.fromkeys(self.needed, 1), field: word})

    def _entries(self, table: DeviceTable) -> str:
        rows = [
            "{" + ", ".join(self.literal(value) for value in winner.problem.to_dict().values()) + "},\n"
            f"             {self.configuration(winner.configuration)}"
            for winner in table.winners
        ]
        return ",\n".join(f"            {{{row}}}" for row in rows)

    def configuration(self, configuration: Configuration) -> str:
        chosen = dict(configuration.values)
        none = {name: f"{self.macro}_NO_WORD" if name in self.texts else "0" for name in self.parameters}
        values = [self.literal(chosen[name]) if name in chosen else none[name] for name in self.parameters]
        return "{" + ", ".join([self._algorithm(configuration.algorithm), *values]) + "}"

    def type_of(self, name: str, number: str) -> str:
        return f"enum {self.prefix}_word" if name in self.texts else number

    def word(self, text: str) -> str:
        return f"{self.macro}_{identifier(text).upper()}"

    def _algorithm(self, name: str) -> str:
        return f"{self.macro}_ALGORITHM_{identifier(name).upper()}"

    def literal(self, value: Value) -> str:
        return self.word(value) if isinstance(value, str) else str(value)
