"""Commands shown on documentation pages produce the output shown there."""

from __future__ import annotations

import difflib
import importlib.util
import re
from pathlib import Path

import pytest
import yaml
from support.commands.preloaded import Copies
from support.pages import PAGES
from support.pages.blocks import blocks_of, commands_of, needs_of, with_texts
from support.pages.pictures import stale
from support.pages.walk import Walk

pytestmark = pytest.mark.process


def named(path: Path) -> object:
    """A page's name; one that needs frameworks is run where they are."""
    needs = needs_of(path.read_text(encoding="utf-8"))
    return pytest.param(path.relative_to(PAGES).as_posix(), marks=pytest.mark.integrations if needs else ())


@pytest.mark.parametrize("name", [named(path) for path in sorted(PAGES.rglob("*.md"))])
def test_what_a_page_shows_is_what_happens(
    name: str, tmp_path_factory: pytest.TempPathFactory, copies: Copies, request: pytest.FixtureRequest
) -> None:
    page = (PAGES / name).read_text(encoding="utf-8")
    for package in needs_of(page):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{name} needs {package}")
    files = [(PAGES / name).parent / link for link in re.findall(r"\]\(([\w/-]+\.pickle)\)", page)]
    folder = tmp_path_factory.mktemp("job")
    new = with_texts(page, list(Walk(folder, copies, files).through(blocks_of(page))))
    update = bool(request.config.getoption("--docs-update", default=False))
    wrong = stale(page, (PAGES / name).parent, folder, update=update)
    assert not wrong, f"{wrong} (--docs-update makes it anew)"
    if update:
        (PAGES / name).write_text(new, encoding="utf-8")
    elif new != page:
        lines = difflib.unified_diff(page.splitlines(), new.splitlines(), name, "what happens", lineterm="")
        pytest.fail("\n".join([*lines, "(--docs-update writes it into the page)"]), pytrace=False)


def test_what_a_ci_job_runs_has_been_run_on_its_page() -> None:
    blocks = blocks_of((PAGES / "how-to" / "ci.md").read_text(encoding="utf-8"))
    (job,) = [yaml.safe_load(block.text) for block in blocks if block.title.endswith(".yml")]
    steps = [step["run"] for step in job["jobs"]["leaks"]["steps"] if "run" in step]
    run = {command.words for block in blocks if block.language == "console" for command in commands_of(block.text)}
    assert sum(step in run for step in steps) == 2
    assert [step.split()[0] for step in steps if step not in run] == ["pip", "cat"]
