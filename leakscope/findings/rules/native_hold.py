"""Storage alive that no Python object and no autograd path explains."""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import Facts, RuleName
from leakscope.findings.rules.rule import OwnRule, ToCut
from leakscope.graph.model import ObjectKind, RootKind

_KINDS = (ObjectKind.TENSOR, ObjectKind.PARAMETER, ObjectKind.STORAGE, ObjectKind.GRAD_NODE)


@dataclass(frozen=True)
class NativeFacts(Facts):
    """Something that native code alone holds."""

    label: str
    unexplained: int
    """References to it that were found neither in Python nor in autograd."""


def _applies(candidate: Candidate) -> bool:
    start = candidate.objects[0]
    return candidate.group.freed == 0 and start.root == RootKind.NATIVE and start.kind in _KINDS


def _facts(candidate: Candidate, _cut: ToCut) -> NativeFacts:
    return NativeFacts(candidate.objects[0].label, candidate.objects[0].unexplained)


RULE = OwnRule(RuleName.NATIVE_HOLD, 90, "Tensor memory held by native code only.", _applies, _facts)
