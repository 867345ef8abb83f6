"""All rules, in the order in which a group of storages is offered to them: it belongs to the first that applies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import Facts, RuleName
from leakscope.findings.model import UnjudgedReason
from leakscope.findings.rules import (
    dist_autograd_context,
    frame_hold,
    hook_pileup,
    immortal_cycle,
    native_hold,
    p2p_buffer,
    retained_graph,
    step_growth,
    tensor_cycle,
    view_hold,
)
from leakscope.findings.rules.rule import BrokenRule, OwnRule, Rule, ToCut, because, rules_of_others

__all__ = ["OWN_RULES", "BrokenRule", "OwnRule", "Rule", "RuleFacts", "ToCut", "all_rules", "facts_of", "rule_texts"]

OWN_RULES: tuple[OwnRule, ...] = (
    immortal_cycle.RULE,
    tensor_cycle.RULE,
    dist_autograd_context.RULE,
    p2p_buffer.RULE,
    hook_pileup.RULE,
    frame_hold.RULE,
    retained_graph.RULE,
    view_hold.RULE,
    native_hold.RULE,
    step_growth.RULE,
)
"""leakscope's own, by their order."""

_OF_OTHER_STAGES = {
    RuleName.OBJECT_GROWTH: "Python objects that are no tensors, gained without an end.",
    RuleName.LATE_RELEASE: "Memory at the peak that is never used again.",
    RuleName.IDLE_MEMORY: "Memory from before the watched steps that none of their operations touched.",
    RuleName.RANK_SKEW: "One rank keeps what its peers let go.",
    RuleName.ALLOCATOR: "Memory that the allocator keeps beyond what is in use.",
    RuleName.WORKER_GROWTH: "Memory of a data loader's workers that grows in their own processes.",
    RuleName.WORKER_COPIES: "Python objects that every worker of a data loader copies as it reads them.",
}
"""Texts of what is found otherwise than from one group of storages."""


@dataclass(frozen=True)
class RuleFacts:
    """The rule that a candidate belongs to, and what it knows of it."""

    rule: Rule | OwnRule
    facts: Facts
    broken: tuple[BrokenRule, ...]
    """Rules of other packages that raised when they were asked."""


def all_rules() -> tuple[Rule | OwnRule, ...]:
    """Rules of its own and those of other packages, in the order in which they are asked."""
    return tuple(sorted((*OWN_RULES, *rules_of_others()[0]), key=lambda rule: rule.order))


def rule_texts() -> Mapping[str, str]:
    """Each rule's name and its one sentence."""
    rules: tuple[Rule | OwnRule, ...] = (*OWN_RULES, *rules_of_others()[0])
    texts = {rule.name: rule.text for rule in rules} | _OF_OTHER_STAGES
    named = [name for name in RuleName if name in texts]
    return {name: texts[name] for name in dict.fromkeys([*named, *texts])}


def facts_of(candidate: Candidate, cut: ToCut) -> RuleFacts:
    """What the first rule that applies knows of a candidate."""
    broken: list[BrokenRule] = []
    for rule in all_rules():
        if isinstance(rule, OwnRule):
            if rule.applies(candidate):
                return RuleFacts(rule, rule.facts(candidate, cut), tuple(broken))
            continue
        try:
            if rule.applies(candidate):
                facts = rule.facts(candidate, cut.written)
                if not isinstance(facts, Facts):
                    raise TypeError(f"facts() returned {type(facts).__name__}")
                return RuleFacts(rule, facts, tuple(broken))
        except Exception as error:  # noqa: BLE001 - another package's rule must not end the judging
            broken.append(BrokenRule(rule.name, because(UnjudgedReason.RAISED, error)))
    raise AssertionError("step-growth and tensor-cycle apply to whatever is left")
