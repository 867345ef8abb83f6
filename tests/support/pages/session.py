"""Runs the Python of a page, as one session: examples with prompts tell what they print, others must not fail.

A script: asked in a JSON file, it answers in another.
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

Told = list[list[str]]
"""For each block the output of each of its examples; of a block without prompts, of all of it."""


def answers(earlier: list[list[str]], blocks: list[list[str]], spaces: dict[str, Any]) -> Told:
    """Of (language, text) of these blocks; the earlier ones have been told and run again."""
    with contextlib.redirect_stdout(io.StringIO()):
        for language, text in earlier:
            told_by(language, text, spaces)
    return [told_by(language, text, spaces) for language, text in blocks]


def told_by(language: str, text: str, spaces: dict[str, Any]) -> list[str]:
    if language != "pycon":
        return [printed(text, "exec", spaces)]
    return [printed(example.source, "single", spaces) for example in doctest.DocTestParser().get_examples(text)]


def printed(source: str, mode: str, spaces: dict[str, Any]) -> str:
    """What it prints; where it raises at a prompt, the last lines of the traceback as a doctest has them."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(source, "<example>", mode, dont_inherit=True), spaces)
        except Exception as error:
            if mode == "exec":
                raise
            last = "".join(traceback.format_exception_only(error))
            return f"{out.getvalue()}Traceback (most recent call last):\n    ...\n{last}"
    return out.getvalue()


if __name__ == "__main__":
    asked, answered = map(Path, sys.argv[1:])
    ask = json.loads(asked.read_text(encoding="utf-8"))
    answered.write_text(json.dumps(answers(ask["earlier"], ask["blocks"], globals())), encoding="utf-8")
