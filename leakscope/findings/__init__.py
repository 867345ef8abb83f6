"""Judges a recorded run: what leaks, which reference to cut, and the verdict."""

from leakscope.findings.judge import Policy, judge, judge_rank, judge_together
from leakscope.findings.model import Cut, Finding, Findings, Hop, RankSummary, Sighting, Unjudged

__all__ = [
    "Cut",
    "Finding",
    "Findings",
    "Hop",
    "Policy",
    "RankSummary",
    "Sighting",
    "Unjudged",
    "judge",
    "judge_rank",
    "judge_together",
]
