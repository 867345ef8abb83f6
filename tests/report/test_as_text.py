"""What does a tired person read in the terminal?"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import examples
import pytest

from leakscope.record import Ended
from leakscope.report import FORMATS
from leakscope.report.as_text import WIDTH

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", examples.ALL)
def test_text_is_the_golden_text(name: str) -> None:
    expected = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
    assert FORMATS["text"](*examples.ALL[name]()) == expected


@pytest.mark.parametrize("name", examples.ALL)
def test_no_line_is_wider_than_the_page_nor_moves_the_cursor(name: str) -> None:
    text = FORMATS["text"](*examples.ALL[name]())
    assert max(map(len, text.splitlines())) <= WIDTH
    assert all(character.isprintable() or character == "\n" for character in text)


def test_verdict_why_and_next_come_first() -> None:
    lines = FORMATS["text"](*examples.leaking()).splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["Verdict", "Why", "Next"]
    assert "Cut `closure extract` at stage.py:41: 768.00 KiB would be freed" in lines[2]


def test_suspect_references_are_underlined_to_their_length() -> None:
    lines = FORMATS["text"](*examples.leaking()).splitlines()
    at = next(i for i, line in enumerate(lines) if "↓ .losses" in line)
    assert lines[at + 1].split("│")[1].strip() == "~" * len(".losses")
    assert lines[at + 1].index("~") == lines[at].index(".losses")
    elsewhere = next(i for i, line in enumerate(lines) if "↓ .untyped_storage()" in line)
    assert "~" not in lines[elsewhere + 1]


def test_a_trace_that_went_round_says_so_and_repeats_no_reason() -> None:
    text = FORMATS["text"](*examples.leaking())
    assert text.count("the cycle is closed; from it on to the memory:") == 1
    assert text.count("no root leads here: the cycle keeps itself") == 1 and text.count(": held by the cycle") == 1


def test_a_source_line_is_told_once_for_all_that_was_made_there() -> None:
    lines = [line.strip() for line in FORMATS["text"](*examples.leaking()).splitlines()]
    at = lines.index("made at   stage.py:41 forward (aten::addmm)")
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
    assert "No trace: nothing that Python or autograd knows leads to this memory." in text
    assert "whoever holds it in native code" in text and "no single reference frees it" in text
    assert "Read the first leak below, and run" in text.replace("\n         ", " ")


def test_every_format_names_all_references_that_must_be_cut_together() -> None:
    run, findings = examples.leaking()
    leak = examples.growth_finding()
    assert leak.cut is not None
    told = replace(findings, findings=(replace(leak, cut=replace(leak.cut, also=("log.last in main()", "seen"))),))
    for name in ("text", "html", "sarif", "junit"):
        flat = " ".join(re.sub("</?code>|&#96;|`", "", FORMATS[name](run, told)).split())
        assert "together with log.last in main() and seen: 1.50 MiB would be freed" in re.sub("</?b>", "", flat), name
    assert json.loads(FORMATS["json"](run, told))["findings"][0]["cut"]["reference"] == f"{leak.cut.reference}, log.last in main(), seen"


def test_sections_follow_the_leaks() -> None:
    text = FORMATS["text"](*examples.leaking())
    places = [text.index(word) for word in ("Leaks (2)", "Held by libraries", "Notes: too small", "Ranks\n")]
    assert places == sorted(places)


def test_a_killed_rank_is_named_before_the_peer_that_raised_because_of_it() -> None:
    text = FORMATS["text"](*examples.killed())
    assert "Look at rank 1 first: it was killed by SIGKILL after 5 steps (its log: logs/rank_1.log)" in text
    assert "! rank 0 raised after 5 steps" in text
    assert "error: RuntimeError: Connection closed by peer" in text
    assert "! rank 2 lost without a word before its first step" in text


def test_an_error_that_only_repeats_the_end_is_left_out() -> None:
    text = FORMATS["text"](*examples.failed_as(Ended("killed", 137, 5, error="killed by SIGKILL", log="logs/rank_0.log")))
    assert "it was killed by SIGKILL after 5 steps (its log: logs/rank_0.log)" in " ".join(text.split())
    assert text.count("killed by SIGKILL") == 2 and "error:" not in text


def test_a_rank_that_hung_has_raised_nothing() -> None:
    text = FORMATS["text"](*examples.failed_as(Ended("raised", 124, 8, error="hung: nothing happened on the wire for 8 s; last recv")))
    assert "it hung after 8 steps: nothing happened on the wire for 8 s; last recv." in " ".join(text.split())
    assert "! rank 0 hung after 8 steps\n    error: nothing happened on the wire" in text and "raised" not in text


def test_a_note_that_holds_nothing_names_no_holder() -> None:
    text = FORMATS["text"](*examples.of_a_dropped_work())
    assert "p2p-buffer [00000001]; no memory held, 116 times seen; ranks 0, 1; steps 3 to 5" in text
    assert not any(words in text for words in ("0 B held", "No trace", "freed by", "no single reference"))


def test_a_script_without_steps_is_told_how_to_mark_them() -> None:
    text = FORMATS["text"](*examples.no_step())
    assert "mark the steps with leakscope.Profiler" in " ".join(text.split())
    assert "Alive after the script's main code had returned" in text
