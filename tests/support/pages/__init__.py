"""The pages of the documentation, read as what they promise: files, commands, output and Python that really runs."""

from __future__ import annotations

from support import ROOT

DOCS = ROOT / "docs"
PAGES = DOCS / "pages"
