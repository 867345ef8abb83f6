"""The fast check never misses garbage that a heap snapshot would find."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from corpus import left_behind
from corpus.case import CASES, load
from corpus.left_behind import GARBAGE, KEPT

import leakscope
from leakscope.findings.model import Findings
from leakscope.heap.fast_check import RetentionCheck, WeakIdSet
from leakscope.heap.snapshot import SnapshotContext, take_heap_snapshot

load()
GARBAGE_OF_CORPUS = [name for name, case in CASES.items() if case.freed_by != "program"]
HIDDEN = {"of_the_module", "of_a_thread", "of_a_context"}
"""Far from the block, or held by C alone: only a look tells that these are held."""
COLLECTING = {"after_the_blocks_own_collection", "made_old_by_the_block"}
"""Free what others have left in the same block."""


ONE = RetentionCheck()


def ready() -> RetentionCheck:
    """One that knows what earlier tests have left for ever."""
    if not checked_before(ONE):
        garbage = [obj for obj in gc.get_objects() if id(obj) in ONE.doubtful or ONE._garbage.has(obj)]
        ONE._garbage = WeakIdSet(garbage)
        garbage.clear()
        ONE.set_baseline({})
    assert checked_before(ONE)
    return ONE


@pytest.fixture
def check() -> RetentionCheck:
    return ready()


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    yield
    left_behind.let_go()


def checked_before(check: RetentionCheck) -> bool:
    """Whether all is held once gc has freed what it can: some garbage takes several collections."""
    answer, doubtful = check.held_before(), None
    while not answer and check.doubtful != doubtful:
        doubtful = check.doubtful
        answer = check.held_before(full=True)
    return answer


def held(check: RetentionCheck, *blocks: Callable[[], object]) -> bool:
    """Whether these blocks are found to leave no garbage; False where a look is needed, before them or after."""
    gc.disable()
    try:
        answer, mark = checked_before(check), check.begin()
        for block in blocks:
            block()
        return check.held_after(mark) and answer
    finally:
        gc.enable()


def test_garbage_is_told_from_what_a_block_retains() -> None:
    gc.collect()
    gc.freeze()  # else each collection takes a second
    try:
        for name in sorted(KEPT.keys() - HIDDEN):
            assert held(ready(), KEPT[name]()), name
            left_behind.let_go()
        for name, way in GARBAGE.items():
            assert not held(ready(), way()), name
            left_behind.let_go()
        for name in GARBAGE_OF_CORPUS[::9]:
            case = CASES[name](2003)
            assert not held(ready(), case.leak), name
            case.end()
    finally:
        gc.unfreeze()


def test_a_block_within_its_allowance_needs_no_snapshot() -> None:
    with leakscope.watch(allowance="8 KiB") as small:
        GARBAGE["list_of_itself"]()()
    with leakscope.watch(allowance=1000) as more:
        GARBAGE["list_of_itself"]()()
    assert (small.findings.verdict, small.run.ranks[0].heap_snapshots) == ("clean", ())
    assert more.findings.verdict == "leaks"


def test_known_garbage_needs_no_other_snapshot() -> None:
    with leakscope.watch() as leaky:
        GARBAGE["hook_over_its_tensor"]()()
    with leakscope.watch():
        pass  # this one looks before
    with leakscope.watch() as clean:
        pass
    with leakscope.watch() as again:
        GARBAGE["hook_over_its_tensor"]()()
    assert not clean.run.ranks[0].heap_snapshots
    assert leaky.findings.findings[0].retained_bytes == again.findings.findings[0].retained_bytes


def test_a_known_path_needs_no_other_snapshot(check: RetentionCheck) -> None:
    """The way is known by then, to other tensors of the same list as well."""
    block = KEPT["of_the_module"]()
    held(check, block)
    take_heap_snapshot(0, "block", SnapshotContext(explained=check.learn))
    assert held(check, block)


@contextmanager
def always_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        for name in ("held_before", "held_after"):
            asked = getattr(RetentionCheck, name)
            patched.setattr(
                RetentionCheck, name, lambda *args, asked=asked, **options: asked(*args, **options) and False
            )
        yield


def test_the_fast_check_finds_what_snapshots_find(monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> Findings:
        blocks = [way() for name, way in (GARBAGE | KEPT).items() if name not in COLLECTING]
        with leakscope.watch() as watched:
            for block in blocks:
                block()
        left_behind.let_go()
        return watched.findings

    asked = found()
    with always_a_snapshot(monkeypatch):
        looked = found()
    assert asked.verdict == looked.verdict == "leaks"
    assert len(asked.findings) > 8
    reported = [
        sorted((f.rule, f.fingerprint, f.retained_bytes, f.freed_by) for f in x.findings) for x in (asked, looked)
    ]
    assert reported[0] == reported[1]


def test_nothing_is_kept_alive_and_no_tensor_has_a_weak_reference() -> None:
    kept = torch.ones(3)
    going = torch.ones(3)
    gone = weakref.ref(going)
    with leakscope.watch():
        new = torch.ones(3)
    assert weakref.getweakrefcount(kept) == weakref.getweakrefcount(new) == 0
    del going
    assert gone() is None


def test_frozen_objects_stay_frozen() -> None:
    gc.freeze()
    try:
        thing = left_behind.Thing()
        with leakscope.watch() as clean:
            torch.ones(3)
        with leakscope.watch() as leaky:
            GARBAGE["list_of_itself"]()()
        assert gc.get_freeze_count() > 10_000
        assert any(obj is thing for obj in gc.get_objects()), "and nothing else is frozen"
    finally:
        gc.unfreeze()
    assert (clean.findings.verdict, leaky.findings.verdict) == ("clean", "leaks")
