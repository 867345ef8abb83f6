"""Blocks of code: `watch`, which must leave no tensor memory behind, and `TensorPeak`, which must not rise too far."""

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
from leakscope.findings.oom import MAX_LINES, MadeAt, RiseFacts, holders_then
from leakscope.profiler.result import Result, left_behind, raise_leaks, run_of_rank, take_snapshot, why_no_snapshot
from leakscope.run.rows import EndKind, MadeBy, Occasion
from leakscope.shield import PureBlock, ending_with
from leakscope.units import parse_bytes
from leakscope.verdict import Verdict

if TYPE_CHECKING:
    from leakscope.findings.model import Finding, Findings
    from leakscope.heap.fast_check import Mark
    from leakscope.heap.liveness import Liveness
    from leakscope.recorder.lifetimes.tracker import PeakRise, PeakWatch
    from leakscope.run.model import HeapSnapshot, Run


P = ParamSpec("P")
T = TypeVar("T")

Enter = Callable[[], AbstractContextManager[Callable[[Any], object] | None]]
"""Makes the block of one call; its `__enter__` gives a callback for the result of the call, or None."""


def decorated(name: str, enter: Enter, function: Callable[P, T]) -> Callable[P, T]:
    """Wrap each call of a function in a block, a coroutine function from its start to its end.

    Raises:
        TypeError: `function` is a generator function, or not a function; the message begins with `name`.

    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{name} cannot decorate a generator function, whose call runs nothing; use `with {name}:` in its body or "
            "around the loop that consumes it"
        )
    if inspect.isclass(function) or not callable(function):
        raise TypeError(f"{name} decorates functions and methods, got {function!r:.80}")
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


HIDDEN = "torch hides references held by C++, so garbage may have been left behind"


@dataclass(eq=False)
class _Entered:
    """One block that was entered and not left."""

    without_gc: PureBlock[None]
    """Keeps automatic gc off."""
    not_inspected: str = ""
    """Why no heap snapshot can be taken; "" if it can."""
    garbage: Mapping[str, int] = field(default_factory=dict)
    """Fingerprint to the bytes that were garbage before the block."""
    mark: Mark | None = None


_ENTERED: set[_Entered] = set()
"""The running blocks of this process, in all threads."""


class watch:
    """Check that a block, or each call of a function, leaves no tensor memory unreachable and unfreed.

    Memory that a live variable holds is not a leak here, in any thread, and neither is garbage from before the block.
    Garbage belongs to the process: what other threads leave behind meanwhile counts too.

    Automatic garbage collection is off during the block, so that garbage it would free is always seen; before the block
    the young generation is collected. A heap snapshot is taken only if the block may have left more than `allowance`
    bytes behind, preceded by a full collection before the block. Nested blocks collect nothing, and both report what
    the inner one leaves. Without torch imported, nothing is inspected. If torch hides what a snapshot needs, a warning
    is given and the verdict is inconclusive.

    `async with` and `@watch()` work too, for a coroutine function from its start to its end; what a decorated function
    returns is not a leak of it. One `watch` can be used repeatedly and within itself; `findings` are those of the block
    that ended last.

    Args:
        fail: Raise at the end of a block that leaves more than `allowance` behind.
        allowance: Bytes, as a number or like `"64 KiB"` and `"1 MB"`, both in powers of 1024.

    Raises:
        LeaksFound: The block left more than `allowance` behind, and `fail` is set. Never replaces an exception of the
            block itself.
        ValueError: `allowance` is not a size.
        TypeError: The decorated object is not a function, or is a generator function, whose call runs nothing.

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
    """Whether cycles of libraries are leaks; if not, they are notes and the block is clean."""

    findings: Result
    """What the block left behind; set after the block."""
    run: Run
    """The recording of the block, with a heap snapshot if one was needed."""

    def __init__(self, fail: bool = False, allowance: int | str = 0) -> None:
        self._fail, self._allowance = fail, parse_bytes(allowance)
        self._entered: list[_Entered] = []
        self._returned: tuple[object, ...] = ()
        """The result of the call that is ending."""
        self._at_most = 0
        """Upper bound of the bytes left by the last block, if no snapshot was needed."""

    def __enter__(self) -> Self:
        from leakscope.process.gc_control import no_automatic_gc

        entered = _Entered(no_automatic_gc())
        try:
            entered.without_gc.__enter__()
            entered.not_inspected = why_no_snapshot() if "torch" in sys.modules else ""
            if "torch" in sys.modules and not entered.not_inspected:
                from leakscope.heap.fast_check import RETENTION_CHECK

                entered.garbage = self._garbage_before_nested() if _ENTERED else self._garbage_before()
                entered.mark = RETENTION_CHECK.begin()
            self._entered.append(entered)
            _ENTERED.add(entered)
        except BaseException:  # Python then calls no `__exit__`
            entered.without_gc.__exit__(None, None, None)
            _ENTERED.discard(entered)
            if self._entered[-1:] == [entered]:
                del self._entered[-1]
            raise
        return self

    def _garbage_before(self) -> Mapping[str, int]:
        """Garbage before the block that gc cannot free, by fingerprint; gc frees the rest."""
        from leakscope.heap.fast_check import RETENTION_CHECK

        if not (RETENTION_CHECK.held_before() or RETENTION_CHECK.held_before(full=True)):
            before = _findings_of(take_snapshot(0, Occasion.BLOCK, explained=self._learn_before))
            RETENTION_CHECK.set_baseline(_bytes_of(before.findings))
        return dict(RETENTION_CHECK.left)

    def _garbage_before_nested(self) -> Mapping[str, int]:
        """Garbage before a nested block; nothing is collected, since the outer block reports it too."""
        from leakscope.heap.fast_check import RETENTION_CHECK

        if RETENTION_CHECK.held_within():
            return dict(RETENTION_CHECK.left)
        before = _findings_of(take_snapshot(0, Occasion.BLOCK, explained=self._learn_before))
        stays = [finding for finding in before.findings if finding.freed_by == FreedBy.NEVER]
        RETENTION_CHECK.set_baseline(_bytes_of(stays), collect=False)
        return _bytes_of(before.findings)

    def _leave(self) -> None:
        """End the block that was entered last, and restore gc."""
        if not self._entered:
            return
        entered = self._entered[-1]
        entered.without_gc.__exit__(None, None, None)
        _ENTERED.discard(entered)
        self._returned = ()
        del self._entered[-1]  # no call follows, so nothing can interrupt now and run this again

    @ending_with(_leave)
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered = self._entered[-1]
        self._not_inspected = entered.not_inspected or (why_no_snapshot() if "torch" in sys.modules else "")
        is_inspected = "torch" in sys.modules and kind is None and not self._not_inspected
        after = self._snapshot_if_doubtful(entered.mark) if is_inspected else None
        self.run = _run_of_block(after)
        self.findings = Result.of(self.run, self._judged(entered, is_inspected, after))
        if self._not_inspected:
            warnings.warn(f"the block was not inspected: {self._not_inspected}", stacklevel=2)
        if self._fail:
            raise_leaks(self.findings, self._allowance)

    def _judged(self, entered: _Entered, is_inspected: bool, after: HeapSnapshot | None) -> Findings:
        from leakscope.findings.model import Findings

        if self._not_inspected:
            return Findings(Verdict.INCONCLUSIVE, self._not_inspected, 0)
        if after is not None:
            return _left_behind(entered.garbage, after, self._libraries_leak)
        if not is_inspected:
            return Findings(Verdict.CLEAN, "torch was not used, or the block raised", 0)
        reason = Reason.WITHIN_ALLOWANCE if self._at_most else Reason.CLEAN_BLOCK
        return Findings(Verdict.CLEAN, Why(reason=reason, bytes=self._at_most), 0)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Decorate a function: each call of it is a block."""
        return decorated("leakscope.watch()", lambda: _WatchedCall(self), function)

    def returns(self, result: object) -> None:
        """Exclude what the block returns to its caller from what it leaves behind.

        Args:
            result: The returned object; held until the block ends.

        """
        self._returned = (result,)

    def _snapshot_if_doubtful(self, mark: Mark | None) -> HeapSnapshot | None:
        """A snapshot after the block; None if all tensors are certainly reachable."""
        from leakscope.heap.fast_check import RETENTION_CHECK

        if RETENTION_CHECK.held_after(mark, self._returned, self._allowance):
            self._at_most = RETENTION_CHECK.at_most
            return None
        return take_snapshot(1, Occasion.BLOCK, explained=self._learn_after)

    def _learn_before(self, heap: Liveness) -> None:
        """Called with the snapshot before the block, while the process is paused."""
        from leakscope.heap.fast_check import RETENTION_CHECK

        RETENTION_CHECK.learn_before(heap)

    def _learn_after(self, heap: Liveness) -> None:
        """Called with the snapshot after the block, while the process is paused."""
        from leakscope.heap.fast_check import RETENTION_CHECK

        RETENTION_CHECK.learn(heap)


class _WatchedCall:
    """One call of a decorated function. It has a block of its own because calls may overlap."""

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


def _run_of_block(snapshot: HeapSnapshot | None) -> Run:
    from leakscope.run.model import Ended, Rank

    rank = Rank(0, (), () if snapshot is None else (snapshot,), Ended(EndKind.FINISHED, 0, 0))
    return run_of_rank(rank, MadeBy.BLOCK)


def _findings_of(snapshot: HeapSnapshot, ignore_library: bool = False) -> Findings:
    from leakscope.findings import Policy, judge

    return judge(_run_of_block(snapshot), Policy(ignore_library=ignore_library))


def _left_behind(before: Mapping[str, int], after: HeapSnapshot, libraries_leak: bool) -> Findings:
    """Findings after the block, without the bytes that were there before it."""
    from leakscope.findings.rules import rule_named

    judged = _findings_of(after, ignore_library=not libraries_leak)
    # the same leak may have been there before the block: only the bytes added count
    kept = [
        replace(finding, retained_bytes=finding.retained_bytes - before.get(finding.fingerprint, 0))
        for finding in judged.findings
        # operations in flight count, although live objects hold their buffers
        if finding.freed_by != FreedBy.PROGRAM or rule_named(finding.rule).is_of_comm
    ]
    kept = [finding for finding in kept if finding.retained_bytes > 0]
    # a block has no steps, so no growth per step, and no time to compare that of gc with
    left = replace(judged, findings=tuple(replace(finding, bytes_per_step=0.0) for finding in kept), gc_advice=())
    if left.leaks:
        return replace(left, why=left_behind(left))
    if after.hides:
        return replace(left, verdict=Verdict.INCONCLUSIVE, why=HIDDEN, exit_status=0)
    of_libraries = sum(finding.retained_bytes for finding in left.findings if finding.origin == Origin.LIBRARY)
    return replace(left, verdict=Verdict.CLEAN, why=Why(reason=Reason.CLEAN_BLOCK, bytes=of_libraries), exit_status=0)


class TensorPeak:
    """Measures the peak of tensor memory in a block, on the CPU and on devices together.

    Counts each storage made in the block from its allocation to its end, minus earlier storages that end in it. Results
    of the block do not change; it is slower by about 50 microseconds per operation, plus 50 milliseconds to list
    existing storages (`benchmarks/peak.py`). After the block, `rise` holds the result, or `why` the reason for no
    measurement: torch was imported later, or something is compiled. Both are empty if torch was never imported.

    Raises:
        ValueError: `limit` is not a size.

    """

    def __init__(self, limit: int | str) -> None:
        self.limit = parse_bytes(limit)
        self.rise: RiseFacts | None = None
        """The rise above the memory at the start of the block."""
        self.fault: Exception | None = None
        """An error inside leakscope that ended the measurement."""
        self.why = ""
        """Why the block was not measured."""
        self._watch: PeakWatch | None = None

    def __enter__(self) -> Self:
        if "torch" in sys.modules:
            self.why = why_no_snapshot()
            if not self.why:
                from leakscope.recorder.lifetimes.tracker import PeakWatch

                self._watch = PeakWatch(self.limit)
                try:
                    self.why = self._watch.begin()
                except BaseException:  # Python then calls no `__exit__`
                    self._leave()
                    raise
                if self.why:
                    self._watch = None
        return self

    def _leave(self) -> None:
        if self._watch is not None:
            self._watch.leave()
        self._watch = None

    @ending_with(_leave)
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            try:
                seen = self._watch.end()
                self.why, self.rise = (seen, None) if isinstance(seen, str) else ("", self._facts(seen))
            except Exception as fault:  # noqa: BLE001 - the block itself has not failed
                self.fault, self.why = fault, f"leakscope failed with {type(fault).__name__}: {fault}"
        elif not self.why and "torch" in sys.modules:
            self.why = "torch was imported during the block; import it at the top of the file"

    @property
    def is_over(self) -> bool:
        """Whether memory rose above the limit."""
        return self.rise is not None and self.rise.bytes > self.limit

    def _facts(self, rise: PeakRise) -> RiseFacts:
        held = rise.snapshot
        return RiseFacts(
            bytes=rise.bytes,
            allowed_bytes=self.limit,
            at=rise.at,
            made=tuple(MadeAt(size, count, where) for where, size, count in rise.made[:MAX_LINES]),
            held=() if held is None else holders_then(held.heap, MAX_LINES, frozenset(held.storages)),
            returned=("", 0) if held is None else held.returned,
            held_bytes=0 if held is None else held.bytes,
            devices=() if held is None else held.devices,
        )
