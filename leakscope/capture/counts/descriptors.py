"""Which descriptors has this process open, by what they lead to?"""

from __future__ import annotations

import re
from _socket import AF_INET, AF_INET6, SOCK_DGRAM, socket
from collections import Counter
from collections.abc import Mapping

from leakscope.originals import os
from leakscope.record.rows.counts import OTHERS

_FOLDER = "/proc/self/fd"
_MOST_KINDS = 64
"""Kinds that are told apart, chosen; the others together are `OTHERS`."""
_MOST_READ = 2048
"""Descriptors whose kinds are read at a time; chosen: 20 ms where the system is slow."""
_MOST_SOCKETS = 256
"""Sockets that are asked for their peers at a time; chosen: 3 microseconds each were measured."""
_DELETED = " (deleted)"
_DIGITS = re.compile(r"\d+")


def open_descriptors(own: str) -> dict[str, int] | None:
    """How many there are of each kind; None where the system does not say. Those below the folder `own` are left out.

    Of very many the latest are told apart, which what leaks is among. Takes 2 to 10 microseconds a descriptor; nothing
    of what they lead to is touched.
    """
    try:
        listed = os.listdir(_FOLDER)
    except OSError:  # none may be opened any more, or no such system
        return None
    numbers = sorted(listed, key=int)[-_MOST_READ:]
    targets = Counter[str]()
    sockets = 0
    for number in numbers:
        try:
            target = os.readlink(f"{_FOLDER}/{number}")
        except OSError:  # the one by which they were listed
            continue
        if target.startswith("socket:"):
            sockets += 1
            target = _socket_kind(int(number)) if sockets <= _MOST_SOCKETS else "socket"
        if not target.startswith(own):
            targets[target] += 1
    return _few(_kinds(targets), len(listed) - len(numbers))


def _kinds(targets: Mapping[str, int]) -> Counter[str]:
    """Files that are open once by folder and ending, those that are open several times by their path."""
    kinds = Counter[str]()
    for target, count in targets.items():
        kinds[_kind(target, count)] += count
    return kinds


def _kind(target: str, count: int) -> str:
    if not target.startswith("/"):  # `pipe:[79029]`, `anon_inode:[eventpoll]`, `socket to node0:29500`
        word, _, name = target.partition(":[")
        return name.rstrip("]") if word == "anon_inode" else word if name else target.removeprefix("anon_inode:")
    path = target.removesuffix(_DELETED)
    if path.startswith(("/dev/", "/memfd:")):
        return _DIGITS.sub("*", path)
    return path if count > 1 else f"{os.path.dirname(path)}/*{os.path.splitext(path)[1]}"


def _socket_kind(number: int) -> str:
    """`socket to 127.0.0.1:29500`; asked of a copy of the descriptor, which is closed again."""
    try:
        copy = os.dup(number)
    except OSError:  # it is gone, or there is room for no other
        return "socket"
    try:
        asked = socket(fileno=copy)
    except OSError:
        os.close(copy)
        return "socket"
    try:
        if asked.family not in (AF_INET, AF_INET6):
            return "unix socket"
        host, port, *_ = asked.getpeername()
        return f"socket to {host}:{port}"
    except OSError:
        return "datagram socket" if asked.type == SOCK_DGRAM else "socket that is not connected"
    finally:
        asked.close()


def _few(kinds: Counter[str], others: int) -> dict[str, int]:
    few = dict(kinds.most_common(_MOST_KINDS))
    others += kinds.total() - sum(few.values())
    return few | ({OTHERS: others} if others else {})
