"""Comparing two runs lists each leak once and never reports an unobserved leak as fixed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import growth_finding, heap_snapshot, rank, run

from leakscope.findings.comparison import Change, Judged, RunComparison, compare
from leakscope.findings.model import Finding, Findings, Sighting
from leakscope.run.model import Ended, Rank
from leakscope.run.rows import EndKind
from leakscope.run.suppression import Suppression
from leakscope.verdict import Verdict

KIB = 1024
KNOWN = Suppression("b41c07e2", source="base")


def leak(name: str = "a", kib: float = 256, ranks: tuple[int, ...] = (0,), first: int = 3, **more: object) -> Finding:
    seen = tuple(Sighting(number, step, 0) for number in ranks for step in (first, 11))
    values = {"fingerprint": name, "bytes_per_step": kib * KIB * len(ranks), "sightings": seen, **more}
    return replace(growth_finding(), **values)  # type: ignore[arg-type]


def judged(*findings: Finding, ranks: tuple[Rank, ...] = (rank(0), rank(1)), command: str = "train.py") -> Judged:
    """As `judge` says it of what it found."""
    shown = tuple(finding for finding in findings if finding.suppressed_by is None)
    apart = tuple(finding for finding in findings if finding.suppressed_by is not None)
    verdict = Verdict.LEAKS if any(f.severity == "leak" for f in shown) else Verdict.CLEAN
    return Judged(run(*ranks, command=(command,)), Findings(verdict, "so", 0, shown, suppressed=apart))


def changes(comparison: RunComparison) -> dict[str, str]:
    return {leak.finding.fingerprint: str(leak.change) for leak in comparison.leaks}


def test_new_and_fixed_by_their_fingerprints() -> None:
    found = compare(judged(leak("a"), leak("b")), judged(leak("b"), leak("c")))
    assert changes(found) == {"c": "new", "b": "persisting", "a": "fixed"}
    assert found.exit_status == 23
    assert compare(judged(leak("a"), leak("b")), judged(leak("b"))).exit_status == 0


@pytest.mark.parametrize(("before", "after", "worse", "change", "status"), [
    (256, 384, 1.5, "worse", 23), (256, 383, 1.5, "persisting", 0), (256, 383, 1.2, "worse", 23),
    (2, 5, 1.5, "persisting", 0),  # less than 4 KiB more
    (384, 256, 1.5, "better", 0), (383, 256, 1.5, "persisting", 0), (5, 2, 1.5, "persisting", 0),
    (0, 64, 1.5, "worse", 23), (64, 0, 1.5, "better", 0), (0, 0, 1, "persisting", 0), (256, 256, 1, "persisting", 0),
])  # fmt: skip
def test_worse_by_a_factor_and_by_more_than_is_told_of_anything(
    before: float, after: float, worse: float, change: str, status: int
) -> None:
    found = compare(judged(leak(kib=before)), judged(leak(kib=after)), worse)
    assert (changes(found), found.exit_status) == ({"a": change}, status)


@pytest.mark.parametrize("verdicts", [("leaks", "inconclusive"), ("inconclusive", "leaks"), ("inconclusive",) * 2])
def test_a_run_that_could_not_be_judged_never_passes(verdicts: tuple[str, str]) -> None:
    base, new = (
        judged(leak()) if verdict == "leaks" else Judged(run(rank(0)), Findings(Verdict.INCONCLUSIVE, "short", 0))
        for verdict in verdicts
    )
    found = compare(base, new)
    assert (found.exit_status, found.could_be_judged) == (2, False)
    assert set(changes(found).values()) <= {"not_seen"}


@pytest.mark.parametrize("other", [
    rank(1, ended=Ended(EndKind.KILLED, 137, 5)), rank(1, ended=Ended(EndKind.HUNG, 1, 5)), rank(1, count=4),
    replace(rank(1), heap_snapshots=(heap_snapshot(3, 0, 0), heap_snapshot(5, 0, 0))),
    replace(rank(1), damaged=("ended.json",)), rank(2),
])  # fmt: skip
def test_a_leak_of_a_rank_that_was_not_judged_is_not_fixed(other: Rank) -> None:
    found = compare(judged(leak(ranks=(0, 1)), leak("b")), judged(leak("b"), ranks=(rank(0), other)))
    assert changes(found) == {"b": "persisting", "a": "not_seen"}
    (unseen,) = found.of(Change.NOT_SEEN)
    assert unseen.unseen is not None and unseen.unseen.ranks == (1,)
    assert found.exit_status == 0


def test_a_leak_that_began_after_the_last_look_is_not_fixed() -> None:
    short = (replace(rank(0), heap_snapshots=tuple(heap_snapshot(step, 0, 0) for step in (3, 4, 5, 6))),)
    found = compare(judged(leak(first=9)), judged(ranks=short))
    assert changes(found) == {"a": "not_seen"}
    assert found.leaks[0].unseen is not None and found.leaks[0].unseen.until == 6
    assert changes(compare(judged(leak(first=3)), judged(ranks=short))) == {"a": "fixed"}


def test_what_a_run_was_told_of_counts_there_alone() -> None:
    known = leak(suppressed_by=KNOWN)
    assert compare(judged(known), judged(known)).leaks == ()
    assert changes(compare(judged(leak()), judged(known))) == {"a": "suppressed"}
    found = compare(judged(known), judged(leak()))
    assert (changes(found), found.exit_status) == ({"a": "persisting"}, 0), "it is none that BASE had not"
    assert compare(judged(known), judged()).leaks == ()


def test_a_note_that_has_become_a_leak_is_new_and_a_leak_that_is_but_a_note_is_better() -> None:
    note = leak(kib=4, severity="note")
    assert changes(compare(judged(note), judged(leak()))) == {"a": "new"}
    assert changes(compare(judged(leak()), judged(note))) == {"a": "better"}
    assert changes(compare(judged(leak()), judged(leak(kib=0, severity="avoidable")))) == {"a": "fixed"}


@pytest.mark.parametrize(("command", "findings", "related"), [
    ("train.py", (), True), ("/elsewhere/train.py", (), True), ("other.py", (), False), ("other.py", (leak(),), True),
    ("other.py", (leak(severity="note"),), True),
])  # fmt: skip
def test_runs_of_other_scripts_with_nothing_in_common_are_unrelated(
    command: str, findings: tuple[Finding, ...], related: bool
) -> None:
    assert compare(judged(leak()), judged(*findings, command=command)).are_related == related


FINDINGS = st.lists(
    st.builds(
        leak,
        st.sampled_from("abcd"),
        st.sampled_from((0, 4, 64, 100, 256, 512)),
        st.sampled_from(((0,), (1,), (0, 1))),
        st.sampled_from((3, 9)),
        severity=st.sampled_from(("leak", "leak", "note", "avoidable")),
        suppressed_by=st.sampled_from((None, None, KNOWN)),
    ),
    max_size=5,
)
RUNS = st.builds(
    lambda findings, ranks, lost: replace(
        judged(*findings, ranks=ranks), **({"findings": Findings(Verdict.INCONCLUSIVE, "", 0)} if lost else {})
    ),
    FINDINGS,
    st.sampled_from(((rank(0),), (rank(0), rank(1)), (rank(0), rank(1, ended=Ended(EndKind.KILLED, 137, 5))))),
    st.booleans(),
)


@given(RUNS, RUNS, st.sampled_from((1, 1.5, 3)))
@settings(max_examples=40, deadline=None)
def test_each_leak_of_both_runs_is_told_once(base: Judged, new: Judged, worse: float) -> None:
    found = compare(base, new, worse)
    reported = [leak for change in Change for leak in found.of(change)]
    assert list(found.leaks) == reported
    for side, name in ((base, "base"), (new, "new")):
        leaks = [f for f in side.findings.findings if f.severity == "leak"]
        for leak in leaks:
            assert sum(getattr(one, name) is leak for one in reported) == 1
    for change in Change:
        sizes = [one.largest for one in found.of(change)]
        assert sizes == sorted(sizes, reverse=True)
    failed = bool(found.of(Change.NEW) or found.of(Change.WORSE))
    lost = Verdict.INCONCLUSIVE in (base.findings.verdict, new.findings.verdict)
    assert found.exit_status == (2 if lost else 23 if failed else 0)


@given(RUNS, RUNS)
def test_there_and_back_again(base: Judged, new: Judged) -> None:
    to = {id(one.base): one.change for one in compare(base, new).leaks if one.base and one.new}
    fro = {id(one.new): one.change for one in compare(new, base).leaks if one.base and one.new}
    back = {Change.WORSE: Change.BETTER, Change.BETTER: Change.WORSE, Change.PERSISTING: Change.PERSISTING}
    both = [name for name in to.keys() & fro.keys() if to[name] in back and fro[name] in back]
    assert all(fro[name] == back[to[name]] for name in both)
