"""The fast check never misses garbage that a heap snapshot would find."""

from __future__ import annotations

import gc
import random
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
from leakscope.heap import fast_check
from leakscope.heap.fast_check import RetentionCheck, WeakIdSet, _objects_at, retained_upper_bound
from leakscope.heap.snapshot import SnapshotContext, look

load()
GARBAGE_OF_CORPUS = [name for name, case in CASES.items() if case.freed_by != "program"]
HIDDEN = {"of_the_module", "of_a_thread", "of_a_context"}
"""Far from the block, or held by C alone: only a look tells that these are held."""
COLLECTING = {"after_the_blocks_own_collection", "made_old_by_the_block"}
"""Free what others have left in the same block."""


ONE = RetentionCheck()


def ready() -> RetentionCheck:
    """One that knows what earlier tests have left for ever."""
    if not asked_before(ONE):
        garbage = [obj for obj in gc.get_objects() if id(obj) in ONE.doubtful or ONE._garbage.has(obj)]
        ONE._garbage = WeakIdSet(garbage)
        garbage.clear()
        ONE.looked_before({})
    assert asked_before(ONE)
    return ONE


@pytest.fixture
def question() -> RetentionCheck:
    return ready()


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    yield
    left_behind.let_go()


def asked_before(question: RetentionCheck) -> bool:
    """Whether all is held once gc has freed what it can: some garbage takes several collections."""
    answer, doubtful = question.held_before(), None
    while not answer and question.doubtful != doubtful:
        doubtful = question.doubtful
        answer = question.held_before(full=True)
    return answer


def held(question: RetentionCheck, *blocks: Callable[[], object]) -> bool:
    """Whether these blocks are found to leave no garbage; False where a look is needed, before them or after."""
    gc.disable()
    try:
        answer, mark = asked_before(question), question.begin()
        for block in blocks:
            block()
        return question.held_after(mark) and answer
    finally:
        gc.enable()


def test_garbage_is_never_called_held() -> None:
    for name, way in GARBAGE.items():
        assert not held(ready(), way()), name
        left_behind.let_go()
    for name in GARBAGE_OF_CORPUS[::6]:
        case = CASES[name](2003)
        assert not held(ready(), case.leak), name
        case.end()


@pytest.mark.parametrize("name", [*GARBAGE][::6])
def test_what_can_be_left_at_most_is_never_less_than_a_look_finds(name: str, question: RetentionCheck) -> None:
    held(question, GARBAGE[name]())
    most = retained_upper_bound(_objects_at(question.doubtful) or [])
    with leakscope.watch() as watched:
        GARBAGE[name]()()
    left = sum(finding.retained_bytes for finding in watched.findings.findings)
    assert left and (most is None or most >= left)


def test_a_block_within_its_allowance_needs_no_look() -> None:
    with leakscope.watch(allowance="8 KiB") as small:
        GARBAGE["list_of_itself"]()()
    with leakscope.watch(allowance=1000) as more:
        GARBAGE["list_of_itself"]()()
    assert (small.findings.verdict, small.run.ranks[0].looks) == ("clean", ())
    assert more.findings.verdict == "leaks"


def test_garbage_that_a_look_has_seen_is_not_asked_about_again() -> None:
    with leakscope.watch() as leaky:
        GARBAGE["hook_over_its_tensor"]()()
    with leakscope.watch():
        pass  # this one looks before
    with leakscope.watch() as clean:
        pass
    with leakscope.watch() as again:
        GARBAGE["hook_over_its_tensor"]()()
    assert not clean.run.ranks[0].looks
    assert leaky.findings.findings[0].retained_bytes == again.findings.findings[0].retained_bytes


def test_what_is_held_near_the_block_needs_no_look() -> None:
    for name in sorted(KEPT.keys() - HIDDEN):
        assert held(ready(), KEPT[name]()), name
        left_behind.let_go()


def test_what_a_look_has_shown_the_way_to_needs_no_other(question: RetentionCheck) -> None:
    """The way is known by then, to other tensors of the same list as well."""
    block = KEPT["of_the_module"]()
    held(question, block)
    look(0, "block", SnapshotContext(explained=question.learn))
    assert held(question, block)


@pytest.mark.parametrize("seed", range(1, 2))
def test_any_blocks_in_any_order(seed: int, question: RetentionCheck) -> None:
    """Kept and garbage of the sorts that a collection frees, several to a block, some set up long before it."""
    chance = random.Random(seed)
    freed = sorted(GARBAGE.keys() - {name for name in GARBAGE if "its" in name or "identity" in name})
    waiting = [(name, GARBAGE[name]()) for name in chance.sample(freed, 4)]
    waiting += [(name, KEPT[name]()) for name in chance.choices(sorted(KEPT.keys() - HIDDEN), k=6)]
    chance.shuffle(waiting)
    while waiting:
        now, waiting = waiting[:2], waiting[2:]
        answer = held(question, *(block for _, block in now))
        assert not answer or all(name in KEPT for name, _ in now), now


@contextmanager
def always_looked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        for name in ("held_before", "held_after"):
            asked = getattr(RetentionCheck, name)
            patched.setattr(
                RetentionCheck, name, lambda *args, asked=asked, **options: asked(*args, **options) and False
            )
        yield


def test_both_ways_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> Findings:
        blocks = [way() for name, way in (GARBAGE | KEPT).items() if name not in COLLECTING]
        with leakscope.watch() as watched:
            for block in blocks:
                block()
        left_behind.let_go()
        return watched.findings

    asked = found()
    with always_looked(monkeypatch):
        looked = found()
    assert asked.verdict == looked.verdict == "leaks"
    assert len(asked.findings) > 8
    told = [sorted((f.rule, f.fingerprint, f.retained_bytes, f.freed_by) for f in x.findings) for x in (asked, looked)]
    assert told[0] == told[1]


def test_nothing_is_held_and_no_tensor_has_a_weak_reference() -> None:
    kept = torch.ones(3)
    going = torch.ones(3)
    gone = weakref.ref(going)
    with leakscope.watch():
        new = torch.ones(3)
    assert weakref.getweakrefcount(kept) == weakref.getweakrefcount(new) == 0
    del going
    assert gone() is None


def test_what_the_program_has_frozen_stays_frozen() -> None:
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


def test_without_a_look_at_memory_nothing_is_missed(question: RetentionCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no /proc, an old tensor that is gone may as well be there."""

    @contextmanager
    def unreadable() -> Iterator[Callable[[int, int], tuple[int, ...]]]:
        yield lambda _address, _count: ()

    monkeypatch.setattr(fast_check, "own_memory", unreadable)
    assert not held(question, GARBAGE["old_thing_dropped"]())
    assert held(question, KEPT["gradients_of_an_old_model"]())
