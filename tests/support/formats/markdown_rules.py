"""What GitHub would make of markdown that no text of a run may bring about: markup, mentions, too long a comment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

from markdown_it import MarkdownIt

_OURS = {"h3", "h4", "p", "code", "pre", "details", "summary", "strong", "em", "ul", "li"}
_OURS |= {"table", "thead", "tbody", "tr", "th", "td"}
_ATTRIBUTES = {("style", "text-align:right"), ("class", "language-diff")}
_QUIET = {"code", "pre"}
"""GitHub looks for mentions and references outside of these."""
_CALLS = re.compile(r"(?<!\w)@[A-Za-z0-9]|#[0-9]|://|www\.\w|\bgh-[0-9]", re.IGNORECASE)
MOST = 65_536
"""Characters of a comment."""


class _Page(HTMLParser):
    """What is wrong with a page, and its tables' rows."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.cells: list[int] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.append(tag)
        if tag not in _OURS or set(attrs) - _ATTRIBUTES:
            self.wrong.append(f"<{tag} {attrs}>")
        if tag == "tr":
            self.cells.append(0)
        if tag in ("td", "th"):
            self.cells[-1] += 1

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.wrong.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if not _QUIET & set(self._open) and (found := _CALLS.search(data)):
            self.wrong.append(f"calls {found[0]!r} in {data[:80]!r}")

    def handle_comment(self, data: str) -> None:
        self.wrong.append(f"comment {data!r}")


def problems(text: str) -> Iterator[str]:
    """What is there that is not leakscope's own."""
    if len(text) > MOST:
        yield f"{len(text)} characters"
    page = _Page()
    page.feed(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))
    page.close()
    yield from page.wrong
    if set(page.cells) - {3, 6}:
        yield f"rows of {sorted(set(page.cells))} cells"
