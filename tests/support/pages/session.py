"""Runs the Python blocks of a page as one session: examples with prompts print, others must not fail.

A script that reads a JSON file and writes another: for each block the output of each of its examples.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import sys
import traceback
from pathlib import Path
from typing import Any


def outputs(language: str, text: str, names: dict[str, Any]) -> list[str]:
    """The output of each example of a block, or of all of a block without prompts."""
    if language != "pycon":
        return [printed(text, "exec", names)]
    return [printed(example.source, "single", names) for example in doctest.DocTestParser().get_examples(text)]


def printed(source: str, mode: str, names: dict[str, Any]) -> str:
    """What the source prints; where it raises at a prompt, the traceback as a doctest has it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(source, "<example>", mode, dont_inherit=True), names)
        except Exception as error:
            if mode == "exec":
                raise
            last = "".join(traceback.format_exception_only(error))
            return f"{out.getvalue()}Traceback (most recent call last):\n    ...\n{last}"
    return out.getvalue()


if __name__ == "__main__":
    _request, _response = map(Path, sys.argv[1:])
    _blocks = json.loads(_request.read_text(encoding="utf-8"))
    for _language, _text in _blocks["earlier"]:
        outputs(_language, _text, globals())
    _outputs = [outputs(_language, _text, globals()) for _language, _text in _blocks["blocks"]]
    _response.write_text(json.dumps(_outputs), encoding="utf-8")
