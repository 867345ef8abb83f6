"""The reference documents every public name and key, and the architecture page lists existing files."""

from __future__ import annotations

import ast
import json
import re

import pytest
from support import ROOT
from support.pages import PAGES
from support.pages.schema import tables

import leakscope

GENERATED = re.compile(r"(?<=--docs-update -->\n).*", re.DOTALL)
"""What stands below the line that says how it is written."""


def test_every_public_name_is_in_the_reference() -> None:
    documented = re.findall(r"^::: leakscope\.(\w+)$", (PAGES / "reference" / "python.md").read_text(), re.MULTILINE)
    assert sorted(documented) == sorted({*leakscope.__all__} - {"__version__"})


def test_the_architecture_lists_the_packages_with_the_question_that_each_asks() -> None:
    page = (PAGES / "architecture.md").read_text(encoding="utf-8")
    summaries = {}
    for path in (ROOT / "leakscope").glob("*/__init__.py"):
        summaries[path.parent.name] = (
            ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        ).splitlines()[0]
    assert dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE)) == summaries


def test_the_files_that_the_architecture_names_are_there() -> None:
    page = (PAGES / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w./]+(?:/|\.py|\.c|\.md))`", page)
    assert len(named) > 10
    assert [name for name in named if not any((at / name).exists() for at in (ROOT, ROOT / "leakscope"))] == []


def test_the_tables_of_findings_json_are_those_of_the_schema(request: pytest.FixtureRequest) -> None:
    path = PAGES / "reference" / "findings-json.md"
    schema = json.loads((ROOT / "leakscope" / "report" / "formats" / "findings.schema.json").read_text())
    page = path.read_text(encoding="utf-8")
    new = GENERATED.sub(lambda _: tables(schema) + "\n", page)
    if request.config.getoption("--docs-update", default=False):
        path.write_text(new, encoding="utf-8")
    else:
        assert page == new, "--docs-update writes it"


def test_every_integration_is_in_the_reference() -> None:
    page = (PAGES / "reference" / "integrations.md").read_text(encoding="utf-8")
    modules = {path.stem for path in (ROOT / "leakscope" / "integrations").glob("*.py")} - {"__init__", "training"}
    assert set(re.findall(r"^::: leakscope\.integrations\.(\w+)\.", page, re.MULTILINE)) == modules
