"""Shared by the callbacks of all frameworks."""

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
"""Gets the report, as a warning unless it is clean."""

LogFunction = Callable[[dict[str, float | str]], None]
"""Passes figures, and the report as text, to the logger of the framework."""


class Training:
    """Records one training after another, each from `begin` to `end`.

    An error inside leakscope becomes a warning, and the training continues without recording. The report of a training
    that raised is written when the next one begins or the process ends.

    Args:
        output: Folder of the run, which also gets `findings.json` and `report.html`; None keeps nothing on disk.
        warmup: Steps to skip before growth is measured.
        budget: Maximum share of the training time spent on heap snapshots; 0.02 is 2%.
        min_bytes: Minimum growth per step to report as a leak, in bytes or like `"64 KiB"`; None to decide by kind and
            `horizon`.
        horizon: Report growth of plain data as a leak if it would reach 1% of memory within that many steps.

    Raises:
        ValueError: As for `leakscope.Profiler`.

    """

    findings: Result | None = None
    """The findings of the last training; None before its end, or if nothing could be recorded."""

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
        Profiler(output, **self._options)  # raises for invalid options before training starts
        self._profiler: Profiler | None = None
        self._log_values: LogFunction = _log_nothing
        self._aloud = True

    def begin(self, roots: Mapping[str, object], log: LogFunction, aloud: bool = True) -> None:
        """Start recording a training.

        Args:
            roots: Name to object: reference paths through these objects begin with the name.
            log: Called at the end with the figures.
            aloud: Log the whole report, as one of several ranks should; the others log one line for each leak.

        """
        self.end()
        self.findings, self._log_values, self._aloud = None, log, aloud
        try:
            profiler = Profiler(self._output, roots=roots, **self._options)
            profiler.__enter__()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the training's
            LOGGER.warning("this training is not recorded: %s", str(error) or type(error).__name__)
            return
        self._profiler = profiler
        atexit.register(self.end)

    def step(self) -> None:
        """End a step."""
        if self._profiler is not None:
            with self._profiler.step():  # an internal error ends the recording, not the training
                pass

    def end(self, error: BaseException | None = None) -> None:
        """End the training, with the `error` it raised, if any: judge it and log its leaks."""
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
            self._log_values(values)
        except Exception as ours:  # noqa: BLE001 - whatever it is, it must not become the training's
            LOGGER.warning("the leaks of this training could not be reported: %s", str(ours) or type(ours).__name__)
        finally:
            self._log_values = _log_nothing


class Watching:
    """Base of the integrations: the options of a recording, and its findings."""

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
        """The findings of the last training; None before its end, or if nothing could be recorded."""
        return self._training.findings


def values_of(findings: Result) -> dict[str, float | str]:
    """The figures to log: number of leaks, their bytes and growth per step, and a line for each.

    An inconclusive verdict has no figures, only its reason.
    """
    from leakscope.report.finding_text import title
    from leakscope.report.verdict_text import first_cut, why_text

    found = findings.leaks
    if findings.verdict == Verdict.INCONCLUSIVE and not found:
        return {"leakscope/report": f"inconclusive: {why_text(findings)}"}
    values: dict[str, float | str] = {
        "leakscope/leaks": float(len(found)),
        "leakscope/leaked_bytes": float(sum(finding.retained_bytes for finding in found)),
        "leakscope/bytes_per_step": float(sum(finding.bytes_per_step for finding in found)),
    }
    text = "\n\n".join(f"{title(finding)}: {first_cut((finding,))}" for finding in found)
    return {**values, "leakscope/report": text} if found else values


def _log_nothing(_: dict[str, float | str]) -> None:
    """Do nothing."""
