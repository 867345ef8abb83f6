"""Apply the edits that a run offers for a script, and run that: `python -m findings.source.applied SCRIPT...`.

Every edit has to leave a script that ends as before, with the same output, and without that leak.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from leakscope.findings.judge import judge
from leakscope.findings.kinds import Severity
from leakscope.findings.model import Suggestion
from leakscope.record.reading import read_run

_SECONDS = 300


def applied(text: str, edit: Suggestion) -> str:
    """A script with one edit, indented as the lines in whose place it stands."""
    lines, first = text.split("\n"), int(edit.where.rpartition(":")[2]) - 1
    before = edit.before.split("\n")
    old = lines[first : first + len(before)]
    assert textwrap.dedent("\n".join(old)).strip() == textwrap.dedent(edit.before).strip(), edit
    indent = old[0][: len(old[0]) - len(old[0].lstrip())]
    return "\n".join(
        [*lines[:first], *(indent + line for line in edit.after.split("\n")), *lines[first + len(before) :]]
    )


def recorded(script: Path, folder: Path) -> tuple[int, str, dict[str, Suggestion | None]]:
    """(exit status of the script itself, its output, the edit of each leak by its fingerprint)."""
    run = [sys.executable, "-m", "leakscope", "run", "-o", str(folder), "--leak-exit-code", "0", script.name]
    done = subprocess.run(
        run, cwd=script.parent, capture_output=True, text=True, timeout=_SECONDS, check=False
    )  # fmt: skip
    alone = subprocess.run(
        [sys.executable, script.name], cwd=script.parent, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    found = judge(read_run(folder)).findings
    leaks = {finding.fingerprint: finding.suggestion for finding in found if finding.severity == Severity.LEAK}
    return done.returncode or alone.returncode, alone.stdout, leaks


def faults(script: Path) -> tuple[int, list[str]]:
    """(edits that are offered for a script, what is wrong with them)."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copy(script, Path(folder) / script.name))
        status, output, edits = recorded(copy, Path(folder) / "before")
        for number, (fingerprint, edit) in enumerate(edits.items()):
            if edit is None:
                continue
            copy.write_text(applied(script.read_text(encoding="utf-8"), edit), encoding="utf-8")
            after = recorded(copy, Path(folder) / f"after_{number}")
            if after[0] != status:
                found.append(f"{edit.after}: exit status {after[0]}")
            if after[1] != output:
                found.append(f"{edit.after}: other output")
            if fingerprint in after[2]:
                found.append(f"{edit.after}: still a leak")
    return sum(edit is not None for edit in edits.values()), found


def main() -> int:
    """Print the faults of some scripts; 1 where there are any."""
    told = {script: faults(Path(script)) for script in sys.argv[1:]}
    for script, (offered, found) in told.items():
        print(script, f"{offered} edits:", "; ".join(found) or "right")
    return int(any(found for _, found in told.values()))


if __name__ == "__main__":
    sys.exit(main())
