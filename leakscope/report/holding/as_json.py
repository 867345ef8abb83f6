"""Holders of tensor memory for programs."""

from __future__ import annotations

import json
from dataclasses import asdict

from leakscope.findings.live_objects import Alive, Ways


def as_json(told: Alive | Ways) -> str:
    """The fields as they are named; unknown is null, bytes are numbers."""
    return json.dumps(asdict(told), indent=1)
