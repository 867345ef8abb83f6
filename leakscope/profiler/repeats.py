"""What grows on every call of a training step?"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from leakscope.errors import LeakscopeError
from leakscope.options import Options
from leakscope.profiler.in_memory import look_now, run_of_rank, why_no_look
from leakscope.record.kinds import EndKind, Occasion
from leakscope.units import parse_bytes

if TYPE_CHECKING:
    from leakscope.findings.model import Findings
    from leakscope.record.model import Run

_COUNTED_FROM = 64 * 1024
"""Bytes of growth a step from which the process's own count is trusted to tell it: below that lies leakscope's own."""
_MIN_REPEATS = 3
"""Calls from which growth can be told: two differences, as `judge` asks of looks."""


def check(
    train_step: Callable[[], object], repeats: int = 7, *, warmup: int = Options.warmup, min_bytes: int | str = 0
) -> Findings:
    """What grew on every one of `repeats` calls, after `warmup` calls that are not judged.

    Automatic gc waits until the last call is over, so that what it would have freed is seen every time.

    Args:
        train_step: called without arguments; its result is dropped.
        repeats: calls that are judged, three or more.
        warmup: calls before them.
        min_bytes: growth a call, in bytes or like `"64 KiB"`, below which it is no leak.

    Returns:
        What leaks; `verdict` says it in one word.

    Raises:
        ValueError: fewer than three repeats, which are too few to tell growth; a size that is none.
        LeakscopeError: this torch lacks what a look needs.
        TypeError: repeats that are no whole number; a coroutine or generator function, a call of which runs nothing.
        What `train_step` raises passes through.

    >>> import torch, leakscope
    >>> losses, net = [], torch.nn.Linear(8, 8)
    >>> findings = leakscope.check(lambda: losses.append(net(torch.ones(64, 8)).sum()), repeats=3)
    >>> findings.verdict.value, findings.findings[0].rule.value
    ('leaks', 'retained-graph')
    >>> leakscope.check(lambda: net(torch.ones(64, 8)).sum().item(), repeats=3).verdict.value
    'clean'

    """
    return run_and_judge(train_step, repeats, warmup, parse_bytes(min_bytes))[1]


def run_and_judge(
    train_step: Callable[[], object], repeats: int, warmup: int, min_bytes: int
) -> tuple[Run, Findings]:  # fmt: skip
    """`check`, with the run it judged."""
    from leakscope.capture.device.counters import Counter
    from leakscope.capture.heap.objects.gains import Gains
    from leakscope.capture.process.gc_callbacks import CollectionWatch
    from leakscope.capture.process.patches import Patches
    from leakscope.capture.process.pause import no_automatic_gc
    from leakscope.capture.source.source_files import users_sources
    from leakscope.findings import judge
    from leakscope.record.model import Ended, Rank, Step

    require_repeats(repeats)
    if why := why_no_look():
        raise LeakscopeError(why)
    if inspect.iscoroutinefunction(train_step) or inspect.isgeneratorfunction(train_step):
        raise TypeError(
            "the train step is a coroutine or generator function: calling it runs nothing; "
            "wrap it in one that runs it to its end"
        )
    for _ in range(warmup):
        train_step()
    steps, looks, counter, gains = [], [], Counter(), Gains()
    # the caller's own collections: what they free has come all the same
    collections = CollectionWatch(lambda: counter.read().bytes)
    patches = Patches()
    with ExitStack() as restored:
        collections.install(patches)
        restored.callback(patches.take_out)
        restored.enter_context(no_automatic_gc())
        for number in range(warmup + 1, warmup + repeats + 1):
            began = time.perf_counter()
            train_step()
            seconds = time.perf_counter() - began
            with collections.not_listening():
                look = look_now(number, Occasion.STEP, counter, gains)
            # on CPU the counted bytes hold leakscope's own as well: too coarse for small allowances
            looks.append(look if min_bytes >= _COUNTED_FROM else replace(look, counted_bytes=None))
            steps.append(Step(number, seconds, looks[-1].counted_bytes, None, collections.taken(), look.counted_on))
    rank = Rank(0, tuple(steps), tuple(looks), Ended(EndKind.FINISHED, 0, warmup + repeats))
    run = replace(run_of_rank(rank, warmup, min_bytes), sources=users_sources())
    return run, judge(run)


def require_repeats(repeats: int) -> None:
    """Refuse a number of repeats that cannot tell growth. Raises TypeError or ValueError."""
    if not isinstance(repeats, int):
        raise TypeError(f"repeats={repeats!r} is no whole number")
    if repeats < _MIN_REPEATS:
        raise ValueError(f"repeats={repeats} is too few to tell growth; give {_MIN_REPEATS} or more")
