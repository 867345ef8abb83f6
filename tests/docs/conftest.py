"""Recording of the pages' output."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--docs-update", action="store_true", help="write into the pages what their commands really told")
