"""What grows on every call of a training step?"""

from leakscope.profiler.repeats.check import check, require_repeats, run_and_judge

__all__ = ["check", "require_repeats", "run_and_judge"]
