"""Watches steps storage by storage: operations, modules, communication and the peak."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch.nn.modules import module as hooks

from leakscope.graph.model import HeapGraph
from leakscope.heap.snapshot import LiveSnapshot, inspect
from leakscope.heap.storages import storage_object, storage_of
from leakscope.originals import _thread, os
from leakscope.process.frames import waiting
from leakscope.process.guard import CLOCK, in_forked_child, is_the_scripts
from leakscope.process.patches import Patches
from leakscope.process.torch_compat import (
    MODULES,
    StorageBase,
    address_of_storage,
    c10d,
    compiles,
    node_running,
    sequence_of,
    without_functions,
)
from leakscope.process.user_code import is_users
from leakscope.recorder.lifetimes.dispatch_mode import caller_of_operation, enter, name_of, watching_mode, why_not
from leakscope.recorder.lifetimes.peak import Lifetimes, StepPeak, begin_peak, match_live, rows_of, unjudged
from leakscope.recorder.lifetimes.storage_table import (
    STILL_ALIVE,
    TENSOR,
    RawAccess,
    StorageRecord,
    StorageTable,
    TensorOperation,
    ValueKinds,
    each_tensor,
    tensors_alive,
)
from leakscope.run.model import HeapSnapshot
from leakscope.run.rows import Occasion, Phase


class OperatorNames:
    """Names of operators and kinds of files, each determined once."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._resizing: set[str] = set()
        self._users: dict[str, bool] = {}

    def name(self, operator: Any) -> str:
        """The operator's name, as `aten::add`."""
        name = self._names.get(id(operator))
        if name is None:
            name = self._names[id(operator)] = name_of(operator)
            if "resize" in name or str(operator.name()).endswith("out"):
                self._resizing.add(name)
        return name

    def may_resize(self, name: str) -> bool:
        """Whether operations of this name may resize an existing storage."""
        return name in self._resizing

    def users_frame(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame of the user at or below this one."""
        users = self._users
        while frame is not None:
            filename = frame.f_code.co_filename
            known = users.get(filename)
            if known is None:
                known = users[filename] = is_users(filename)
            if known:
                return frame
            frame = frame.f_back
        return None


class BufferUses:
    """Counts a buffer as used until its Work is waited for.

    Which Work a wait is for is not seen, so every wait counts for all buffers sent since the last wait.
    """

    def __init__(self) -> None:
        self._pending: list[StorageRecord] = []
        self._waited = False

    def sent(self, records: list[StorageRecord]) -> None:
        """Record that a comm operation uses these storages."""
        if self._waited:
            self._pending.clear()
            self._waited = False
        self._pending += records

    def waited(self, operation: int) -> None:
        """Record a wait; `operation` is the number of the last one that ran."""
        self._waited = True
        for record in self._pending:
            record.last = max(record.last, operation)

    def clear(self) -> None:
        """Drop all of them."""
        self._pending.clear()


class ModuleStack:
    """Two global hooks around every module's forward; holds only modules whose forward is running."""

    def __init__(self) -> None:
        self._running: list[tuple[torch.nn.Module, str]] = []

    @property
    def path(self) -> str:
        """`encoder.0.linear`; the outermost module alone is named by its class."""
        return self._running[-1][1] if self._running else ""

    def enter(self, patches: Patches) -> None:
        """Install the hooks."""
        after: Callable[..., Any] = partial(hooks.register_module_forward_hook, always_call=True)
        patches.add("modules running", self._running.clear)
        patches.hook("module forward pre-hook", hooks.register_module_forward_pre_hook, self._before)
        patches.hook("module forward hook", after, self._after)

    def _before(self, module: torch.nn.Module, args: object) -> None:
        del args
        name = type(module).__name__
        if self._running:
            parent, path = self._running[-1]
            known = next((key for key, child in parent.__dict__[MODULES].items() if child is module), name)
            name = f"{path}.{known}"
        self._running.append((module, name))

    def _after(self, module: torch.nn.Module, args: object, result: object) -> None:
        del args, result
        while self._running:
            if self._running.pop()[0] is module:
                return


_SUM = "aten::add"
"""How autograd adds up the gradients of one tensor (torch/csrc/autograd/input_buffer.cpp)."""
_TERMS = 2
"""Arguments of such a sum."""
_AUTOGRAD = os.path.dirname(torch.autograd.__file__) + os.sep


def _references_to_first(args: Any) -> int:
    return sys.getrefcount(args[0])


_UNREFERENCED = _references_to_first((object(),)) + 1
"""What `_references_to_first` returns for the arguments of an operation if nothing in Python keeps the first: the
references of the tuple, the call and C++.
"""
ATTEMPTS = 3
"""Pairs of steps tried if two consecutive steps do not run the same operations. Heuristic."""

Inspect = Callable[[int, Occasion], AbstractContextManager[LiveSnapshot]]
"""Type of `heap.inspect(step, occasion)`."""


class LifetimeTracker:
    """Watches two steps that it chooses itself; `boundary` is called at every end of a step. Keeps no storage alive."""

    def __init__(
        self,
        warmup: int,
        inspect: Inspect,
        fullest: Callable[[], str] = lambda: "cpu",
        made: Callable[[Any, str], None] | None = None,
    ) -> None:
        """Choose the steps after `warmup` of them.

        `fullest` names the device whose peak is wanted, `cuda:1`; memory elsewhere does not count then. `made` is
        called with each storage of the two steps that outlives them, and its allocation site.
        """
        self._starts = [warmup + 1 + 2 * k for k in range(ATTEMPTS)]
        self._inspect, self._fullest, self._made = inspect, fullest, made
        self._home = _thread.get_ident()
        self._in_forked_child = in_forked_child()
        self._patches = Patches()
        self._table = StorageTable()
        self._modules = ModuleStack()
        self._raw_access = RawAccess(
            *map(self._noting, (StorageTable.used, StorageTable.handed_out, StorageTable.resized))
        )
        self._mode: Any = None
        self._optimizing = False
        self._disabled = False
        self.compile_called = False
        """Whether the script has called torch.compile."""
        self._second = -1
        """Number of the first operation of the second step; -1 during the first one."""
        self._step = 0
        self._peak: StepPeak | None = None
        self._peak_snapshot: HeapSnapshot | None = None
        self._why = ""
        self._buffers = BufferUses()
        self._kinds = ValueKinds()
        self._operations = OperatorNames()

    @property
    def watching(self) -> bool:
        """Whether a pair of steps is being watched."""
        return self._mode is not None

    def install(self, patches: Patches, comm: bool) -> None:
        """Install what must be in place before the first step: torch iterates its optimizer hooks
        while it calls them.
        """
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        patches.hook("optimizer phase begins", register_optimizer_step_pre_hook, self._optimizer_begins)
        patches.hook("optimizer phase ends", register_optimizer_step_post_hook, self._optimizer_ends)
        if comm:
            patches.call_before(c10d.Work, "wait", self._before_wait)
        self._patches = patches.part()

    def begin_after(self, step: int) -> None:
        """Choose new steps after this one, and drop the results of earlier ones."""
        if not self.compile_called and self.leave():
            self.forget()
            self._starts = [step + 1 + 2 * k for k in range(ATTEMPTS)]

    def boundary(self, step: int) -> Lifetimes | None:
        """Handle the end of a step: start watching, continue with the second step, or report both."""
        self._step = step
        if self._mode is not None:
            lifetimes = self._second_step() if self._second < 0 else self._end(step)
            if lifetimes is not None or self._mode is not None:
                return lifetimes
        if self._starts and step >= self._starts[0]:
            self._starts.pop(0)
            return self._enter(step)
        return None

    def _enter(self, step: int) -> Lifetimes | None:
        reason = why_not(self.compile_called)
        if reason:
            self._starts.clear()
            return unjudged(step, f"lifetimes were not recorded: {reason}")
        self._second, self._peak, self._peak_snapshot, self._disabled = -1, None, None, False
        self._watch(self._fullest)
        self._modules.enter(self._patches)
        return None

    def _watch(self, device: Callable[[], str]) -> None:
        """Watch operations from now on, and the storages on the counted device."""
        self._home = _thread.get_ident()
        self._optimizing = False
        with without_functions():
            self._table = StorageTable(torch.device(device()), self._patches.guard)
            self._table.add_existing(tensors_alive())
        self._raw_access.enter(self._patches)
        self._mode = watching_mode(self._dispatched, self._patches.guard)
        enter(self._mode, self._patches)

    def _second_step(self) -> Lifetimes | None:
        table = self._table
        self._second = len(table.operations)
        start = table.live
        top = max(table.curve, key=lambda point: (point[1], -point[0]), default=(-1, 0, 0))
        self._peak = StepPeak(top[0], top[2], start)
        table.begin()
        return None

    def _end(self, step: int) -> Lifetimes | None:
        if not self.leave():
            return None
        compiled = why_not(self.compile_called)
        peak, snapshot = self._peak, self._peak_snapshot
        lifetimes: Lifetimes | None = None
        if compiled:
            self._starts.clear()
            lifetimes = unjudged(step, f"lifetimes were recorded only in part: {compiled}")
        elif self._why:
            self._starts.clear()
            lifetimes = unjudged(step, self._why)
        elif peak is not None and (snapshot is not None or peak.operation < 0):
            self._starts.clear()
            lifetimes = Lifetimes(rows=tuple(rows_of(self._table, self._second, peak, step)), snapshot=snapshot)
        elif not self._starts:
            lifetimes = unjudged(step, "no two consecutive steps ran the same operations up to their peak")
        if self._made is not None:
            for storage, place in self._table.allocation_sites():
                self._made(storage, place)
        self.forget()
        return lifetimes

    def script_compiles(self) -> None:
        """Stop interfering: the script, or a part of torch, is about to compile."""
        self.compile_called = True
        if self._mode is not None:
            self._starts.insert(0, 0)  # the next boundary says why this pair of steps was abandoned
            self.leave()
            self.forget()

    def leave(self) -> bool:
        """Stop watching; False while a mode of the script is above ours and must not be popped."""
        if self._mode is None:
            return True
        self._disabled = True
        if not self._patches.take_out():
            return False
        self._mode = None
        return True

    def forget(self) -> None:
        """Drop every record."""
        self._table.clear()
        self._buffers.clear()
        self._peak = self._peak_snapshot = None

    # while the steps run

    def _dispatched(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if self._disabled:
            return
        table = self._table
        name = self._operations.name(func)
        gradient = self._operation(name, caller_of_operation(), args)
        self._use(args, kwargs)
        table.resizing = self._operations.may_resize(name)
        if gradient is not None:
            table.rebind(gradient, out)
        else:
            each_tensor(out, self._kinds, table.made)
        table.count()
        if name.startswith("c10d::"):
            self._send(args)
        self._counted()

    def _counted(self) -> None:
        """Called after an operation, when live bytes are counted."""
        table, peak = self._table, self._peak
        if (
            peak is not None
            and self._peak_snapshot is None
            and len(table.operations) - 1 - self._second == peak.operation
        ):
            self._at_the_peak(peak)

    def _operation(self, name: str, frame: Any, args: Any) -> StorageRecord | None:
        """Record an operation; return the record of the gradient that continues in its result, if it adds gradients."""
        node = node_running()
        of_engine = node is not None and (frame is None or frame.f_code.co_filename.startswith(_AUTOGRAD))
        if frame is None and node is not None:  # an autograd thread, without a frame above the mode's own
            frame = waiting(self._home)
        frame = self._operations.users_frame(frame)
        phase = Phase.BACKWARD if node is not None else Phase.OPTIMIZER if self._optimizing else Phase.FORWARD
        called, number = ("", -1) if node is None else (node.name(), sequence_of(node))
        code, line = (None, 0) if frame is None else (frame.f_code, frame.f_lineno)
        module, now = self._modules.path, CLOCK.perf_counter()
        self._table.operation(TensorOperation(name, code, line, phase, called, module, now, number))
        sums = of_engine and name == _SUM and len(args) == _TERMS and not torch.is_grad_enabled()
        sums = sums and _references_to_first(args) <= _UNREFERENCED  # a hook of the user may keep it
        return self._table.summed(node, *args) if sums and self._are_tensors(args) else None

    def _are_tensors(self, values: Any) -> bool:
        return all(self._kinds.get(type(value)) == TENSOR for value in values)

    def _use(self, args: Any, kwargs: Any) -> None:
        kinds, used = self._kinds, self._table.used
        for value in args:
            kind = kinds[type(value)]
            if kind == TENSOR:
                used(value)
            elif kind:
                each_tensor(value, kinds, used)
        if kwargs:
            for value in kwargs.values():
                if kinds[type(value)]:
                    each_tensor(value, kinds, used)

    def _at_the_peak(self, peak: StepPeak) -> None:
        if self._table.sign != peak.sign or self._in_forked_child:
            return
        begin_peak(peak, self._table)
        try:
            with self._inspect(self._step + 1, Occasion.PEAK) as live:
                self._peak_snapshot = live.snapshot
                match_live(live, peak, self._table)
        except Exception as error:  # reported as a note: an internal error must not fail the user's script
            if is_the_scripts(error):
                raise
            self._peak_snapshot, self._disabled = None, True
            self._why = f"the heap snapshot at the peak failed: {type(error).__name__}: {error}"

    def _noting(self, note: Callable[[StorageTable, Any], None]) -> Callable[[Any], None]:
        """Return a function that records something about a tensor or storage while watching."""

        def noted(obj: Any) -> None:
            if not (self._disabled or self._in_forked_child):
                with without_functions():
                    note(self._table, obj)

        return noted

    def _optimizer_begins(self, *_: object) -> None:
        self._optimizing = True

    def _optimizer_ends(self, *_: object) -> None:
        self._optimizing = False

    def _send(self, args: Any) -> None:
        records: list[StorageRecord] = []
        alive = self._table.alive

        def add(tensor: Any) -> None:
            record = alive.get(storage_of(tensor) or 0)
            if record is not None:
                records.append(record)

        each_tensor(args, self._kinds, add)
        self._buffers.sent(records)

    def _before_wait(self, *_: object, **__: object) -> None:
        if self._mode is not None and not self._disabled:
            self._buffers.waited(len(self._table.operations) - 1)


_NEXT_SNAPSHOT = 1.25
"""Factor over the bytes of the last snapshot at which another one is taken. Heuristic: what is reported is most of the
peak.
"""
_MAX_SNAPSHOTS = 8
"""Maximum number of snapshots. Heuristic: a second each."""
_FORGET_EVERY = 1 << 16
"""Operations after which dead records are dropped, about 20 MB. Heuristic."""


@dataclass(frozen=True)
class PeakSnapshot:
    """A heap snapshot taken near a peak."""

    bytes: int
    """Bytes above the start of the watch."""
    heap: HeapGraph
    storages: tuple[int, ...]
    """Indexes in the heap of storages created since, except those that the current operation was about to return."""
    returned: tuple[str, int]
    """That operation, and the bytes it was about to return."""
    devices: tuple[tuple[str, int], ...]
    """The bytes by device."""


@dataclass(frozen=True)
class PeakRise:
    """The peak, as plain data."""

    bytes: int
    """Bytes above the start of the watch."""
    at: str
    """The operation after which it was reached, "" if nothing was allocated."""
    made: tuple[tuple[str, int, int], ...]
    """(where, bytes, storages) of live storages created since the watch began, the largest first; "" if the allocation
    was not seen: in another thread, by numpy, from a file.
    """
    snapshot: PeakSnapshot | None
    """The last snapshot; None if the peak did not reach the threshold for one."""


class PeakWatch(LifetimeTracker):
    """Counts every storage between `begin` and `end`; takes heap snapshots above a threshold of live bytes.

    Counts storages on every device, not temporaries inside an operation or memory kept by an allocator.
    """

    def __init__(self, snapshot_above: int) -> None:
        super().__init__(0, inspect)
        self._snapshot_above, self._snapshots_left = snapshot_above, _MAX_SNAPSHOTS
        self._start, self._top, self._at = 0, 0, -1
        self._existing: list[StorageRecord] = []
        self._snapshot: PeakSnapshot | None = None

    def begin(self) -> str:
        """Watch this thread from now on; return the reason why that would change what runs, else ""."""
        reason = why_not(self.compile_called or compiles())
        if not reason:
            self._patches.call_before_tracing(lambda *_, **__: self.script_compiles())
            self._watch(lambda: "cpu")  # which is every device
            self._start, self._existing = self._table.live, list(self._table.records)
        return reason

    def end(self) -> PeakRise | str:
        """Return what was seen, or the reason why nothing was."""
        if self.compile_called:
            return why_not(True)
        if not self.leave():
            return "a dispatch mode entered in the meantime is still active"
        why = self._patches.guard.why or self._why
        table, at = self._table, self._at
        sizes: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        for record in self._new(table.records):
            if record.born <= at < record.died:
                where = table.operations[record.born].where() if record.born >= 0 else ""
                sizes[where] += record.bytes
                counts[where] += 1
        made = tuple((where, size, counts[where]) for where, size in sizes.most_common() if size)
        rise = PeakRise(self._top, table.operations[at].where() if at >= 0 else "", made, self._snapshot)
        self.forget()
        self._existing.clear()
        return why or rise

    def _new(self, records: list[StorageRecord]) -> list[StorageRecord]:
        return records[len(self._existing) :]

    def _counted(self) -> None:
        table = self._table
        risen = table.live - self._start
        if risen > self._top:
            self._top, self._at = risen, len(table.operations) - 1
            if risen > self._snapshot_above and self._snapshots_left:
                self._snapshot_above, self._snapshots_left = int(risen * _NEXT_SNAPSHOT), self._snapshots_left - 1
                self._take_snapshot(risen)
        if not len(table.operations) % _FORGET_EVERY:
            self._forget_dead()

    def _take_snapshot(self, risen: int) -> None:
        alive, there = self._table.alive, {id(record) for record in self._existing}
        now = len(self._table.operations) - 1
        devices: Counter[str] = Counter()
        found, returned = [], 0
        try:
            with inspect(0, Occasion.PEAK) as live:
                heap = live.snapshot.heap
                for index in heap.storages.tolist():
                    storage = storage_object(live.objects[index])
                    record = alive.get(int(address_of_storage(storage)))
                    if record is not None and id(record) not in there:
                        if record.born == now:
                            returned += record.bytes
                        else:
                            found.append(index)
                        devices[str(StorageBase.device.__get__(storage))] += record.bytes
                returning = self._table.operations[now].where(), returned
                self._snapshot = PeakSnapshot(risen, heap, tuple(found), returning, tuple(devices.most_common()))
        except Exception as error:  # reported: an internal error must not fail the test
            if is_the_scripts(error):
                raise
            self._disabled = True
            self._why = f"the heap snapshot at the peak failed: {type(error).__name__}: {error}"

    def _forget_dead(self) -> None:
        """Drop records of storages that are dead and were not alive at the peak, and of operations that made none of
        the rest.
        """
        table, at = self._table, self._at
        left = [r for r in self._new(table.records) if r.died == STILL_ALIVE or r.born <= at < r.died]
        table.records[:] = self._existing + left
        table.curve.clear()
        needed = {n for record in table.records for n in (record.born, record.last)} | {at}
        nothing = table.operations[-1]
        for number in range(len(table.operations) - 1):
            if number not in needed:
                table.operations[number] = nothing
