"""What several tests build their cases with: heaps written as text, recorded runs, snapshots, fake devices."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
"""Where tests and scripts that they start import `support` and `corpus` from."""
ROOT = TESTS.parent
SAMPLES = ROOT / "sample_runs"
