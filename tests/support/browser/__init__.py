"""Pages opened in a real Chromium: what a reader would see, click and print."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PACKAGES = ("playwright", "axe_playwright_python")
MISSING = ([] if CHROMIUM else ["chromium"]) + [name for name in PACKAGES if not find_spec(name)]
"""What is not installed of what these tests need."""
PATIENCE_MS = 20_000
"""How long the browser may take for anything it is asked, in milliseconds, on a busy machine."""
WIDE, PHONE, SMALL_PHONE = 1440, 390, 320
"""Widths of windows, in px."""


@dataclass
class Pages:
    """Opens pages, each in a window of its own that the test's end closes."""

    browser: Browser
    folder: Path
    requests: list[str] = field(default_factory=list)
    """What the pages have asked for, themselves and all that they load."""
    _contexts: list[Any] = field(default_factory=list)

    def open(
        self, page: str | Path, width: int = WIDE, scheme: Any = "light", scripts: bool = True, fragment: str = ""
    ) -> Page:
        """The page, from its text or its file, in a window of `width` px; `scheme` is light or dark."""
        path = page if isinstance(page, Path) else self.written(page)
        context = self.browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=scripts
        )
        context.set_default_timeout(PATIENCE_MS)
        self._contexts.append(context)
        opened = context.new_page()
        opened.on("request", lambda request: self.requests.append(request.url))
        opened.goto(path.as_uri() + fragment)
        return opened

    def close(self) -> None:
        """All windows."""
        while self._contexts:
            self._contexts.pop().close()

    def written(self, text: str) -> Path:
        """A file with this text."""
        path = self.folder / f"page_{len(list(self.folder.iterdir()))}.html"
        path.write_text(text, encoding="utf-8")
        return path


@contextmanager
def chromium() -> Iterator[Browser]:
    """A Chromium without a window. Playwright's own downloads are not needed: it drives the one that is installed."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"], timeout=3 * PATIENCE_MS
        )
        try:
            yield browser
        finally:
            browser.close()


def found_by_axe(page: Page) -> list[str]:
    """What axe-core finds in the page: the rule, how bad it is, and the first places."""
    from axe_playwright_python.sync_playwright import Axe

    return [
        f"{found['id']} ({found['impact']}): " + "; ".join(node["html"][:160] for node in found["nodes"][:4])
        for found in Axe().run(page).response["violations"]
    ]
