"""Storage alive that no Python object and no autograd path explains."""

from __future__ import annotations

from leakscope.findings.grouping.candidate import Candidate

NAME = "native-hold"


def applies(found: Candidate) -> bool:
    start = found.objects[0]
    return (
        found.group.freed == 0
        and start.root == "native"
        and start.kind in ("tensor", "parameter", "storage", "grad node")
    )


def title(found: Candidate, cut: str) -> str:
    return f"{found.objects[0].label} is held by a running call or native code, and no Python object explains it"


def advice(found: Candidate, cut: str) -> str:
    count = found.objects[0].unexplained
    return f"{count} reference{'s' if count != 1 else ''} to it could not be found in Python or autograd: look for handles of asynchronous operations not waited for, an autocast region never left, or a C++ extension that caches it."
