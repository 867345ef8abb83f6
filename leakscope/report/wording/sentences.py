"""A finding's title and its advice, made of the facts that its rule has of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from leakscope.findings.facts import Facts, Said
from leakscope.findings.model import Finding

TITLES: Mapping[type[Facts], Callable[[Any], str]] = {Said: lambda said: said.title}
ADVICE: Mapping[type[Facts], Callable[[Any], str]] = {Said: lambda said: said.advice}


def title(finding: Finding) -> str:
    """What leaks, in one line."""
    return TITLES[type(finding.facts)](finding.facts)


def advice(finding: Finding) -> str:
    """What to do about it."""
    return ADVICE[type(finding.facts)](finding.facts)
