"""Is it the user's leak, or a library's? Whose code closes the cycle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import NamedTuple

from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.kinds import Origin
from leakscope.graph.model import HeapGraph, ObjectKind, ReferenceKind
from leakscope.graph.ownership import (
    Owner,
    is_built_with,
    is_library_line,
    is_outside_users_files,
    is_users,
    owner_of,
)

KNOWN_CYCLES = {"_pytest._code.code.ExceptionInfo": "pytest"}
"""Qualified type name on a cycle to the library: `pytest.raises(...) as caught` holds the frame that holds `caught`."""
_OF_CODE = (ObjectKind.FRAME, ObjectKind.FUNCTION, ObjectKind.METHOD, ObjectKind.GENERATOR)
"""What has the line of the code that it runs."""


class _Maker(Enum):
    """Whose code made a reference."""

    USER = auto()
    """Or nobody's that is known."""
    LIBRARY = auto()
    SHARED = auto()
    """An item of a container, a hook of a tensor, `__wrapped__`: made by whoever made what it leads to."""


class _Made(NamedTuple):
    maker: _Maker
    package: str = ""
    of_class: bool = False
    """Of a class that Python's or torch's own code made."""


def whose(candidate: Candidate, cuts: Sequence[int] = ()) -> tuple[Origin, str]:
    """Whose it is, and the library's name where that is known; `cuts` are the references to cut.

    A library's where a known one closes the cycle, or every line that can be named on it belongs to a library. Or where
    a package's own functions or attributes that its classes set stand on the cycle, nothing of the user's making does,
    and nothing that is to be cut is of the user's making: instances of the user's classes may. A library's method that
    the user registers as a hook himself looks as if the library had.
    """
    graph, group = candidate.graph, candidate.group
    references = list(group.cycles[0]) if group.cycles else list(group.path)
    holders = [graph.object(int(graph.holder[r])) for r in references]
    if group.cycles and any(holder.name in KNOWN_CYCLES for holder in holders):
        return Origin.LIBRARY, next(KNOWN_CYCLES[holder.name] for holder in holders if holder.name in KNOWN_CYCLES)
    if group.freed == 0:
        return Origin.APPLICATION, ""
    named = [line for line in (*(h.where for h in holders), *(graph.reference(r).where for r in references)) if line]
    if named and all(map(is_outside_users_files, named)):
        return Origin.LIBRARY, _package_of(named)
    made = [_made(graph, r) for r in references]
    packages = [
        one.package for one in made if one.maker == _Maker.LIBRARY and (one.of_class or not is_built_with(one.package))
    ]
    theirs = _Maker.USER not in {one.maker for one in (*made, *(_made(graph, r) for r in cuts))}
    return (Origin.LIBRARY, packages[0]) if group.cycles and theirs and packages else (Origin.APPLICATION, "")


def _made(graph: HeapGraph, reference: int) -> _Made:
    r = graph.reference(reference)
    holder, held = graph.object(r.holder), graph.object(r.held)
    if r.where or (held.kind in _OF_CODE and is_users(held)):
        return _Made(_Maker.USER)
    if holder.kind in _OF_CODE:
        library = is_library_line(holder.where)
        return _Made(_Maker.LIBRARY, _package_of([holder.where])) if library else _Made(_Maker.USER)
    if holder.kind == ObjectKind.CLASS:  # its module is that of the code which made it, if not by `make_dataclass`
        theirs = "." in holder.name and is_built_with(holder.name) and not holder.name.startswith("types.")
        return _Made(_Maker.LIBRARY, holder.name.partition(".")[0], True) if theirs else _Made(_Maker.USER)
    if r.kind == ReferenceKind.ATTRIBUTE and not (r.name.startswith(".__") and r.name.endswith("__")):
        package = graph.set_by.get(reference, "")
        if not package and r.name.startswith("._") and owner_of(holder) == Owner.LIBRARY:
            package = holder.type.partition(".")[0]
        return _Made(_Maker.LIBRARY, package) if package else _Made(_Maker.USER)
    return _Made(_Maker.SHARED)


def _package_of(lines: Iterable[str]) -> str:
    """`gpytorch` of `<gpytorch/module.py>:375`, `six` of `<six.py>:30`; "" where no line says its package."""
    files = [line.removeprefix("<").partition(">")[0] for line in sorted(lines)]
    return next((file.partition("/")[0].removesuffix(".py") for file in files if not file.startswith("<")), "")
