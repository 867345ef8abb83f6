"""Reads grad nodes only while no other thread runs a backward.

A backward runs in C++ without the GIL and frees what nodes have saved as it goes (torch/csrc/autograd/engine.cpp,
`Node::release_variables`). The getters of nodes and of saved tensors read the same memory and take no lock: a tensor
that is copied from there while it is freed is used after it was freed (torch 2.13: a segmentation fault within
seconds). Holding a reference to the node does not help.

A thread needs the GIL to begin a backward. So it is asked whether one runs, and the node is read, in one call of C,
which no other thread interrupts: itertools, `operator` and torch's getters do not give up the GIL. What a thread runs
is seen by the innermost of its frames in Python: that of the caller of `run_backward`, or of a hook that the backward
has called, which needs the GIL to return.

Two backwards have no frame: one that distributed autograd runs for another process, whose count is asked beside, and
one that an extension in C++ begins by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import chain, compress, repeat
from operator import attrgetter, call, contains
from types import FrameType
from typing import Any

from leakscope.capture.private_names import Lacked
from leakscope.capture.process.clock import CLOCK
from leakscope.capture.process.unheard import CODE_OF_CALLS
from leakscope.capture.source.user_frames import is_alone
from leakscope.capture.torch_private import agent_is_set, counts_of_contexts, node_running
from leakscope.originals import _thread

UNREAD = "what grad nodes hold was not read, as another thread ran a backward"
RUN_BACKWARD = "run_backward"
"""What the engine is asked for by whoever begins a backward."""
_PATIENCE_S = 0.25
"""Seconds, chosen, that a walk waits for backwards of other threads, all in all."""
_PAUSE_S = 0.001
_current_frames = sys._current_frames
_code_of = attrgetter("f_code")
_names_in = attrgetter("f_code.co_names")


class AtRest:
    """Whether grad nodes may be read, for one walk through them."""

    def __init__(self) -> None:
        self.disturbed = _runs_for_others()
        """Something was not read, as another thread ran a backward; nothing is from then on."""
        self.alone = is_alone()
        """No other thread of the script's could begin one."""
        self._waiting = int(_is_engines())
        self._patience = _PATIENCE_S

    def ask(self, node: Any, getter: Callable[[Any], Any]) -> list[Any]:
        """What a getter of C tells of a node, as the only item; no item where it may not be asked now."""
        if self.alone and not self.disturbed:  # to ask which threads run takes several times as long as the getter
            return [getter(node)]
        return self._patiently(lambda: list(map(getter, self._where_at_rest(node))))

    def ask_each(self, node: Any, getter: Callable[[Any], Any], each: Callable[[Any], Any]) -> list[Any]:
        """What `each`, of C too, tells of every item that a getter of C gives; nothing where it may not be asked now.

        There has to be an item.
        """
        if self.alone and not self.disturbed:
            return list(map(each, getter(node)))
        return self._patiently(lambda: list(map(each, chain.from_iterable(map(getter, self._where_at_rest(node))))))

    def _patiently(self, ask: Callable[[], list[Any]]) -> list[Any]:
        while not self.disturbed:
            told = ask()
            if told:
                return told
            self.disturbed = self._patience <= 0
            self._patience -= _PAUSE_S
            CLOCK.sleep(_PAUSE_S)
        return []

    def _where_at_rest(self, node: Any) -> Iterator[Any]:
        """The node, unless another thread runs a backward when the first item is asked for."""
        running = map(contains, map(_names_in, _frames_then()), repeat(RUN_BACKWARD))
        within_ours = map(CODE_OF_CALLS.__contains__, map(_code_of, _frames_then()))
        most = map(self._waiting.__ge__, map(sum, (chain(running, within_ours),)))
        return compress((node,), most)


def _frames_then() -> Iterator[FrameType]:
    """The innermost frame of each thread, as it is when the first one is asked for."""
    return chain.from_iterable(map(dict.values, map(call, (_current_frames,))))


def _runs_for_others() -> bool:
    """Whether distributed autograd runs a backward in this process: threads in C++ do, for other processes."""
    if isinstance(agent_is_set, Lacked) or isinstance(counts_of_contexts, Lacked) or not agent_is_set():
        return False
    try:
        return int(counts_of_contexts().get("num_current_backward_passes", 0)) > 0
    except RuntimeError:  # distributed autograd is not set up
        return False


def _is_engines() -> bool:
    """Whether this thread is one of autograd's own, which works for one that waits in `run_backward`.

    That one goes on only with nodes on the host, which a graph on an accelerator seldom has.
    """
    if node_running() is None:
        return False
    frame: FrameType | None = _current_frames()[_thread.get_ident()]
    while frame is not None:
        if RUN_BACKWARD in frame.f_code.co_names:
            return False
        frame = frame.f_back
    return True
