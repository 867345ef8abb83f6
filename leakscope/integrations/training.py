"""What the callbacks of all frameworks share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from leakscope.options import Options
from leakscope.originals import Path, atexit
from leakscope.profiler import Profiler
from leakscope.verdict import Verdict

if TYPE_CHECKING:
    from leakscope.profiler.result import Result

LOGGER = logging.getLogger("leakscope")
"""Where the report goes, beside the framework's own logger; a warning unless it is clean."""

Tell = Callable[[dict[str, float | str]], None]
"""Hands figures, and the report as a text, to the framework's logger."""


class Training:
    """Records one training after another, each from `begin` to `end`.

    No error of leakscope's own reaches the training: it is a warning, and the training goes on unwatched. What a
    training that raised has shown is told when the next one begins or the process ends.

    Args:
        output: the run's folder, which also gets `findings.json` and `report.html`; without it nothing stays on disk.
        warmup: steps that are not judged.
        budget: share of the run's time that looking may take; 0.02 is 2%.
        min_bytes: growth a step, in bytes or like `"64 KiB"`, below which it is a note; None where its kind and size
            decide.
        horizon: steps over which growth is projected; plain data that reaches 1% of the memory there is within them is
            a leak.

    Raises:
        ValueError: as `leakscope.Profiler` does.

    """

    findings: Result | None = None
    """What the last training leaked; None before one has ended, and where nothing could be recorded."""

    def __init__(
        self,
        output: str | Path | None = None,
        *,
        warmup: int = Options.warmup,
        budget: float = Options.budget,
        min_bytes: int | str | None = Options.min_bytes,
        horizon: int = Options.horizon,
    ) -> None:
        self._options: dict[str, Any] = {"warmup": warmup, "budget": budget, "min_bytes": min_bytes, "horizon": horizon}
        self._output = output
        Profiler(output, **self._options)  # what is wrong with them is said before a training starts
        self._profiler: Profiler | None = None
        self._tell: Tell = _tell_nobody
        self._aloud = True

    def begin(self, roots: Mapping[str, object], tell: Tell, aloud: bool = True) -> None:
        """A training begins; traces through one of the `roots` start with its name, and `tell` is called at the end.

        `aloud`: the report goes to Python's log, as that of one rank of several should; of the others what leaks, in a
        line.
        """
        self.end()
        self.findings, self._tell, self._aloud = None, tell, aloud
        try:
            profiler = Profiler(self._output, roots=roots, **self._options)
            profiler.__enter__()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the training's
            LOGGER.warning("this training is not watched: %s", str(error) or type(error).__name__)
            return
        self._profiler = profiler
        atexit.register(self.end)

    def step(self) -> None:
        """A step of the training is over."""
        if self._profiler is not None:
            with self._profiler.step():  # an error of its own ends the recording, not the training
                pass

    def end(self, error: BaseException | None = None) -> None:
        """The training is over, by an `error` where it raised one: judge it, and tell what leaks."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        atexit.unregister(self.end)
        try:
            profiler.__exit__(None if error is None else type(error), error, None)
            self.findings = findings = profiler.findings
            values = values_of(findings)
            if self._aloud:
                clean = findings.verdict == Verdict.CLEAN and not findings.exit_status
                LOGGER.log(logging.INFO if clean else logging.WARNING, "%s", findings)
            elif "leakscope/report" in values:
                LOGGER.warning("rank %d: %s", findings.run.ranks[0].number, values["leakscope/report"])
            self._tell(values)
        except Exception as ours:  # noqa: BLE001 - whatever it is, it must not become the training's
            LOGGER.warning("what leaks could not be told: %s", str(ours) or type(ours).__name__)
        finally:
            self._tell = _tell_nobody


class Watching:
    """What every integration has: the options of its recording, as `Training` takes them, and what it found."""

    def __init__(
        self,
        output: str | Path | None = None,
        *,
        warmup: int = Options.warmup,
        budget: float = Options.budget,
        min_bytes: int | str | None = Options.min_bytes,
        horizon: int = Options.horizon,
    ) -> None:
        self._training = Training(output, warmup=warmup, budget=budget, min_bytes=min_bytes, horizon=horizon)

    @property
    def findings(self) -> Result | None:
        """What the last training leaked; None before one has ended, and where nothing could be recorded."""
        return self._training.findings


def values_of(findings: Result) -> dict[str, float | str]:
    """What a logger gets: how many leaks there are, their bytes, how much more a step, and a line on each.

    Where nobody can tell, no figure is one: only why.
    """
    from leakscope.report.messages.sections import leaks
    from leakscope.report.messages.sentences import title
    from leakscope.report.messages.verdict import first_cut, why_text

    found = leaks(findings)
    if findings.verdict == Verdict.INCONCLUSIVE and not found:
        return {"leakscope/report": f"inconclusive: {why_text(findings)}"}
    values: dict[str, float | str] = {
        "leakscope/leaks": float(len(found)),
        "leakscope/leaked_bytes": float(sum(finding.retained_bytes for finding in found)),
        "leakscope/bytes_per_step": float(sum(finding.bytes_per_step for finding in found)),
    }
    told = "\n\n".join(f"{title(finding)}: {first_cut((finding,))}" for finding in found)
    return {**values, "leakscope/report": told} if found else values


def _tell_nobody(_: dict[str, float | str]) -> None:
    """Nobody has asked."""
