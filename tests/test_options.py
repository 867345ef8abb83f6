"""Options are declared once and shared by `--help`, the README, the launcher and the ranks."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
from leakscope_cli.run import run

from leakscope.options import OFFERED, Options, When, launchers_number

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
    source=False,
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


def test_every_option_is_offered_in_the_order_of_the_fields() -> None:
    assert [parameter.name for parameter in run.params] == [*OFFERED, "words"]


def test_what_is_not_typed_keeps_its_default() -> None:
    assert Options.of({}) == Options()
    assert Options.of({"steps": None, "gc_diff": "never", "hang_timeout": 60}) == Options(
        gc_diff=When.NEVER, hang_timeout=60.0
    )


def test_a_rank_is_told_what_the_launcher_was_told() -> None:
    assert Options.from_words(EVERYTHING.to_words()) == EVERYTHING
    changed = {
        field.name for field in fields(Options) if getattr(EVERYTHING, field.name) != getattr(Options(), field.name)
    }
    assert changed >= {"folder", "arguments", "steps", "gc_diff", "snapshot", "hang_timeout", "baseline"}
    module = replace(EVERYTHING, script="", module="pack.train", arguments=("-m", "two\nlines", "\udcff", ""))
    assert Options.from_words(module.to_words()) == module


def test_a_ranks_own_words_stand_on_its_command_line_as_under_python() -> None:
    reported, *command = replace(EVERYTHING, arguments=("--token", "abc")).to_words()
    assert command == ["train.py", "--token", "abc"] and "abc" not in reported


@pytest.mark.parametrize("text", ["", "-1", "0x1", "²", "one", "1 "])
def test_what_a_launcher_says_is_a_number_or_is_not_heard(text: str) -> None:
    assert launchers_number({"RANK": text}, "RANK", 7) == launchers_number({}, "RANK", 7) == 7
    assert launchers_number({"RANK": "03"}, "RANK", 7) == 3


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
        {"node_rank": 2},
        {"hang_timeout": -5.0},
        {"hang_timeout": 0},
        {"hang_timeout": float("nan")},
        {"hang_timeout": float("inf")},
        {"leak_exit_code": 999},
        {"leak_exit_code": -1},
        {"budget": float("nan")},
        {"budget": -0.1},
        {"budget": 20.0},
        {"min_bytes": -1},
        {"warmup": -1},
        {"warmup": 1 << 61},
        {"ranks": 1_000_000},
    ],
    ids=str,
)
def test_other_options_are_refused(wrong: dict[str, Any]) -> None:
    values = asdict(EVERYTHING) | wrong
    with pytest.raises(ValueError, match=next(iter(wrong)).replace("_", "[-_]")):
        Options.of(values)


def test_options_are_an_object() -> None:
    with pytest.raises(ValueError, match="JSON object"):
        Options.from_words(["[]"])
    assert set(asdict(EVERYTHING)) == {field.name for field in fields(Options)}
