"""Words for a run in which no step was seen: why, and what to do about it."""

from __future__ import annotations

from leakscope.findings.why import Reason, Why
from leakscope.report.wording.clock import processes_text

NO_STEP_REASONS = (Reason.NO_STEP, Reason.FUNCTION_SILENT, Reason.FUNCTION_MISSING, Reason.SPAWNED)


def no_step_text(why: Why) -> str:
    """Why there was none."""
    if why.reason == Reason.SPAWNED:
        return (
            f"no step was seen in the script's own process, which started {processes_text(why.processes)}; they are "
            "not seen yet"
        )
    return {
        Reason.NO_STEP: "no step was seen: no torch optimizer stepped, and no backward pass or call of a module "
        "could be taken for a step",
        Reason.FUNCTION_SILENT: f"no step was seen: {why.detail}() never returned",
        Reason.FUNCTION_MISSING: f"no step was seen: the script has no function {why.detail}, nor does it import one"
        + (f"; did you mean {' or '.join(why.near)}?" if why.near else ""),
    }[why.reason]


def no_step_next(why: Why | str) -> str:
    """What to do about it, as a sentence."""
    reason = why.reason if isinstance(why, Why) and why.reason in NO_STEP_REASONS else Reason.NO_STEP
    return {
        Reason.NO_STEP: "Name the function that makes one step with --step-function NAME, or mark the steps with "
        "leakscope.Profiler; what was alive at the end is listed below.",
        Reason.FUNCTION_SILENT: "Name a function that is called once a step with --step-function.",
        Reason.FUNCTION_MISSING: "Write the name as in the script, like train_step or Trainer.training_step, or with "
        "the module it is imported from.",
        Reason.SPAWNED: "Let leakscope start the processes: take the start out of the script and give --ranks N.",
    }[reason]
