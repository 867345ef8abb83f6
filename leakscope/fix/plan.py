"""One candidate in the making: edits of several files that belong together."""

from __future__ import annotations

import ast
from collections.abc import Callable

from leakscope.findings.source.index import ParsedFile
from leakscope.fix.editor import CannotEdit, SourceEditor
from leakscope.fix.model import Candidate, candidate_of


class Plan:
    """Edits of some files.

    Example:
        >>> from leakscope.findings.source.index import parse
        >>> parsed = parse("train.py", "losses.append(loss)")
        >>> plan = Plan()
        >>> argument = parsed.module.node.body[0].value.args[0]
        >>> plan.of(parsed).replace(argument, "loss.item()")
        >>> plan.candidate("`.item()`").changes[0].added
        ('losses.append(loss.item())',)

    """

    def __init__(self) -> None:
        self._editors: dict[str, SourceEditor] = {}
        self._texts: dict[str, str] = {}

    def of(self, parsed: ParsedFile) -> SourceEditor:
        """The editor of a file. Raises CannotEdit if LibCST cannot parse it."""
        if parsed.name not in self._editors:
            self._texts[parsed.name] = "\n".join(parsed.lines)
            self._editors[parsed.name] = SourceEditor(parsed.name, self._texts[parsed.name])
        return self._editors[parsed.name]

    def candidate(self, title: str) -> Candidate | None:
        """The candidate with all edits; None if they change nothing. Raises CannotEdit if they do not combine."""
        after = {name: editor.text for name, editor in self._editors.items()}
        return candidate_of(title, self._texts, after)


def attempt(title: str, edit: Callable[[Plan], bool | None]) -> Candidate | None:
    """The candidate of a function that edits a plan.

    Args:
        title: What it does.
        edit: The function; it returns False if there is nothing to edit.

    Returns:
        The candidate, with its first place in the title; None without edits, or if they cannot be made.

    """
    plan = Plan()
    try:
        if edit(plan) is False:
            return None
        found = plan.candidate(title)
    except CannotEdit:
        return None
    return found and Candidate(f"{title} at {_places(found)}", found.changes)


_MOST_PLACES = 3
"""Places in a title; more would not fit on a line."""


def _places(candidate: Candidate) -> str:
    places = list(dict.fromkeys(f"{change.file}:{change.first}" for change in candidate.changes))
    more = f" and {len(places) - _MOST_PLACES} more" if len(places) > _MOST_PLACES else ""
    return ", ".join(places[:_MOST_PLACES]) + more


_ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp)
"""Expressions that take a method call without parentheses."""


def with_method(editor: SourceEditor, expr: ast.expr, call: str) -> str:
    """The code of a method call on an expression: `(a + b).item()`."""
    code = editor.source_of(expr)
    return f"{code}.{call}" if isinstance(expr, _ATOMS) and not code.startswith("await") else f"({code}).{call}"
