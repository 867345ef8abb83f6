"""`leakscope compare`: what leaks in one run and not in another?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from leakscope_cli.shared import read_and_judge
from leakscope_cli.telling import tell_or_fail

from leakscope.findings.kinds import Origin, Severity
from leakscope.report.wording import title
from leakscope.units import bytes_text

if TYPE_CHECKING:
    from leakscope.findings.model import Finding, Findings

NEW_LEAKS_STATUS = 23
"""Exit status when the second run has a leak that the first has not, as `run` gives it for leaks."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("base", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.pass_context
def compare(ctx: click.Context, base: Path, new: Path) -> None:
    """Compare two recorded runs by their findings' fingerprints; exit status 23 when NEW has a leak that
    BASE has not.
    """
    before, after = _leaks(read_and_judge(base)[1]), _leaks(read_and_judge(new)[1])
    tell_or_fail("\n".join(_lines(before, after)))
    ctx.exit(NEW_LEAKS_STATUS if after.keys() - before.keys() else 0)


def _leaks(findings: Findings) -> dict[str, Finding]:
    return {
        f.fingerprint: f for f in findings.findings if f.severity == Severity.LEAK and f.origin == Origin.APPLICATION
    }


def _lines(before: dict[str, Finding], after: dict[str, Finding]) -> Iterator[str]:
    for heading, fingerprints, leaks in (
        ("new", after.keys() - before.keys(), after),
        ("gone", before.keys() - after.keys(), before),
        ("still there", after.keys() & before.keys(), after),
    ):
        yield f"{heading}: {len(fingerprints)}"
        for fingerprint in sorted(fingerprints):
            leak = leaks[fingerprint]
            yield f"  {fingerprint}  {leak.rule}  {title(leak)}  ({_growth(before.get(fingerprint), leak)} a step)"


def _growth(before: Finding | None, leak: Finding) -> str:
    """Bytes a step; of a leak that both runs have, before and after."""
    now = bytes_text(leak.bytes_per_step)
    return now if before is None or before is leak else f"{bytes_text(before.bytes_per_step)} -> {now}"
