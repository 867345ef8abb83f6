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

from corpus.case import CASES, FLOAT, Watched, kept_sources, load, matches, run_of, text_of, truth, watch
from leakscope.findings.judge import judge

pytestmark = pytest.mark.process  # a minute, all of it: no part of the fast lane

load()
NATIVE = [name for name, case in CASES.items() if case.rule == "native-hold"]
WATCHED_TOGETHER = [name for name in CASES if name not in NATIVE]
"""What native code holds has no holder to tell one leak from another by: those cases are watched one by one."""
NO_LINES = {
    "ContextOfItself", "GrowingContextVariable", "ClassPerStep", "SlottedClassPerStep", "WaitingTasks", "CreateGraph",
    "IdentitySavedTensorHooks", "PackedInTuple", "ObjectArrayOfItself",
}  # fmt: skip
"""Cases whose references no line of the source stores: saved tensors, context variables, a class that is its own."""
OF_MODULES = {"ContextAttribute": {"_KeepsOutput"}, "ParentAndChildHooks": {"_HooksItself"}}
"""Classes beside its own whose methods fill what a case keeps."""
SMALL = 16.0
"""Bytes a step that a leak may have beside its own tensors: the loss itself, a child's one number."""
UNMEASURED = {"NodeMetadata", "PackedInTuple"}
ELSEWHERE = ["RecursiveClosure", "ParamGroupHooks", "GrowingDefaultDict", "LoggedLoss", "ExceptionsKept", "SliceKept"]
"""Watched in another process too."""


@pytest.fixture(scope="module")
def clean() -> Watched:
    return watch(list(CASES), "clean")


@pytest.fixture(scope="module")
def leaks(clean: Watched) -> Callable[[str], Watched]:
    together = watch(WATCHED_TOGETHER, "leak")
    alone = {name: watch([name], "leak") for name in NATIVE}
    return lambda name: alone.get(name, together)


@pytest.mark.parametrize("name", list(CASES))
def test_a_leak_is_found_with_its_bytes_cut_and_lines(name: str, leaks: Callable[[str], Watched]) -> None:
    case, seen = CASES[name], leaks(name)
    (finding,) = seen.of(name)
    text = text_of(finding)
    assert (finding.rule, finding.freed_by, finding.severity) == (case.rule, case.freed_by, "leak"), text
    assert seen.about(finding) == {name}, text
    assert case.cut or matches(case.tells, finding), text
    if case.cut:
        assert finding.cut is not None and re.search(case.cut, finding.cut.reference), text
    if case.collections is not None:
        assert finding.collections == case.collections
    if case.frees:
        assert finding.cut is not None and finding.cut.frees_bytes >= 0.9 * finding.retained_bytes, text
    if name not in UNMEASURED:
        if case.per_step is not None:
            assert finding.bytes_per_step == pytest.approx(case.per_step * FLOAT * seen.primes[name], abs=SMALL)
        if name not in NATIVE:
            assert finding.bytes_per_step == pytest.approx(truth(name, seen.primes[name]), abs=3 * SMALL)
        assert [s.bytes for s in finding.sightings if s.step == 10] == [finding.retained_bytes]
    if name not in NATIVE:
        places = [place for reference in finding.cut.references for place in reference.added_at] if finding.cut else []
        assert {around(*place.rsplit(":", 1)) for place in places} <= {name, ""} | OF_MODULES.get(name, set()), places
        assert bool(places) != (name in NO_LINES), places


@functools.cache
def around(file: str, line: str) -> str:
    """The class that encloses a line, "" for none."""
    tree = ast.parse("\n".join(kept_sources()[file]))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return next((c.name for c in classes if c.lineno <= int(line) <= (c.end_lineno or 0)), "")


def test_the_clean_variants_are_no_leaks(clean: Watched) -> None:
    assert (clean.findings.verdict, clean.findings.exit_status) == ("clean", 0)
    found = judge(run_of(clean.heap_snapshots, 10, min_bytes=None, memory=1 << 30)).findings
    assert [text_of(f) for f in (*clean.findings.findings, *found) if f.severity == "leak"] == []


PLAIN = ("native-hold", "step-growth", "view-hold")
"""Rules of what somebody may keep on purpose: by its size a leak or a note."""


def test_unintended_retention_is_a_leak_whatever_its_size_and_nothing_else_is_blamed(
    leaks: Callable[[str], Watched],
) -> None:
    seen = leaks("GrowingList")
    assert (seen.findings.verdict, seen.findings.exit_status) == ("leaks", 23)
    assert [text_of(f) for f in seen.findings.findings if f.severity == "leak" and not seen.about(f)] == []
    for finding in judge(run_of(seen.heap_snapshots, 10, min_bytes=None, memory=1 << 50)).findings:
        about = seen.about(finding)
        if about and CASES[next(iter(about))].rule not in PLAIN:
            assert finding.severity == "leak", text_of(finding)
        assert finding.severity == "leak" or finding.rule in PLAIN


def test_the_fingerprint_is_the_same_in_another_process(
    leaks: Callable[[str], Watched], with_support: dict[str, str]
) -> None:
    """A process with other hashes, addresses and fewer cases."""
    done = subprocess.run(
        [sys.executable, "-m", "corpus.case", *ELSEWHERE],
        capture_output=True, text=True, timeout=200, check=False, env={**with_support, "PYTHONHASHSEED": "77"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = {name: sorted(f.fingerprint for f in leaks(name).of(name)) for name in ELSEWHERE}
    assert json.loads(done.stdout.splitlines()[-1]) == expected


@pytest.mark.parametrize("name", ["RecursiveClosure", "ParamGroupHooks", "TensorHookOnItself"])
def test_the_number_of_collections_is_measured(name: str, leaks: Callable[[str], Watched]) -> None:
    """One collection fewer leaves something, as many leave nothing; never means never."""
    (finding,) = leaks(name).of(name)
    after = finding.collections or 3
    stays = truth(name, 2003, after=after)
    assert (stays == 0) == (finding.freed_by == "gc")
    if after > 1 and finding.freed_by == "gc":
        assert truth(name, 2003, after=after - 1) > 0
    assert truth(name, 2003, variant="clean") == 0
