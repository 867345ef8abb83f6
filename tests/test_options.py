"""Is each option of a run spelled once, and do --help, README, launcher and ranks take it from there?"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import click
import pytest
from leakscope_cli.report import report
from leakscope_cli.run import run
from leakscope_cli.run_options import offered_options
from support import ROOT

from leakscope.options import OFFERED, Options, When, flags_of

README = (ROOT / "README.md").read_text(encoding="utf-8")
EVERYTHING = Options(
    script="train.py",
    arguments=("--lr", "0.1"),
    ranks=2,
    folder=Path("shared/run"),
    steps=12,
    step_function="Trainer.training_step",
    budget=0.5,
    gc_diff=When.NEVER,
    lifetimes=False,
    snapshot=When.ALWAYS,
    prove=True,
    hang_timeout=60.0,
    fail_on_avoidable=1 << 20,
    ignore_library=True,
    baseline=Path("findings.json"),
    nnodes=2,
    rdzv_endpoint="host:29500",
    rank=3,
    world=4,
    under_elastic=True,
)


def help_text() -> str:
    context = click.Context(run, info_name="leakscope run", terminal_width=78, **run.context_settings)
    return run.get_help(context)


def test_help_shows_every_option_in_the_order_of_the_fields() -> None:
    assert [parameter.name for parameter in run.params] == [*OFFERED, "words"]
    shown = re.findall(r"^  (-\S.*?)(?:  |$)", help_text(), re.MULTILINE)
    assert len(shown) == len(OFFERED) + 1, "and --help itself"
    for name, line in zip(OFFERED, shown, strict=False):
        for flag in flags_of(name):
            assert flag.replace("/", " / ") in line, name


def test_help_is_said_once_and_says_the_default() -> None:
    assert all(times == 1 for times in Counter(option.help for option in OFFERED.values()).values())
    context = click.Context(run)
    for parameter in offered_options():
        assert isinstance(parameter, click.Option) and parameter.name
        default = getattr(Options, parameter.name)
        said = re.search(r"\(([^()]+)\)(?:\.|, as)", OFFERED[parameter.name].help)
        if type(default) in (int, float) and parameter.name != "node_rank":
            assert said, parameter.name
            assert parameter.type.convert(said[1], parameter, context) == default
        elif isinstance(default, When):
            assert f"({default})" in OFFERED[parameter.name].help
        elif default is True:
            assert said and said[1] == "on"


def test_readme_shows_the_help_as_it_is() -> None:
    assert f"```\n{help_text()}\n```" in README


def test_readme_names_only_options_that_exist() -> None:
    words = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README))
    known = {flag for command in (run, report) for p in command.params for flag in (*p.opts, *p.secondary_opts)}
    assert words - known == {"--lr", "--leakscope", "--help", "--version"}, (
        "of the script in the example, of pytest, of all commands"
    )


def test_what_is_not_typed_keeps_its_default() -> None:
    assert Options.of({}) == Options()
    assert Options.of({"steps": None, "gc_diff": "never", "hang_timeout": 60}) == Options(
        gc_diff=When.NEVER, hang_timeout=60.0
    )


def test_a_rank_is_told_what_the_launcher_was_told() -> None:
    assert Options.from_json(EVERYTHING.to_json()) == EVERYTHING
    changed = {
        field.name for field in fields(Options) if getattr(EVERYTHING, field.name) != getattr(Options(), field.name)
    }
    assert changed >= {"folder", "arguments", "steps", "gc_diff", "snapshot", "hang_timeout", "baseline"}
    assert Options.from_json(replace(EVERYTHING, module="pack.train").to_json()).command[:2] == ("-m", "pack.train")


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": 3},
        {"steps": "3"},
        {"steps": True},
        {"warmup": None},
        {"gc_diff": "sometimes"},
        {"arguments": "--lr"},
        {"folder": 3},
        {"ranks": 0},
        {"step_function": "train step"},
        {"step_function": "loop.<lambda>"},
        {"fail_on_avoidable": -1},
        {"ignore_library": "yes"},
        {"prove": True, "steps": None},
        {"nnodes": 2, "rdzv_endpoint": ""},
    ],
    ids=str,
)
def test_other_options_are_refused(wrong: dict[str, Any]) -> None:
    values = json.loads(EVERYTHING.to_json()) | wrong
    with pytest.raises(ValueError, match=next(iter(wrong)).replace("_", "[-_]")):
        Options.from_json(json.dumps(values))


def test_options_are_an_object() -> None:
    with pytest.raises(ValueError, match="JSON object"):
        Options.from_json("[]")
    assert set(asdict(EVERYTHING)) == {field.name for field in fields(Options)}
