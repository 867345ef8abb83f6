"""Tests inside these tests load torch once: in this process, which gets its modules back, or in copies of another."""

import os
import time

import pytest
import torch  # noqa: F401
from support.commands.preloaded import Copies

import leakscope.findings
import leakscope.heap.snapshot
import leakscope.profiler.repeats
import leakscope.report.text.page  # noqa: F401

TIMEOUT_S = 120


@pytest.fixture
def pytester(pytester: pytest.Pytester, copies: Copies, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Its subprocesses are copies of a process that has imported torch."""

    def run(*words: str) -> pytest.RunResult:
        began = time.monotonic()
        done = copies.run(words, pytester.path, dict(os.environ), TIMEOUT_S, "pytest")
        took = time.monotonic() - began
        return pytest.RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), took)

    monkeypatch.setattr(pytester, "runpytest_subprocess", run)
    return pytester
