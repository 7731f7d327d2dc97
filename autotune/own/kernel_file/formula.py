"""The buffers and launches of a kernel file as formulas of its sizes and parameters."""

from collections.abc import Mapping

from autotune.model.configuration import Value
from autotune.model.plan import Role
from autotune.own.kernel_file.format import REFERENCE, KernelFile, LaunchEntry
from autotune.space.plan_formula import ArgumentFormula, BufferFormula, LaunchFormula, PlanFormula

_ROLES = {"in": Role.INPUT, "out": Role.OUTPUT, "inout": Role.OUTPUT, "scratch": Role.SCRATCH}


def plan_formula(file: KernelFile, absent: Mapping[str, Value]) -> PlanFormula:
    """Return the buffers and launches of a kernel file; `absent` are values for parameters that are not given."""
    buffers, arguments = [], {}
    for name, entry in file.arguments.items():
        if entry.local != "":
            arguments[f"_a_{name}"] = ArgumentFormula(value=str(entry.local))
        elif entry.scalar:
            arguments[f"_a_{name}"] = ArgumentFormula(dtype=entry.scalar, value=entry.value)
        else:
            size = str(entry.size)
            is_image = bool(entry.image or entry.line)
            buffers.append(
                BufferFormula(
                    name=name,
                    role=Role.VIEW if entry.over else _ROLES[entry.access],
                    dtype=repr(entry.element),
                    elements="" if is_image else size,
                    image=(f"{size}, 1" if entry.line else size) if is_image else "",
                    channels=entry.channels,
                    is_line=bool(entry.line),
                    view_of=entry.over,
                    row_pitch=str(entry.row_pitch),
                )
            )
    buffers.sort(key=lambda buffer: buffer.role is Role.VIEW)
    is_reference = f"algorithm == {REFERENCE!r}"
    launches = [
        _launch(file, launch, f"(algorithm != {REFERENCE!r}) and ({launch.when})") for launch in file.all_launches
    ]
    if file.reference_launch:
        launches.append(_launch(file, file.reference_launch, is_reference))
    return PlanFormula(
        absent=absent,
        buffers=tuple(buffers),
        launches=tuple(launches),
        arguments=arguments,
        build_options=dict.fromkeys(file.build_options, "True"),
        template_values={
            **{name: name for name in (*file.sizes, *file.parameters)},
            **{name: str(formula) for name, formula in file.defines.items()},
        },
    )


def _launch(file: KernelFile, launch: LaunchEntry, when: str) -> LaunchFormula:
    names = []
    for name in file.names_of(launch):
        entry = file.arguments[name]
        names.append(f"_a_{name}" if entry.scalar or entry.local != "" else repr(name))
    return LaunchFormula(
        kernel=launch.kernel,
        global_size=str(launch.global_size),
        local_size=str(launch.local_size),
        arguments=", ".join(names),
        when=when,
        prepares="constants" if launch.once else "",
    )
