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
from leakscope.findings import judge
from leakscope.findings.facts import FreedBy
from leakscope.findings.model import Finding, Findings, Reason, Why
from leakscope.options import Options
from leakscope.originals import time
from leakscope.profiler.result import Result, look_now, raise_leaks, run_of_rank, why_no_look
from leakscope.run.model import Step
from leakscope.run.rows import EndKind, MadeBy, Occasion
from leakscope.shield import Block, contextmanager, nothing
from leakscope.units import parse_bytes

if TYPE_CHECKING:
    from asyncio import Runner

    from leakscope.process.patches import Patches


def only_added(findings: Findings, before: int, steps: Sequence[Step]) -> Findings:
    """Each finding's bytes without those that were there at the look `before` the first judged call.

    `steps` are the judged calls: garbage of before is gone where gc has freed all garbage meanwhile.
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
    "{name} is a generator function: calling it runs nothing; give a function that takes it to its end, like "
    "`lambda: list(...)`"
)
_LOOP_RUNS = (
    "an event loop runs here already, as in a notebook, and {name} is a coroutine function that needs one of its own: "
    "await asyncio.to_thread(leakscope.check, train_step)"
)


def require_callable(step: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse what no call would run.

    Raises:
        TypeError: it cannot be called, or not with these arguments, or it is a generator function.
        RuntimeError: it is a coroutine function, and an event loop runs in this thread.

    """
    if not callable(step):
        raise TypeError(f"check calls a training step; {type(step).__qualname__} cannot be called")
    if _is(inspect.isgeneratorfunction, step) or _is(inspect.isasyncgenfunction, step):
        raise TypeError(_RUNS_NOTHING.format(name=_name(step)))
    try:
        inspect.signature(step).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{_name(step)} cannot be called so: {error}; give args=(...) and kwargs={{...}}") from None
    except ValueError:  # a builtin that does not say what it takes
        pass
    if _is(inspect.iscoroutinefunction, step):
        _require_no_loop(step)


def take(made: object, step: Callable[..., object], runner: Runner) -> None:
    """Run what a call returned, where it is a coroutine. Raises as `require_callable` does."""
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


def _is(kind: Callable[[object], bool], step: Callable[..., object]) -> bool:
    """Whether it, or the `__call__` of its type, is such a function."""
    return kind(step) or kind(type(step).__call__)


def _name(step: object) -> str:
    return str(getattr(step, "__qualname__", type(step).__qualname__))


class Sites:
    """One call watched under a dispatch mode; what it made is known for as long as that lives."""

    def __init__(self, patches: Patches) -> None:
        from leakscope.recorder.lifetimes.dispatch_mode import AllocationSites

        self._patches = patches.part()
        self._sites = AllocationSites(patches.part())

    @property
    def made_at(self) -> Mapping[int, str]:
        """Address of each storage still alive to `train.py:41 forward (aten::addmm)`."""
        return self._sites.made_at

    @contextmanager
    def watched(self, is_first: bool) -> Iterator[None]:
        """Note what the block makes, unless it may compile: a mode would switch that off.

        `is_first`: nothing has been called yet, so that what a call compiles is not known.
        """
        from leakscope.process.torch_compat import Part, lacks

        # torch loads this at the first torch.compile, and for other purposes (torch/_compile.py)
        may_compile = is_first and "torch._dynamo" in sys.modules
        if "torch" not in sys.modules or lacks(Part.WATCHED) or self._sites.enter(may_compile):
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
"""Bytes of growth a step from which the process's own count is trusted to tell it: below that lies leakscope's own."""
_MIN_REPEATS = 3
"""Calls from which growth can be told: two differences, as `judge` asks of looks."""


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
    """What grew on every one of `repeats` calls, after `warmup` calls that are not judged.

    Its bytes are what the judged calls added: what was there before them does not count. Automatic gc waits until the
    last call is over, so that what it would have freed is seen every time; before them all garbage is collected. One
    call, of the warm-up where there is any, runs under a dispatch mode of torch that notes which line makes which
    tensor and changes no result; none does where torch.compile is used.

    Args:
        train_step: a function, a method, or a coroutine function, whose calls run in one event loop; its result is
            dropped, and what it raises passes through.
        repeats: calls that are judged, three or more.
        args: what it is called with, the same each time.
        kwargs: by name.
        warmup: calls before them.
        min_bytes: growth a call, in bytes or like `"64 KiB"`, below which it is no leak.
        fail: raise where leaks add more than `allowance`.
        allowance: bytes that they may add in all, as a size.

    Returns:
        What leaks; `verdict` says it in one word, and printed it is the whole report.

    Raises:
        LeaksFound: an AssertionError with each leak's trace, where `fail` is asked for.
        ValueError: fewer than three repeats, which are too few to tell growth; a size that is none.
        LeakscopeError: this torch lacks what a look needs.
        TypeError: repeats that are no whole number; what cannot be called so; a generator function, a call of which
            runs nothing.
        RuntimeError: a coroutine function where an event loop runs already.

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
    """`check`, with `min_bytes` in bytes and no failing; with `libraries_leak` what libraries leak is no mere note."""
    from asyncio import Runner

    from leakscope.heap.growth import Gains
    from leakscope.process.gc_control import CollectionWatch, no_automatic_gc
    from leakscope.process.patches import Patches
    from leakscope.process.user_code import users_sources
    from leakscope.recorder.accelerator import Counter
    from leakscope.run.model import Ended, Rank, Step

    require_repeats(repeats)
    if why := why_no_look():
        raise LeakscopeError(why)
    require_callable(train_step, args, kwargs)
    steps, looks, counter, gains = [], [], Counter(), Gains()
    # the caller's own collections: what they free has come all the same
    collections = CollectionWatch(lambda: counter.read().bytes)
    patches = Patches()
    sites = Sites(patches)
    # nothing else of ours may hold the step and its arguments: frames of ours are no holders
    runner = Runner()  # makes a loop when it first runs something, where entering it would
    with Block(nothing, runner.close):
        for _ in range(warmup - 1):
            take(train_step(*args, **kwargs), train_step, runner)
        gc.collect()
        with no_automatic_gc(), Block(nothing, patches.take_out):
            collections.install(patches)
            # the first of them is of the warm-up, if there is any: its look is what the others' are compared with
            for number in range(warmup, warmup + repeats + 1):
                began = time.perf_counter()
                if number:
                    with sites.watched(is_first=number == 1) if number in (warmup, 1) else nullcontext():
                        take(train_step(*args, **kwargs), train_step, runner)
                seconds, collected = time.perf_counter() - began, collections.taken()
                with collections.not_listening():
                    look = look_now(number, Occasion.STEP, counter, gains, made_at=sites.made_at)
                # on CPU the counted bytes hold leakscope's own as well: too coarse for small allowances
                looks.append(look if min_bytes >= _COUNTED_FROM else replace(look, counted_bytes=None))
                if number > warmup:
                    steps.append(Step(number, seconds, looks[-1].counted_bytes, None, collected, look.counted_on))
    rank = Rank(0, tuple(steps), tuple(looks), Ended(EndKind.FINISHED, 0, warmup + repeats))
    # the look before the first judged call is judged as well: all that comes after it is theirs
    run = replace(run_of_rank(rank, MadeBy.CHECK, warmup - 1, min_bytes), sources=users_sources())
    return Result.of(run, only_added(judge(run, ignore_library=not libraries_leak), warmup, steps))


def require_repeats(repeats: int) -> None:
    """Refuse a number of repeats that cannot tell growth. Raises TypeError or ValueError."""
    if not isinstance(repeats, int):
        raise TypeError(f"repeats={repeats!r} is no whole number")
    if repeats < _MIN_REPEATS:
        raise ValueError(f"repeats={repeats} is too few to tell growth; give {_MIN_REPEATS} or more")
