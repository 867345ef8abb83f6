"""The user's source files of a run, as they are now, and patches of them."""

from __future__ import annotations

import io
import os
import subprocess
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from functools import cached_property
from pathlib import Path

from leakscope.errors import LeakscopeError
from leakscope.findings.source.index import is_cell
from leakscope.run.model import Run

_MAX_CONTEXT = 3
"""Unchanged lines around a change in a patch, as in git."""


@dataclass(frozen=True)
class SourceFile:
    """One file; the lines of its text end with a newline, whatever the file has."""

    name: str
    """Its name in the run."""
    path: Path
    """Its real path."""
    text: str
    encoding: str
    newline: str
    """What ends a line in the file: a newline, or carriage return and newline."""

    def encoded(self, text: str) -> bytes:
        """The content of the file for another text."""
        return text.replace("\n", self.newline).encode(self.encoding)


@dataclass(frozen=True)
class SourceFiles:
    """The files of a run that can be edited."""

    files: Mapping[str, SourceFile]
    problems: Mapping[str, str]
    """File name, mapped to the reason why the file cannot be edited."""
    folder: Path
    """The working directory of the run."""

    @classmethod
    def of(cls, run: Run, folder: Path) -> SourceFiles:
        """Find the files of a run.

        Args:
            run: A recorded run.
            folder: Its working directory.

        """
        files, problems = dict[str, SourceFile](), dict[str, str]()
        for name, lines in run.sources.items():
            try:
                files[name] = _read(name, run.source_paths.get(name, ""), lines, folder)
            except LeakscopeError as error:
                problems[name] = str(error)
        return cls(files, problems, folder)

    @cached_property
    def texts(self) -> dict[str, str]:
        """File name to text."""
        return {name: file.text for name, file in self.files.items()}

    @cached_property
    def root(self) -> Path:
        """The folder that the paths of a patch are relative to: the repository's root, or the working directory."""
        folders = (self.folder, *self.folder.parents)
        return next((folder for folder in folders if os.path.lexists(folder / ".git")), self.folder)

    def write_copies(self, texts: Mapping[str, str], into: Path) -> dict[str, str]:
        """Write edited copies into a folder.

        Args:
            texts: File name to edited text.
            into: The folder.

        Returns:
            Real path of each original, mapped to that of its copy.

        """
        copies = {}
        for number, (name, text) in enumerate(texts.items()):
            file = self.files[name]
            copy = into / f"{number}_{file.path.name}"
            copy.write_bytes(file.encoded(text))
            copies[str(file.path)] = str(copy.resolve())
        return copies

    def patch(self, texts: Mapping[str, str]) -> bytes:
        """The unified diff of edited files, as `git apply` takes it.

        Args:
            texts: File name to edited text.

        """
        return b"".join(self._diff(self.files[name], texts[name]) for name in sorted(texts))

    def _diff(self, file: SourceFile, after: str) -> bytes:
        path = os.path.relpath(file.path, self.root)
        lines: list[bytes] = [f"diff --git a/{path} b/{path}\n".encode()]
        mark, encoding = ("\ufeff", "utf-8") if file.encoding == "utf-8-sig" else ("", file.encoding)
        old, new = (mark + file.text).split("\n"), (mark + after).split("\n")
        diff = list(unified_diff(_with_ends(old), _with_ends(new), f"a/{path}", f"b/{path}", n=_MAX_CONTEXT))
        if not diff:
            return b""
        lines += [line.encode() for line in diff[:2]]
        for line in diff[2:]:
            body, end = (line[:-1], "\n") if line.endswith("\n") else (line, "")
            is_header = line.startswith("@@")
            data = body.encode("utf-8" if is_header else encoding)
            ending = "\n" if is_header else file.newline if end else "\n\\ No newline at end of file\n"
            lines.append(data + ending.encode())
        return b"".join(lines)

    def check_unchanged(self, names: Sequence[str]) -> None:
        """Check that files are as they were read, and committed where they are in a repository.

        Raises:
            LeakscopeError: A file has changed, has uncommitted changes, or cannot be written.

        """
        for name in names:
            file = self.files[name]
            if file.path.read_bytes() != file.encoded(file.text):
                raise LeakscopeError(f"{name} has changed since the fix was proved; run `leakscope fix` again")
            if not os.access(file.path, os.W_OK):
                raise LeakscopeError(f"{name} is read-only; apply fix.patch elsewhere")
            if _has_uncommitted_changes(file.path):
                raise LeakscopeError(f"{name} has uncommitted changes; commit them, or apply fix.patch by hand")

    def apply(self, texts: Mapping[str, str]) -> None:
        """Write edited files over the originals, after `check_unchanged`.

        Args:
            texts: File name to edited text.

        """
        self.check_unchanged(list(texts))
        for name, text in texts.items():
            self.files[name].path.write_bytes(self.files[name].encoded(text))


def _with_ends(lines: Sequence[str]) -> list[str]:
    """Lines with their ends; the last has none, and is left out if it is empty."""
    ended = [f"{line}\n" for line in lines[:-1]]
    return [*ended, lines[-1]] if lines[-1] else ended


def _read(name: str, path: str, lines: Sequence[str], folder: Path) -> SourceFile:
    """Read one file. Raises LeakscopeError if it cannot be edited."""
    if is_cell(name):
        raise LeakscopeError("cells of a notebook cannot be edited; move the code to a script")
    place = Path(path) if path else folder / name
    try:
        place = place.resolve(strict=True)
        data = place.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except OSError as error:
        raise LeakscopeError(f"cannot read {name}: {error.strerror}") from None
    except (SyntaxError, UnicodeDecodeError):
        raise LeakscopeError(f"cannot decode {name}") from None
    newline = "\r\n" if "\r\n" in text else "\n"
    plain = text.replace(newline, "\n")
    if "\r" in plain or plain.replace("\n", newline) != text:
        raise LeakscopeError(f"{name} has more than one kind of line end")
    if plain.removesuffix("\n").split("\n") != list(lines):
        raise LeakscopeError(f"{name} has changed since the recording")
    return SourceFile(name, place, plain, encoding, newline)


def _has_uncommitted_changes(path: Path) -> bool:
    """Whether git reports changes of a file; False outside of a repository and without git."""
    try:
        done = subprocess.run(
            ["git", "status", "--porcelain", "--", path.name],
            cwd=path.parent, capture_output=True, timeout=30, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout[:2] not in (b"", b"??")
