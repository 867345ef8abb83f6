"""Runs commands at the same time, each with its own variables, as machines or the tasks of a launcher.

A script that reads a JSON file and writes another. `leakscope` among the commands starts as a copy, as ranks do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    request, response = map(Path, sys.argv[1:])
    commands: list[tuple[list[str], dict[str, str]]] = json.loads(request.read_text())
    outputs = [response.with_name(f"{number}.out") for number in range(len(commands))]
    started = []
    for (words, env), path in zip(commands, outputs, strict=True):
        with path.open("w") as file:
            started.append(subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **env}))
    done = [(process.wait(), path.read_text()) for process, path in zip(started, outputs, strict=True)]
    response.write_text(json.dumps(done))
