"""Verified fixes as text, and the result of `leakscope fix`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from leakscope.findings.model import Finding
from leakscope.report.rendering import Line, Paragraph, field_lines, figures, text_page, wrapped
from leakscope.run.fixes import PATCH, Fix, LeakFix
from leakscope.run.model import Run
from leakscope.units import bytes_text, plural

_SHOWN = 12
"""Maximum lines of the table of tries. Heuristic: keeps it on half a screen."""
_WHOLE = 3
"""Unchanged lines around a change, as many as a patch has."""
_INDENT = " " * 13
"""Indentation of a diff: the column in which a finding has its fields."""
_HUNK = re.compile(r"@@ -([0-9]+)(?:,([0-9]+))? \+[0-9]+(?:,([0-9]+))? @@")


def result_for(run: Run, finding: Finding) -> LeakFix | None:
    """The result of `leakscope fix` for a finding; None if it was not run, or if this was no leak then."""
    leaks = () if run.fix is None else run.fix.leaks
    return next((leak for leak in leaks if leak.fingerprint == finding.fingerprint), None)


def verified_fix(run: Run, finding: Finding) -> LeakFix | None:
    """The edit that was proved to fix a finding; None if there is none."""
    result = result_for(run, finding)
    return result if result is not None and result.is_fixed and result.diff else None


def proof_text(run: Run, fix: Fix) -> str:
    """What was compared between the run and its repetition with the edits, as a phrase."""
    steps = max((len(rank.steps) for rank in run.ranks), default=0) if fix.steps is None else fix.steps
    over = f"over {plural(steps, 'step')}"
    if not fix.is_deterministic:
        return f"losses compared by their distribution {over}, as the script differs from itself between two runs"
    if not fix.compared_steps:
        return "same output; there was no step whose losses and parameters could be compared"
    return f"same output; losses, gradients and parameters equal to the bit {over}"


def apply_text(run: Run) -> str:
    """`git apply leakscope_runs/train/fix.patch`."""
    return f"git apply {shlex.quote(f'{run.folder}/{PATCH}')}"


@dataclass(frozen=True)
class DiffLine:
    """One line of a diff."""

    sign: str
    """`-` for a removed line, `+` for an added one, a space for an unchanged one."""
    number: int
    """Its number in the file before the edit; for an added line that of the line it is inserted before."""
    text: str


@dataclass(frozen=True)
class Hunk:
    """Consecutive lines of one file with at least one change."""

    file: str
    """Path from the root of the repository, or from the working directory of the run."""
    lines: tuple[DiffLine, ...]

    @property
    def where(self) -> str:
        """The place of the first change: `train.py:31`."""
        return f"{self.file}:{next(line.number for line in self.lines if line.sign != ' ')}"


def hunks(diff: str) -> tuple[Hunk, ...]:
    """Parse a unified diff as `leakscope fix` writes it; what is damaged is left out."""
    found: list[Hunk] = []
    file = ""
    lines = iter(diff.split("\n"))
    for line in lines:
        if line.startswith("--- a/"):
            file = line.removeprefix("--- a/")
        elif head := _HUNK.match(line):
            old, new = int(head[2] or 1), int(head[3] or 1)
            number = int(head[1]) + (old == 0)  # without lines it is that of the line before
            body: list[DiffLine] = []
            while old or new:
                sign, text = (line := next(lines, ""))[:1], line[1:]
                if sign not in ("-", "+", " ") or not sign:
                    break
                body.append(DiffLine(sign, number, text))
                old, new = old - (sign != "+"), new - (sign != "-")
                number += sign != "+"
            if any(one.sign != " " for one in body):
                found.append(Hunk(file, tuple(body)))
    return tuple(found)


def shown_hunks(diff: str, around: int = _WHOLE) -> tuple[Hunk, ...]:
    """The hunks of a diff with at most `around` unchanged lines on each side of a change, without line ends; empty
    lines at the edges are left out.
    """
    return tuple(shown for hunk in hunks(diff) for shown in _narrowed(hunk, around))


def _narrowed(hunk: Hunk, around: int) -> Iterator[Hunk]:
    lines = _without_returns(hunk.lines)
    changed = [place for place, line in enumerate(lines) if line.sign != " "]
    near = sorted({place for other in changed for place in range(other - around, other + around + 1)})
    for _, group in groupby(enumerate(near), lambda pair: pair[1] - pair[0]):
        part = [lines[place] for _, place in group if 0 <= place < len(lines)]
        while part[0].sign == " " and not part[0].text.strip():
            del part[0]
        while part[-1].sign == " " and not part[-1].text.strip():
            del part[-1]
        yield Hunk(hunk.file, tuple(part))


def _without_returns(lines: Sequence[DiffLine]) -> list[DiffLine]:
    """Lines of a file that ends them with carriage return and newline, which a report shows as an escape."""
    for end in ("\r", "\\r"):
        if all(line.text.endswith(end) for line in lines):
            return [DiffLine(line.sign, line.number, line.text.removesuffix(end)) for line in lines]
    return list(lines)


def fix_lines(leak: LeakFix, around: int = _WHOLE) -> Iterator[Line]:
    """The title and the diff of a verified fix, indented as a field of a finding."""
    yield from wrapped(f"Verified fix: {leak.title}", "   ", "      ")
    for hunk in shown_hunks(leak.diff, around):
        yield from wrapped(f"@@ {hunk.where}", _INDENT)
        for line in hunk.lines:
            yield Paragraph(line.text, f"{_INDENT}{line.sign}", f"{_INDENT}    ")


def finding_fix_lines(run: Run, finding: Finding, around: int = _WHOLE) -> Iterator[Line]:
    """The verified fix of a finding and its proof; nothing if there is none."""
    leak = verified_fix(run, finding)
    if leak is not None and run.fix is not None:
        yield from fix_lines(leak, around)
        yield from field_lines("Proof:", proof_text(run, run.fix), "   ", 10)


def growth_rows(fix: Fix) -> tuple[tuple[str, ...], ...]:
    """Bytes at the first and the last common step, as a table with a head; () if nothing was proved."""
    common = sorted(dict(fix.before).keys() & dict(fix.after).keys())
    if not common:
        return ()
    ends = (common[0], common[-1])
    rows = ((name, *(bytes_text(dict(curve)[step]) for step in ends)) for name, curve in _curves(fix))
    return (("Allocated" if fix.is_counted else "Tensors", *(f"step {step}" for step in ends)), *rows)


def _curves(fix: Fix) -> tuple[tuple[str, tuple[tuple[int, int], ...]], ...]:
    return ("without the fix", fix.before), ("with the fix", fix.after)


def by_diff(fix: Fix) -> dict[str, list[LeakFix]]:
    """The leaks of each verified edit: one may fix several."""
    found: dict[str, list[LeakFix]] = {}
    for leak in fix.leaks:
        if leak.is_fixed and leak.diff:
            found.setdefault(leak.diff, []).append(leak)
    return found


def fixed_text(fix: Fix) -> str:
    """`2 of 3 leaks`."""
    return f"{sum(leak.is_fixed for leak in fix.leaks)} of {plural(len(fix.leaks), 'leak')}"


def heading_text(fix: Fix) -> str:
    """`Verified fix (2 of 3 leaks)`."""
    return f"Verified fix ({fixed_text(fix)})" if fix.patch else "No verified fix"


def render_fix(run: Run, width: int) -> str:
    """The verified edits of a run, and a table of what was tried.

    Args:
        run: A run with the result of `leakscope fix`.
        width: Columns of the terminal.

    """
    assert run.fix is not None
    return text_page(_lines(run, run.fix), width)


def _lines(run: Run, fix: Fix) -> Iterator[Line]:
    yield f"Fixed    {fixed_text(fix)}"
    verified = by_diff(fix)
    if verified:
        yield from wrapped(proof_text(run, fix), "Proof    ", "         ")
    for note in fix.notes:
        yield from wrapped(note, "Note     ", "         ")
    if rows := growth_rows(fix):
        yield ""
        yield figures(rows[1:], "lrr", rows[0])
    for leaks in verified.values():
        yield ""
        yield from wrapped(", ".join(f"`{leak.subject}` [{leak.fingerprint}]" for leak in leaks), "")
        yield from fix_lines(leaks[0])
    for leak in fix.leaks:
        if not leak.is_fixed:
            yield ""
            yield from wrapped(f"`{leak.subject}` [{leak.fingerprint}] is not fixed: {leak.why}", "")
    if fix.tries:
        yield ""
        rows = tuple(
            (str(number), one.title, one.refused or "verified", f"{one.seconds:.0f} s")
            for number, one in enumerate(fix.tries, 1)
        )
        yield figures(rows[:_SHOWN], "rllr", ("", "Tried", "Result", ""))
        if len(rows) > _SHOWN:
            yield f"and {len(rows) - _SHOWN} more in fix.json"
    if verified:
        yield ""
        yield f"Apply it with `{apply_text(run)}` or `leakscope fix --apply`."
