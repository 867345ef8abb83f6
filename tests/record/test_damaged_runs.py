"""A damaged file affects only its own data and never makes a verdict clean."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.damage.fuzzing import fuzz_apart
from support.damage.mutations import IN_ITS_PLACE, put_back
from support.damage.small_run import SNAPSHOT_STEPS, STEPS, write_small_run

from leakscope.findings import judge
from leakscope.options import Options
from leakscope.report import FORMATS
from leakscope.run.model import Rank, Run
from leakscope.run.rank_end import lost
from leakscope.run.reader import read_run
from leakscope.run.writer import initial_header, write_run
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


@pytest.mark.parametrize("nested", [False, True])
def test_options_are_read_from_either_place(damaged: Damage, nested: bool) -> None:
    """Runs of the first versions have three options beside the others."""

    def change(path: Path) -> None:
        header = json.loads(path.read_text())
        for name in ("warmup", "min_bytes", "horizon") if nested else ():
            header["options"][name] = header.pop(name, Run.horizon)
        path.write_text(json.dumps(header))

    run = damaged("run.json", change)
    assert (run.warmup, run.min_bytes, run.horizon, len(notes(run))) == (2, 65536, Run.horizon, 2)
    assert run.options == {"steps": STEPS, "budget": 0.02, "gc_diff": "auto", "step_function": None}


def test_a_run_is_read_with_the_options_it_was_started_with(tmp_path: Path) -> None:
    options = Options(warmup=4, min_bytes=7, horizon=9, steps=30, ignore_library=True)
    write_run(tmp_path, initial_header(options, ["train.py"]))
    run = read_run(tmp_path)
    assert (run.command, run.warmup, run.min_bytes, run.horizon) == (("train.py",), 4, 7, 9)
    assert (run.options["steps"], run.options["ignore_library"], "warmup" in run.options) == (30, True, False)


@pytest.mark.parametrize("found", FOUND, ids=lambda found: found["was"].replace(" ", "_"))
def test_damage_found_by_fuzzing_costs_its_own_data(damaged: Damage, found: dict[str, Any]) -> None:
    change = in_its_place(found["place"]) if "place" in found else with_value(found)
    run = damaged(found["file"], change)
    (note,) = [note for note in notes(run) if not note.startswith("a sentence")]
    assert Path(found["file"]).name in note or "last communication operation" in note
    findings = judge(run)
    assert findings.verdict == Verdict.LEAKS
    for name in ("text", "json"):
        FORMATS[name](run, findings).encode()


def test_a_run_with_damaged_files_is_never_clean(damaged: Damage) -> None:
    for name in ("wire", "contexts"):
        read = damaged(f"rank_0000/{name}.jsonl", with_value({"line": 2, "at": [], "value": None}))
    quiet = read.ranks[0]
    assert quiet.damaged == ("wire.jsonl", "contexts.jsonl")
    snapshots = tuple(replace(quiet.heap_snapshots[0], step=step) for step in SNAPSHOT_STEPS)
    steps = tuple(replace(quiet.steps[0], number=n) for n in range(1, STEPS + 1))
    quiet = replace(
        quiet, heap_snapshots=snapshots, steps=steps, operations=(), contexts=(), final_operation=None, step_sources=()
    )
    whole = replace(quiet, damaged=())

    def verdict(*ranks: Rank) -> Verdict:
        return judge(Run(("train.py",), ranks, 1, "cpu", "2.13.0", "0.1.0")).verdict

    assert verdict(quiet) == Verdict.INCONCLUSIVE
    assert verdict(whole) == Verdict.CLEAN
    assert verdict(whole, Rank(1, (), (), lost())) == Verdict.INCONCLUSIVE


@pytest.mark.parametrize("ranks", [3, 100_000])
def test_ranks_without_files_are_listed_up_to_a_limit(damaged: Damage, ranks: int) -> None:
    run = damaged("run.json", with_value({"at": ["ranks"], "value": ranks}))
    assert run.expected_ranks == ranks
    assert [rank.number for rank in run.ranks] == list(range(min(ranks, 66)))
    assert len(run.notes) == (ranks > 66)


MAX_BYTES = 512 << 20
"""Reading the whole run takes a fifth of it."""


@pytest.mark.process
@pytest.mark.parametrize("run", ["small", "orphan"])
def test_fuzzed_runs_raise_nothing_but_errors_of_ours(run: str, with_support: dict[str, str]) -> None:
    """A few hundred of the same damages each time; `python -m support.damage.fuzzing` makes more."""
    fuzzed = fuzz_apart(run, 3.0, with_support)
    assert fuzzed.failures == []
    assert fuzzed.reported > fuzzed.refused and fuzzed.damaged
    assert fuzzed.peak_bytes < MAX_BYTES
