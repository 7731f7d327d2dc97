"""Structures that a source of OpenCL C declares, as far as their members are plain."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.own.kernel_file.format import MemberEntry
from autotune.own.kernel_file.syntax import C_TYPES

MOST_MEMBERS = 64
_TYPE = re.compile(r"(?:const\s+)?(?:struct\s+)?((?:unsigned\s+)?[A-Za-z_]\w*?)(2|3|4|8|16)?\s+(.*)", re.DOTALL)
_DECLARATOR = re.compile(r"([A-Za-z_]\w*)((?:\s*\[\s*\w+\s*\])*)")


@dataclass(frozen=True, kw_only=True)
class Member:
    """A member of a structure."""

    name: str
    element: str
    """Our name of its type, empty for one that is not known."""
    count: int
    """Numbers in it; 0 where the source does not write the length out."""
    is_array: bool

    @property
    def entry(self) -> str:
        """The entry of a kernel file with values to fill in."""
        zeros, element = ", ".join(["0"] * max(1, self.count)), self.element or "int32"
        if self.is_array:
            return f'{{ array = "{element}", value = [{zeros}] }}'
        return f'{{ scalar = "{element}", value = {f"[{zeros}]" if self.count > 1 else "0"} }}'

    def fits(self, given: MemberEntry) -> bool:
        """Return whether an entry gives what the member is, as far as that is known."""
        count = len(given.value) if isinstance(given.value, tuple) else 1
        element = (given.array if self.is_array else given.scalar).lstrip("u")
        return self.element.lstrip("u") in (element, "") and self.count in (count, 0)


def members(text: str, name: str) -> Sequence[Member]:
    """Return the members of a structure by the name of its type; empty where the source does not tell all of them."""
    body = re.search(rf"\bstruct\b[^{{}};()]{{0,99}}\{{([^{{}}]{{0,9999}})\}}\s*{name}\s*;", text)
    body = body or re.search(rf"\bstruct\s+{name}\s*\{{([^{{}}]{{0,9999}})\}}", text)
    found: list[Member] = []
    for statement in body[1].split(";")[:-1] if body else ():
        declared = _TYPE.fullmatch(statement.strip())
        if not declared or len(found) > MOST_MEMBERS:
            return []
        for declarator in declared[3].split(","):
            one = _DECLARATOR.fullmatch(declarator.strip())
            if one is None:
                return []
            lengths = re.findall(r"\w+", one[2])
            is_known = all(length.isdigit() and int(length) <= MOST_MEMBERS for length in lengths)
            count = int(declared[2] or 1)
            for length in lengths:
                count *= int(length) if is_known else 0
            element = C_TYPES.get(re.sub(r"^unsigned\s+", "u", declared[1]), "")
            found.append(Member(name=one[1], element=element, count=count, is_array=bool(lengths)))
    return found
