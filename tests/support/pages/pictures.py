"""Pictures on documentation pages, checked against the text of the files they were made from."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Literal

from PIL import Image, PngImagePlugin

from support import browser
from support.pages.comparison import without_varying

_PICTURE = re.compile(r"<!-- picture (?P<picture>\S+) of (?P<made>\S+) -->")
_WIDTH, _HEIGHT = 1120, 830
"""Of a picture of a report, in pixels: its first screen, with the first leak."""
_WORDS = "words"


def stale(page: str, beside: Path, folder: Path, *, update: bool) -> list[str]:
    """Pictures that show other words than the files they are made of; none after an update."""
    wrong = []
    for found in _PICTURE.finditer(page):
        picture, made = beside / found["picture"], folder / found["made"]
        now = words_of(made)
        if picture.exists() and shown_by(picture) == now:
            continue
        if update:
            make(picture, made, now)
        else:
            wrong.append(f"{found['picture']} is no picture of {found['made']} any more")
    return wrong


def words_of(made: Path) -> str:
    """All text of a drawing; of a report that of its first screen."""
    text = made.read_text(encoding="utf-8")
    unseen = "style|script|svg|title" if made.suffix == ".html" else "title"
    if made.suffix == ".html":
        text = text[text.index("<body") : text.index("Memory over the steps")]
    plain = re.sub(r"<[^>]*>", " ", re.sub(rf"<({unseen})\b.*?</\1>", " ", text, flags=re.DOTALL))
    return without_varying(" ".join(html.unescape(plain).split()))


def shown_by(picture: Path) -> str:
    if picture.suffix == ".svg":
        return words_of(picture)
    with Image.open(picture) as image:
        return str(image.info.get(_WORDS, ""))


def make(picture: Path, made: Path, words: str) -> None:
    picture.parent.mkdir(exist_ok=True)
    if picture.suffix == ".svg":
        picture.write_bytes(made.read_bytes())
        return
    with browser.chromium() as started:
        scheme: Literal["dark", "light"] = "dark" if picture.stem.endswith("-dark") else "light"
        page = started.new_page(viewport={"width": _WIDTH, "height": _HEIGHT}, color_scheme=scheme)
        page.goto(made.as_uri())
        page.screenshot(path=str(picture))
    metadata = PngImagePlugin.PngInfo()
    metadata.add_text(_WORDS, words)
    with Image.open(picture) as image:
        image.convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(picture, pnginfo=metadata, optimize=True)
