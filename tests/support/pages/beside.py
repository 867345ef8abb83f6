"""Runs commands beside each other, each with variables of its own: machines, or the tasks of a launcher.

A script: asked in a JSON file, it answers in another. `leakscope` among the commands starts as a copy, as ranks do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def done_beside(asked: list[tuple[list[str], dict[str, str]]], aside: Path) -> list[tuple[int, str]]:
    """The status and the output of each."""
    files = [aside / f"{number}.out" for number in range(len(asked))]
    started = []
    for (words, env), path in zip(asked, files, strict=True):
        with path.open("w") as file:
            started.append(subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **env}))
    return [(process.wait(), path.read_text()) for process, path in zip(started, files, strict=True)]


if __name__ == "__main__":
    asked, answered = map(Path, sys.argv[1:])
    answered.write_text(json.dumps(done_beside(json.loads(asked.read_text()), answered.parent)))
