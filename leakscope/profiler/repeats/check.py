"""Called again and again and looked at each time: what was there more each time?"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from leakscope.errors import LeakscopeError
from leakscope.findings import judge
from leakscope.options import Options
from leakscope.originals import time
from leakscope.profiler.in_memory import look_now, run_of_rank, why_no_look
from leakscope.profiler.leaks import raise_leaks
from leakscope.profiler.repeats.added import only_added
from leakscope.profiler.repeats.calls import require_callable, take
from leakscope.profiler.repeats.sites import Sites
from leakscope.profiler.result import Result
from leakscope.record.kinds import EndKind, MadeBy, Occasion
from leakscope.shield import Block, nothing
from leakscope.units import parse_bytes

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

    from leakscope.capture.device.counters import Counter
    from leakscope.capture.heap.objects.gains import Gains
    from leakscope.capture.process.gc_callbacks import CollectionWatch
    from leakscope.capture.process.patches import Patches
    from leakscope.capture.process.pause import no_automatic_gc
    from leakscope.capture.source.source_files import users_sources
    from leakscope.record.model import Ended, Rank, Step

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
