"""What is done to the files of a run: to a value in their JSON, to their bytes, to their lines, to the files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

NASTY: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 0.5, -0.0, 2**31, 2**53, 2**60, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 1e18, 1e308,
    float("nan"), float("inf"), float("-inf"), "", "x", "0", "-1", "1e999", "nan", "a" * 70_000,
    "\0", "\x1b[2J", "\ud800", "\udfff x", "\u202e", "<script>alert(1)</script>", "{{ 7 * 7 }}", "`a`b`", "$x_1$",
    "]]>", [], {}, [[]], [None], [1, 2, 3], [-1], ["x"], {"a": 1}, {"0": "x"}, {"-1": []},
)  # fmt: skip
"""Values that a field should not have, or only just."""
_FACTORS = (-1, 2, 1000, 10**9, 10**18, 0)
_SAMPLED = 8
"""Items of a long list that may be met."""
DEEP = 100_000
"""Lists in lists, more than any parser takes."""


def damage(folder: Path, whole: dict[str, bytes], random: Random) -> tuple[str, ...]:
    """Damage one file of a run or several; what was done to each, by name."""
    names = random.sample(sorted(whole), random.choice((1, 1, 1, 2, 3, 5)))
    return tuple(f"{name}: {_damage_one(folder, name, whole, random)}" for name in names)


def _damage_one(folder: Path, name: str, whole: dict[str, bytes], random: Random) -> str:
    path, data = folder / name, whole[name]
    if random.random() < 0.06:
        kind = random.choice(sorted(IN_ITS_PLACE))
        path.unlink()
        IN_ITS_PLACE[kind](path)
        return kind
    if random.random() < 0.06:
        other = random.choice([one for one in sorted(whole) if one.rpartition(".")[2] == name.rpartition(".")[2]])
        path.write_bytes(whole[other])
        return f"what {other} has"
    if path.suffix not in (".json", ".jsonl") or random.random() < 0.2:
        return _with_bytes(path, data, random)
    if path.suffix == ".json":
        value, description = _with_value(json.loads(data), random)
        path.write_text(json.dumps(value))
        return description
    return _with_lines(path, data.splitlines(), random)


def _with_lines(path: Path, lines: list[bytes], random: Random) -> str:
    place = random.randrange(len(lines))
    description = f"line {place + 1} "
    what = random.choice(("value", "value", "value", "value", "twice", "gone", "moved", "cut"))
    if what == "value":
        value, change = _with_value(json.loads(lines[place]), random)
        lines[place], description = json.dumps(value).encode(), description + change
    elif what == "cut":
        lines[place] = lines[place][: random.randrange(len(lines[place]) + 1)]
    else:
        line = lines.pop(place) if what != "twice" else lines[place]
        if what != "gone":
            lines.insert(random.randrange(len(lines) + 1), line)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return description if what == "value" else description + what


def _with_value(data: Any, random: Random) -> tuple[Any, str]:
    """The data with one value gone, doubled, scaled, swapped with its neighbour, or replaced."""
    by_depth: dict[int, list[tuple[Any, ...]]] = {}
    for way in _ways(data, random):
        by_depth.setdefault(len(way), []).append(way)
    way = random.choice(by_depth[random.choice(sorted(by_depth))])
    if not way:
        return random.choice(NASTY), "all of it"
    holder = data
    for key in way[:-1]:
        holder = holder[key]
    key, value = way[-1], holder[way[-1]]
    what = random.choice(("set", "set", "set", "gone", "twice", "scaled", "swapped"))
    if what == "gone":
        del holder[key]
    elif what == "twice" and isinstance(holder, list):
        holder.insert(random.randrange(len(holder) + 1), value)
    elif what == "scaled" and type(value) in (int, float):
        holder[key] = value * random.choice(_FACTORS) + random.choice((0, 1, -1))
    elif what == "swapped" and len(holder) > 1:
        other = random.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        holder[key], holder[other] = holder[other], value
    else:
        holder[key] = random.choice(NASTY)
    return data, f"{what} at {'/'.join(map(str, way))[:200]}"


def _ways(data: Any, random: Random, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The keys that lead to each value; of long lists to some."""
    yield before
    if isinstance(data, dict):
        for key in data:
            yield from _ways(data[key], random, (*before, key))
    elif isinstance(data, list):
        for key in random.sample(range(len(data)), min(len(data), _SAMPLED)):
            yield from _ways(data[key], random, (*before, key))


def _with_bytes(path: Path, data: bytes, random: Random) -> str:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5, 20))):
        if not changed:
            break
        place, length = random.randrange(len(changed)), random.choice((1, 2, 10, 1000))
        what = random.randrange(6)
        if what == 0:
            changed[place] = random.randrange(256)
        elif what == 1:
            changed[place] ^= 1 << random.randrange(8)
        elif what == 2:
            del changed[place : place + length]
        elif what == 3:
            changed[place:place] = random.randbytes(length)
        elif what == 4:
            changed[place:place] = changed[place : place + length]
        elif random.random() < 0.3:
            del changed[place:]
    path.write_bytes(changed)
    return "other bytes"


def _sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(1 << 40)


def _socket(path: Path) -> None:
    os.mknod(path, 0o140600)


IN_ITS_PLACE: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "an empty file": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(5000)),
    "an object without keys": lambda path: path.write_bytes(b"{}\n"),
    "deep lists": lambda path: path.write_bytes(b"[" * DEEP + b"]" * DEEP),
    "deep objects": lambda path: path.write_bytes(b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    "a long number": lambda path: path.write_bytes(b"9" * 100_000),
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a sparse file": _sparse,
    "no rights": lambda path: path.touch(0),
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link without end": lambda path: path.symlink_to("/dev/zero"),
    "a link to a terminal": lambda path: path.symlink_to("/dev/tty"),
}
"""What stands where a file should."""


def put_back(folder: Path, whole: dict[str, bytes], names: Sequence[str]) -> None:
    """Those files as they were, or not there."""
    for name in names:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if name in whole:
            path.write_bytes(whole[name])
