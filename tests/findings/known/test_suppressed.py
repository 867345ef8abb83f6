"""Suppressed findings do not affect the verdict, name their source and stay in the growth breakdown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import growth_finding
from support.judging import growing, rank_of, run_of

from leakscope.errors import LeakscopeError
from leakscope.findings.judge import Policy, judge
from leakscope.findings.model import Cut, CutReference, Finding, LineKind
from leakscope.findings.suppressions import Known, suppression_of
from leakscope.run.model import Run
from leakscope.run.reader import read_run
from leakscope.run.suppression import NAME, Suppression, keep_suppressions, known_before, suppressions_in
from leakscope.run.writer import prepare_folder, write_run
from leakscope.verdict import Verdict

KIB = 1024
FINDING = replace(
    growth_finding(),
    rule="step-growth",
    fingerprint="0c0ffee0",
    subject="self.losses in Trainer.fit()",
    made_at=("train.py:41 forward (aten::addmm)",),
    cut=Cut((CutReference(".losses", "train.py:12", "self.losses in Trainer.fit()", added_at=("train.py:31",)),), 1),
)


def run(**bytes_a_step: int) -> Run:
    """A module whose lists gain a tensor each step; what `native` gains is counted and never seen."""

    def counted(step: int) -> int:
        return (100 << 20) + step * sum(bytes_a_step.values())

    def heap(step: int) -> str:
        return "".join(growing(name, size)(step) for name, size in bytes_a_step.items() if name != "native")

    rank = rank_of(heap, at=(3, 5, 9, 13), last=16, counted=counted, seen=counted)
    snapshots = tuple(replace(s, explained_bytes=int(s.heap.bytes[s.heap.storages].sum())) for s in rank.heap_snapshots)
    return run_of(replace(rank, heap_snapshots=snapshots), started="2027-01-31T10:00:00Z")


def names(pattern: str, finding: Finding = FINDING) -> bool:
    return suppression_of(finding, Known((Suppression(pattern),))) is not None


@pytest.mark.parametrize("pattern", [
    "0c0ffee0", "step-growth", "self.losses in Trainer.fit()", "*.losses*", "train.py:12", "train.py:31", "train.py:41",
    "train.py:*", "*(aten::addmm)",
])  # fmt: skip
def test_a_pattern_names_a_finding_by_all_that_is_told_of_it(pattern: str) -> None:
    assert names(pattern)


@pytest.mark.parametrize(
    "pattern", ["0c0ffee", "growth", "self.losses", "train.py:1", "*.losses", "self?losses*", "[s]*"]
)
def test_a_pattern_names_nothing_by_a_part_of_it(pattern: str) -> None:
    assert not names(pattern)


def test_a_file_has_a_pattern_a_line_with_its_last_day_and_its_reason() -> None:
    text = "\n# all of these: issue 12\nb41c07e2  # the cache\nview-hold until 2027-01-31# no reason\n" \
           "self.losses in Trainer.fit() until 2027-01-31  # until # 14 is mended\n"  # fmt: skip
    with pytest.raises(LeakscopeError, match="line 4: invalid date; write `view-hold until 2027-01-31`"):
        suppressions_in(text, "known.txt")
    assert suppressions_in(text.replace("31# no", "31 # no"), "known.txt") == (
        Suppression("b41c07e2", "the cache", "", "known.txt", 3),
        Suppression("view-hold", "no reason", "2027-01-31", "known.txt", 4),
        Suppression("self.losses in Trainer.fit()", "until # 14 is mended", "2027-01-31", "known.txt", 5),
    )


@pytest.mark.parametrize(("line", "expected"), [
    ("*", "would suppress every leak"), ("* *", "suppress every leak"), ("until 2027-01-31", "suppress every leak"),
    ("a until", "invalid date"), ("a until 2027-02-30", "invalid date; write `a until 2027-01-31`"),
    ("a until 20270131", "invalid date"), ("a until 2027-01-31 until 2027-01-31", "invalid date"),
])  # fmt: skip
def test_a_line_that_cannot_be_taken_is_told_with_file_and_number(line: str, expected: str) -> None:
    with pytest.raises(LeakscopeError, match="line 2: ") as raised:
        suppressions_in(f"step-growth\n{line}\n", "known.txt")
    assert expected in str(raised.value) and str(raised.value).startswith("known.txt, line 2: ")


@pytest.mark.parametrize(("until", "verdict"), [("2027-01-30", "leaks"), ("2027-01-31", "clean"), ("", "clean")])
def test_the_day_of_the_run_is_what_counts(until: str, verdict: str) -> None:
    known = Suppression("step-growth", until=until, source="known.txt", line=4)
    recorded = replace(run(losses=256 * KIB), suppressions=(known,))
    found = judge(recorded)
    assert (found.verdict, found.expired) == (verdict, (known,) if verdict == "leaks" else ())
    assert judge(replace(recorded, started="")).expired == (), "nothing has, where the day is not known"


def test_what_names_nothing_is_told_but_not_of_a_baseline_or_of_a_run_that_was_not_judged() -> None:
    gone, known = Suppression("view-hold", source="known.txt", line=2), Suppression("step-growth", source="known.txt")
    before = Suppression("b41c07e2", source="base/findings.json", is_baseline=True)
    recorded = replace(run(losses=256 * KIB), suppressions=(gone, known, before))
    found = judge(recorded)
    assert found.unused == (gone,)
    (rank,) = recorded.ranks
    assert judge(replace(recorded, ranks=(replace(rank, heap_snapshots=rank.heap_snapshots[:1]),))).unused == ()


def test_a_note_of_the_baseline_that_has_become_a_leak_is_new() -> None:
    recorded = run(losses=256 * KIB)
    (leak,) = judge(recorded).findings
    for severity, verdict in (("note", "leaks"), ("leak", "clean")):
        reported = {"findings": [{"fingerprint": leak.fingerprint, "severity": severity}]}
        assert judge(replace(recorded, suppressions=known_before(reported, "base"))).verdict == verdict


def test_a_baseline_knows_what_was_suppressed_there() -> None:
    reported = {"findings": [], "suppressed": [{"fingerprint": "b41c07e2", "severity": "leak"}]}
    assert known_before(reported, "base") == (Suppression("b41c07e2", source="base", is_baseline=True),)


@given(
    st.fixed_dictionaries(
        {}, optional={name: st.sampled_from((KIB, 96 * KIB, 512 * KIB)) for name in ("losses", "outputs", "native")}
    ),
    st.sets(st.integers(0, 3)),
)
@settings(max_examples=20, deadline=None)
def test_the_account_is_whole_whatever_is_known(parts: dict[str, int], chosen: set[int]) -> None:
    recorded = run(**parts)
    whole = judge(recorded)
    apart = {finding.fingerprint for k, finding in enumerate(whole.findings) if k in chosen}
    found = judge(recorded, Policy(suppress=sorted(apart)))
    assert {f.fingerprint for f in found.suppressed} == apart
    assert {f.fingerprint for f in found.findings} == {f.fingerprint for f in whole.findings} - apart
    for before, after in zip(whole.ledgers[0], found.ledgers[0], strict=True):
        assert sum(line.bytes for line in after.lines) == after.counted_bytes == before.counted_bytes
        assert all((line.kind == LineKind.APART) == (line.fingerprint in apart) for line in after.lines)
    left = [finding for finding in found.findings if finding.severity == "leak"]
    assert (found.verdict == Verdict.LEAKS) == bool(left)


def test_what_is_known_lies_with_the_run_and_goes_with_it(tmp_path: Path) -> None:
    known = (
        Suppression("b41c07e2", source="base/findings.json", is_baseline=True, was_leak=False),
        Suppression("train.losses*", "issue 12", "2027-01-31", "known.txt", 7),
    )
    write_run(tmp_path, {"command": ["train.py"], "ranks": 1, "started": "2027-01-31T10:00:00Z"})
    keep_suppressions(tmp_path, known)
    recorded = read_run(tmp_path)
    assert (recorded.suppressions, recorded.started) == (known, "2027-01-31T10:00:00Z")
    keep_suppressions(tmp_path, ())
    assert read_run(tmp_path).suppressions == () and not (tmp_path / NAME).exists()
    keep_suppressions(tmp_path, known)
    prepare_folder(tmp_path, force=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [{}, "all", [{"pattern": 7}], [{"reason": "why"}], [[]]])
def test_damaged_suppressions_are_left_out_and_said(data: object, tmp_path: Path) -> None:
    write_run(tmp_path, {"command": ["train.py"], "ranks": 1})
    (tmp_path / NAME).write_text(json.dumps(data))
    recorded = read_run(tmp_path)
    assert recorded.suppressions == () and "suppressions.json is damaged and was skipped" in recorded.notes[0]
