"""Render kernels and exported C from templates, and identify the templates. The only module that imports Jinja2."""

import dataclasses
import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import Any

from jinja2 import BaseLoader, DictLoader, Environment, FileSystemLoader, StrictUndefined, Template, TemplateError
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.meta import find_referenced_templates, find_undeclared_variables
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from autotune import __version__
from autotune.errors import BuildError, ConfigurationError, UsageError
from autotune.kernels import family_names, find_family
from autotune.model.configuration import Configuration, Value
from autotune.model.device import Device, DeviceLimits, Fault
from autotune.model.plan import Plan
from autotune.model.trial import Job, Measurement, Provenance, Trial, now_utc
from autotune.paths import data_folder
from autotune.space.family import KernelFamily

MOST_STEPS, MOST_CHARACTERS = 500_000, 8 * 2**20
"""Limits of rendering a template of a stranger: lines of it that are run, and characters of the source."""
MOST_MEMORY_BYTES = 512 * 2**20
"""Memory that a template of a stranger may take, where the system can limit it (Linux)."""
_rendering = Lock()
FILTERS = ("abs", "default", "int", "join", "length", "list", "lower", "max", "min", "string", "sum", "upper")
"""Filters that templates of strangers may use."""
FORMAT = 2
"""Version of the messages: a service and a worker that differ in it refuse each other.

Increased with every change that `code_version` does not see: it covers the names of the fields of _SENT.
"""

_SENT = (Job, Trial, Measurement, Device, DeviceLimits, Fault)


def render(family: KernelFamily, configuration: Configuration, plan: Plan) -> str:
    """Return the OpenCL C source of all kernels of a plan.

    The template sees the values of the configuration and of `plan.template_values`: integers, and strings declared
    by the family. Raises BuildError when rendering fails.
    """
    values = {**dict(configuration.values), **dict(plan.template_values)}
    return render_text(family, family.template_name(configuration.algorithm), values)


def render_text(family: KernelFamily, name: str, values: Mapping[str, Value]) -> str:
    """Return the text of one of the family's templates. Raises BuildError when rendering fails."""
    try:
        template = _environment(family).get_template(name)
        return template.render(values) if family.is_trusted else _render_bounded(template, values)
    except TemplateError as error:
        raise BuildError(f"{_described(family, _algorithm_of(name))} failed: {error}") from error


def _render_bounded(template: Template, values: Mapping[str, Value]) -> str:
    """Render a template of a stranger: raises TemplateError when it takes too many steps or gives too much text."""
    steps = 0

    def count(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal steps
        steps += event == "line"
        if steps > MOST_STEPS:
            raise SecurityError(f"it takes more than {MOST_STEPS} steps")
        return count

    parts: list[str] = []
    left = MOST_CHARACTERS
    before = sys.gettrace()
    sys.settrace(count)
    try:
        with _memory_bounded():
            for part in template.generate(values):
                left -= len(part)
                if left < 0:
                    raise SecurityError(f"it gives more than {MOST_CHARACTERS} characters")
                parts.append(part)
    except MemoryError as error:
        raise SecurityError(f"it needs more than {MOST_MEMORY_BYTES // 2**20} MiB of memory") from error
    except (ArithmeticError, TypeError, ValueError) as error:
        raise SecurityError(str(error)) from error
    finally:
        sys.settrace(before)
    return "".join(parts)


@contextmanager
def _memory_bounded() -> Iterator[None]:
    """Make allocations beyond the limit raise MemoryError, one template at a time, since the limit is the process's."""
    size = Path("/proc/self/statm")
    if not size.exists():
        yield
        return
    import resource

    with _rendering:
        before, most = resource.getrlimit(resource.RLIMIT_AS)
        limit = int(size.read_text().split()[0]) * resource.getpagesize() + MOST_MEMORY_BYTES
        limits = [limit, *(given for given in (before, most) if given != resource.RLIM_INFINITY)]
        resource.setrlimit(resource.RLIMIT_AS, (min(limits), most))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (before, most))


@cache
def template_hash(family: KernelFamily, algorithm: str) -> str:
    """Return a hash (12 hexadecimal digits) of a template and all its imports: it changes when the kernels may."""
    digest = hashlib.sha256()
    for name in _templates(family, algorithm):
        digest.update(f"{name}\0{family.templates[name]}\0".encode())
    return digest.hexdigest()[:12]


@cache
def names_read(family: KernelFamily, algorithm: str) -> frozenset[str]:
    """Return the names that the source may depend on: configurations with equal values for them share a source."""
    return frozenset().union(*(_undeclared(family, name) for name in _templates(family, algorithm)))


@cache
def _undeclared(family: KernelFamily, name: str) -> frozenset[str]:
    return frozenset(find_undeclared_variables(_parsed(family, name)))


@cache
def _referenced(family: KernelFamily, name: str) -> list[str]:
    return sorted(n for n in find_referenced_templates(_parsed(family, name)) if n)


def _parsed(family: KernelFamily, name: str) -> Any:
    """Return the syntax tree of a template. Raises UsageError for one that is not Jinja2."""
    try:
        return _environment(family).parse(family.templates[name])
    except TemplateSyntaxError as error:
        raise UsageError(f"template of {_algorithm_of(name)}, line {error.lineno}: {error.message}") from error


def _algorithm_of(name: str) -> str:
    """Return the algorithm whose template has this name."""
    return name.partition(".")[0].rpartition("/")[2]


def _described(family: KernelFamily, algorithm: str) -> str:
    return f"template of {family.name}" + (f" {algorithm}" if algorithm != family.name else "")


def _templates(family: KernelFamily, algorithm: str) -> list[str]:
    """Return the names of an algorithm's template and of all its direct and indirect imports, each once."""
    found: list[str] = []
    pending = [family.template_name(algorithm)]
    while pending:
        name = pending.pop(0)
        if name not in found:
            found.append(name)
            pending += _referenced(family, name)
    return found


def render_c(name: str, **values: object) -> str:
    """Return a C file of an export from its template ``templates/c/<name>.j2``."""
    return _c_environment().get_template(f"{name}.j2").render(values)


def render_file(name: str, **values: object) -> str:
    """Return OpenCL C from a template of no family, ``templates/<name>``."""
    return _environment_of(FileSystemLoader(data_folder("templates"))).get_template(name).render(values)


@cache
def _environment(family: KernelFamily) -> Environment:
    return _environment_of(DictLoader(family.templates), Environment if family.is_trusted else _Sandbox)


@cache
def _c_environment() -> Environment:
    return _environment_of(FileSystemLoader(data_folder("templates") / "c"))


class _Sandbox(ImmutableSandboxedEnvironment):
    """Templates of strangers: no attributes of Python, arithmetic of numbers only, few filters."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.filters = {name: self.filters[name] for name in FILTERS}

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if not (isinstance(left, int) and isinstance(right, int)):
            raise SecurityError(f"{operator} needs two numbers")
        if operator == "**" and not (abs(left) <= 2**31 and 0 <= right <= 31):
            raise SecurityError(f"{left} ** {right} is too large")
        found = super().call_binop(context, operator, left, right)
        if abs(found) > 2**63:
            raise SecurityError("a number is too large")
        return found


def _environment_of(loader: BaseLoader, kind: type[Environment] = Environment) -> Environment:
    return kind(
        loader=loader,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        keep_trailing_newline=True,
    )


def changes(made: Provenance, family: KernelFamily, configuration: Configuration, driver: str) -> list[str]:
    """Return what has changed since a measurement: any of `driver`, `template` and `space`; empty if nothing has.

    An algorithm that the family no longer has counts as a change of `space`.
    """
    found = ["driver"] if made.driver != driver else []
    try:
        family.algorithm(configuration.algorithm)
    except ConfigurationError:
        return [*found, "space"]
    if made.template_hash != template_hash(family, configuration.algorithm):
        found.append("template")
    return [*found, "space"] if made.space_version != family.space_version else found


def provenance_now(device: Device, family: KernelFamily, configuration: Configuration) -> Provenance:
    """Return the provenance of something that the device has just measured."""
    return Provenance(
        driver=device.driver,
        template_hash=template_hash(family, configuration.algorithm),
        space_version=family.space_version,
        tool_version=__version__,
        measured_at=now_utc(),
    )


@cache
def code_version() -> str:
    """Return a digest of the message format, the templates and the search spaces.

    A service and a worker with the same digest measure the same thing. The version of autotune is not part of it, since
    most changes do not affect what is measured.
    """
    fields = [[field.name for field in dataclasses.fields(kind)] for kind in _SENT]
    digest = hashlib.sha256(f"{FORMAT} {fields} ".encode())
    for name in family_names():
        family = find_family(name)
        hashes = [template_hash(family, algorithm.name) for algorithm in family.algorithms]
        digest.update(f"{name} {family.space_version} {hashes}".encode())
    return f"{FORMAT}-{digest.hexdigest()[:12]}"
