"""Compares scripts run by python with the same scripts recorded: what they print, how they end and what they leave.

    python tests/observe.py SCRIPT...

Prints a line for each script, with what differs below it, and ends with 1 where anything does. A script that prints
times or addresses differs from itself, too.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from support.observer import differences

TIMEOUT_S = 300.0


def main(scripts: list[str]) -> int:
    """Compare each script."""
    bad = False
    for script in scripts:
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = differences(Path(script).resolve(), [], Path(folder), TIMEOUT_S)
            except subprocess.TimeoutExpired:
                found = [f"not over after {TIMEOUT_S:g} s"]
        bad |= bool(found)
        print(f"{script}: {'no difference' if not found else ''}", *found, sep="\n  ", flush=True)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
