"""Opens pages in a real Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
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
"""Requirements of these tests that are not installed."""
PATIENCE_MS = 20_000
"""Time limit of each action of the browser, in milliseconds: a busy machine is slow."""
WIDE, PHONE, SMALL_PHONE = 1440, 390, 320
"""Widths of windows, in px."""


@dataclass
class Pages:
    """Opens pages in windows that tests reuse: a new window costs four times a new page."""

    browser: Browser
    folder: Path
    """Of the test, for its files."""
    requests: list[str] = field(default_factory=list)
    """Addresses that the test's pages have loaded."""
    console: list[str] = field(default_factory=list)
    """Errors of their scripts, and messages in the console."""
    _idle: list[tuple[bool, Page]] = field(default_factory=list)
    _taken: list[tuple[bool, Page]] = field(default_factory=list)

    def open(
        self, page: str | Path, width: int = WIDE, scheme: Any = "light", scripts: bool = True, fragment: str = ""
    ) -> Page:
        """The page, from its text or its file, in a window of `width` px; `scheme` is light or dark."""
        path = page if isinstance(page, Path) else self.written(page)
        window = next((window for window in self._idle if window[0] == scripts), None)
        if window is None:
            window = scripts, self._new(scripts)
        else:
            self._idle.remove(window)
        self._taken.append(window)
        opened = window[1]
        opened.set_viewport_size({"width": width, "height": 900})
        opened.emulate_media(media="null", color_scheme=scheme)
        opened.goto(path.as_uri() + fragment)
        return opened

    def end(self) -> None:
        """Empty the windows for the next test."""
        for _, opened in self._taken:
            opened.goto("about:blank")
        self._idle += self._taken
        self._taken.clear()
        self.requests.clear()
        self.console.clear()

    def written(self, text: str) -> Path:
        """A file with this text."""
        path = self.folder / f"page_{len(list(self.folder.iterdir()))}.html"
        path.write_text(text, encoding="utf-8")
        return path

    def _new(self, scripts: bool) -> Page:
        context = self.browser.new_context(java_script_enabled=scripts)
        context.set_default_timeout(PATIENCE_MS)
        opened = context.new_page()
        opened.on("request", lambda request: self.requests.append(request.url))
        opened.on("console", lambda message: self.console.append(message.text))
        opened.on("pageerror", lambda error: self.console.append(str(error)))
        return opened


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


def unfold(page: Page) -> None:
    """Open all folded sections."""
    page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true })")


def found_by_axe(page: Page, rules: Sequence[str] = ()) -> list[str]:
    """The violations of these rules of axe-core, or all of them: the rule, its impact and the first places."""
    from axe_playwright_python.sync_playwright import Axe

    options = {"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {})
    return [
        f"{found['id']} ({found['impact']}): " + "; ".join(node["html"][:160] for node in found["nodes"][:4])
        for found in Axe().run(page, options=options).response["violations"]
    ]
