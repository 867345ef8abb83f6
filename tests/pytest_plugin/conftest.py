"""Tests inside these tests run in this process, and pytest gives it back the modules it had: torch loads only once."""

import torch  # noqa: F401

import leakscope.findings
import leakscope.heap.snapshot
import leakscope.profiler.repeats
import leakscope.report.text.page  # noqa: F401
