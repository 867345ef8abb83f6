"""The documentation site builds without warnings and loads no external resources."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import DOCS

pytestmark = pytest.mark.process


def test_site_is_built_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(DOCS / "mkdocs.yml")]
    done = subprocess.run([*words, "-d", str(tmp_path)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert tmp_path / "index.html" in pages
    for page in pages:
        fetched = re.findall(
            r"""<(?:script|img|iframe)[^>]*\ssrc=["']?(https?:[^"'>\s]+)|<link[^>]*\shref=["']?(https?:[^"'>\s]+)""",
            page.read_text(encoding="utf-8"),
        )
        assert not fetched, page
