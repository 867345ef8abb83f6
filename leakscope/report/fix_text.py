"""The result of `leakscope fix` as text."""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.report.rendering import Line, figures, text_page, wrapped
from leakscope.run.fixes import Fix, LeakFix
from leakscope.units import bytes_text, plural

_SHOWN = 12
"""Maximum lines of the table of tries. Heuristic: keeps it on half a screen."""


def render_fix(fix: Fix, patch: str, width: int) -> str:
    """The verified edits, and a table of what was tried.

    Args:
        fix: The result.
        patch: Path of the patch, as to type it.
        width: Columns of the terminal.

    """
    return text_page(_lines(fix, patch), width)


def _lines(fix: Fix, patch: str) -> Iterator[Line]:
    done = [leak for leak in fix.leaks if leak.is_fixed]
    yield f"Fixed    {len(done)} of {plural(len(fix.leaks), 'leak')}{_proof(fix) if done else ''}"
    if fix.after:
        yield from wrapped(_growth(fix), "Tensors  ", "         ")
    for note in fix.notes:
        yield from wrapped(note, "Note     ", "         ")
    for diff, leaks in _by_diff(done).items():
        yield ""
        yield from wrapped(
            f"{', '.join(f'`{leak.subject}` [{leak.fingerprint}]' for leak in leaks)}: {leaks[0].title}", ""
        )
        yield from (f"   {line}" for line in _hunks(diff))
    for leak in fix.leaks:
        if not leak.is_fixed:
            yield ""
            yield from wrapped(f"`{leak.subject}` [{leak.fingerprint}] is not fixed: {leak.why}", "")
    if fix.tries:
        yield ""
        rows = [
            (str(number), one.title, one.refused or "verified", f"{one.seconds:.0f} s")
            for number, one in enumerate(fix.tries, 1)
        ]
        yield figures(rows[:_SHOWN], "rllr", ("", "Tried", "Result", ""))
        if len(rows) > _SHOWN:
            yield f"and {len(rows) - _SHOWN} more in fix.json"
    if done:
        yield ""
        yield f"Apply it with `git apply {patch}` or `leakscope fix --apply`."


def _proof(fix: Fix) -> str:
    if not fix.is_deterministic:
        same = "the script differs from itself between two runs, so losses were compared by their distribution"
    elif fix.compared_steps:
        same = "same output, and losses, gradients and parameters equal to the bit"
    else:
        same = "same output; no step whose losses and parameters could be compared"
    until = f" over {fix.steps} steps" if fix.steps is not None else ""
    return f"; verified by a run{until}: {same}"


def _growth(fix: Fix) -> str:
    (first, before), (last, after) = fix.before[0], fix.before[-1]
    (begun, small), (end, left) = fix.after[0], fix.after[-1]
    return (
        f"{bytes_text(before)} at step {first} to {bytes_text(after)} at step {last} without the edit, "
        f"{bytes_text(small)} at step {begun} to {bytes_text(left)} at step {end} with it"
    )


def _by_diff(leaks: list[LeakFix]) -> dict[str, list[LeakFix]]:
    """The leaks of each edit: one may fix several."""
    found: dict[str, list[LeakFix]] = {}
    for leak in leaks:
        found.setdefault(leak.diff, []).append(leak)
    return found


def _hunks(diff: str) -> list[str]:
    """The lines of a diff from its first hunk on, with a line for each further file."""
    return [line for line in diff.split("\n")[:-1] if not line.startswith(("diff --git ", "--- "))]
