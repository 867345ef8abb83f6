"""Other packages add rules through an entry point; a broken one is told as not judged, and ends nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest
from support.judging import growing, judged

from leakscope.findings import Findings
from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import Facts, StaticText
from leakscope.findings.rules import rule, rule_named


@dataclass(frozen=True)
class Replay:
    """A rule of another package: replay buffers."""

    name: str = "replay-buffer"
    order: float = 99
    text: str = "A replay buffer that keeps what nobody samples."

    def applies(self, candidate: Candidate) -> bool:
        return any("replay" in reference.name for reference in candidate.references)

    def facts(self, _candidate: Candidate, cut: str) -> Facts:
        return StaticText(f"{cut} is a replay buffer without a bound", "Give it a capacity.")


class Raises(Replay):
    def applies(self, candidate: Candidate) -> bool:
        raise LookupError("no such thing")


def nameless() -> None:
    """What an entry point may name by mistake."""


RULE, RAISES = Replay(), Raises("raises", 5)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Has other packages name these objects of this module as rules."""
    named: list[EntryPoint] = []

    def entry_points(group: str) -> list[EntryPoint]:
        assert group == "leakscope.rules"
        return named

    def install(*objects: str) -> None:
        named.extend(EntryPoint(name, f"{__name__}:{name}", "leakscope.rules") for name in objects)

    monkeypatch.setattr(rule, "entry_points", entry_points)
    rule.rules_of_others.cache_clear()
    yield install
    rule.rules_of_others.cache_clear()


def rules_of(findings: Findings) -> list[str]:
    return [finding.rule for finding in findings.findings]


def test_a_rule_of_another_package_tells_in_its_own_words(installed: Callable[..., None]) -> None:
    installed("RULE")
    findings = judged(growing("replay"))
    (finding,) = findings.findings
    assert (finding.rule, finding.severity) == ("replay-buffer", "leak")
    assert rule_named("replay-buffer").text == RULE.text
    assert rules_of(judged(growing("losses"))) == ["step-growth"]


@pytest.mark.parametrize(
    ("name", "rule_name"), [("RAISES", "raises"), ("missing", "missing"), ("nameless", "nameless")]
)
def test_a_broken_rule_is_told_as_not_judged(installed: Callable[..., None], name: str, rule_name: str) -> None:
    installed(name)
    findings = judged(growing("losses"))
    assert findings.verdict == "leaks" and rules_of(findings) == ["step-growth"]
    (unjudged,) = findings.unjudged
    assert (unjudged.rule, unjudged.rank) == (rule_name, 0)
