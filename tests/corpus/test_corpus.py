"""Leaks of the corpus are found with exact bytes, lines and cuts, and their clean variants pass."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from corpus.case import CASES, FLOAT, Watched, all_text, kept_sources, load, matches, run_of, truth, watch
from corpus.pairs import differs, sampled
from leakscope.findings.judge import judge

pytestmark = pytest.mark.process  # minutes, all of it: no part of the fast lane

load()
NATIVE = [name for name, case in CASES.items() if case.rule == "native-hold"]
WATCHED_TOGETHER = [name for name in CASES if name not in NATIVE]
"""What native code holds has no holder to tell one leak from another by: those cases are watched one by one."""
NO_LINES = {
    "ContextOfItself", "GrowingContextVariable", "ClassPerStep", "SlottedClassPerStep", "WaitingTasks",
    "BlockedThreads", "CreateGraph", "IdentitySavedTensorHooks", "PackedInTuple", "ObjectArrayOfItself",
}  # fmt: skip
"""What no line of the source shows to be put there: saved tensors, context variables, a class that is its own."""
OF_MODULES = {
    "ContextAttribute": {"_KeepsOutput"},
    "ParentAndChildHooks": {"_HooksItself"},
    "HooksOnChildAndItself": {"_Remembers"},
}
"""Classes beside its own whose methods fill what a case keeps."""
SMALL = 16.0
"""Bytes a step that a leak may have beside its own tensors: the loss itself, a child's one number."""
PAIRS = 4
"""Watched in the suite, two seconds each; `make pairs` takes more, and any two."""
OTHER_THREAD = {"FutureResults"}
"""Made in threads that the outside view of births does not see."""


@pytest.fixture(scope="module")
def clean() -> Watched:
    return watch(list(CASES), "clean")


@pytest.fixture(scope="module")
def leaks(clean: Watched) -> Callable[[str], Watched]:
    together = watch(WATCHED_TOGETHER, "leak")
    alone = {name: watch([name], "leak") for name in NATIVE}
    return lambda name: alone.get(name, together)


@pytest.fixture(scope="module")
def other_process(with_support: dict[str, str]) -> dict[str, list[str]]:
    """Fingerprints of the same cases in a process with other hashes and addresses."""
    done = subprocess.run(
        [sys.executable, "-m", "corpus.case"],
        capture_output=True, text=True, timeout=200, check=False,
        env={**with_support, "PYTHONHASHSEED": "77"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", list(CASES))
def test_a_leak_is_found_and_told(name: str, leaks: Callable[[str], Watched]) -> None:
    case, seen = CASES[name], leaks(name)
    (finding,) = seen.of(name)
    text = all_text(finding)
    assert finding.rule == case.rule, text
    assert finding.freed_by == case.freed_by, text
    assert finding.severity == "leak", text
    assert case.cut or matches(case.tells, finding), text
    assert seen.about(finding) == {name}, text
    if case.cut:
        assert finding.cut is not None
        assert re.search(case.cut, finding.cut.reference), text
    if case.collections is not None:
        assert finding.collections == case.collections
    if case.frees:
        assert finding.cut is not None
        assert finding.cut.frees_bytes >= 0.9 * finding.retained_bytes, text


@pytest.mark.parametrize("name", WATCHED_TOGETHER)
def test_the_lines_that_add_are_those_of_the_leak(name: str, leaks: Callable[[str], Watched]) -> None:
    """In the case's own class, or in what its module has for it: never another case's; and most have some."""
    (finding,) = leaks(name).of(name)
    places = [place for reference in finding.cut.references for place in reference.added_at] if finding.cut else []
    told = {around(*place.rsplit(":", 1)) for place in places}
    assert told <= {name, ""} | OF_MODULES.get(name, set()), places
    assert bool(places) != (name in NO_LINES), places


@functools.cache
def around(file: str, line: str) -> str:
    """The class that a line stands in, "" for none."""
    tree = ast.parse("\n".join(kept_sources()[file]))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return next((c.name for c in classes if c.lineno <= int(line) <= (c.end_lineno or 0)), "")


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("NodeMetadata", "PackedInTuple")])
def test_the_bytes_are_those_that_really_stay(name: str, leaks: Callable[[str], Watched]) -> None:
    case, seen = CASES[name], leaks(name)
    (finding,) = seen.of(name)
    prime = seen.primes[name]
    if case.per_step is not None:
        assert finding.bytes_per_step == pytest.approx(case.per_step * FLOAT * prime, abs=SMALL)
    if name not in OTHER_THREAD and case.rule != "native-hold":
        assert finding.bytes_per_step == pytest.approx(truth(name, prime), abs=3 * SMALL)
    (last,) = [s for s in finding.sightings if s.step == 10]
    assert last.bytes == finding.retained_bytes


@pytest.mark.parametrize("name", list(CASES))
def test_the_clean_variant_is_no_leak(name: str, clean: Watched) -> None:
    assert [all_text(f) for f in clean.of(name) if f.severity == "leak"] == []


PLAIN = ("native-hold", "step-growth", "view-hold")
"""Rules of what somebody may keep on purpose: by its size a leak or a note."""


def test_what_nobody_intends_is_a_leak_beside_any_memory(leaks: Callable[[str], Watched]) -> None:
    seen = leaks("GrowingList")
    small = judge(run_of(seen.looks, 10, min_bytes=None, memory=1 << 50))
    for finding in small.findings:
        about = seen.about(finding)
        if about and CASES[next(iter(about))].rule not in PLAIN:
            assert finding.severity == "leak", all_text(finding)
    assert {finding.rule for finding in small.findings if finding.severity != "leak"} <= set(PLAIN)


def test_without_a_threshold_the_clean_variants_stay_clean(clean: Watched) -> None:
    found = judge(run_of(clean.looks, 10, min_bytes=None, memory=1 << 30))
    assert [all_text(f) for f in found.findings if f.severity == "leak"] == []


def test_the_verdicts(clean: Watched, leaks: Callable[[str], Watched]) -> None:
    assert (clean.findings.verdict, clean.findings.exit_status) == ("clean", 0)
    found = leaks("GrowingList").findings
    assert (found.verdict, found.exit_status) == ("leaks", 23)


def test_nobody_else_is_blamed(leaks: Callable[[str], Watched]) -> None:
    seen = leaks("GrowingList")
    unexpected = [all_text(f) for f in seen.findings.findings if f.severity == "leak" and not seen.about(f)]
    assert unexpected == []


@pytest.mark.parametrize("name", WATCHED_TOGETHER)
def test_the_fingerprint_is_the_same_in_another_process(
    name: str, leaks: Callable[[str], Watched], other_process: dict[str, list[str]]
) -> None:
    assert sorted(f.fingerprint for f in leaks(name).of(name)) == other_process[name]


@pytest.mark.parametrize("name", ["RecursiveClosure", "ParamGroupHooks", "TensorHookOnItself", "GrowingList"])
def test_gc_frees_what_was_said_and_when(name: str, leaks: Callable[[str], Watched]) -> None:
    """One collection less than said leaves something, as many leave nothing; never means never."""
    (finding,) = leaks(name).of(name)
    after = finding.collections or 3
    stays = truth(name, 2003, after=after)
    assert (stays == 0) == (finding.freed_by == "gc")
    if after > 1 and finding.freed_by == "gc":
        assert truth(name, 2003, after=after - 1) > 0


def test_truth_sees_a_leak_and_no_leak() -> None:
    assert truth("GrowingList", 2003) == FLOAT * 2003
    assert truth("GrowingList", 2003, variant="clean") == 0
    assert truth("RecursiveClosure", 2003, variant="clean") == 0


def test_what_is_found_of_two_cases_is_the_union(leaks: Callable[[str], Watched]) -> None:
    assert [text for pair in sampled(PAIRS, seed=32) for text in differs(pair, leaks)] == []
