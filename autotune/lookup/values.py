"""Reads families, problems and configurations as hostile input: only what a kernel family declares."""

from autotune.codec import Node, Reader
from autotune.errors import ProblemError
from autotune.kernels import family_names, find_family, is_family
from autotune.model.configuration import Configuration
from autotune.model.problem import Problem
from autotune.space.family import KernelFamily


def readers_for(family: KernelFamily) -> dict[type, Reader]:
    """Return the readers of problems and configurations of a family, for `codec.read`."""
    return {
        **dict.fromkeys((Problem, family.problem_type), lambda node: read_problem(node, family)),
        Configuration: lambda node: read_configuration(node, family),
    }


def read_family(node: Node) -> KernelFamily:
    """Return the kernel family with this name."""
    # The name selects code to load, so it must be registered.
    if not is_family(node.text()):
        raise node.wrong(f"there is no kernel family {node.value[:80]!r}, only {', '.join(family_names())}")
    return find_family(node.value)


def read_problem(node: Node, family: KernelFamily) -> Problem:
    """Return the problem, whose sizes and types must be valid for the family."""
    for member in node.members().values():
        if isinstance(member.value, str):
            member.text()
    try:
        return family.problem_type.from_dict(node.value)
    except ProblemError as error:
        raise node.wrong(error.message, hint=error.hint) from error


def read_configuration(node: Node, family: KernelFamily) -> Configuration:
    """Return the configuration, which the family must declare."""
    members = node.members()
    if "algorithm" not in members:
        raise node.wrong("algorithm is missing")
    for name, member in members.items():
        if type(member.value) not in (int, str) or (name == "algorithm" and type(member.value) is not str):
            raise member.wrong(f"must be {'a string' if name == 'algorithm' else 'a whole number or a string'}")
    values = {name: member.value for name, member in members.items() if name != "algorithm"}
    configuration = family.complete(
        Configuration(algorithm=members["algorithm"].value, values=tuple(sorted(values.items())))
    )
    if misfits := family.misfits(configuration):
        raise node.wrong(misfits[0])
    return configuration
