"""How is text of a run written so that GitHub shows it as it is, and calls nobody?"""

from __future__ import annotations

import re
from collections.abc import Sequence

_MARKUP = re.compile(r"[\\`*_{}\[\]<>()#+!|~$&^=\"']")
"""What could be markup of markdown, of a table's cell, of HTML or of a formula."""
_CALLS = re.compile(r"@(?=\w)|:(?=//)|#(?=\d)|www(?=\.)|gh(?=-\d)", re.IGNORECASE)
"""What GitHub makes a mention, a link or a reference of, also where it is written as an entity."""
_NO_WIDTH = "\u200b"


def plain(text: str, most: int = 400) -> str:
    """Text on one line of markdown or in a cell of a table, nothing in it markup, a mention or a link; cut off after
    so many characters.
    """
    return _escaped(_short(text, most))


def sentence(text: str, most: int = 1000) -> str:
    """As `plain`; what stands between backticks is code."""
    parts = _short(text, most).split("`")
    return "".join(code(part) if index % 2 and part else _escaped(part) for index, part in enumerate(parts))


def _short(text: str, most: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= most else flat[: most - 1] + "…"


def _escaped(text: str) -> str:
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", _CALLS.sub(lambda found: found[0] + _NO_WIDTH, text))


def code(text: str, most: int = 400) -> str:
    """Text in a typewriter's letters, on one line or in a cell of a table."""
    return f"<code>{plain(text, most)}</code>"


def block(lines: Sequence[str], language: str = "") -> list[str]:
    """Lines that are shown as they are, whatever is in them."""
    ticks = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, ticks + 1)
    return [fence + language, *(" ".join(line.splitlines()) for line in lines), fence]


def folded(summary: str, lines: Sequence[str]) -> list[str]:
    """Lines under a summary, which is markup already, and opens them."""
    return [f"<details><summary>{summary}</summary>", "", *lines, "", "</details>", ""]
