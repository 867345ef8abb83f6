"""Shows docstrings as their readers need them: examples as code, and the value of a default that has only a name."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^ *>>> .*\n(?:.*\S.*\n?)*)+", re.MULTILINE)
"""From a prompt to the next empty line, with all that follows it so: Google's style wants a heading above examples."""
_OPTIONS = Path(__file__).resolve().parents[1] / "leakscope" / "options.py"


class Readable(griffe.Extension):
    """Puts a fence around each example with prompts, and `2` where a signature says `Options.warmup`."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Of every object that has a docstring."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Of every function and method."""
        for parameter in func.parameters:
            owner, _dot, name = str(parameter.default).partition(".")
            if owner == "Options":
                parameter.default = defaults()[name]


def fenced(text: str) -> str:
    """The text of a docstring, its examples between fences."""
    return _EXAMPLE.sub(lambda found: f"```pycon\n{textwrap.dedent(found[0]).rstrip()}\n```\n", text)


def defaults() -> dict[str, str]:
    """What each option of a run is where nobody says it, as its source has it."""
    classes = [node for node in ast.parse(_OPTIONS.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
    (options,) = (node for node in classes if node.name == "Options")
    return {
        ast.unparse(field.target): ast.unparse(field.value)
        for field in options.body
        if isinstance(field, ast.AnnAssign) and field.value is not None
    }
