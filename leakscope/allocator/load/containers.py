"""Where in the file is the pickle? Plain, gzipped, or inside the HTML page that torch's own viewer writes."""

from __future__ import annotations

import base64
import binascii
import gzip
import io
import json
import re
import zlib
from pathlib import Path

from leakscope.errors import Unreadable
from leakscope.files import read_regular

GZIP_RATIO = 100
"""A gzipped file may unpack to this many times its size; snapshots written by torch shrink 9 to 40 times."""

MOST_BYTES = 1 << 32
"""A larger file is not read; chosen: of a million events torch writes a gigabyte."""
_FREE_BYTES = 1 << 20
"""And so many bytes beside, for files that are nearly empty."""
_EMBEDDED = re.compile(
    rb'"name"\s{0,9}:\s{0,9}("(?:[^"\\\r\n]|\\.){0,4096}")\s{0,9},\s{0,9}"base64"\s{0,9}:\s{0,9}"([A-Za-z0-9+/=]*)("?)'
)


def pickles_in(path: Path) -> list[tuple[str, bytes]]:
    """Name and bytes of each pickle in the file: one, or as many as a page of torch's viewer embeds.

    Raises Unreadable when there is no such file or nothing in it can be a snapshot.
    """
    return _pickles(path.name, read_regular(path, MOST_BYTES))


def _pickles(name: str, data: bytes) -> list[tuple[str, bytes]]:
    if not data:
        raise Unreadable("it is empty")
    if data[:2] == b"\x1f\x8b":
        return _pickles(name.removesuffix(".gz"), _unzipped(data))
    if data[:1] == b"\x80":
        return [(name, data)]
    if data[:4] == b"PK\x03\x04":
        raise Unreadable("it is a zip archive, perhaps a checkpoint of torch.save, and no memory snapshot")
    if data[:4096].lstrip()[:1] == b"<":
        return _embedded(data)
    if data[:64].lstrip()[:1] in (b"{", b"["):
        raise Unreadable("it is JSON or text, and a memory snapshot is a pickle")
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
