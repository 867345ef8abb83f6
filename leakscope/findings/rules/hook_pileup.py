"""Hooks registered again each step."""

from __future__ import annotations

from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.model import RuleName
from leakscope.graph.model import ObjectKind, ReferenceKind

NAME = RuleName.HOOK_PILEUP
_OF_AUTOGRAD = (ObjectKind.TENSOR, ObjectKind.PARAMETER, ObjectKind.GRAD_NODE)
_HOOK_DICTS = ("_hooks", "_hooks_with_kwargs", "_grad_hooks")


def _position(found: Candidate) -> int | None:
    """Where on the way more than one hook is registered on the same object: one hook alone does not pile up."""
    for k, reference in enumerate(found.references):
        if reference.kind == ReferenceKind.HOOK or reference.name.endswith(_HOOK_DICTS):
            after = found.objects[k + 1 :]
            several = bool(after) and after[0].kind == ObjectKind.CONTAINER and after[0].size != 1
            if (
                several
                and len(after) > 1
                and after[1].kind in (ObjectKind.FUNCTION, ObjectKind.METHOD, ObjectKind.INSTANCE)
            ):
                return k
    return None


def applies(found: Candidate) -> bool:
    return found.group.freed == 0 and _position(found) is not None


def _hook(found: Candidate) -> str:
    place = _position(found)
    assert place is not None
    hook = found.objects[place + 2]
    return f"{hook.label} ({hook.where})" if hook.where else hook.label


def cure(found: Candidate) -> str:
    """A backward that takes its hooks off again; of no use for the hooks of modules."""
    place = _position(found)
    return "hooks-removed" if place is not None and found.objects[place].kind in _OF_AUTOGRAD else ""


def title(found: Candidate, cut: str) -> str:
    place = _position(found)
    assert place is not None
    owner = found.objects[place]
    return f"{_hook(found)} is registered again and again on the same {owner.label}; {cut} collects them"


def advice(found: Candidate, cut: str) -> str:
    return f"Register {_hook(found)} once, outside the loop, or keep the handle and call handle.remove() after the step; each registration keeps what its closure holds."
