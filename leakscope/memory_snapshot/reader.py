"""Reads snapshot files: plain, gzipped, or in the HTML page of torch's viewer."""

from __future__ import annotations

import base64
import binascii
import gzip
import io
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from leakscope.errors import Unreadable
from leakscope.files import read_regular
from leakscope.memory_snapshot._event_columns import (
    MAX_DEVICES,
    StackTable,
    pool_in,
    read_trace,
    whole_number,
    wrapped,
)
from leakscope.memory_snapshot._unpickle import load_plain
from leakscope.memory_snapshot.model import (
    INACTIVE,
    NOT_RECORDED,
    STATES,
    Annotation,
    Blocks,
    BlockState,
    Segment,
    Snapshot,
)

GZIP_RATIO = 100
"""A gzipped file may unpack to this many times its size; snapshots written by torch shrink 9 to 40 times."""

MAX_BYTES = 1 << 32
"""Maximum size of a file. Heuristic: torch writes a gigabyte for a million events."""
_FREE_BYTES = 1 << 20
"""Allowance in bytes for files that are nearly empty."""
_MIN_ENTRY, _FREE_ENTRIES = 8, 10_000
"""Each block and event takes at least 20 bytes of a pickle; a repeated reference takes two, and 300 once it is read."""
_EMBEDDED = re.compile(
    rb'"name"\s{0,9}:\s{0,9}("(?:[^"\\\r\n]|\\.){0,4096}")\s{0,9},\s{0,9}"base64"\s{0,9}:\s{0,9}"([A-Za-z0-9+/=]*)("?)'
)


def pickles_in(path: Path) -> list[tuple[str, bytes]]:
    """Name and bytes of each pickle in the file: one, or those embedded in a page of torch's viewer.

    Raises Unreadable if there is no such file or nothing in it can be a snapshot.
    """
    return _pickles(path.name, read_regular(path, MAX_BYTES))


def _pickles(name: str, data: bytes) -> list[tuple[str, bytes]]:
    if not data:
        raise Unreadable("it is empty")
    if data[:2] == b"\x1f\x8b":
        return _pickles(name.removesuffix(".gz"), _unzipped(data))
    if data[:1] == b"\x80":
        return [(name, data)]
    if data[:4] == b"PK\x03\x04":
        raise Unreadable("it is a zip archive, perhaps a torch.save checkpoint, not a memory snapshot")
    if data[:4096].lstrip()[:1] == b"<":
        return _embedded(data)
    if data[:64].lstrip()[:1] in (b"{", b"["):
        raise Unreadable("it is JSON or text, not a pickle")
    raise Unreadable("it is neither a pickle, nor gzip, nor a page of torch's memory viewer")


def _unzipped(data: bytes) -> bytes:
    most = GZIP_RATIO * len(data) + _FREE_BYTES
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            unpacked = stream.read(most + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise Unreadable(f"its gzip data is damaged or cut short ({error})") from error
    if len(unpacked) > most:
        raise Unreadable(
            f"its gzip data unpacks to more than {GZIP_RATIO} times its size, which no memory snapshot does"
        )
    if unpacked[:2] == b"\x1f\x8b":
        raise Unreadable("it is gzipped twice")
    return unpacked


def _embedded(data: bytes) -> list[tuple[str, bytes]]:
    """The files in the viewer's `const local_files = [{"name": ..., "base64": ...}]`."""
    start = data.find(b"local_files")
    files = []
    for match in _EMBEDDED.finditer(data, max(start, 0)) if start >= 0 else ():
        if not match[3]:
            raise Unreadable("it is a page of torch's memory viewer that is cut short")
        try:
            files.append((str(json.loads(match[1])), base64.b64decode(match[2], validate=True)))
        except (binascii.Error, ValueError) as error:
            raise Unreadable(f"the snapshot embedded in the page is damaged ({error})") from error
    if not files:
        raise Unreadable("it is a web page without an embedded memory snapshot")
    return files


DIVISIONS = "roundup_power2_divisions"
UNSET = -1
"""Marks a number missing from the file."""
_STATE_CODES = {name: code for code, name in enumerate(STATES)} | {
    "active_awaiting_free": STATES.index(BlockState.PENDING_FREE)
}


def read_snapshots(path: Path) -> list[Snapshot]:
    """Read the snapshots in one file: one, or those embedded in a page of torch's viewer.

    Reads what torch 2.0 to 2.15 writes (`torch.cuda.memory._dump_snapshot`, `memory_snapshot()`, the C++ pickler,
    torch.xpu and torch_npu), plain or gzipped. Nothing in the file is imported or called. Raises Unreadable with one
    sentence that names the file and the problem.
    """
    try:
        return [read_bytes(name, data) for name, data in pickles_in(path)]
    except Unreadable as error:
        raise Unreadable(f"{path} cannot be read as a memory snapshot: {error}") from error


def read_bytes(name: str, data: bytes) -> Snapshot:
    """Read the snapshot pickled in `data`; raises Unreadable."""
    root = load_plain(data)
    if type(root) is list:
        root = {"segments": root}
    if type(root) is not dict or not ({"segments", "device_traces"} & root.keys()):
        raise Unreadable("the pickle holds neither segments nor device traces")
    if _entries(root) > len(data) // _MIN_ENTRY + _FREE_ENTRIES:
        raise Unreadable("it refers to the same blocks or events many times, which no memory snapshot does")
    stacks = StackTable()
    segments, blocks = _segments(_list(root, "segments"), stacks)
    listed = _list(root, "device_traces")
    if len(listed) > MAX_DEVICES:
        raise Unreadable(f"it holds traces of {len(listed)} devices, and no machine has more than {MAX_DEVICES}")
    traces = [read_trace(device, trace, stacks) for device, trace in enumerate(listed)]
    return Snapshot(
        name=name,
        segments=segments,
        blocks=blocks,
        traces=tuple(traces),
        annotations=_annotations(_list(root, "external_annotations")),
        settings=_settings(root.get("allocator_settings")),
        divisions=_divisions(root.get("allocator_settings")),
        overflowed=_overflowed(root),
        stacks=stacks.stacks(),
    )


def _entries(root: dict[str, Any]) -> int:
    """Number of segments, blocks, events and annotations to read, counted wherever they are referenced."""
    lists = [value for value in root.values() if type(value) is list]
    inner = [item.get("blocks") if type(item) is dict else item for value in lists for item in value]
    return sum(len(value) for value in [*lists, *inner] if type(value) is list)


def read_segments(items: list[Any]) -> Snapshot:
    """Read the segments and blocks of `torch.cuda.memory_snapshot()`; raises Unreadable."""
    stacks = StackTable()
    segments, blocks = _segments(items, stacks)
    return Snapshot(name="", segments=segments, blocks=blocks, traces=(), stacks=stacks.stacks())


def _list(holder: dict[str, Any], key: str) -> list[Any]:
    value = holder.get(key)
    if value is None:
        return []
    if type(value) is not list:
        raise Unreadable(f"its {key} are of type {type(value).__name__}, not a list")
    return value


def _segments(items: list[Any], stacks: StackTable) -> tuple[tuple[Segment, ...], Blocks]:
    segments: list[Segment] = []
    rows: list[tuple[int, int, int, int, int, int]] = []
    for index, item in enumerate(items):
        if type(item) is not dict:
            raise Unreadable(f"segment {index} is of type {type(item).__name__}, not a dictionary")
        address = whole_number(item, "address", "segment", most=1 << 64)
        kind = item.get("segment_type", "")
        segments.append(
            Segment(
                device=whole_number(item, "device", "segment", 0, most=MAX_DEVICES - 1),
                address=wrapped(address),
                total_size=whole_number(item, "total_size", "segment"),
                kind=kind if type(kind) is str else "",
                stream=wrapped(whole_number(item, "stream", "segment", 0, -(1 << 63), 1 << 64)),
                pool=pool_in(item.get("segment_pool_id")) or (0, 0),
                expandable=item.get("is_expandable") is True,
            )
        )
        for block in _list(item, "blocks"):
            row = _block(block, address, index, stacks)
            rows.append(row)
            address = row[0] + row[1]
    if sum(segment.total_size for segment in segments) + sum(row[1] + row[2] for row in rows) > 1 << 60:
        raise Unreadable("the sizes of its segments are beyond any device's memory")
    return tuple(segments), _block_columns(rows)


def _block(block: Any, address: int, segment: int, stacks: StackTable) -> tuple[int, int, int, int, int, int]:
    """Address, size, requested, state, segment, stack; before torch 2.1 a block has no address and its stack is in
    `history`.
    """
    if type(block) is not dict:
        raise Unreadable(f"a block is of type {type(block).__name__}, not a dictionary")
    state = block.get("state")
    code = _STATE_CODES.get(state) if type(state) is str else None
    if code is None:
        shown = repr(state[:40]) if type(state) is str else f"of type {type(state).__name__}"
        raise Unreadable(f"a block's state is {shown}, which torch never writes")
    size = whole_number(block, "size", "block")
    requested = whole_number(block, "requested_size", "block", UNSET)
    frames = block.get("frames")
    history = _list(block, "history")
    if history and type(history[0]) is dict:
        if requested == UNSET:
            requested = whole_number(history[0], "real_size", "block", size)
        frames = history[0].get("frames") if frames is None else frames
    stack = NOT_RECORDED if code == INACTIVE else stacks.number(frames or None)
    return (
        whole_number(block, "address", "block", address, most=1 << 65),
        size,
        size if requested == UNSET else requested,
        code,
        segment,
        stack,
    )


def _block_columns(rows: list[tuple[int, int, int, int, int, int]]) -> Blocks:
    address, size, requested, state, segment, stack = zip(*rows, strict=True) if rows else ((),) * 6
    return Blocks(
        address=np.array([wrapped(value) for value in address], np.int64),
        size=np.array(size, np.int64),
        requested=np.array(requested, np.int64),
        state=np.array(state, np.uint8),
        segment=np.array(segment, np.int32),
        stack=np.array(stack, np.int32),
    )


def _annotations(items: list[Any]) -> tuple[Annotation, ...]:
    annotations = []
    for item in items:
        if type(item) is not dict or item.get("stage") not in ("START", "END") or type(item.get("name")) is not str:
            continue
        device, time_us = item.get("device"), item.get("time_us")
        if type(time_us) is int and 0 <= time_us < 2**62:
            annotations.append(
                Annotation(item["name"], item["stage"] == "START", device if type(device) is int else 0, time_us)
            )
    return tuple(annotations)


def _settings(value: Any) -> dict[str, str]:
    if type(value) is not dict:
        return {}
    settings = {key: str(setting)[:200] for key, setting in value.items() if type(setting) in (str, int, float, bool)}
    divisions = _divisions(value)
    if divisions:
        same = len(set(divisions)) == 1
        sizes = (f"{1 << at}:{count}" for at, count in enumerate(divisions) if count > 1)
        settings[DIVISIONS] = str(divisions[0]) if same else ",".join(sizes)
    return settings


def _divisions(settings: Any) -> tuple[int, ...]:
    """The parts that a power of two is divided into, for requests of 1 MiB, 2 MiB, 4 MiB, ...; empty without."""
    value = settings.get(DIVISIONS) if type(settings) is dict else None
    if type(value) is not dict:
        return ()
    counts = tuple(value.get(str(1 << at), 0) for at in range(16))
    return counts if all(type(n) is int and 0 <= n <= 1 << 16 for n in counts) and max(counts) > 1 else ()


def _overflowed(root: dict[str, Any]) -> bool:
    settings = root.get("allocator_settings")
    flags = [
        root.get("trace_alloc_overflowed"),
        settings.get("trace_alloc_overflowed") if type(settings) is dict else None,
    ]
    return any(flag is True or (type(flag) is list and True in flag) for flag in flags)
