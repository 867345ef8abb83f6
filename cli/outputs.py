"""The formats that `--as FORMAT[=FILE]` asks for, and where each is written."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from leakscope_cli.console import columns_of, files_of, in_encoding_of, note, stdout_console, style_text

from leakscope.errors import LeakscopeError
from leakscope.report.formats import OWN, PICTURES, Format, format_named, format_names
from leakscope.run.writer import write_named

if TYPE_CHECKING:
    from leakscope.findings.model import Findings
    from leakscope.report.drawing import Picture
    from leakscope.run.model import Run

TEXT = "text"
"""The format of stdout by default."""
STDOUT = "-"
"""The file name that means stdout."""
_STEM = "findings"
"""Name without suffix of the file in a folder that is given instead of a file."""


@dataclass(frozen=True)
class OutputRequest:
    """One format, and where it goes."""

    form: Format | Picture
    file: Path | None
    """None for stdout."""


def parse_formats(
    words: Sequence[str], output: Path | None = None, finding: str | None = None
) -> tuple[OutputRequest, ...]:
    """Parse `--as FORMAT[=FILE]` and `--output`.

    A format without a file goes to `output` or stdout; if all have a file, the text report does. In place of a file, a
    folder takes `findings.<suffix>`.

    Args:
        words: Values of `--as`.
        output: Value of `--output`.
        finding: Value of `--finding`, which dot, svg and png draw.

    Raises:
        LeakscopeError: A format is unknown or cannot be imported, or two go to the same place.

    """
    requests = list(dict.fromkeys(_parse_format(word, output, finding) for word in words))
    if all(one.file is not None for one in requests) or not requests:
        own_place = output is None or output not in [one.file for one in requests]
        requests = [*([OutputRequest(format_named(TEXT), output)] if own_place else []), *requests]
    for index, one in enumerate(requests):
        same = next((other for other in requests[:index] if other.file == one.file), None)
        if same is not None:
            where = "stdout" if one.file is None else str(one.file)
            name = one.form.name
            raise LeakscopeError(f"{same.form.name} and {name} would both go to {where}; use --as {name}=FILE")
    return tuple(requests)


def stdout_format(requests: Sequence[OutputRequest]) -> Format | Picture | None:
    """The format that goes to stdout, if any does."""
    return next((one.form for one in requests if one.file is None), None)


def _parse_format(word: str, output: Path | None, finding: str | None) -> OutputRequest:
    name, has_file, file = word.partition("=")
    if name not in (*format_names(), *PICTURES):
        raise LeakscopeError(f"unknown format {name!r}; use one of {', '.join(format_names())}")
    if name in PICTURES and not finding:
        raise LeakscopeError(f"{name} draws one finding; run leakscope report RUN --as {name}=FILE --finding ID")
    if has_file and not file:
        raise LeakscopeError(f"--as {word} has no file name; use --as {name}=FILE, or --as {name} for stdout")
    form: Format | Picture
    if name in PICTURES and finding:
        from leakscope.report.drawing import Picture

        form = Picture(name, finding)
    else:
        form = format_named(name)
    if not has_file:
        return OutputRequest(form, output)
    if file == STDOUT:
        return OutputRequest(form, None)
    path = Path(file)
    return OutputRequest(form, path / f"{_STEM}{form.suffix}" if file.endswith("/") or path.is_dir() else path)


def check_writable(requests: Sequence[OutputRequest], made_later: Path | None = None) -> None:
    """Raises LeakscopeError if a file cannot be written; `made_later` is a folder that need not exist yet."""
    for one in requests:
        if one.file is None or (one.file.parent == made_later and not made_later.exists()):
            continue
        try:
            _check_file(one.file)
        except OSError as error:
            raise LeakscopeError(f"cannot write {one.file}: {error.strerror}") from None


def _check_file(file: Path) -> None:
    try:
        kind = os.stat(file).st_mode
    except FileNotFoundError:
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        os.unlink(file)
        return
    if stat.S_ISREG(kind) or stat.S_ISDIR(kind):  # opening a pipe would wake its reader
        os.close(os.open(file, os.O_WRONLY))


def render_format(form: Format | Picture, run: Run, findings: Findings, verbose: bool = False) -> str | bytes:
    """Render a format; text with all details if `verbose`. Raises LeakscopeError if another package's format fails."""
    if verbose and form.name == TEXT:
        from leakscope.report.text.page import render

        return render(run, findings, verbose=True)
    if form.name in PICTURES or any(form is own for own in OWN):
        return form.render(run, findings)
    try:
        output = form.render(run, findings)
        if not isinstance(output, str):
            raise TypeError(f"render() returned {type(output).__name__}")
        return output
    except Exception as error:  # noqa: BLE001 - another package's fault must not cost the verdict
        raise LeakscopeError(f"the format {form.name} fails: {type(error).__name__}: {error}") from None


@runtime_checkable
class FitsWidth(Protocol):
    """A format of text that can be set to the width of the terminal."""

    def render_to_width(self, run: Run, findings: Findings, width: int) -> str:
        """The text in `width` columns."""
        ...


def render_for_stdout(
    form: Format, run: Run, findings: Findings, verbose: bool = False, page: str = ""
) -> tuple[str | bytes, bool]:
    """Render a format for stdout; text in the width and colors of the terminal.

    Args:
        form: The format.
        run: The run.
        findings: Its findings.
        verbose: Show all details in text.
        page: Path of the page to name, if not that of the finished run.

    Returns:
        The output, and whether it contains escape sequences.

    Raises:
        LeakscopeError: A format of another package failed.

    """
    from leakscope.report.text.page import render

    console, files = stdout_console(), files_of(run)
    if form.name == TEXT:
        page = page or next((name for name in files if name.endswith("report.html")), "")
        text = render(run, findings, verbose, columns_of(console), page)
    elif isinstance(form, FitsWidth):
        text = form.render_to_width(run, findings, columns_of(console))
    else:
        return render_format(form, run, findings, verbose), False
    return style_text(in_encoding_of(sys.stdout, text), console, files), console.color_system is not None


def write_files(
    requests: Sequence[OutputRequest], run: Run, findings: Findings, verbose: bool = False, quiet: bool = False
) -> tuple[str, ...]:
    """Write the formats that go to files; return one sentence for each that failed."""
    failed = []
    for form, file in ((one.form, one.file) for one in requests if one.file is not None):
        why = _write(form, file, run, findings, verbose)
        if why:
            failed.append(why)
        elif not quiet:
            note(f"{form.name}: {file}")
    return tuple(failed)


def _write(form: Format | Picture, file: Path, run: Run, findings: Findings, verbose: bool) -> str:
    try:
        output = render_format(form, run, findings, verbose)
        write_named(file, output if isinstance(output, bytes) else output.encode(errors="backslashreplace"))
    except (OSError, MemoryError, ImportError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return f"cannot write {file}: {why or type(error).__name__}"
    except LeakscopeError as error:
        return str(error)
    return ""
