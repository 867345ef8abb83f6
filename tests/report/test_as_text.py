"""The text report matches its golden files, fits its width and opens with the verdict and the next step."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from support import examples

from leakscope.findings.model import CutReference, Sighting
from leakscope.report import FORMATS
from leakscope.report.finding_text import NO_TRACE, held_text
from leakscope.report.ranks import counted_steps
from leakscope.report.rendering import WIDTH
from leakscope.report.text.finding import CLOSED
from leakscope.report.text.page import render
from leakscope.run.model import Ended, Rank, Step
from leakscope.run.rows import EndKind


@pytest.mark.parametrize("name", examples.ALL)
def test_text_is_the_golden_text(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{name}.txt", FORMATS["text"](*examples.ALL[name]()))


@pytest.mark.parametrize("name", ["leaking", "hostile"])
def test_the_whole_text_is_the_golden_text(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{name}_verbose.txt", render(*examples.ALL[name](), verbose=True))


@pytest.mark.parametrize("name", examples.ALL)
@pytest.mark.parametrize("verbose", [False, True])
def test_no_line_is_wider_than_the_page_nor_moves_the_cursor(name: str, verbose: bool) -> None:
    text = render(*examples.ALL[name](), verbose=verbose)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert all(character.isprintable() or character == "\n" for character in text)


def test_verdict_why_and_next_come_first() -> None:
    lines = FORMATS["text"](*examples.leaking()).splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["Verdict", "Why", "Next"]
    assert "Cut `closure extract` at stage.py:41: frees 768.00 KiB" in lines[2]


def test_suspect_references_are_underlined_to_their_length() -> None:
    lines = render(*examples.leaking(), verbose=True).splitlines()
    at = next(i for i, line in enumerate(lines) if "↓ .losses" in line)
    assert lines[at + 1].split("│")[1].strip() == "~" * len(".losses")
    assert lines[at + 1].index("~") == lines[at].index(".losses")
    elsewhere = next(i for i, line in enumerate(lines) if "↓ .untyped_storage()" in line)
    assert "~" not in lines[elsewhere + 1]


def test_a_trace_that_went_round_says_so_and_repeats_no_reason() -> None:
    text = render(*examples.leaking(), verbose=True)
    assert text.count(CLOSED) == 1
    assert text.count("unreachable: kept alive by the cycle") == 1 and text.count(": referenced by the cycle") == 1


def test_a_source_line_is_told_once_for_all_that_was_made_there() -> None:
    lines = [line.strip() for line in render(*examples.leaking(), verbose=True).splitlines()]
    at = lines.index("Made at:  stage.py:41 forward (aten::addmm)")
    assert lines[at + 1 : at + 5] == [
        "stage.py:41 forward (aten::mul)",
        "| return [extract(n) for n in node.next_functions]",
        "stage.py:40 f (aten::mm)",
        "| def extract(node):",
    ]


def test_memory_that_nothing_explains_says_so() -> None:
    run, findings = examples.leaking()
    told = replace(examples.growth_finding(), rule="native-hold", trace=(), cut=None)
    text = FORMATS["text"](run, replace(findings, findings=(told,)))
    assert NO_TRACE in text
    assert "native code; whether gc can free it is unknown" in text and "the referrer is unknown" in text
    assert "Read the first leak below, and rerun" in text.replace("\n         ", " ")


@pytest.mark.process
def test_every_format_names_all_references_that_must_be_cut_together() -> None:
    run, findings = examples.leaking()
    leak = examples.growth_finding()
    assert leak.cut is not None
    also = (CutReference(".last", written="log.last in main()"), CutReference("seen", written="seen"))
    cut = replace(leak.cut, references=(*leak.cut.references, *also))
    told = replace(findings, findings=(replace(leak, cut=cut),))
    for name in ("text", "html", "sarif", "junit"):
        flat = " ".join(re.sub("</?code>|&#96;|`", "", FORMATS[name](run, told)).split())
        assert "together with log.last in main() and seen: frees 1.50 MiB" in re.sub("</?b>", "", flat), name
    references = json.loads(FORMATS["json"](run, told))["findings"][0]["cut"]["references"]
    assert [one["reference"] for one in references] == [leak.cut.reference, ".last", "seen"]
    assert [one["expression"] for one in references][1:] == ["log.last in main()", "seen"]


def test_verdict_and_cut_are_said_once_more_at_the_end() -> None:
    for verbose in (False, True):
        text = " ".join(render(*examples.leaking(), verbose=verbose).split())
        assert text.endswith(
            "Verdict: LEAKS: cut `closure extract` at stage.py:41, frees 768.00 KiB, then the other leak (exit "
            "status 23)"
        )
    assert render(*examples.clean()).endswith("\n\nVerdict: CLEAN (exit status 0)\n")


def test_sections_follow_the_leaks() -> None:
    text = render(*examples.leaking(), verbose=True)
    places = [text.index(word) for word in ("Leaks (2)", "Held by libraries", "Notes: too small", "Ranks\n")]
    assert places == sorted(places)


def test_a_killed_rank_is_named_before_the_peer_that_raised_because_of_it() -> None:
    text = FORMATS["text"](*examples.killed())
    assert text.startswith("Failed   Rank 1 was killed by SIGKILL after 5 steps. Log: logs/rank_1.log\nVerdict")
    assert "! rank 0 failed with RuntimeError: Connection closed by peer [127.0.0.1]:29500 after 5 steps" in text
    assert "! rank 2 ended without a status before its first step" in text


def test_an_error_that_only_repeats_the_end_is_left_out() -> None:
    text = FORMATS["text"](
        *examples.failed_as(Ended("killed", 137, 5, error="killed by SIGKILL", log="logs/rank_0.log"))
    )
    assert "The script was killed by SIGKILL after 5 steps. Log: logs/rank_0.log" in " ".join(text.split())
    assert text.count("killed by SIGKILL") == 1 and "error:" not in text


def test_a_rank_that_hung_has_raised_nothing() -> None:
    text = FORMATS["text"](
        *examples.failed_as(Ended(EndKind.HUNG, 124, 8, error="no communication for 8 s; last recv"))
    )
    assert "it hung after 8 steps: no communication for 8 s; last recv." in " ".join(text.split())
    assert "! rank 0 hung after 8 steps\n    error: no communication" in text and "failed with" not in text


def test_a_note_that_holds_nothing_names_no_holder() -> None:
    text = render(*examples.of_a_dropped_work(), verbose=True)
    assert "p2p-buffer [00000001]; no memory retained, seen 116 times; ranks 0, 1; steps 3 to 5" in text
    assert not any(words in text for words in ("0 B held", NO_TRACE, "Freed by", "no single reference"))


def test_a_finding_without_a_trace_leaves_no_gap() -> None:
    run, findings = examples.leaking()
    late = replace(findings.findings[0], rule="late-release", trace=())
    assert "\n\n\n" not in FORMATS["text"](run, replace(findings, findings=(late,)))


def test_a_script_without_steps_is_told_how_to_mark_them() -> None:
    text = FORMATS["text"](*examples.no_step())
    assert "mark steps with leakscope.Profiler" in " ".join(text.split())
    assert "Retained at exit" in text


@pytest.mark.parametrize(
    ("held", "seen", "said"),
    [
        (5, ((0, 3, 2), (0, 9, 5)), "at the last snapshot"),
        (26, ((0, 3, 26), (0, 9, 2)), "at the largest snapshot"),
        (26, ((0, 3, 20), (0, 9, 2), (1, 3, 6), (1, 9, 1)), "at the largest snapshot of each rank"),
        (25, ((0, 3, 20), (0, 9, 2), (1, 3, 6), (1, 9, 5)), "at the last or largest snapshot of each rank"),
        (7, ((0, 9, 2), (1, 9, 5)), "at the last snapshot"),
    ],
)
def test_the_look_that_the_bytes_are_of_is_said(held: int, seen: tuple[tuple[int, int, int], ...], said: str) -> None:
    """Garbage is told from the look that saw it best: the program's gc may have been there before the last one."""
    sightings = tuple(Sighting(rank, step, size * examples.MIB) for rank, step, size in seen)
    finding = replace(
        examples.cycle_finding(), retained_bytes=held * examples.MIB, sightings=sightings, bytes_per_step=0.0
    )
    assert held_text(finding) == f"{held}.00 MiB retained in 6 storages {said}"


def test_what_is_held_through_a_peak_is_not_of_the_last_look() -> None:
    finding = replace(examples.library_finding(), rule="late-release")
    assert held_text(finding) == "32.00 KiB retained at the step's peak"


@pytest.mark.process
@pytest.mark.parametrize(
    ("rule", "severity", "word"),
    [("late-release", "note", "idle"), ("step-growth", "note", "held"), ("step-growth", "leak", "leaked")],
)
def test_what_is_no_leak_is_not_called_leaked(rule: str, severity: str, word: str) -> None:
    run, findings = examples.leaking()
    of_list = next(f for f in findings.findings if f.rule == "step-growth")
    only = replace(findings, findings=(replace(of_list, rule=rule, severity=severity),))
    text, page = render(run, only, verbose=True), FORMATS["html"](run, only)
    assert {other for other in ("idle", "held", "leaked") if f" {other}: gained 2 items" in text} == {word}
    assert f"<b>{word}</b>" in page and ('<li class="leaked"' in page) == (severity == "leak")


def test_growth_a_step_is_of_one_device() -> None:
    """Two steps on the host, then an accelerator."""
    counts = ((90, "cpu"), (91, "cpu"), (5, "cuda"), (6, "cuda"), (7, "cuda"))
    steps = tuple(
        Step(n, 0.1, size * examples.MIB, None, counted_on=device) for n, (size, device) in enumerate(counts, 1)
    )
    only = Rank(0, steps, (), Ended("finished", 0, 5))
    assert counted_steps(only) == [(3, 5 * examples.MIB), (4, 6 * examples.MIB), (5, 7 * examples.MIB)]
