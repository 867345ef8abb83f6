"""Apply the edits that a run offers for a script, and run that.

`python -m findings.source.applied [--at-once] SCRIPT...` tries each edit by itself, or all those of a script together.

Every edit has to leave a script that ends as before, with the same output and losses, and without that leak.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from leakscope.findings.facts import Severity
from leakscope.findings.judge import judge
from leakscope.findings.model import Finding, Suggestion
from leakscope.run.reader import read_run

Program = Callable[[str, Sequence[str], Path], "subprocess.CompletedProcess[str]"]
"""Runs a module, or a script, with these words in a folder."""
LONGEST_S = 300
"""For one run, in seconds."""
_STEPS = 12
"""Steps that a script is recorded for, at most: enough for a verdict."""
_WITH_LOSSES = """
import runpy, sys, torch
backward = torch.Tensor.backward
def told(self, *args, **kwargs):
    print("loss", self.detach().double().sum().item().hex(), flush=True)
    return backward(self, *args, **kwargs)
torch.Tensor.backward = told
torch.manual_seed(0)
sys.argv = sys.argv[1:]
sys.path[0] = ""
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def applied(text: str, edit: Suggestion) -> str:
    """A script with an edit of one place or several, indented as the lines in whose place they stand."""
    lines = text.split("\n")
    for one in sorted(edit.places, key=lambda place: -int(place.where.rpartition(":")[2])):
        first, before = int(one.where.rpartition(":")[2]) - 1, one.before.split("\n")
        old = lines[first : first + len(before)]
        assert textwrap.dedent("\n".join(old)).strip() == textwrap.dedent(one.before).strip(), one
        indent = old[0][: len(old[0]) - len(old[0].lstrip())]
        lines[first : first + len(before)] = [indent + line for line in one.after.split("\n")]
    return "\n".join(lines)


def in_new_process(program: str, words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A `Program` in a new Python."""
    command = [sys.executable, *([] if program.endswith(".py") else ["-m"]), program, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LONGEST_S, check=False)


def recorded(script: Path, folder: Path, run: Program) -> tuple[int, str, dict[str, Finding]]:
    """(exit status of the script itself, its output with its losses, its leaks by their fingerprints)."""
    ranks = ["--ranks", "2"] if "torchrun" in script.read_text(encoding="utf-8") else []
    options = ["-f", "-o", str(folder), "--leak-exit-code", "0", "--steps", str(_STEPS), *ranks]
    done = run("leakscope", ["run", *options, script.name], script.parent)
    with_losses = folder.parent / "with_losses.py"
    with_losses.write_text(_WITH_LOSSES, encoding="utf-8")
    alone = None if ranks else run(str(with_losses), [script.name], script.parent)
    found = judge(read_run(folder)).findings
    leaks = {finding.fingerprint: finding for finding in found if finding.severity == Severity.LEAK}
    status = done.returncode or (alone.returncode if alone is not None else 0)
    return status, alone.stdout if alone is not None else "", leaks


def faults(script: Path, at_once: bool = False, run: Program = in_new_process) -> tuple[int, list[str]]:
    """(edits that are offered for a script, what is wrong with each, or with all of them at once)."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copy(script, Path(folder) / script.name))
        status, output, leaks = recorded(copy, Path(folder) / "before", run)
        same: dict[Suggestion, set[str]] = {}
        for fingerprint, leak in leaks.items():
            if leak.suggestion is not None:
                same.setdefault(leak.suggestion, set()).add(fingerprint)
        if at_once and same:
            first, *others = dict.fromkeys(place for edit in same for place in edit.places)
            same = {replace(first, also=tuple(others)): set().union(*same.values())}
        for number, (edit, mended) in enumerate(same.items()):
            copy.write_text(applied(script.read_text(encoding="utf-8"), edit), encoding="utf-8")
            after = recorded(copy, Path(folder) / f"after_{number}", run)
            if after[0] != status:
                found.append(f"{edit.after}: exit status {after[0]}")
            if after[1] != output:
                found.append(f"{edit.after}: other output")
            found += [f"{edit.after}: {after[2][left].subject} is still a leak" for left in mended & set(after[2])]
    return sum(leak.suggestion is not None for leak in leaks.values()), found


def main() -> int:
    """Print the faults of some scripts; 1 where there are any."""
    wrong, at_once = False, "--at-once" in sys.argv
    for script in (given for given in sys.argv[1:] if given != "--at-once"):
        offered, found = faults(Path(script), at_once)
        wrong = wrong or bool(found)
        print(script, f"{offered} edits:", "; ".join(found) or "right", flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
