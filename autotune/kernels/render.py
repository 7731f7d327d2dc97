"""Render kernels and exported C from templates, and identify the templates. The only module that imports Jinja2."""

import hashlib
from functools import cache

from jinja2 import BaseLoader, DictLoader, Environment, FileSystemLoader, StrictUndefined, TemplateError
from jinja2.meta import find_referenced_templates, find_undeclared_variables

from autotune import __version__
from autotune.errors import BuildError, ConfigurationError
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.plan import Plan
from autotune.model.trial import Provenance, now_utc
from autotune.paths import data_folder
from autotune.space.family import KernelFamily


def render(family: KernelFamily, configuration: Configuration, plan: Plan) -> str:
    """Return the OpenCL C source of all kernels of a plan.

    The template sees the values of the configuration and of `plan.template_values`: integers, and strings declared
    by the family. Raises BuildError when rendering fails.
    """
    values = {**dict(configuration.values), **dict(plan.template_values)}
    try:
        return _environment(family).get_template(family.template_name(configuration.algorithm)).render(values)
    except TemplateError as error:
        raise BuildError(f"template of {family.name} {configuration.algorithm} failed: {error}") from error


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
    parse = _environment(family).parse
    texts = [family.templates[name] for name in _templates(family, algorithm)]
    return frozenset(name for text in texts for name in find_undeclared_variables(parse(text)))


def _templates(family: KernelFamily, algorithm: str) -> list[str]:
    """Return the names of an algorithm's template and of all its direct and indirect imports, each once."""
    found: list[str] = []
    pending = [family.template_name(algorithm)]
    while pending:
        name = pending.pop(0)
        if name not in found:
            found.append(name)
            parsed = _environment(family).parse(family.templates[name])
            pending += sorted(n for n in find_referenced_templates(parsed) if n)
    return found


def render_c(name: str, **values: object) -> str:
    """Return a C file of an export from its template ``templates/c/<name>.j2``."""
    return _c_environment().get_template(f"{name}.j2").render(values)


@cache
def _environment(family: KernelFamily) -> Environment:
    return _environment_of(DictLoader(family.templates))


@cache
def _c_environment() -> Environment:
    return _environment_of(FileSystemLoader(data_folder("templates") / "c"))


def _environment_of(loader: BaseLoader) -> Environment:
    return Environment(
        loader=loader,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701 - the output is C
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
