"""`check`: what grows with every call of a training step."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from leakscope.errors import LeakscopeError
from leakscope.findings import Policy, judge
from leakscope.findings.facts import FreedBy
from leakscope.findings.model import Finding, Findings, Reason, Why
from leakscope.options import Options
from leakscope.originals import time
from leakscope.profiler.result import Result, raise_leaks, run_of_rank, take_snapshot, why_no_snapshot
from leakscope.run.model import Step
from leakscope.run.rows import EndKind, MadeBy, Occasion
from leakscope.shield import Block, contextmanager, nothing
from leakscope.units import parse_bytes

if TYPE_CHECKING:
    from asyncio import Runner

    from leakscope.process.patches import Patches


def only_added(findings: Findings, before: int, steps: Sequence[Step]) -> Findings:
    """Subtract from each finding the bytes at the snapshot `before` the first judged call.

    `steps` are the judged calls; if gc ran a full collection in one of them, earlier garbage is gone.
    """
    collected = any(collection.is_full for step in steps for collection in step.collections)
    added = tuple(_added(finding, before, collected) for finding in findings.findings)
    leaks = [finding for finding in added if finding.is_leak]
    why = findings.why
    if isinstance(why, Why) and why.reason == Reason.LEAKS:
        why = replace(why, bytes=sum(finding.retained_bytes for finding in leaks))
    return replace(findings, findings=added, why=why)


def _added(finding: Finding, before: int, collected: bool) -> Finding:
    if collected and finding.freed_by == FreedBy.GC:
        return finding
    at = {seen.step: seen.bytes for seen in finding.sightings}
    there = min(at.values(), default=0) if before in at else 0
    if not 0 < there < finding.retained_bytes:
        return finding
    added = finding.retained_bytes - there
    return replace(
        finding, retained_bytes=added, before_bytes=there, count=0, host_bytes=min(finding.host_bytes, added)
    )


_RUNS_NOTHING = (
    "{name} is a generator function, whose call runs nothing; pass a function that exhausts it, like "
    "`lambda: list(...)`"
)
_LOOP_RUNS = (
    "{name} is a coroutine function, and an event loop is already running, as in a notebook; use "
    "await asyncio.to_thread(leakscope.check, train_step)"
)


def require_callable(step: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check that a training step can be called with these arguments.

    Raises:
        TypeError: It cannot, or it is a generator function.
        RuntimeError: It is a coroutine function, and an event loop is running in this thread.

    """
    if not callable(step):
        raise TypeError(f"expected a callable, got {type(step).__qualname__}")
    if _is_kind(inspect.isgeneratorfunction, step) or _is_kind(inspect.isasyncgenfunction, step):
        raise TypeError(_RUNS_NOTHING.format(name=_name(step)))
    try:
        inspect.signature(step).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"cannot call {_name(step)}: {error}; pass args= and kwargs=") from None
    except ValueError:  # a builtin without a signature
        pass
    if _is_kind(inspect.iscoroutinefunction, step):
        _require_no_loop(step)


def run_coroutine(made: object, step: Callable[..., object], runner: Runner) -> None:
    """Run the result of a call if it is a coroutine. Raises like `require_callable`."""
    if inspect.iscoroutine(made):
        try:
            _require_no_loop(step)
        except RuntimeError:
            made.close()
            raise
        runner.run(made)
    elif inspect.isgenerator(made) or inspect.isasyncgen(made):
        raise TypeError(_RUNS_NOTHING.format(name=_name(step)))


def _require_no_loop(step: Callable[..., object]) -> None:
    from asyncio import get_running_loop

    try:
        get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(_LOOP_RUNS.format(name=_name(step)))


def _is_kind(kind: Callable[[object], bool], step: Callable[..., object]) -> bool:
    """Whether it, or the `__call__` of its type, is a function of this kind."""
    return kind(step) or kind(type(step).__call__)


def _name(step: object) -> str:
    return str(getattr(step, "__qualname__", type(step).__qualname__))


class FirstCallSites:
    """Records the allocation sites of one call under a dispatch mode."""

    def __init__(self, patches: Patches) -> None:
        from leakscope.recorder.lifetimes.dispatch_mode import AllocationSites

        self._patches = patches.part()
        self._sites = AllocationSites(patches.part())

    @property
    def made_at(self) -> Mapping[int, str]:
        """Address of each live storage to its allocation site, `train.py:41 forward (aten::addmm)`."""
        return self._sites.made_at

    @contextmanager
    def watched(self, is_first: bool) -> Iterator[None]:
        """Record allocations of the block, unless it may compile: a dispatch mode would disable that.

        `is_first`: no call has been made, so that it is unknown whether one compiles.
        """
        from leakscope.process.torch_compat import RecordingPart, lacks

        # torch loads this at the first torch.compile, and for other purposes (torch/_compile.py)
        may_compile = is_first and "torch._dynamo" in sys.modules
        if "torch" not in sys.modules or lacks(RecordingPart.WATCHED) or self._sites.enter(may_compile):
            yield
            return
        import torch

        self._patches.call_before(torch, "compile", lambda *_, **__: self._sites.leave())
        try:
            yield
        finally:
            self._sites.leave()
            self._patches.take_out()


_COUNTED_FROM = 64 * 1024
"""Growth per step above which the counter of the process is used; below it lies the memory of leakscope itself."""
_MIN_REPEATS = 3
"""Growth needs two differences, as in `judge`."""


def check(
    train_step: Callable[..., object],
    repeats: int = 7,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    warmup: int = Options.warmup,
    min_bytes: int | str = 0,
    fail: bool = False,
    allowance: int | str = 0,
) -> Result:
    """Report what grows on every one of `repeats` calls of a training step.

    The reported bytes are those that the judged calls added. Garbage is collected before them, and automatic garbage
    collection is off until the last one has returned, so that garbage it would free is always seen. One call, of the
    warm-up if there is any, runs under a dispatch mode of torch that records allocation sites and changes no result;
    none does if torch.compile is used.

    Args:
        train_step: A function, method or coroutine function; coroutines run in one event loop. Its result is dropped,
            and its exceptions propagate.
        repeats: Number of judged calls, 3 or more.
        args: Positional arguments of each call.
        kwargs: Keyword arguments of each call.
        warmup: Number of calls before the judged ones.
        min_bytes: Minimum growth per call to report as a leak, in bytes or like `"64 KiB"`.
        fail: Raise if leaks add more than `allowance`.
        allowance: Bytes that leaks may add over all judged calls, as a size.

    Returns:
        The findings. `verdict` is `leaks`, `clean` or `inconclusive`; printed, it is the whole report.

    Raises:
        LeaksFound: Leaks added more than `allowance`, and `fail` is set.
        ValueError: `repeats` is less than 3, or a size is invalid.
        TypeError: `repeats` is not an int, or `train_step` cannot be called with these arguments or is a generator
            function, whose call runs nothing.
        RuntimeError: `train_step` is a coroutine function, and an event loop is running in this thread.
        LeakscopeError: Torch lacks what a heap snapshot needs.

    >>> import torch, leakscope
    >>> losses, net = [], torch.nn.Linear(8, 8)
    >>> result = leakscope.check(lambda: losses.append(net(torch.ones(64, 8)).sum()), repeats=3)
    >>> result.verdict.value, result.findings[0].rule.value, result.findings[0].retained_bytes
    ('leaks', 'retained-graph', 9756)
    >>> leakscope.check(net, repeats=3, args=[torch.ones(64, 8)]).verdict.value
    'clean'

    """
    require_repeats(repeats)
    smallest, allowed = parse_bytes(min_bytes), parse_bytes(allowance)
    found = run_and_judge(train_step, repeats, warmup, smallest, args, kwargs or {}, libraries_leak=False)
    if fail:
        raise_leaks(found, allowed)
    return found


def run_and_judge(
    train_step: Callable[..., object],
    repeats: int,
    warmup: int,
    min_bytes: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    libraries_leak: bool = True,
) -> Result:
    """As `check` without `fail`; `libraries_leak` makes leaks of libraries leaks instead of notes."""
    from asyncio import Runner

    from leakscope.heap.growth import Gains
    from leakscope.process.gc_control import CollectionWatch, no_automatic_gc
    from leakscope.process.patches import Patches
    from leakscope.process.user_code import users_sources
    from leakscope.recorder.accelerator import Counter
    from leakscope.run.model import Ended, Rank, Step

    require_repeats(repeats)
    if why := why_no_snapshot():
        raise LeakscopeError(why)
    require_callable(train_step, args, kwargs)
    steps, snapshots, counter, gains = [], [], Counter(), Gains()
    # collections by the caller: what they free was added all the same
    collections = CollectionWatch(lambda: counter.read().bytes)
    patches = Patches()
    sites = FirstCallSites(patches)
    # no other object of leakscope may hold the step and its arguments; its frames are ignored
    runner = Runner()  # creates a loop when it first runs something, whereas entering it would create one
    with Block(nothing, runner.close):
        for _ in range(warmup - 1):
            run_coroutine(train_step(*args, **kwargs), train_step, runner)
        gc.collect()
        with no_automatic_gc(), Block(nothing, patches.take_out):
            collections.install(patches)
            # the first one belongs to the warm-up, if there is any; the others are compared with its snapshot
            for number in range(warmup, warmup + repeats + 1):
                began = time.perf_counter()
                if number:
                    with sites.watched(is_first=number == 1) if number in (warmup, 1) else nullcontext():
                        run_coroutine(train_step(*args, **kwargs), train_step, runner)
                seconds, collected = time.perf_counter() - began, collections.taken()
                with collections.suspended():
                    snapshot = take_snapshot(number, Occasion.STEP, counter, gains, made_at=sites.made_at)
                # on the CPU the counted bytes include those of leakscope: too coarse for small allowances
                snapshots.append(snapshot if min_bytes >= _COUNTED_FROM else replace(snapshot, counted_bytes=None))
                if number > warmup:
                    steps.append(
                        Step(number, seconds, snapshots[-1].counted_bytes, None, collected, snapshot.counted_on)
                    )
    rank = Rank(0, tuple(steps), tuple(snapshots), Ended(EndKind.FINISHED, 0, warmup + repeats))
    # the snapshot before the first judged call is the baseline of all growth
    run = replace(run_of_rank(rank, MadeBy.CHECK, warmup - 1, min_bytes), sources=users_sources())
    return Result.of(run, only_added(judge(run, Policy(ignore_library=not libraries_leak)), warmup, steps))


def require_repeats(repeats: int) -> None:
    """Check the number of repeats. Raises TypeError or ValueError."""
    if not isinstance(repeats, int):
        raise TypeError(f"repeats must be an int, got {repeats!r}")
    if repeats < _MIN_REPEATS:
        raise ValueError(f"repeats must be >= {_MIN_REPEATS}, got {repeats}")
