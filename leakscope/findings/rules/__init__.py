"""All rules: a module each, with what the rule matches, its facts, title, advice and help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import Facts, RuleName
from leakscope.findings.model import UnjudgedReason
from leakscope.findings.rules import (
    allocator,
    dist_autograd_context,
    frame_hold,
    hook_pileup,
    idle_memory,
    late_release,
    native_hold,
    object_growth,
    p2p_buffer,
    rank_skew,
    retained_graph,
    step_growth,
    tensor_cycle,
    uncollectable_cycle,
    view_hold,
    worker_copies,
    worker_growth,
)
from leakscope.findings.rules.rule import BrokenRule, Match, OthersRule, Rule, ToCut, because, rules_of_others

__all__ = [
    "RULES",
    "BrokenRule",
    "Match",
    "OthersRule",
    "Rule",
    "RuleFacts",
    "ToCut",
    "facts_of",
    "rule_named",
    "rules",
]

RULES: Mapping[RuleName, Rule] = {
    RuleName(rule.name): rule
    for rule in (
        uncollectable_cycle.RULE,
        tensor_cycle.RULE,
        dist_autograd_context.RULE,
        p2p_buffer.RULE,
        hook_pileup.RULE,
        frame_hold.RULE,
        retained_graph.RULE,
        view_hold.RULE,
        step_growth.RULE,
        object_growth.RULE,
        native_hold.RULE,
        late_release.RULE,
        idle_memory.RULE,
        rank_skew.RULE,
        allocator.RULE,
        worker_growth.RULE,
        worker_copies.RULE,
    )
}
"""The rules of leakscope, in listing order; `Match.order` is the order in which a storage is offered to them."""


@dataclass(frozen=True)
class RuleFacts:
    """The rule that a candidate belongs to, and its facts."""

    rule: Rule
    facts: Facts
    broken: tuple[BrokenRule, ...]
    """Rules of other packages that raised."""


def rules() -> tuple[Rule, ...]:
    """The rules of leakscope, then those of other packages."""
    return (*RULES.values(), *map(_of_others, rules_of_others()[0]))


def rule_named(name: str) -> Rule:
    """The rule of a finding; one that is not installed has its name as text."""
    return next((rule for rule in rules() if rule.name == name), Rule(name, f"# {name}\n\n{name}\n"))


def _of_others(rule: OthersRule) -> Rule:
    return Rule(rule.name, f"# {rule.name}\n\n{rule.text}\n")


def facts_of(candidate: Candidate, cut: ToCut) -> RuleFacts:
    """The facts of the first rule that applies to a candidate."""
    offered: list[tuple[float, Rule, Match | OthersRule]] = [
        *((rule.match.order, rule, rule.match) for rule in RULES.values() if rule.match is not None),
        *((rule.order, _of_others(rule), rule) for rule in rules_of_others()[0]),
    ]
    broken: list[BrokenRule] = []
    for _, rule, match in sorted(offered, key=lambda each: each[0]):
        if isinstance(match, Match):
            if match.applies(candidate):
                return RuleFacts(rule, match.facts(candidate, cut), tuple(broken))
            continue
        try:
            if match.applies(candidate):
                facts = match.facts(candidate, cut.written)
                if not isinstance(facts, Facts):
                    raise TypeError(f"facts() returned {type(facts).__name__}")
                return RuleFacts(rule, facts, tuple(broken))
        except Exception as error:  # noqa: BLE001 - another package's rule must not end the judging
            broken.append(BrokenRule(rule.name, because(UnjudgedReason.RAISED, error)))
    raise AssertionError("step-growth and tensor-cycle apply to whatever is left")
