"""Two steps watched under a dispatch mode: whose memory is never used again at the peak, and who holds it then?"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from leakscope.capture.heap.look import Live
from leakscope.capture.heap.native.storages import storage_object, storage_of
from leakscope.capture.lifetimes.dispatch_mode import enter, name_of, watching_mode, why_not
from leakscope.capture.lifetimes.module_stack import ModulesRunning
from leakscope.capture.lifetimes.raw_access import UnseenUses
from leakscope.capture.lifetimes.rows import Peak, rows_of
from leakscope.capture.lifetimes.table import Operation, Table, kind_of, tensors_alive
from leakscope.capture.process.forks import in_forked_child
from leakscope.capture.process.patches import Patches
from leakscope.capture.source.user_frames import arguments_of_running_calls, waiting
from leakscope.capture.source.user_source import is_users
from leakscope.record.kinds import Occasion, Phase
from leakscope.record.model import Look
from leakscope.record.rows.lifetimes import LifetimeRow, LifetimesUnjudged

_AUTOGRAD = os.path.dirname(torch.autograd.__file__) + os.sep
_ARGUMENT_ALONE = 3
"""What sys.getrefcount gives for an argument that nobody in Python keeps: its tuple, the call itself, and C++ (torch 2.13)."""
ATTEMPTS = 3
"""Pairs of steps tried when two steps in a row do not run the same operations."""

Inspect = Callable[[int, Occasion], AbstractContextManager[Live]]
"""As `heap.inspect(step, occasion)`."""


@dataclass(frozen=True)
class Told:
    """What two watched steps showed, as plain data."""

    rows: tuple[LifetimeRow, ...]
    """For `RankFolder.append`: one for the step, then one for each storage; or why there are none."""
    look: Look | None = None
    """The heap at the peak."""


def _untold(step: int, why: str) -> Told:
    return Told((LifetimesUnjudged(step, why),))


class Watch:
    """Call `boundary` at every end of a step; it chooses the steps itself and holds no storage alive."""

    def __init__(
        self,
        warmup: int,
        inspect: Inspect,
        fullest: Callable[[], str] = lambda: "cpu",
        made: Callable[[Any, str], None] | None = None,
    ) -> None:
        """`fullest` names the device whose peak is asked for, `cuda:1`: memory elsewhere does not count then. `made` is
        told of each storage of the two steps that outlives them, and where it was made."""
        self._starts = [warmup + 1 + 2 * k for k in range(ATTEMPTS)]
        self._inspect, self._fullest, self._made = inspect, fullest, made
        self._home = threading.get_ident()
        self._in_forked_child = in_forked_child()
        self._patches = Patches()
        self._table = Table()
        self._modules = ModulesRunning()
        self._unseen = UnseenUses(self._read, self._handed_out, self._resized)
        self._mode: TorchDispatchMode | None = None
        self._optimizing = False
        self._deaf = False
        self.compile_called = False
        """The script has called torch.compile."""
        self._second = -1
        """Number of the first operation of the second step; -1 while the first one runs."""
        self._step = 0
        self._peak: Peak | None = None
        self._look: Look | None = None
        self._failure = ""
        self._sent: list[Any] = []
        self._waited = False
        self._types: dict[type, int] = {}
        self._names: dict[int, str] = {}
        self._resizing: set[str] = set()
        self._users: dict[str, bool] = {}

    @property
    def watching(self) -> bool:
        return self._mode is not None

    def install(self, patches: Patches, wire: bool) -> None:
        """Put in what must stand before the first step: torch iterates its optimizer hooks while it calls them."""
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        patches.add("optimizer phase begins", register_optimizer_step_pre_hook(self._optimizer_begins).remove)
        patches.add("optimizer phase ends", register_optimizer_step_post_hook(self._optimizer_ends).remove)
        if wire:
            from torch._C._distributed_c10d import Work

            patches.call_before(Work, "wait", self._before_wait)
        self._patches = patches.part()

    def boundary(self, step: int) -> Told | None:
        """The end of a step: start watching, go on to the second step, or tell what both showed."""
        self._step = step
        if self._mode is not None:
            told = self._go_on() if self._second < 0 else self._tell(step)
            if told is not None or self._mode is not None:
                return told
        if self._starts and step >= self._starts[0]:
            self._starts.pop(0)
            return self._enter(step)
        return None

    def _enter(self, step: int) -> Told | None:
        reason = why_not(self.compile_called)
        if reason:
            self._starts.clear()
            return _untold(step, f"lifetimes were not watched: {reason}")
        self._home = threading.get_ident()
        self._second, self._peak, self._look, self._deaf = -1, None, None, False
        self._optimizing = False
        with torch._C.DisableTorchFunction():
            self._table = Table(torch.device(self._fullest()))
            self._table.there(tensors_alive())
        self._modules.enter(self._patches)
        self._unseen.enter(self._patches)
        self._mode = watching_mode(self._dispatched)
        enter(self._mode, self._patches)
        return None

    def _go_on(self) -> Told | None:
        table = self._table
        self._second = len(table.operations)
        start = table.live
        top = max(table.curve, key=lambda point: (point[1], -point[0]), default=(-1, 0, 0))
        self._peak = Peak(top[0], top[2], start)
        table.begin()
        return None

    def _tell(self, step: int) -> Told | None:
        if not self.leave():
            return None
        compiled = why_not(self.compile_called)
        peak, look = self._peak, self._look
        told: Told | None = None
        if compiled:
            self._starts.clear()
            told = _untold(step, f"lifetimes were not watched to the end: {compiled}")
        elif self._failure:
            self._starts.clear()
            told = _untold(step, self._failure)
        elif peak is not None and (look is not None or peak.operation < 0):
            self._starts.clear()
            told = Told(rows=tuple(rows_of(self._table, self._second, peak, step)), look=look)
        elif not self._starts:
            told = _untold(step, "no two steps in a row ran the same operations up to their peak")
        if self._made is not None:
            for storage, place in self._table.makers():
                self._made(storage, place)
        self.forget()
        return told

    def script_compiles(self) -> None:
        """The script is about to call torch.compile, or a part of torch that compiles by itself: nothing may stand in its way."""
        self.compile_called = True
        if self._mode is not None:
            self._starts.insert(0, 0)  # the next boundary says why this pair of steps was given up
            self.leave()
            self.forget()

    def leave(self) -> bool:
        """Stop watching; False while a mode of the script's own stands above ours and must not be popped."""
        if self._mode is None:
            return True
        self._deaf = True
        if not self._patches.take_out():
            return False
        self._mode = None
        return True

    def forget(self) -> None:
        """Drop every record."""
        self._table.clear()
        self._sent.clear()
        self._peak = self._look = None

    # while the steps run

    def _dispatched(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if self._deaf:
            return
        table, types, users = self._table, self._types, self._users
        node = torch._C._current_autograd_node()
        frame: Any = sys._getframe(1).f_back
        of_engine = node is not None and (frame is None or frame.f_code.co_filename.startswith(_AUTOGRAD))
        if frame is None and node is not None:  # a thread of autograd's, without a frame above the mode's own
            frame = waiting(self._home)
        while frame is not None:
            code = frame.f_code
            mine = users.get(code.co_filename)
            if mine is None:
                mine = users[code.co_filename] = is_users(code.co_filename)
            if mine:
                break
            frame = frame.f_back
        name = self._names.get(id(func))
        if name is None:
            name = self._names[id(func)] = name_of(func)
            if "resize" in name or str(func.name()).endswith("out"):
                self._resizing.add(name)
        phase = Phase.BACKWARD if node is not None else Phase.OPTIMIZER if self._optimizing else Phase.FORWARD
        called, module = "" if node is None else node.name(), self._modules.path
        number = -1 if node is None else node._sequence_nr()
        if frame is None:
            table.operation(Operation(name, None, 0, phase, called, module, time.perf_counter(), number))
        else:
            table.operation(Operation(name, code, frame.f_lineno, phase, called, module, time.perf_counter(), number))
        sums = of_engine and name == "aten::add" and len(args) == 2 and not torch.is_grad_enabled()
        sums = sums and sys.getrefcount(args[0]) <= _ARGUMENT_ALONE  # a hook of the user's may keep it
        gradient = (
            table.summed(node, *args) if sums and all(types.get(type(value), -1) == 1 for value in args) else None
        )
        del frame, node
        for value in args:
            kind = types.get(type(value), -1)
            if kind == 1:
                table.used(value)
            elif kind:
                self._each(value, table.used)
        if kwargs:
            for value in kwargs.values():
                if types.get(type(value), -1):
                    self._each(value, table.used)
        table.resizing = name in self._resizing
        if gradient is not None:
            table.moved(gradient, out)
        elif types.get(type(out), -1) == 1:
            table.made(out)
        else:
            self._each(out, table.made)
        table.count()
        if name.startswith("c10d::"):
            self._on_the_wire(args)
        peak = self._peak
        if peak is not None and self._look is None and len(table.operations) - 1 - self._second == peak.operation:
            self._at_the_peak(peak)

    def _each(self, value: Any, take: Callable[[Any], None]) -> None:
        """Hand on the tensors of a value: 0 nothing, 1 a tensor, 2 a list or tuple, by its type."""
        kind = self._types.get(type(value))
        if kind is None:
            kind = self._types[type(value)] = kind_of(type(value))
        if kind == 1:
            take(value)
        elif kind == 2:
            for item in value:
                self._each(item, take)

    def _at_the_peak(self, peak: Peak) -> None:
        if self._table.sign != peak.sign or self._in_forked_child:
            return
        peak.live = self._table.live
        for record in self._table.alive.values():
            record.at_peak = record.bytes
        peak.arguments = arguments_of_running_calls()
        try:
            with self._inspect(self._step + 1, Occasion.PEAK) as live:
                self._look = live.look
                self._match(live, peak)
        except Exception as error:  # noqa: BLE001 - told as a note: the user's script must not fail of our looking
            self._look, self._deaf = None, True
            self._failure = f"the look at the peak failed: {type(error).__name__}: {error}"

    def _match(self, live: Live, peak: Peak) -> None:
        graph = live.look.heap
        for index in graph.storages.tolist():
            record = self._table.alive.get(int(storage_object(live.objects[index])._cdata))
            if record is None and self._table.counts(graph.device.get(index, "cpu")):
                peak.unseen += int(graph.bytes[index])
            elif record is not None:
                record.storage = index

    def _is_deaf(self) -> bool:
        return self._deaf or bool(self._in_forked_child)

    def _read(self, tensor: Any) -> None:
        if not self._is_deaf():
            with torch._C.DisableTorchFunction():
                self._table.used(tensor)

    def _handed_out(self, tensor: Any) -> None:
        if not self._is_deaf():
            with torch._C.DisableTorchFunction():
                self._table.handed_out(tensor)

    def _resized(self, storage: Any) -> None:
        if not self._is_deaf():
            with torch._C.DisableTorchFunction():
                self._table.resized(storage)

    def _optimizer_begins(self, *_: object) -> None:
        self._optimizing = True

    def _optimizer_ends(self, *_: object) -> None:
        self._optimizing = False

    def _on_the_wire(self, args: Any) -> None:
        """A buffer is in use until its Work is waited for; which Work it was is not seen, so every wait counts for all
        that were sent since the last wait."""
        if self._waited:
            self._sent.clear()
            self._waited = False
        self._each(args, lambda tensor: self._sent.append(self._table.alive.get(storage_of(tensor) or 0)))

    def _before_wait(self, *_: object, **__: object) -> None:
        if self._mode is None or self._deaf:
            return
        self._waited = True
        for record in self._sent:
            if record is not None:
                record.last = max(record.last, len(self._table.operations) - 1)
