"""Loads once what nested sessions in this process need: pytest restores `sys.modules` after each of them."""

import torch  # noqa: F401

import leakscope.findings
import leakscope.heap.snapshot
import leakscope.profiler.repeats
import leakscope.report.text.page  # noqa: F401
