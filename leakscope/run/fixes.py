"""The result of `leakscope fix`, stored with the run: edits that were proved, and what was tried."""

from __future__ import annotations

from dataclasses import dataclass

NAME, PATCH = "fix.json", "fix.patch"
"""Files in the folder of a run."""
WORK = "fix"
"""Folder of the repetitions in the folder of a run, while `leakscope fix` works."""


@dataclass(frozen=True)
class Try:
    """One repetition with edits."""

    title: str
    leaks: tuple[str, ...]
    """Fingerprints of the leaks that it was to fix, beside those fixed before."""
    where: str
    """Its first place."""
    refused: str
    """Why it proves nothing: `loss differs at step 3`; "" if it is proved."""
    seconds: float


@dataclass(frozen=True)
class LeakFix:
    """The result for one leak."""

    fingerprint: str
    subject: str
    """The reference to cut, as in the report."""
    title: str
    """The edit that fixes it; "" if none was proved."""
    diff: str
    """That edit as a unified diff."""
    why: str
    """Why there is none."""

    @property
    def is_fixed(self) -> bool:
        """Whether an edit was proved."""
        return bool(self.title)


@dataclass(frozen=True)
class Fix:
    """The edits that fix leaks of a run, each proved by a repetition of the run."""

    leaks: tuple[LeakFix, ...]
    tries: tuple[Try, ...]
    patch: str
    """All proved edits as one unified diff, for `git apply`; bytes that are no UTF-8 are escaped."""
    is_deterministic: bool
    """Whether the script repeats itself to the bit; if not, losses were compared by their distribution."""
    steps: int | None
    """The step after which repetitions stopped; None if the script ran to its end."""
    compared_steps: int = 0
    """Number of steps, over all ranks, whose losses, gradients and parameters were compared."""
    notes: tuple[str, ...] = ()
    before: tuple[tuple[int, int], ...] = ()
    """(step, bytes of tensors) without the edits."""
    after: tuple[tuple[int, int], ...] = ()
    """(step, bytes of tensors) with them; empty if nothing was proved."""
    is_counted: bool = False
    """Whether these are all allocated bytes, because most of what leaked is not in tensors: autograd nodes, objects."""

    @property
    def is_complete(self) -> bool:
        """Whether every leak has a proved edit."""
        return all(leak.is_fixed for leak in self.leaks)
