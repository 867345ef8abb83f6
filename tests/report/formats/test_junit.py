"""JUnit reports conform to the rules of Jenkins."""

from __future__ import annotations

import pytest
from support import examples
from support.formats.junit_rules import problems

from leakscope.report import FORMATS


@pytest.mark.parametrize("name", examples.ALL)
def test_every_example_is_taken(name: str) -> None:
    assert list(problems(FORMATS["junit"](*examples.ALL[name]()))) == []


def test_the_rules_refuse() -> None:
    wrong = '<testsuites skipped="1"><testsuite name="x" tests="1" failures="0"/></testsuites>'
    assert len(list(problems(wrong))) == 2
