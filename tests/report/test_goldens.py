"""Each output format matches its golden files, which `pytest tests/report --golden-update` records anew.

The sentences of reports are here and nowhere else: improving one changes golden files, not tests.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest
from support import examples

from leakscope.findings.counters import counted_steps
from leakscope.findings.model import Sighting
from leakscope.report import FORMATS
from leakscope.report.finding_text import held_text
from leakscope.report.fix_text import render_fix
from leakscope.report.rank_text import ended_text, failure_text
from leakscope.report.text.page import render
from leakscope.report.verdict_text import headline
from leakscope.run.model import Ended, Rank, Step
from leakscope.run.rows import EndKind


@pytest.mark.parametrize("name", examples.ALL)
def test_text(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{name}.txt", FORMATS["text"](*examples.ALL[name]()))


@pytest.mark.parametrize("name", ["leaking", "hostile"])
def test_verbose_text(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{name}_verbose.txt", render(*examples.ALL[name](), verbose=True))


@pytest.mark.parametrize("name", ["json", "markdown", "sarif", "junit", "trace"])
def test_format(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"leaking.{name}", FORMATS[name](*examples.leaking()))


@pytest.mark.parametrize("name", ["json", "markdown", "sarif"])
def test_format_with_a_verified_fix(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"fixed.{name}", FORMATS[name](*examples.fixed()))


def test_the_result_of_fix(golden: Callable[[str, str], None]) -> None:
    golden("fix.txt", render_fix(examples.fixed()[0], 110))


@pytest.mark.process
@pytest.mark.skipif(shutil.which("dot") is None, reason="dot is not installed")
@pytest.mark.parametrize("name", ["leaking", "fixed", "killed"])
def test_text_of_the_page(name: str, golden: Callable[[str, str], None]) -> None:
    """Its text and what its cards link to; not its drawings, style and script."""
    page = FORMATS["html"](*examples.ALL[name]())
    page = re.sub(r"<(style|script|svg)\b.*?</\1>", "", page, flags=re.DOTALL)
    golden(f"{name}.html.txt", re.sub(r"\s*\n\s*", "\n", re.sub(r"<[^>]*>", "\n", page)).strip() + "\n")


ENDS = (
    Ended(EndKind.RAISED, 1, 4, "ValueError: boom", at="train.py:12 main"),
    Ended(EndKind.RAISED, 1, 0, "ModuleNotFoundError: No module named 'x'", at="train.py:1 <module>"),
    Ended(EndKind.RAISED, 1, 2),
    Ended(EndKind.RAISED, 1, 4, "RuntimeError: " + "shape mismatch, " * 30 + "\nand more"),
    Ended(EndKind.RAISED, 130, 6, "KeyboardInterrupt", at="train.py:9 main"),
    Ended(EndKind.KILLED, 130, 1, "killed by SIGINT"),
    Ended(EndKind.KILLED, 143, 5, "killed by SIGTERM"),
    Ended(EndKind.KILLED, 137, 5, "killed by SIGKILL", log="logs/0.log"),
    Ended(EndKind.KILLED, 137, 5, "killed by SIGKILL", out_of_memory_kills=1),
    Ended(EndKind.KILLED, 139, 5),
    Ended(EndKind.EXITED, 3, 4),
    Ended(EndKind.FINISHED, 0, 4),
    Ended(EndKind.STOPPED, 0, 12),
    Ended(EndKind.HUNG, 124, 4, "nothing was sent or received for 8 s"),
)


def test_how_a_run_ended(golden: Callable[[str, str], None]) -> None:
    lines = []
    for ended in ENDS:
        run, findings = examples.failed_as(ended)
        lines.append(" | ".join((*failure_text(run), ended_text(run.ranks[0]), headline(run, findings))))
    golden("ends.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("held", "seen", "expected"),
    [
        (5, ((0, 3, 2), (0, 9, 5)), "at the last snapshot"),
        (26, ((0, 3, 26), (0, 9, 2)), "at the largest snapshot"),
        (26, ((0, 3, 20), (0, 9, 2), (1, 3, 6), (1, 9, 1)), "at the largest snapshot of each rank"),
        (25, ((0, 3, 20), (0, 9, 2), (1, 3, 6), (1, 9, 5)), "at the last or largest snapshot of each rank"),
        (7, ((0, 9, 2), (1, 9, 5)), "at the last snapshot"),
    ],
)
def test_the_snapshot_of_the_bytes_is_named(held: int, seen: tuple[tuple[int, int, int], ...], expected: str) -> None:
    """Garbage is counted at the snapshot with most of it: the program's gc may have run before the last one."""
    sightings = tuple(Sighting(rank, step, size * examples.MIB) for rank, step, size in seen)
    finding = replace(
        examples.cycle_finding(), retained_bytes=held * examples.MIB, sightings=sightings, bytes_per_step=0.0
    )
    assert held_text(finding) == f"{held}.00 MiB retained in 6 storages {expected}"


def test_growth_a_step_is_of_one_device() -> None:
    """Two steps on the host, then an accelerator."""
    counts = ((90, "cpu"), (91, "cpu"), (5, "cuda"), (6, "cuda"), (7, "cuda"))
    steps = tuple(
        Step(n, 0.1, size * examples.MIB, None, counted_on=device) for n, (size, device) in enumerate(counts, 1)
    )
    only = Rank(0, steps, (), Ended("finished", 0, 5))
    assert [step.number for step in counted_steps(only)] == [3, 4, 5]
