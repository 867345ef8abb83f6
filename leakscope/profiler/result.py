"""The result of a block or loop: its run, findings and report, with or without a folder."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from leakscope.errors import LeakscopeError
from leakscope.findings.judge import LEAKS_FOUND
from leakscope.findings.judge import judge as findings_of
from leakscope.findings.model import Findings, Reason, Why
from leakscope.originals import Path, os
from leakscope.units import bytes_text
from leakscope.verdict import Returned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leakscope.heap.garbage import ExplainedHeap
    from leakscope.heap.growth import Gains
    from leakscope.recorder.accelerator import Counter
    from leakscope.run.model import Look, Rank, Run
    from leakscope.run.rows import MadeBy, Occasion


def look_now(
    step: int,
    occasion: Occasion,
    counter: Counter | None = None,
    gains: Gains | None = None,
    explained: Callable[[ExplainedHeap], None] | None = None,
    made_at: Mapping[int, str] | None = None,
) -> Look:
    """One look at this process; what it keeps itself does not count as the program's.

    `gains` are of the looks before, where what containers gain is to be told; `explained` is told what was found;
    `made_at`: a storage's address to the place that made it.
    """
    from leakscope.heap.snapshot import LookContext, look
    from leakscope.recorder.accelerator import Counter

    counter = counter or Counter()
    counted = counter.read().bytes
    with counter.ours(most=sys.maxsize):  # the look itself is kept: megabytes where thousands of tensors live
        known = LookContext(counted, counter.device, made_at=made_at or {}, gains=gains, explained=explained)
        return look(step, occasion, known)


def why_no_look() -> str:
    """The sentence that says why this process cannot be looked at; "" where it can."""
    from leakscope.process.torch_compat import Part, lacks, sentences

    return "; ".join(sentences()) if lacks(Part.LOOKS) else ""


def run_of_rank(rank: Rank, made_by: MadeBy, warmup: int = 0, min_bytes: int = 0) -> Run:
    """A run of this process, its one rank."""
    from leakscope._version import __version__
    from leakscope.native import heap_reader
    from leakscope.run.model import Run

    torch = sys.modules.get("torch")
    return Run(
        command=(Path(sys.argv[0]).name,),
        ranks=(rank,),
        expected_ranks=1,
        device=rank.looks[-1].counted_on if rank.looks else "cpu",
        torch="" if torch is None else str(torch.__version__),
        leakscope=__version__,
        heap_reader=heap_reader(),
        warmup=warmup,
        min_bytes=min_bytes,
        made_by=made_by,
    )


@dataclass(frozen=True, repr=False)
class Result(Findings):
    """Findings with the run they are of, which they need to be told.

    `print(result)` is the report on a screen, a notebook shows it as HTML, and `result.report("leaks.html")` writes the
    page.
    """

    run: Run = field(kw_only=True)
    """What was recorded."""

    @classmethod
    def of(cls, run: Run, findings: Findings) -> Result:
        """The findings of a run, with it."""
        values = {each.name: getattr(findings, each.name) for each in fields(Findings)}
        return cls(**{**values, "returned": Returned.NOT}, run=run)

    def __str__(self) -> str:
        from leakscope.report import FORMATS

        return FORMATS["text"](self.run, self)

    def _repr_html_(self) -> str:
        """What a notebook shows: one fragment without a script; everything that came from the run is escaped."""
        from leakscope.report.notebook import render

        return render(self.run, self)

    def to_json(self) -> str:
        """All of it as `findings.json` has it; the package ships the schema."""
        from leakscope.report import FORMATS

        return FORMATS["json"](self.run, self)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write it to a file, in the format that its suffix names; into a folder the page and `findings.json`.

        The formats are those of `leakscope report --as`: `.html` is the page, `.txt` the text, then `.json`, `.md`,
        `.sarif`, `.xml` (JUnit) and `.trace.json`. A path without a suffix, or one that ends in a slash, is a folder,
        made where it is not there. What was there is replaced, whole or not at all.

        Returns:
            The path.

        Raises:
            LeakscopeError: no format has that suffix, or the file cannot be written.

        """
        from leakscope.report import FORMATS, write
        from leakscope.run.descriptors import write_whole_for_all

        told = Path(path)
        try:
            if str(path).endswith(("/", os.sep)) or not told.suffix or told.is_dir():
                told.mkdir(parents=True, exist_ok=True)
                write(self.run, self, told)
            else:
                name = _format_of(told.name)
                write_whole_for_all(told, FORMATS[name](self.run, self).encode(errors="backslashreplace"))
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise LeakscopeError(f"cannot write {told} ({why}); name a file in a folder that exists") from None
        return told


def _format_of(name: str) -> str:
    """The format whose files end as this name does; the longer end decides. Raises LeakscopeError."""
    from leakscope.report.formats import format_named, format_names

    forms = [format_named(each) for each in format_names()]
    fitting = [form for form in forms if name.lower().endswith(form.suffix)]
    if not fitting:
        suffixes = ", ".join(form.suffix for form in forms)
        raise LeakscopeError(f"no format has files like {name}; let it end in one of {suffixes}, or name a folder")
    return max(fitting, key=lambda form: len(form.suffix)).name


def judge(
    run: Run,
    *,
    suppress: Collection[str] = (),
    baseline: Collection[str] = (),
    leak_exit_code: int = LEAKS_FOUND,
    ignore_library: bool = False,
    fail_on_avoidable: int | None = None,
    fail_on_inconclusive: bool = False,
) -> Result:
    """The verdict of a run, and each distinct leak in it.

    >>> from pathlib import Path
    >>> import leakscope
    >>> run = leakscope.read_run(Path("sample_runs/p2p_pipeline/stage-backward-cycle"))
    >>> found = leakscope.judge(run)
    >>> found.verdict.value, found.exit_status, str(found.findings[0].rule)
    ('leaks', 23, 'tensor-cycle')
    >>> leakscope.judge(run, suppress=["tensor-cycle"]).verdict.value
    'clean'

    Args:
        run: what `read_run` or a `Profiler` gives.
        suppress: fingerprints, names of rules, holders or places, with `*` for any text; what they name is listed apart
            and decides nothing. What the run was given counts as well (`run.suppressions`).
        baseline: fingerprints of an earlier run's findings, listed apart as well.
        leak_exit_code: `exit_status` of the findings where the verdict is leaks.
        ignore_library: what a library leaks is told all the same, and decides nothing.
        fail_on_avoidable: avoidable bytes above which `exit_status` is `leak_exit_code` as well; None for never.
        fail_on_inconclusive: `exit_status` is 2 where the run cannot be judged.

    """
    findings = findings_of(
        run,
        suppress=suppress,
        baseline=baseline,
        leak_exit_code=leak_exit_code,
        ignore_library=ignore_library,
        fail_on_avoidable=fail_on_avoidable,
        fail_on_inconclusive=fail_on_inconclusive,
    )
    return Result.of(run, findings)


class LeaksFound(AssertionError):
    """A block left tensor memory behind; the message holds each leak's trace."""

    findings: Result
    """What was found, the leaks among it."""

    def __init__(self, message: str, findings: Result) -> None:
        super().__init__(message)
        self.findings = findings


def sum_text(run: Run, findings: Findings, left: Why, allowance: int) -> str:
    """`2 tensor leaks, 3.00 KiB left behind by 3 repeats, each of them a step (1 to 3), 1.00 KiB allowed`."""
    from leakscope.report.messages.verdict import why_text

    steps = [step.number for rank in run.ranks for step in rank.steps]
    by = f" by {len(steps)} repeats, each of them a step ({steps[0]} to {steps[-1]})" if steps else ""
    allowed = f", {bytes_text(allowance)} allowed" if allowance else ""
    return f"{why_text(replace(findings, why=left))}{by}{allowed}"


def raise_leaks(found: Result, allowance: int) -> None:
    """Raise LeaksFound, with the sum and every leak's trace, where the leaks hold more than that many bytes."""
    from leakscope.report.text.page import render_in_test

    left = left_behind(found)
    if left.bytes > allowance:
        told = f"{sum_text(found.run, found, left, allowance)}\n\n{render_in_test(found.run, found)}"
        raise LeaksFound(told, found)


def left_behind(findings: Findings) -> Why:
    """How many leaks there are, and their bytes."""
    held = sum(finding.retained_bytes for finding in findings.leaks)
    return Why(reason=Reason.LEFT_BEHIND, count=len(findings.leaks), bytes=held)
