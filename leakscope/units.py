"""Bytes and durations the way people read and write them."""

from __future__ import annotations

import re

_KIB = 1024
"""Bytes of a KiB, and each further suffix over the one before."""
_MILLISECOND = 1e-3
"""Seconds of a millisecond."""
_LONG = 120.0
"""Seconds from which minutes read better."""
_SUFFIXES = ("B", "KiB", "MiB", "GiB", "TiB")
_FACTORS = {"": 1, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def bytes_text(count: float | None) -> str:
    """`2097152` as `2.00 MiB`; below one KiB whole bytes; None as `unknown`."""
    if count is None:
        return "unknown"
    size = float(count)
    for suffix in _SUFFIXES:
        written = f"{size:.0f}" if suffix == "B" else f"{size:.2f}"
        if abs(float(written)) < _KIB or suffix == _SUFFIXES[-1]:  # as written: 1023.999 KiB is 1.00 MiB
            return f"{written} {suffix}"
        size /= _KIB
    raise AssertionError("unreachable")


def seconds_text(seconds: float | None) -> str:
    """`0.0123` as `12.3 ms`; None as `unknown`."""
    if seconds is None:
        return "unknown"
    if seconds < _MILLISECOND:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < _LONG:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min"


def parse_share(text: str | float) -> float:
    """`"2%"` or `0.02` as a share between 0 and 1, the same on the command line and in Python.

    A bare number of 1 or more is refused where it is typed: `1` could be meant as 1% or as all.

    Raises ValueError with a sentence that shows the accepted form.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*", str(text))
    if match is None:
        raise ValueError(f"cannot read {text!r} as a share; write it like 2% or 0.02")
    number = float(match.group(1))
    share = number / 100 if match.group(2) else number
    if isinstance(text, str) and not match.group(2) and number >= 1:
        raise ValueError(f"{text!r} is not a share below 1; write {number:g}% or {number / 100:g}")
    if share > 1:
        raise ValueError(f"{text!r} is more than 100%; write it like 2% or 0.02")
    return share


def parse_bytes(text: str | int) -> int:
    """`"1 MB"`, `"64KiB"` or `4096` as a count of bytes (1 KB and 1 KiB are both 1024).

    Raises ValueError with a sentence that shows the accepted form.
    """
    if isinstance(text, int) and text >= 0:
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*", str(text).lower())
    if match is None:
        raise ValueError(f"cannot read {text!r} as a size; write it like 4096, 64KiB or 1 MB")
    return round(float(match.group(1)) * _FACTORS[match.group(2)])
