"""An error in one family of candidates costs only that family, and is reported."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import examples

from leakscope.findings.source.index import Sources
from leakscope.fix import candidates as module
from leakscope.fix.model import Candidate, Change


def test_an_error_in_one_family_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    edit = Candidate("edit", (Change("train.py", 1, ("a",), ("b",)),))

    def raising(*_: object) -> Iterator[Candidate]:
        yield edit
        raise KeyError("unforeseen")

    monkeypatch.setattr(module, "value_candidates", raising)
    monkeypatch.setattr(module, "container_candidates", lambda *_: iter(()))
    problems: list[str] = []
    assert module.candidates(examples.growth_finding(), Sources({}), problems.append) == [edit]
    assert len(problems) == 1
    assert "unforeseen" in problems[0]
