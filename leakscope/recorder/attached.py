"""Begins recording in a running process that `leakscope attach` attached to."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from leakscope.options import Options
from leakscope.originals import atexit
from leakscope.process.gc_control import no_automatic_gc
from leakscope.run.secrets import conceal

if TYPE_CHECKING:
    from leakscope.recorder.recorder import Recorder
    from leakscope.run.model import Ended

_RECORDS = "leakscope.recorder.__main__"
"""Is imported in a process that `leakscope run` has started."""
_attached: list[Recorder] = []
"""The recorder of this process, for as long as it is there."""


def attach(told: Mapping[str, object]) -> str:
    """Record this process from here on, with these options; why that cannot be, "" where it is so.

    To be called on the main thread. Steps that are seen are counted from here. Nobody sees with what status the process
    ends; the rest of its end is written when its exit handlers run.
    """
    if _attached or _RECORDS in sys.modules:
        return "leakscope records it already; `leakscope look` asks it"
    if "torch" not in sys.modules:
        return "it has not imported torch"
    with no_automatic_gc():  # it would go through all that this makes
        from leakscope.recorder.recorder import Recorder

    conceal(sys.orig_argv)
    conceal(sys.argv)
    recorder = Recorder(Options.of(told))
    recorder.attach()
    ends = partial(_end, recorder)
    atexit.register(ends)
    recorder.patches.add("exit handler", partial(atexit.unregister, ends))
    _attached.append(recorder)
    return ""


def _end(recorder: Recorder) -> None:
    recorder.finish(_ended, look=True)
    _attached.clear()


def _ended(steps: int) -> Ended:
    from leakscope.run.kinds import EndKind
    from leakscope.run.model import Ended

    error = getattr(sys, "last_value", None)  # what was raised and printed
    if error is None:
        return Ended(EndKind.FINISHED, 0, steps)
    return Ended(EndKind.RAISED, 1, steps, f"{type(error).__name__}: {error}")
