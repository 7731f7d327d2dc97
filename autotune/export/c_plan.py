"""The planner of a family in C: a function for each algorithm, printed from the family's `PlanFormula`."""

import ast
from collections.abc import Callable, Iterator

from autotune.errors import UsageError
from autotune.export.c_family import FamilyInC
from autotune.model.configuration import Value
from autotune.model.problem import ELEMENT_TYPES
from autotune.space.expression import Expression
from autotune.space.family import Algorithm
from autotune.space.plan_formula import BufferFormula, LaunchFormula, parts_of

_ORDERS = {4: "CL_RGBA", 2: "CL_RG", 1: "CL_R"}
"""OpenCL's names for pixels of so many numbers."""


class AlgorithmPlanner:
    """Prints the plan of one algorithm, without what the algorithm never needs."""

    def __init__(self, c: FamilyInC, algorithm: Algorithm) -> None:
        self._c = c
        self._algorithm = algorithm
        self._formula = formula = c.rules.plan
        self._known: dict[str, Value] = {n: v for n, v in formula.absent.items() if n not in algorithm.by_name}
        self._known["algorithm"] = algorithm.name
        self._derived: dict[str, Expression] = {}
        for derived, text in formula.names.items():
            expression = self._read(text)
            tree = _tree(expression)
            if isinstance(tree, ast.Constant):
                assert isinstance(tree.value, int | str)
                self._known[derived] = tree.value
            else:
                self._derived[derived] = expression
        self._used: set[str] = set()

    def body(self) -> str:
        """Return the statements of a function with the parameters `p`, `c` and `plan`."""
        formula = self._formula
        launches = [line for launch in formula.launches for line in self._launch(launch)]
        # What refers to a name comes after it, so the names in use are known from back to front.
        buffers = [line for buffer in reversed(formula.buffers) for line in self._buffer(buffer)]
        last = [f"plan->variant = (int){self._number(formula.variant_number)};"]
        if self._c.constants:
            last.append(f"plan->packing = (int){self._number(self._c.rules.packing)};")
        if formula.scalars:
            whole = self._result(formula.scalar_dtype, {"int32": "1", "float32": "0"}.__getitem__)
            last.append(f"plan->scales_are_whole = {whole};")
        names = [
            f"const long long {name} = {self._print(expression)};"
            for name, expression in reversed(self._derived.items())
            if name in self._used
        ]
        held = [
            f"int {_variable(name)} = -1;"
            for name in dict.fromkeys(b.name for b in formula.buffers)
            if _variable(name) in self._used
        ]
        lines = [
            *reversed(names),
            *held,
            "struct autotune_launch *launch;",
            "(void)p, (void)c;",
            *reversed(buffers),
            *launches,
            *last,
        ]
        return "".join(f"    {line}\n" for line in lines)

    def _buffer(self, buffer: BufferFormula) -> Iterator[str]:
        when = self._read(buffer.when)
        if _is_never(when):
            return
        elements, width, height = buffer.sizes
        if buffer.image:
            view = _variable(buffer.view_of) if buffer.view_of else "-1"
            pitch = f"{self._bytes(buffer)} * {self._number(buffer.row_pitch)}" if buffer.view_of else "0"
            pixels = self._result(buffer.dtype, lambda dtype: f"CL_{ELEMENT_TYPES[dtype].channel}")
            sizes = f"{self._number(width)}, {self._number(height)}"
            form = f"{_ORDERS[buffer.channels]}, {pixels}, {int(buffer.is_line)}"
            made = f"autotune_add_image(plan, {view}, {sizes}, {form}, {pitch})"
            self._used.add(view)
        elif buffer.name in self._c.packed:
            made = f"autotune_add_packed(plan, {self._bytes(buffer)} * {self._number(elements)})"
        else:
            operand = self._c.operands.index(buffer.name) if buffer.name in self._c.operands else -1
            size = f"{self._bytes(buffer)} * {self._number(elements)}"
            made = f"autotune_add_buffer(plan, {operand}, {size}, {int(buffer.is_zeroed)})"
        kept = f"{_variable(buffer.name)} = " if _variable(buffer.name) in self._used else ""
        yield f"{self._if(when)}{kept}{made};"

    def _launch(self, launch: LaunchFormula) -> Iterator[str]:
        when = self._read(launch.when)
        if _is_never(when):
            return
        sizes = parts_of(launch.global_size)
        indent = "" if _is_always(when) else "    "
        if indent:
            yield f"{self._if(when)}{{"
        yield f'{indent}launch = autotune_add_launch(plan, "{launch.kernel}", {len(sizes)}, {self._three(sizes)});'
        local = self._read(launch.local_when)
        if launch.local_size and not _is_never(local):
            size = self._three(parts_of(launch.local_size))
            yield f"{indent}{self._if(local)}autotune_set_local_size(launch, {size});"
        for argument in parts_of(launch.arguments):
            yield f"{indent}{self._argument(argument)}"
        if self._c.packs(launch):
            yield f"{indent}launch->packs = 1;"
        if indent:
            yield "}"

    def _argument(self, text: str) -> str:
        if text in self._formula.scalars:
            return f"autotune_pass(launch, AUTOTUNE_IS_SCALAR, {list(self._formula.scalars).index(text)});"
        if text in self._formula.arguments:
            return f"autotune_pass_local(plan, launch, {self._number(self._local_bytes(text))});"
        if not _is_text(_tree(self._read(text))):
            return f"autotune_pass_number(plan, launch, {self._number(text)});"

        def held(buffer: str) -> str:
            self._used.add(_variable(buffer))
            return _variable(buffer)

        return f"autotune_pass(launch, AUTOTUNE_IS_BUFFER, {self._result(text, held)});"

    def _local_bytes(self, name: str) -> str:
        """Return the bytes of local memory that an argument is. Raises UsageError for any other."""
        argument = self._formula.arguments[name]
        if argument.dtype:
            raise UsageError(f"the scalar {name} of type {argument.dtype} has no equivalent in C")
        return str(argument.value)

    def _three(self, texts: list[str]) -> str:
        return ", ".join([*map(self._number, texts), *["1"] * (3 - len(texts))])

    def _bytes(self, buffer: BufferFormula) -> str:
        return self._result(buffer.dtype, lambda dtype: f"{ELEMENT_TYPES[dtype].size_bytes}LL")

    def _if(self, condition: Expression) -> str:
        return "" if _is_always(condition) else f"if ({self._print(condition)}) "

    def _number(self, text: str) -> str:
        return self._print(self._read(text))

    def _result(self, text: str, result: Callable[[str], str]) -> str:
        return self._read(text).to_c(self._spell, self._c.word, result)

    def _print(self, expression: Expression) -> str:
        return expression.to_c(self._spell, self._c.word)

    def _spell(self, name: str) -> str:
        self._used.add(name)
        if name in self._derived:
            return name
        meaning = self._c.meaning(name, self._algorithm.by_name, {})
        return f"({meaning})" if " " in meaning else meaning

    def _read(self, text: str) -> Expression:
        return Expression(text).given(self._known)


def _variable(buffer: str) -> str:
    return f"buffer_{buffer}"


def _tree(expression: Expression) -> ast.expr:
    return ast.parse(expression.text, mode="eval").body


def _is_text(tree: ast.expr) -> bool:
    if isinstance(tree, ast.IfExp):
        return _is_text(tree.body)
    return isinstance(tree, ast.Constant) and isinstance(tree.value, str)


def _is_never(condition: Expression) -> bool:
    return condition.text in ("False", "0")


def _is_always(condition: Expression) -> bool:
    return condition.text in ("True", "1")
