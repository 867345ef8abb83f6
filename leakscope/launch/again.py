"""Repeats a recorded run in a process of its own: `python [FLAGS] .../again.py FOLDER`.

The folder has the options of the run in `again.json`, which gets the result.
"""

from __future__ import annotations

import sys
from typing import Any

NAME = "again.json"


def _repeat(folder: str) -> None:
    from leakscope.errors import LeakscopeError
    from leakscope.launch import launch
    from leakscope.options import Options
    from leakscope.originals import Path, json

    file = Path(folder) / NAME
    options = Options.from_words(json.loads(file.read_text(encoding="utf-8"))["words"])
    result: dict[str, Any]
    try:
        result = {"status": launch(options).status}
    except LeakscopeError as error:
        result = {"error": str(error)}
    file.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    from leakscope.bootstrap import use_own_path

    use_own_path()  # without the folder of this file
    _repeat(sys.argv[1])
