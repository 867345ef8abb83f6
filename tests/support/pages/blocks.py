"""Fenced blocks of a documentation page and the commands in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,}) *(?P<language>[\w+-]*)(?P<rest>[^`\n]*)\n"
    r"(?P<text>.*?)^(?P=indent)(?P=fence) *$",
    re.MULTILINE | re.DOTALL,
)
_TITLE = re.compile(r'title="([^"]+)"')
_NEEDS = re.compile(r"\A---\n(?:.*\n)*?needs: *(?P<packages>.*)\n(?:.*\n)*?---\n")


@dataclass(frozen=True)
class Block:
    """What stands between two fences."""

    line: int
    """Of its first line of text in the page, from 1."""
    language: str
    title: str
    """The file that it is, or ""."""
    indent: str
    text: str
    """Without the indent; ends with a newline, unless it is empty."""


@dataclass(frozen=True)
class Command:
    """A command of a console block, and the output that the page shows below it."""

    words: str
    """As it is typed, over several lines where a backslash ends one."""
    lines: tuple[str, ...]
    """As the page has it, with its prompts."""
    output: tuple[str, ...]


def blocks_of(page: str) -> list[Block]:
    return [
        Block(
            line=page.count("\n", 0, found.start("text")) + 1,
            language=found["language"],
            title=title[1] if (title := _TITLE.search(found["rest"])) else "",
            indent=found["indent"],
            text=re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE),
        )
        for found in _FENCE.finditer(page)
    ]


def commands_of(text: str) -> Iterator[Command]:
    """What stands after each `$ `, with the lines that a trailing backslash carries it on to; all else is output."""
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    assert starts[:1] == [0], f"a console block begins with `$ command`, not with {lines[0]!r}" if lines else "is empty"
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        output = start + 1
        while lines[output - 1].endswith("\\"):
            output += 1
        typed = tuple(lines[start:output])
        words = "\n".join([typed[0][2:], *(re.sub(r"^> ?", "", line) for line in typed[1:])])
        yield Command(words, typed, tuple(lines[output:end]))


def with_texts(page: str, texts: Sequence[str]) -> str:
    """The page with these texts in the place of those of its blocks."""
    new = iter(texts)
    blocks = iter(blocks_of(page))

    def put(found: re.Match[str]) -> str:
        text = re.sub(r"^(?=.)", next(blocks).indent, next(new), flags=re.MULTILINE)
        return page[found.start() : found.start("text")] + text + page[found.end("text") : found.end()]

    return _FENCE.sub(put, page)


def needs_of(page: str) -> list[str]:
    """The packages without which a page cannot run: `needs: lightning, torchmetrics` between its first two `---`."""
    found = _NEEDS.match(page)
    return [name.strip() for name in found["packages"].split(",")] if found else []
