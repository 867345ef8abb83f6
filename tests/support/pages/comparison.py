"""Compares the output of a command with the one on a page, except for what varies between runs."""

from __future__ import annotations

import difflib
import doctest
import re
from collections.abc import Sequence

VARYING = (
    (re.compile(r"^\[W\d{4} [^\n]*TCPStore\.cpp.*?^<omitting python frames>\n", re.MULTILINE | re.DOTALL), ""),
    (re.compile(r"^\[leakscope\] step \d[^\n]*\n", re.MULTILINE), ""),
    (re.compile(r"\d{8}_\d{6}"), "20261123_080000"),
    (re.compile(r"\d+(?:\.\d+)? ?(?:ms|s)\b"), "1.0 s"),
    (re.compile(r"\d+ snapshots \("), "7 snapshots ("),
    (re.compile(r"\d+(?:\.\d+)?% of the time"), "1% of the time"),
    (re.compile(r"\b0x[0-9a-f]{6,}\b"), "0x7f0000000000"),
    (re.compile(r"\b(process|pid) \d+"), r"\1 1234"),
    (re.compile(r"[\d.]+(?: to [\d.]+)? [KMG]iB (allocated|resident)"), r"100.00 MiB \1"),
    (re.compile(r"(Growth +|memory rose )[\d.]+ [KMG]iB"), r"\g<1>1.00 MiB"),
    (re.compile(r"[\d.]+ [KMG]iB more each step"), "1.00 MiB more each step"),
    (re.compile(r" +$", re.MULTILINE), ""),
)
"""Times, dates, addresses, process ids and figures of the C library, each with its replacement."""
OMITTED = "..."
"""Stands for lines that a page does not show; within a line, for a part of it."""


def agree(shown: Sequence[str], actual: Sequence[str]) -> bool:
    """Whether these lines of a page are those of the output."""
    want, got = (without_varying("".join(f"{line}\n" for line in lines)) for lines in (shown, actual))
    return doctest.OutputChecker().check_output(want, got, doctest.ELLIPSIS)


def without_varying(text: str) -> str:
    """The text with what varies between runs replaced."""
    for pattern, same in VARYING:
        text = pattern.sub(same, text)
    return text


def updated(shown: Sequence[str], actual: Sequence[str]) -> list[str]:
    """The lines of the page where they agree with the output, else those of the output with the same omissions."""
    if not actual:
        return []
    if agree(shown, actual):
        return list(shown)
    same = {without_varying(line): line for line in shown}
    return [same.get(without_varying(line), line) for line in _with_omissions(shown, actual)]


def _with_omissions(shown: Sequence[str], actual: Sequence[str]) -> list[str]:
    pieces: list[list[str]] = [[]]
    for line in shown:
        if line == OMITTED:
            pieces.append([])
        else:
            pieces[-1].append(line)
    if len(pieces) == 1:
        return list(actual)
    lines, at = list(actual[: len(pieces[0])]), len(pieces[0])
    for piece in pieces[1:-1]:
        near = difflib.get_close_matches(piece[0], actual[at:], 1, 0.0)
        start = actual.index(near[0], at) if near else at
        lines += [OMITTED, *actual[start : start + len(piece)]]
        at = start + len(piece)
    return [*lines, OMITTED, *actual[max(at, len(actual) - len(pieces[-1])) :]]
