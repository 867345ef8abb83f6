"""Storage alive that no Python object and no autograd path explains."""

from __future__ import annotations

from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.model import RuleName
from leakscope.graph.model import ObjectKind, RootKind

NAME = RuleName.NATIVE_HOLD


def applies(found: Candidate) -> bool:
    start = found.objects[0]
    return (
        found.group.freed == 0
        and start.root == RootKind.NATIVE
        and start.kind in (ObjectKind.TENSOR, ObjectKind.PARAMETER, ObjectKind.STORAGE, ObjectKind.GRAD_NODE)
    )


def title(found: Candidate, cut: str) -> str:
    return f"{found.objects[0].label} is held by a running call or native code, and no Python object explains it"


def advice(found: Candidate, cut: str) -> str:
    count = found.objects[0].unexplained
    return f"{count} reference{'s' if count != 1 else ''} to it could not be found in Python or autograd: look for handles of asynchronous operations not waited for, an autocast region never left, or a C++ extension that caches it."
