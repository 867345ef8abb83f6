"""`watch`: a block of code must leave no tensor memory behind."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, cast

from leakscope.findings.facts import FreedBy, Origin
from leakscope.findings.model import Reason, Why
from leakscope.profiler.result import Result, left_behind, look_now, raise_leaks, run_of_rank, why_no_look
from leakscope.run.rows import EndKind, MadeBy, Occasion
from leakscope.shield import PureBlock, ending_with
from leakscope.units import parse_bytes
from leakscope.verdict import Verdict

if TYPE_CHECKING:
    from leakscope.findings.model import Finding, Findings
    from leakscope.heap.fast_check import Mark
    from leakscope.heap.garbage import ExplainedHeap
    from leakscope.run.model import Look, Run


P = ParamSpec("P")
T = TypeVar("T")

Enter = Callable[[], AbstractContextManager[Callable[[Any], object] | None]]
"""Gives the block of one call; what that is entered with is told what the call returns, before the block is left."""


def decorated(name: str, enter: Enter, function: Callable[P, T]) -> Callable[P, T]:
    """The function with each of its calls in a block of its own; of a coroutine function, from its start to its end.

    Raises TypeError for a generator function, whose calls run nothing, and for what is no function: `name` says whose.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        told = f"{name} around a generator function sees nothing: calling it runs nothing"
        raise TypeError(f"{told}; write `with {name}:` in its body, or around the loop that consumes it")
    if inspect.isclass(function) or not callable(function):
        raise TypeError(f"{name} decorates functions and methods; {function!r:.80} is none")
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            with enter() as returns:
                result = await function(*args, **kwargs)
                if returns is not None:
                    returns(result)
            return result

        return cast("Callable[P, T]", awaited)

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        with enter() as returns:
            result = function(*args, **kwargs)
            if returns is not None:
                returns(result)
        return result

    return called


HIDDEN = "this torch does not show all that C++ holds, so garbage may have been left behind"


@dataclass(eq=False)
class _Entered:
    """One block that was entered and not left yet."""

    without_gc: PureBlock[None]
    """Keeps automatic gc off."""
    unseen: str = ""
    """Why nothing can be looked at; "" where it can."""
    left: Mapping[str, int] = field(default_factory=dict)
    """Bytes of the findings about what was garbage before, by fingerprint."""
    mark: Mark | None = None


_ENTERED: set[_Entered] = set()
"""The blocks of this process that run now, of all threads."""


class watch:
    """A block, or the calls of a function, that must leave no tensor memory unreachable and unfreed.

    What a live variable holds is no leak here, of whichever thread, and neither is what was there before. Garbage is
    the process's: what threads leave behind while the block runs counts, whether they go on running or not. Automatic
    gc waits until the block is over, so that what it would have freed is seen every time; before the block gc collects
    what is young. A look is taken only where more than `allowance` may be held by nothing alive, and before the block a
    full collection comes first; a block within another collects nothing, and both tell what the inner one leaves. Where
    torch is not imported, nothing is looked at. A torch that lacks what a look needs is warned of, and the verdict is
    inconclusive.

    `async with` and `@watch()` do the same, for a coroutine function from its start to its end; what a decorated
    function returns is no leak of it. One `watch` can be used again and again, and within itself: it has the findings
    of the block that ended last. A generator function cannot be decorated, for its call runs nothing.

    Args:
        fail: raise at the end of a block that leaves more than `allowance` behind.
        allowance: bytes, as a number or like `"64 KiB"` and `"1 MB"`, both in powers of 1024.

    Raises:
        LeaksFound: an AssertionError with each leak's trace; never in place of what the block itself raised.
        ValueError: `allowance` is no size.
        TypeError: what is decorated is a generator function, or none at all.

    >>> import torch, leakscope
    >>> def leave_a_cycle():
    ...     outputs = [torch.ones(1024)]
    ...     outputs.append(outputs)
    >>> with leakscope.watch() as block:
    ...     leave_a_cycle()
    >>> block.findings.verdict.value, block.findings.findings[0].retained_bytes
    ('leaks', 4096)
    >>> @leakscope.watch(fail=True, allowance="1 MB")
    ... def leave_another():
    ...     leave_a_cycle()
    >>> leave_another()

    """

    _libraries_leak = False
    """What a library closes is a leak as well; else it is shown as a note, and the block is clean."""

    findings: Result
    """What the block left behind; there after the block."""
    run: Run
    """What was seen of it, as the rest of leakscope takes it; with a look where one was needed."""

    def __init__(self, fail: bool = False, allowance: int | str = 0) -> None:
        self._fail, self._allowance = fail, parse_bytes(allowance)
        self._entered: list[_Entered] = []
        self._returned: tuple[object, ...] = ()
        """What the call returned that ends, for as long as that takes."""
        self._at_most = 0
        """Bytes that the block which ended last can have left behind, where no look was needed."""

    def __enter__(self) -> Self:
        from leakscope.process.gc_control import no_automatic_gc

        entered = _Entered(no_automatic_gc())
        try:
            entered.without_gc.__enter__()
            entered.unseen = why_no_look() if "torch" in sys.modules else ""
            if "torch" in sys.modules and not entered.unseen:
                from leakscope.heap.fast_check import QUESTION

                entered.left = self._left_within() if _ENTERED else self._left_before()
                entered.mark = QUESTION.begin()
            self._entered.append(entered)
            _ENTERED.add(entered)
        except BaseException:  # Python calls no `__exit__` then
            entered.without_gc.__exit__(None, None, None)
            _ENTERED.discard(entered)
            if self._entered[-1:] == [entered]:
                del self._entered[-1]
            raise
        return self

    def _left_before(self) -> Mapping[str, int]:
        """What is garbage before the block and will stay, by fingerprint; what gc can free, it frees."""
        from leakscope.heap.fast_check import QUESTION

        if not (QUESTION.held_before() or QUESTION.held_before(full=True)):
            before = _findings_of(look_now(0, Occasion.BLOCK, explained=self._learn_before))
            QUESTION.looked_before(_bytes_of(before.findings))
        return dict(QUESTION.left)

    def _left_within(self) -> Mapping[str, int]:
        """What is garbage before a block within another, which is to find it yet: nothing is collected."""
        from leakscope.heap.fast_check import QUESTION

        if QUESTION.held_within():
            return dict(QUESTION.left)
        before = _findings_of(look_now(0, Occasion.BLOCK, explained=self._learn_before))
        stays = [finding for finding in before.findings if finding.freed_by == FreedBy.NEVER]
        QUESTION.looked_before(_bytes_of(stays), collect=False)
        return _bytes_of(before.findings)

    def _leave(self) -> None:
        """End the block that was entered last: what it switched is as it was."""
        if not self._entered:
            return
        entered = self._entered[-1]
        entered.without_gc.__exit__(None, None, None)
        _ENTERED.discard(entered)
        self._returned = ()
        del self._entered[-1]  # no call follows: nothing can interrupt now, and have this run again

    @ending_with(_leave)
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered = self._entered[-1]
        self._unseen = entered.unseen or (why_no_look() if "torch" in sys.modules else "")
        asked = "torch" in sys.modules and kind is None and not self._unseen
        after = self._look_where_doubtful(entered.mark) if asked else None
        self.run = _run_of_block(after)
        self.findings = Result.of(self.run, self._judged(entered, asked, after))
        if self._unseen:
            warnings.warn(f"the block was not looked at: {self._unseen}", stacklevel=2)
        if self._fail:
            raise_leaks(self.findings, self._allowance)

    def _judged(self, entered: _Entered, asked: bool, after: Look | None) -> Findings:
        from leakscope.findings.model import Findings

        if self._unseen:
            return Findings(Verdict.INCONCLUSIVE, self._unseen, 0)
        if after is not None:
            return _left_behind(entered.left, after, self._libraries_leak)
        why = _within(self._at_most) if asked else "torch was not used, or the block raised"
        return Findings(Verdict.CLEAN, why, 0)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """The same function, each call of it watched."""
        return decorated("leakscope.watch()", lambda: _Call(self), function)

    def returns(self, result: object) -> None:
        """What the block hands on to its caller is none of what it leaves behind."""
        self._returned = (result,)

    def _look_where_doubtful(self, mark: Mark | None) -> Look | None:
        """A look after the block; None where all tensors are certainly held."""
        from leakscope.heap.fast_check import QUESTION

        if QUESTION.held_after(mark, self._returned, self._allowance):
            self._at_most = QUESTION.at_most
            return None
        return look_now(1, Occasion.BLOCK, explained=self._learn)

    def _learn_before(self, heap: ExplainedHeap) -> None:
        """Told what the look before the block found, while the process stands still."""
        from leakscope.heap.fast_check import QUESTION

        QUESTION.learn_before(heap)

    def _learn(self, heap: ExplainedHeap) -> None:
        """Told what the look after the block found."""
        from leakscope.heap.fast_check import QUESTION

        QUESTION.learn(heap)


class _Call:
    """One call of a decorated function: a block of its own, for calls may overlap; its findings are the owner's."""

    def __init__(self, owner: watch) -> None:
        self._owner, self._block = owner, copy.copy(owner)
        self._block._entered = []

    def __enter__(self) -> Callable[[object], None]:
        self._block.__enter__()
        return self._block.returns

    def _leave(self) -> None:
        self._block._leave()

    @ending_with(_leave)
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._block.__exit__(kind, error, trace)
        finally:
            if hasattr(self._block, "findings"):
                self._owner.findings, self._owner.run = self._block.findings, self._block.run


def _bytes_of(findings: Iterable[Finding]) -> dict[str, int]:
    """Bytes of each, by fingerprint."""
    return {finding.fingerprint: finding.retained_bytes for finding in findings}


def _within(at_most: int) -> Why:
    """Why a block is clean after which no look was needed: it can have left so many bytes behind."""
    return Why(reason=Reason.WITHIN_ALLOWANCE, bytes=at_most) if at_most else Why(reason=Reason.CLEAN_BLOCK)


def _run_of_block(look: Look | None) -> Run:
    from leakscope.run.model import Ended, Rank

    rank = Rank(0, (), () if look is None else (look,), Ended(EndKind.FINISHED, 0, 0))
    return run_of_rank(rank, MadeBy.BLOCK)


def _findings_of(look: Look, ignore_library: bool = False) -> Findings:
    from leakscope.findings import judge

    return judge(_run_of_block(look), ignore_library=ignore_library)


def _left_behind(before: Mapping[str, int], after: Look, libraries_leak: bool) -> Findings:
    """Findings after the block, without what was there before it: bytes by fingerprint."""
    from leakscope.findings.rules import rule_named

    judged = _findings_of(after, ignore_library=not libraries_leak)
    # the same leak may have been there before, made by somebody else: only what came on top counts
    kept = [
        replace(finding, retained_bytes=finding.retained_bytes - before.get(finding.fingerprint, 0))
        for finding in judged.findings
        # a block answers for what is in flight, although something alive holds it
        if finding.freed_by != FreedBy.PROGRAM or rule_named(finding.rule).is_of_comm
    ]
    kept = [finding for finding in kept if finding.retained_bytes > 0]
    # a block has no steps: nothing grows by so much a step, and collecting is not set against its time
    left = replace(judged, findings=tuple(replace(finding, bytes_per_step=0.0) for finding in kept), gc_advice=())
    if left.leaks:
        return replace(left, why=left_behind(left))
    if after.hides:
        return replace(left, verdict=Verdict.INCONCLUSIVE, why=HIDDEN, exit_status=0)
    of_libraries = sum(finding.retained_bytes for finding in left.findings if finding.origin == Origin.LIBRARY)
    return replace(left, verdict=Verdict.CLEAN, why=Why(reason=Reason.CLEAN_BLOCK, bytes=of_libraries), exit_status=0)
