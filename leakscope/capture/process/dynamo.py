"""Keeps torch.compile out of leakscope's functions: it would trace what wraps the script's calls, and break on it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leakscope.capture.process.import_hook import AfterImport
from leakscope.capture.process.patches import Patches

_RULES = "torch._dynamo.trace_rules"
_CAPTURE = str(Path(__file__).resolve().parent.parent) + "/"


def leave_us_out(patches: Patches) -> None:
    """Put this folder among those that dynamo skips, once the script has dynamo loaded."""

    def skip() -> None:
        rules = _rules()
        rules.SKIP_DIRS.append(_CAPTURE)
        rules._recompile_re()
        patches.add("skipped folder of dynamo", unskip)

    def unskip() -> None:
        rules = _rules()
        if _CAPTURE in rules.SKIP_DIRS:
            rules.SKIP_DIRS.remove(_CAPTURE)
            rules._recompile_re()

    AfterImport(_RULES, skip).install(patches)


def without_compiling(call: Callable[[], object]) -> None:
    """Call it with dynamo off: inside a compiled function that breaks its graph, dynamo compiles whatever is called."""
    evaluation = sys.modules["torch"]._C._dynamo.eval_frame
    before = evaluation.set_eval_frame(None)
    try:
        call()
    finally:
        evaluation.set_eval_frame(before)


def _rules() -> Any:
    return sys.modules[_RULES]
