"""A damaged file affects only its own data and never makes a verdict clean."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.damage.mutations import IN_ITS_PLACE, put_back
from support.damage.small_run import LOOKS, STEPS, write_small_run

from leakscope.errors import LeakscopeError, Unreadable
from leakscope.findings import judge
from leakscope.report import FORMATS
from leakscope.report.verdict_text import why_text
from leakscope.run.model import Rank, Run
from leakscope.run.rank_end import as_written, lost
from leakscope.run.reader import read_run
from leakscope.verdict import Verdict

FOUND = [json.loads(line) for line in Path(__file__).with_name("damage_found.jsonl").read_text().splitlines()]
"""What fuzzing has found, each kind once, and what an earlier version did with it."""
Damage = Callable[[str, Callable[[Path], object]], Run]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("small") / "run"
    write_small_run(folder)
    return folder, {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def damaged(small: tuple[Path, dict[str, bytes]]) -> Iterator[Damage]:
    """Damages one file of the small run, and reads the run."""
    folder, whole = small
    names: set[str] = set()

    def damage(name: str, change: Callable[[Path], object]) -> Run:
        names.add(name)
        change(folder / name)
        return read_run(folder, snapshots=True)

    yield damage
    put_back(folder, whole, sorted(names))


def with_value(found: dict[str, Any]) -> Callable[[Path], object]:
    """Sets a value in the JSON of a file, or of one of its lines."""

    def change(path: Path) -> None:
        lines = path.read_text().splitlines() if "line" in found else [path.read_text()]
        place = found.get("line", 1) - 1
        data = json.loads(lines[place])
        *way, last = found["at"] or [None]
        holder = data
        for key in way:
            holder = holder[key]
        if last is None:
            data = found["value"]
        else:
            holder[last] = found["value"]
        lines[place] = json.dumps(data)
        path.write_text("\n".join(lines) + "\n")

    return change


def in_its_place(kind: str) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        path.unlink(missing_ok=True)
        IN_ITS_PLACE[kind](path)

    return change


def notes(run: Run) -> list[str]:
    return [*run.notes, *(note for rank in run.ranks for note in rank.notes)]


def test_the_small_run_is_whole_and_leaks(damaged: Damage) -> None:
    run = damaged("rank_0000/ended.json", lambda path: None)
    assert notes(run) == ["a sentence of the recorder's"] * 2 and not any(rank.damaged for rank in run.ranks)
    assert judge(run).verdict == Verdict.LEAKS


@pytest.mark.parametrize("found", FOUND, ids=lambda found: found["was"].replace(" ", "_"))
def test_what_was_found_is_told_and_costs_itself(damaged: Damage, found: dict[str, Any]) -> None:
    change = in_its_place(found["place"]) if "place" in found else with_value(found)
    run = damaged(found["file"], change)
    (note,) = [note for note in notes(run) if not note.startswith("a sentence")]
    assert Path(found["file"]).name in note or "last communication operation" in note
    findings = judge(run)
    assert findings.verdict == Verdict.LEAKS
    for name in ("text", "json"):
        FORMATS[name](run, findings).encode()


@pytest.mark.parametrize("kind", sorted(IN_ITS_PLACE))
def test_a_run_whose_header_is_no_file_is_refused_in_a_sentence(damaged: Damage, kind: str) -> None:
    with pytest.raises(Unreadable, match="is not a leakscope run"):
        damaged("run.json", in_its_place(kind))


def test_a_link_to_a_file_is_followed(damaged: Damage, tmp_path: Path) -> None:
    def change(path: Path) -> None:
        path.rename(tmp_path / "elsewhere.json")
        path.symlink_to(tmp_path / "elsewhere.json")

    run = damaged("rank_0000/heap_step_000005.json", change)
    assert [look.step for look in run.ranks[0].looks if look.occasion == "step"] == list(LOOKS)
    assert not run.ranks[0].damaged


def test_a_damaged_heap_is_a_look_that_is_missing(damaged: Damage) -> None:
    change = with_value({"at": ["heap", "held", 2], "value": 10**6})
    run = damaged("rank_0000/heap_step_000007.json", change)
    assert [look.step for look in run.ranks[0].looks if look.occasion == "step"] == [3, 5, 9, 11]
    assert any(
        note.startswith("heap_step_000007.json is damaged and was skipped: held of row 2 is 1000000, not from 0 to ")
        for note in run.ranks[0].notes
    )
    assert len(run.ranks[1].looks) == len(LOOKS) + 3


def test_too_few_looks_are_left_to_judge_by(damaged: Damage) -> None:
    names = ["heap_last_000012.json", *(f"heap_step_{step:06d}.json" for step in LOOKS[2:])]
    for rank in range(2):
        for name in names:
            run = damaged(f"rank_{rank:04d}/{name}", in_its_place("an empty file"))
    for name in ("device_blocks", "wire"):
        rank = int(name != "wire")
        run = damaged(f"rank_{rank:04d}/{name}.jsonl", lambda path: path.unlink())
    findings = judge(run)
    assert findings.verdict == Verdict.INCONCLUSIVE
    assert "only 2 snapshots after warm-up" in why_text(findings)


def test_no_verdict_is_clean_for_want_of_what_is_left_out(damaged: Damage) -> None:
    run = Run(("train.py",), (), 1, "cpu", "2.13.0", "0.1.0")
    for name in ("wire", "contexts"):
        read = damaged(f"rank_0000/{name}.jsonl", with_value({"line": 2, "at": [], "value": None}))
    quiet = read.ranks[0]
    assert quiet.damaged == ("wire.jsonl", "contexts.jsonl")
    from dataclasses import replace

    first = quiet.looks[0]
    looks = tuple(replace(first, step=step) for step in LOOKS)
    steps = tuple(replace(quiet.steps[0], number=n) for n in range(1, STEPS + 1))
    quiet = replace(quiet, looks=looks, steps=steps, operations=(), contexts=(), final_operation=None, clocks=())
    findings = judge(replace(run, ranks=(quiet,)))
    assert findings.verdict == Verdict.INCONCLUSIVE
    assert why_text(findings).startswith("wire.jsonl, contexts.jsonl are damaged and (partly) ignored")
    whole = replace(quiet, damaged=())
    assert judge(replace(run, ranks=(whole,))).verdict == Verdict.CLEAN
    findings = judge(replace(run, ranks=(whole, Rank(1, (), (), lost()))))
    assert findings.verdict == Verdict.INCONCLUSIVE
    assert why_text(findings).startswith("rank 1 ended without a status")


def test_a_step_that_is_left_out_is_a_gap(damaged: Damage) -> None:
    run = damaged("rank_0000/steps.jsonl", with_value({"line": 6, "at": ["number"], "value": "x"}))
    assert [step.number for step in run.ranks[0].steps] == [n for n in range(1, STEPS + 1) if n != 6]
    assert any(
        note.startswith("line 6 of steps.jsonl is damaged and was skipped: number: ") for note in run.ranks[0].notes
    )
    from leakscope.findings.counters import counted_rate

    assert counted_rate(run.ranks[0], 2) == 1 << 20


def test_many_damaged_lines_take_few_sentences(damaged: Damage) -> None:
    run = damaged("rank_0000/wire.jsonl", lambda path: path.write_text("5\n" * 1000))
    told = [note for note in run.ranks[0].notes if "wire.jsonl" in note]
    assert len(told) == 4 and told[-1] == "997 more damaged parts of wire.jsonl were skipped"


def test_an_end_that_cannot_be_read_is_no_failure(damaged: Damage) -> None:
    run = damaged("rank_0000/ended.json", in_its_place("zeros"))
    assert run.ranks[0].ended.how == "unknown" and run.ranks[0].ended.steps == STEPS
    assert as_written(run.ranks[0].ended).how == "lost"
    assert "ended with an unknown status after 12 steps" in FORMATS["text"](run, judge(run))


@pytest.mark.parametrize("ranks", [3, 70, 100_000])
def test_ranks_that_left_nothing_are_named_in_a_line(damaged: Damage, ranks: int) -> None:
    run = damaged("run.json", with_value({"at": ["ranks"], "value": ranks}))
    assert run.expected_ranks == ranks
    assert [rank.number for rank in run.ranks] == list(range(min(ranks, 66)))
    assert run.notes == (() if ranks < 66 else (f"nothing was recorded for ranks 66 to {ranks - 1}",))


@pytest.mark.parametrize("kind", ["an empty file", "a pipe", "a link to itself", "a link to nowhere"])
def test_a_rank_whose_folder_is_none_left_nothing(kind: str, tmp_path: Path) -> None:
    write_small_run(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "rank_0001")
    IN_ITS_PLACE[kind](tmp_path / "run" / "rank_0001")
    run = read_run(tmp_path / "run")
    assert run.ranks[1].ended == lost() and run.ranks[1].notes == ("nothing was recorded for this rank",)


def test_more_ranks_than_can_be_are_those_that_have_a_folder(damaged: Damage) -> None:
    run = damaged("run.json", with_value({"at": ["ranks"], "value": 100_000_000}))
    assert run.expected_ranks == 2 and len(run.ranks) == 2
    assert run.notes == (
        "ranks of run.json is damaged and was skipped: 100000000 is out of range; there are 2 folders",
    )


def test_text_that_no_encoding_takes_becomes_harmless(damaged: Damage) -> None:
    run = damaged("rank_0001/ended.json", with_value({"at": ["error"], "value": "half \ud800 of \U0001f600"}))
    assert run.ranks[1].ended.error == "half \\ud800 of \U0001f600"


def test_long_text_is_cut_off(damaged: Damage) -> None:
    run = damaged("rank_0001/ended.json", with_value({"at": ["error"], "value": "x" * 10_000_000}))
    assert len(run.ranks[1].ended.error) == (1 << 16) + 3


@pytest.mark.parametrize("kind", sorted(IN_ITS_PLACE))
def test_a_baseline_that_is_none_is_refused_in_a_sentence(kind: str, tmp_path: Path) -> None:
    from leakscope_cli.recorded import baseline_of, suppressions_of

    path = tmp_path / "findings.json"
    IN_ITS_PLACE[kind](path)
    with pytest.raises(LeakscopeError, match="baseline"):
        baseline_of(path)
    if not path.is_file() or path.stat().st_size > 1 << 30:
        with pytest.raises(LeakscopeError, match="suppressions"):
            suppressions_of(path)
