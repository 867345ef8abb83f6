"""A picture in graphviz's language, drawn where `dot` is installed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from leakscope.originals import Path
from leakscope.report.holding.drawing import draw_to, drawn

NO_DOT = "graphviz's `dot` is not installed here, so this is not drawn: install graphviz, or paste the text below"
"""The sentence that says what is missing."""


@dataclass(frozen=True, repr=False)
class Picture:
    """What holds what. A notebook shows it; printed, it is the text that graphviz draws."""

    dot: str
    """In graphviz's language."""

    def __str__(self) -> str:
        return self.dot

    def __repr__(self) -> str:
        return f"{self.__class__.__name__} of {self.objects} objects" if drawn("graph {}") else f"{NO_DOT}\n{self.dot}"

    def _repr_svg_(self) -> str | None:
        return drawn(self.dot)

    @property
    def objects(self) -> int:
        """Boxes in it."""
        return len(set(re.findall(r"^\s*(o\d+)\s*\[", self.dot, re.MULTILINE)))

    def draw(self, path: str | Path) -> Path:
        """Write it to a file, whose ending says how: `.svg`, `.png`, `.pdf`; `.dot` needs no graphviz.

        Raises LeakscopeError where graphviz's `dot` is not installed or cannot draw that.
        """
        return draw_to(self.dot, path)
