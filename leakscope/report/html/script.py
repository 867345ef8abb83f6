"""What makes the page more than text: its one script, and the policy under which no other can run."""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path

_FILE = Path(__file__).with_name("parts") / "script.js"


@functools.cache
def script() -> str:
    """The text of the script, as it stands between its tags; nothing of a run is in it."""
    return _FILE.read_text(encoding="utf-8")


@functools.cache
def policy() -> str:
    """The page's Content-Security-Policy: it loads nothing, and runs the script with this very text alone.

    A hash of the text is what the browser compares (https://www.w3.org/TR/CSP3/#match-element-to-source-list).
    """
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
