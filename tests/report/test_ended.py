"""Reports state how a run ended: errors, signals, `sys.exit` and hung ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import examples

from leakscope.findings.facts import AliveAtEnd
from leakscope.findings.model import Unjudged, UnjudgedReason, WhyUnjudged
from leakscope.report import FORMATS
from leakscope.report.rank_text import ended_text, error_text, failure_text
from leakscope.report.text.page import render
from leakscope.run.model import Ended
from leakscope.run.rows import EndKind
from leakscope.verdict import Verdict

LONG = "RuntimeError: " + "shape mismatch, " * 30

ENDS = [
    (
        Ended(EndKind.RAISED, 1, 4, "ValueError: boom", at="train.py:12 main"),
        ("Failed", "The script failed with ValueError: boom (train.py:12 main) after 4 steps."),
    ),
    (
        Ended(EndKind.RAISED, 1, 0, "ModuleNotFoundError: No module named 'x'", at="train.py:1 <module>"),
        (
            "Failed",
            "The script failed with ModuleNotFoundError: No module named 'x' (train.py:1) before its first step.",
        ),
    ),
    (Ended(EndKind.RAISED, 1, 2), ("Failed", "The script failed after 2 steps.")),
    (
        Ended(EndKind.RAISED, 130, 6, "KeyboardInterrupt", at="train.py:9 main"),
        ("Stopped", "Stopped by you (Ctrl-C) after 6 steps."),
    ),
    (Ended(EndKind.KILLED, 130, 1, "killed by SIGINT"), ("Stopped", "Stopped by you (Ctrl-C) after 1 step.")),
    (
        Ended(EndKind.KILLED, 143, 5, "killed by SIGTERM"),
        ("Stopped", "The script was terminated (SIGTERM) after 5 steps."),
    ),
    (
        Ended(EndKind.KILLED, 137, 5, "killed by SIGKILL", log="logs/0.log"),
        ("Failed", "The script was killed by SIGKILL after 5 steps. Log: logs/0.log"),
    ),
    (
        Ended(EndKind.KILLED, 137, 5, "killed by SIGKILL", out_of_memory_kills=1),
        (
            "Failed",
            "The script was killed by SIGKILL after 5 steps; the OOM killer of this machine killed a process "
            "meanwhile.",
        ),
    ),
    (Ended(EndKind.KILLED, 139, 5), ("Failed", "The script was killed by SIGSEGV after 5 steps.")),
    (Ended(EndKind.EXITED, 3, 4), ("Failed", "The script exited with status 3 after 4 steps.")),
    (Ended(EndKind.FINISHED, 0, 4), ("", "")),
    (Ended(EndKind.STOPPED, 0, 12), ("", "")),
    (Ended(EndKind.HUNG, 124, 4, "no communication for 8 s"), ("", "")),
]


@pytest.mark.parametrize(("ended", "told"), ENDS)
def test_what_ended_the_run_is_told_in_a_sentence(ended: Ended, told: tuple[str, str]) -> None:
    assert failure_text(examples.failed_as(ended)[0]) == told


@pytest.mark.parametrize(("ended", "told"), [case for case in ENDS if case[1][0]])
def test_the_report_opens_with_it_and_says_it_in_no_other_words(ended: Ended, told: tuple[str, str]) -> None:
    text = FORMATS["text"](*examples.failed_as(ended))
    assert text.startswith(told[0]) and " ".join(text.split()).startswith(" ".join(told))
    assert "raised" not in text and "KeyboardInterrupt" not in text and "error:" not in text
    assert text.count(ended_text(examples.failed_as(ended)[0].ranks[0])[:40]) <= 1, "once is enough"


def test_a_script_that_fails_before_its_first_step_is_not_told_to_mark_steps() -> None:
    text = FORMATS["text"](*examples.failed_as(ENDS[1][0]))
    assert "Verdict  INCONCLUSIVE: nothing to judge before the first step (exit status 1)" in text
    assert "Why  " not in text and "Next  " not in text and "Profiler" not in text


def test_of_a_long_error_the_sentence_has_the_beginning_and_the_rank_all_of_it() -> None:
    (rank,) = examples.failed_as(Ended(EndKind.RAISED, 1, 4, f"{LONG}\nand more"))[0].ranks
    assert len(ended_text(rank)) < 300 and ended_text(rank).startswith("failed with RuntimeError: shape mismatch,")
    assert error_text(rank) == f"{LONG}\nand more"


def test_what_sys_exit_was_given_is_told() -> None:
    text = FORMATS["text"](*examples.failed_as(Ended(EndKind.EXITED, 1, 4, "no data in /data")))
    assert "error: no data in /data" in text


def test_the_traceback_that_python_has_printed_is_not_printed_again() -> None:
    ended = Ended(EndKind.RAISED, 1, 4, "ValueError: boom", stack=("Traceback (most recent call last):", "  File 1"))
    assert "Traceback" not in FORMATS["text"](*examples.failed_as(ended))
    assert "Traceback" in FORMATS["html"](*examples.failed_as(ended))


def test_what_was_found_before_the_end_is_still_told() -> None:
    run, _ = examples.failed_as(ENDS[0][0])
    _, findings = examples.leaking()
    text = FORMATS["text"](run, findings)
    assert findings.verdict == Verdict.LEAKS and "Next     Cut `closure extract`" in text


def test_nobody_is_told_to_mend_what_was_stopped_from_outside() -> None:
    for status, how in ((130, EndKind.RAISED), (143, EndKind.KILLED)):
        text = FORMATS["text"](*examples.failed_as(Ended(how, status, 5)))
        assert "Run at least 10 steps." in " ".join(text.split()) and "Fix the failure" not in text


def test_a_run_that_was_too_short_is_not_told_twice_that_it_was() -> None:
    run, findings = examples.inconclusive()
    short = Unjudged("step-growth", 0, WhyUnjudged(reason=UnjudgedReason.TOO_FEW_LOOKS, looks=1, needed=3))
    broken = Unjudged("view-hold", 0, WhyUnjudged(reason=UnjudgedReason.RAISED, error="ValueError: odd"))
    text = FORMATS["text"](run, replace(findings, unjudged=(short, broken)))
    assert "- view-hold on rank 0: it raised ValueError: odd" in text and "- step-growth" not in text
    assert "- step-growth on rank 0: only 1 snapshot" in render(run, replace(findings, unjudged=(short,)), verbose=True)


@pytest.mark.process
def test_garbage_is_called_so_where_nothing_was_found_to_leak() -> None:
    run, findings = examples.no_step()
    lost = {"leaked": 27 * examples.MIB, "buffer": examples.KIB}
    summary = replace(findings.ranks[0], categories=lost)
    findings = replace(findings, listed=(AliveAtEnd(0, lost),), ranks={0: summary})
    said = render(run, findings, verbose=True) + FORMATS["html"](run, findings)
    assert said.count("garbage awaiting gc 27.00 MiB, buffer 1.00 KiB") >= 3 and "leaked 27" not in said
