"""Goes through a page as a reader does who types all of it: each file written, each command run, in one folder."""

from __future__ import annotations

import doctest
import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.commands.preloaded import Copies
from support.pages import session
from support.pages.blocks import Block, Command, commands_of
from support.pages.cells import cells_of
from support.pages.comparison import updated
from support.pages.shell import Shell

if TYPE_CHECKING:
    from support.pages.notebooks import Notebook

HOME = "/home/me/job"
"""Where a page says that its reader is."""


class Walk:
    """A reader on the way through a page."""

    def __init__(self, folder: Path, copies: Copies, files: Sequence[Path] = ()) -> None:
        self._folder = folder
        self._shell = Shell(folder, folder.parent / f"{folder.name}.aside", copies)
        self._status = 0
        self._session: list[Block] = []
        self._book: Notebook | None = None
        for path in files:
            shutil.copy(path, folder)

    def through(self, blocks: Sequence[Block]) -> Iterator[str]:
        """The text that each block ought to have: its own, with what really came out."""
        with ExitStack() as kernel:
            yield from self._through(blocks, kernel)

    def _through(self, blocks: Sequence[Block], kernel: ExitStack) -> Iterator[str]:
        for kind, some in itertools.groupby(blocks, kind_of):
            if kind == "session":
                yield from self._in_session(list(some))
            elif kind == "cells":
                pytest.importorskip("nbclient", reason="runs no kernel: pip install 'leakscope[test]'")
                from support.pages.notebooks import notebook  # only such a page needs a kernel

                self._book = self._book or kernel.enter_context(notebook(self._folder))
                yield from (self._in_notebook(block) for block in some)
            elif kind == "at once":
                yield from self._at_once(list(some))
            else:
                for block in some:
                    yield self._after(block)

    def _after(self, block: Block) -> str:
        if block.title and block.language == "diff":
            patch(self._folder / block.title, block.text)
        elif block.title:
            path = self._folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            return "".join(self._typed(command) for command in commands_of(block.text))
        else:
            assert block.language == "text", f"line {block.line}: a block of {block.language or 'nothing'} never runs"
        return block.text

    def _typed(self, command: Command) -> str:
        if command.words == "echo $?":
            return self._shown(command, f"{self._status}\n")
        self._status, output = self._shell.run(command.words)
        return self._shown(command, output)

    def _at_once(self, blocks: list[Block]) -> list[str]:
        commands = [command for block in blocks for command in commands_of(block.text)]
        assert len(commands) == len(blocks), f"line {blocks[0].line}: one command for each machine"
        done = self._shell.at_once([(command.words, {}) for command in commands])
        return [self._shown(command, output) for command, (_, output) in zip(commands, done, strict=True)]

    def _shown(self, command: Command, output: str) -> str:
        lines = output.replace(str(self._folder), HOME).rstrip("\n").split("\n") if output.strip() else []
        return "".join(f"{line}\n" for line in [*command.lines, *updated(command.output, lines)])

    def _in_session(self, blocks: list[Block]) -> list[str]:
        """One process for what stands together; what the page had before comes again, in silence."""
        pair = {"earlier": self._session, "blocks": blocks}
        data = {name: [(block.language, block.text) for block in some] for name, some in pair.items()}
        status, output, written = self._shell.exchange(Path(session.__file__), data)
        assert status == 0, f"the Python from line {blocks[0].line} on fails:\n{output}"
        self._session += blocks
        return [with_output(block, outputs) for block, outputs in zip(blocks, json.loads(written), strict=True)]

    def _in_notebook(self, block: Block) -> str:
        """Its cells run in the one kernel of the page; what they print and show is their output."""
        assert self._book is not None
        cells = []
        for cell in cells_of(block.text):
            output = self._book.run(cell.source)
            output += self._book.shown().get("text/plain", "")
            lines = output.rstrip("\n").split("\n") if output.strip() else []
            cells.append("".join(f"{line}\n" for line in [*cell.lines, *updated(cell.output, lines)]))
        return "\n".join(cells)


def kind_of(block: Block) -> str:
    """Python without a title is one session; console blocks with titles are machines that run at the same time.

    `ipython` is cells of one notebook.
    """
    if block.language == "ipython":
        return "cells"
    if block.language == "console" and block.title:
        return "at once"
    return "session" if block.language in ("python", "pycon") and not block.title else "alone"


def with_output(block: Block, outputs: Sequence[str]) -> str:
    """The examples of a block, each with what it output."""
    if block.language != "pycon":
        return block.text
    each = iter(outputs)
    text = ""
    for part in doctest.DocTestParser().parse(block.text):
        if isinstance(part, str):
            text += part
            continue
        first, *more = part.source.splitlines()
        text += "".join(f"{line}\n" for line in [f">>> {first}", *(f"... {line}".rstrip() for line in more)])
        shown = next(each).replace("\n\n", "\n<BLANKLINE>\n").splitlines()
        text += "".join(f"{line}\n" for line in updated(part.want.splitlines(), shown))
    return text


def patch(path: Path, diff: str) -> None:
    """Change a file as a reader does who sees lines with `-`, `+` and ` ` before them."""
    text = path.read_text(encoding="utf-8")
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        old, new = ("".join(line[1:] or "\n" for line in lines if line[0] in f"{mark} \n") for mark in "-+")
        assert text.count(old) == 1, f"{path.name} has these lines {text.count(old)} times:\n{old}"
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
