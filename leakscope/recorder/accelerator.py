"""The accelerator of this torch, and the counters of its allocator."""

from __future__ import annotations

import ctypes
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from leakscope.originals import open_file, os
from leakscope.process.torch_compat import ACCELERATOR, BUILT_FOR, RecordingPart, lacks, modules_of_c, name_of_backend
from leakscope.run.rows import DeviceFigures
from leakscope.shield import Block, PureBlock, nothing

Call = Callable[..., Any]


@dataclass(frozen=True)
class Accelerator:
    """One kind of device with the functions of torch that support it; None for missing ones.

    The functions are found by what the device's module offers, so `torch.cuda`, `torch.xpu`, `torch_npu` and other
    backends with the same functions are treated alike.
    """

    kind: str
    """`cuda` (also ROCm), `xpu`, `npu`, ..."""
    in_use: Callable[[], bool]
    """Whether the process uses it; does not initialise it."""
    count: Callable[[], int]
    when_in_use: Call | None
    """Calls back as soon as the device is in use, or at once."""
    has_context: Call | None
    """Whether this process has a context on a device; does not create one (torch/csrc/cuda/Module.cpp)."""
    stats: Call | None
    """The allocator's counters of one device, as nested dictionaries."""
    record: Call | None
    """Switches memory history on and off, for all devices."""
    recorder_name: tuple[Any, str] | None
    """Where users find `record`: (module, name)."""
    is_recording: Call | None
    """Whether history is on, whoever enabled it."""
    snapshot: Call | None
    """A full snapshot: segments, blocks, events, annotations."""
    segments: Call | None
    """Segments and blocks only, without converting the events."""
    free_and_total: Call | None
    """The driver's (free, total) bytes of one device, over all processes."""
    observe_failures: Call | None
    """Attaches a function of (device, wanted, limit, free) permanently: it cannot be detached."""
    is_capturing: Call | None
    """Whether a graph is being captured, during which the driver must not be called."""
    queue: list[Any] | None = field(repr=False)
    """Callbacks that wait for the device's first use: (function, stack)."""

    def record_arguments(self, entries: int) -> dict[str, Any]:
        """Arguments for history: a bounded ring, Python stacks, stacks of allocations only."""
        return _accepted(
            self.record, {"enabled": "all", "context": "alloc", "stacks": "python", "max_entries": entries}
        )


_WITHOUT = {
    "record": "allocation sites are not recorded",
    "snapshot": RecordingPart.BLOCKS.value,
    "observe_failures": "memory alive at a failed allocation is not recorded",
}
"""Field of an `Accelerator`, mapped to what is missing without it."""


def missing_functions(accelerator: Accelerator) -> tuple[str, ...]:
    """A sentence for each private function that this torch lacks for the device."""
    missing = [field for field in _WITHOUT if getattr(accelerator, field) is None]
    names = {field: ACCELERATOR[field][0].format(kind=accelerator.kind) for field in missing}
    return tuple(f"this torch has no {name} for {accelerator.kind}: {_WITHOUT[field]}" for field, name in names.items())


def find() -> Accelerator | None:
    """The accelerator that this torch was built for or that a backend has registered; initialises nothing."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    kind = _kind(torch)
    module = getattr(torch, kind, None) if kind else None
    if kind is None or module is None:
        return None
    accelerator = described(kind, module, modules_of_c(kind))
    return (
        replace(accelerator, has_context=None) if getattr(torch.version, "hip", None) else accelerator
    )  # HIP has its own rules for contexts


def _kind(torch: Any) -> str | None:
    """The kind of device of this torch.

    A torch built for CUDA is not queried for its accelerator: that initialises the device (pytorch#145752,
    pytorch#190708), after which a fork of the process cannot use it.
    """
    if not lacks(RecordingPart.DEVICE) and hasattr(torch, backend := name_of_backend()):
        return str(backend)
    if BUILT_FOR:
        return BUILT_FOR[0]
    current = torch.accelerator.current_accelerator()
    return None if current is None else str(current.type)


def described(kind: str, module: Any, natives: Sequence[Any] = ()) -> Accelerator:
    """The functions of a device's module and of the C modules behind it."""
    memory = getattr(module, "memory", module)
    holders = (memory, module)
    names = {field: tuple(name.format(kind=kind) for name in names) for field, names in ACCELERATOR.items()}
    recorder = _first(holders, names["record"])
    record = None if recorder is None else getattr(*recorder)
    listed = _call(holders, ("memory_snapshot",))
    without = listed is not None and "include_traces" in _parameters(listed)
    return Accelerator(
        kind=kind,
        in_use=getattr(module, "is_initialized", lambda: False),
        count=getattr(module, "device_count", lambda: 1),
        when_in_use=_call((module,), names["when_in_use"]),
        has_context=_call(natives, names["has_context"]),
        stats=_call(holders, ("memory_stats_as_nested_dict",)),
        record=record,
        recorder_name=recorder,
        is_recording=_call(natives, names["is_recording"]),
        snapshot=_call(holders, names["snapshot"]),
        segments=_without_events(listed) if without and listed is not None else None,
        free_and_total=_call(holders, ("mem_get_info",)),
        observe_failures=_call((*natives, *holders), names["observe_failures"]),
        is_capturing=_call((module,), ("is_current_stream_capturing",)),
        queue=getattr(module, names["queue"][0], None),
    )


def _without_events(listed: Call) -> Call:
    return lambda: listed(include_traces=False)


def _first(holders: Sequence[Any], names: Sequence[str]) -> tuple[Any, str] | None:
    for name in names:
        for holder in holders:
            if callable(getattr(holder, name, None)):
                return holder, name
    return None


def _call(holders: Sequence[Any], names: Sequence[str]) -> Call | None:
    place = _first(holders, names)
    call: Call | None = None if place is None else getattr(*place)
    return call


def _parameters(call: Call) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(call).parameters
    except (TypeError, ValueError):  # a C function without a signature
        return {}


def _accepted(call: Call | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that the function accepts; all of them if its signature is unknown."""
    known = {} if call is None else _parameters(call)
    if not known or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values()):
        return dict(arguments)
    return {name: value for name, value in arguments.items() if name in known}


def figures(device: int, stats: Mapping[str, Any]) -> DeviceFigures:
    """One device's counters from the allocator's nested dictionaries; 0 for missing ones."""

    def bytes_of(name: str, which: str = "current") -> int:
        return int(stats.get(name, {}).get("all", {}).get(which, 0))

    return DeviceFigures(
        device=device,
        allocated=bytes_of("allocated_bytes"),
        active=bytes_of("active_bytes"),
        reserved=bytes_of("reserved_bytes"),
        peak=bytes_of("allocated_bytes", "peak"),
        stuck=bytes_of("inactive_split_bytes"),
        retries=int(stats.get("num_alloc_retries", 0)),
        failures=int(stats.get("num_ooms", 0)),
    )


def read_figures(accelerator: Accelerator) -> tuple[DeviceFigures, ...] | None:
    """Counters of every device on which this process has or had memory; None if they cannot be read.

    Pluggable allocators count nothing and raise (c10/cuda/CUDAPluggableAllocator.cpp, getDeviceStats).
    """
    if accelerator.stats is None or not accelerator.in_use():
        return None
    used = accelerator.has_context
    devices = [device for device in range(accelerator.count()) if used is None or used(device)]
    try:
        read = [figures(device, accelerator.stats(device)) for device in devices]
    except RuntimeError:
        return None
    return tuple(f for f in read if f.reserved or f.peak)


@dataclass(frozen=True)
class CounterReading:
    """One reading."""

    bytes: int | None
    peak: int | None = None
    """Peak since the accelerator's statistics were last reset; None on the CPU, which keeps none."""


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and newer."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
        )
    ]  # fmt: skip


def host_counter() -> tuple[str, Callable[[], int | None]]:
    """Return (name, reader) of the host counter: glibc's count of live malloc bytes, or resident memory.

    Neither is tensor memory alone: only growth is meaningful. 1 to 3 microseconds a call.
    """
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError, TypeError):
        return ("resident memory", _resident) if os.path.exists("/proc/self/statm") else ("nothing", lambda: None)
    mallinfo2.restype = _MallocInfo

    def live() -> int | None:
        info = mallinfo2()
        return int(info.uordblks + info.hblkhd) + _of_arrow()

    return "mallinfo2", live


def _of_arrow() -> int:
    """Bytes of pyarrow's own allocator, which glibc does not count: tables and datasets."""
    arrow = sys.modules.get("pyarrow")
    count, pool = getattr(arrow, "total_allocated_bytes", None), getattr(arrow, "default_memory_pool", None)
    if count is None or pool is None:  # missing, or still being imported
        return 0
    return 0 if pool().backend_name == "system" else int(count())


def _resident() -> int | None:
    with open_file("/proc/self/statm", "rb", buffering=0) as stream:
        return int(stream.read(128).split()[1]) * os.sysconf("SC_PAGE_SIZE")


_MAX_LEFT = 512 * 1024
"""Maximum bytes that a heap snapshot may leave in malloc's caches: at most 425 KiB were measured."""


class Counter:
    """Reads the accelerator's allocator once the script uses it, and the host's until then."""

    def __init__(self) -> None:
        self.source, self._host = host_counter()
        self._ours = 0
        self._accelerator: Accelerator | None = None
        self._used = False
        self.fullest = "cpu"
        """The device, `cuda:1`, with the highest peak at the last reading; `cpu` while the host is counted."""

    @property
    def device(self) -> str:
        """The kind of device of the counted bytes: `cuda`, `xpu`, ... or `cpu`."""
        return self.source if self._used else "cpu"

    def read(self) -> CounterReading:
        """Read the counted bytes."""
        device = self._accelerator = self._accelerator or find()
        counted = None if device is None else read_figures(device)
        if device is None or not (counted or self._used):  # a library has only woken it up: it holds nothing to count
            host = self._host()
            return CounterReading(None if host is None else host - self._ours)
        self.source, self._used = device.kind, True
        if not counted:  # emptied, and its peak reset
            return CounterReading(None if counted is None else 0, None if counted is None else 0)
        self.fullest = f"{device.kind}:{max(counted, key=lambda f: f.peak).device}"
        return CounterReading(sum(f.allocated for f in counted), sum(f.peak for f in counted))

    def ours(self, most: int = _MAX_LEFT) -> PureBlock[None]:
        """Subtract from later readings what the host's count rises by during the block, up to `most` bytes.

        This rise is leakscope's own: a snapshot releases everything, but glibc keeps about 230 KiB of small blocks for
        reuse (tcache) in every thread that took one, and counts them as in use. A larger or negative change is due to
        C++ threads, such as a collective in progress.
        """
        before, known = self._host(), self._ours

        def leave() -> None:
            after = self._host()
            if before is not None and after is not None:
                self._ours = known + min(max(after - before, 0), most)

        return Block(nothing, leave)
