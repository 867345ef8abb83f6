"""The text report fits the terminal and one screen, and its excerpts and reference paths show what matters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import SAMPLES, examples

from leakscope.findings import judge
from leakscope.findings.model import Cut, CutReference, Finding, Hop
from leakscope.report.excerpt import LineMark, excerpts, folded_trace, source_line
from leakscope.report.finding_text import suspects
from leakscope.report.rendering import cells, cleaned, laid_out, wrapped
from leakscope.report.text.page import IN_FULL, LISTED, render
from leakscope.run.reader import read_run

CLEAN, LEAKING = 25, 40
"""Maximum lines of a clean run, and of one with one leak."""
RUN = examples.run(
    sources={
        "train.py": ("class Log:", "\tdef add(self, loss):", "\t\tx = 1", "", "\t\tself.seen.append(loss)", "    # on"),
        "main.py": ("log = Log()", "log.add(loss)"),
    }
)


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("name", examples.ALL)
def test_the_report_fits_the_terminal_and_uses_its_width(name: str, width: int) -> None:
    text = render(*examples.ALL[name](), width=width)
    lines = text.splitlines()
    lines = [line for line in lines if not line.startswith("rank  ") and not line[:4].strip().isdigit()]
    widths = list(map(cells, lines))
    assert width - 20 < max(widths) <= width
    text += render(*examples.ALL[name](), verbose=True)
    assert all(character.isprintable() or character == "\n" for character in text)


def test_wide_characters_take_two_columns_and_a_number_keeps_its_unit() -> None:
    place = "訓練/主程式之模型與資料.py:31"
    text = f"cut {place} together with {place}, {place * 3} and é"
    for width in range(24, 60, 5):
        lines = list(laid_out(wrapped(text, "程 ", "  "), width))
        assert max(map(cells, lines)) <= width
        assert "".join("".join(lines).split()) == "程" + "".join(text.split()), "nothing is lost"
    assert list(laid_out(wrapped("it holds 12.00 MiB of B", ""), 17)) == ["it holds", "12.00 MiB of B"]


@pytest.mark.parametrize(("name", "most"), [("none", CLEAN), ("engine", CLEAN), ("stage-backward-cycle", LEAKING)])
def test_a_run_with_at_most_one_leak_is_one_screen(name: str, most: int) -> None:
    run = replace(read_run(SAMPLES / "p2p_pipeline" / name), folder="run")  # the text names the folder
    findings = judge(run)
    assert len(render(run, findings).splitlines()) <= most
    if findings.leaks:
        assert len(render(run, findings, verbose=True).splitlines()) > 2 * most


def test_the_first_of_many_leaks_are_printed_in_full_and_the_others_take_a_line() -> None:
    run, findings = examples.leaking()
    many = tuple(replace(examples.growth_finding(), fingerprint=f"{n:08x}") for n in range(LISTED + 10))
    text = render(run, replace(findings, findings=many))
    assert text.count("<- cut here") == IN_FULL
    assert all(f"[{n:08x}]" in text for n in range(LISTED))
    assert f"[{LISTED:08x}]" not in text and len(text.splitlines()) < IN_FULL * 25 + LISTED + 25


def marked(added_at: tuple[str, ...] = (), cut: str = "train.py:1") -> Finding:
    return replace(examples.growth_finding(), cut=Cut((CutReference(".seen", cut, added_at=added_at),), 8))


def test_excerpts_mark_the_cut_and_the_lines_that_add_to_it() -> None:
    (shown,) = excerpts(RUN, marked(("train.py:5 add",)))
    marks = {line.number: line.mark for line in shown.lines if line.mark}
    assert shown.file == "train.py" and marks == {1: LineMark.HOLDS, 5: LineMark.ADDS}
    assert [line.number for line in shown.lines] == [1, 2, 5, 6], "an empty line at the edge is left out"
    (indented,) = excerpts(RUN, marked(cut="train.py:5"))
    assert [line.text for line in indented.lines] == ["    self.seen.append(loss)", "# on"]
    files = excerpts(RUN, marked(("main.py:2",), "train.py:5"), around=0)
    assert [(one.file, [line.mark for line in one.lines]) for one in files] == [
        ("train.py", [LineMark.HOLDS]), ("main.py", [LineMark.ADDS]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("added_at", "begin"), [((), ("train.py", 1)), (("train.py:5",), ("train.py", 5)), (("main.py:1",), ("main.py", 1))]
)
def test_one_line_is_marked_to_begin_with(added_at: tuple[str, ...], begin: tuple[str, int]) -> None:
    shown = excerpts(RUN, marked(added_at))
    assert [(each.file, line.number) for each in shown for line in each.lines if line.to_edit] == [begin]


@pytest.mark.parametrize(("cut", "folded"), [(4, [(1, 4), (6, 8)]), (2, [(4, 8)]), (None, [(1, 8)])])
def test_the_path_is_folded_between_root_cut_and_memory(cut: int | None, folded: list[tuple[int, int]]) -> None:
    trace = tuple(replace(examples.growth_finding().trace[1], object=f"o{n}") for n in range(9))
    stretches = folded_trace(
        replace(examples.growth_finding(), trace=trace, cut=Cut((CutReference(".seen", trace=cut),), 8))
    )
    assert [(one.hops.start, one.hops.stop) for one in stretches if one.is_folded] == folded
    assert [at for one in stretches for at in one.hops] == list(range(9))


def test_where_a_cycle_closes_is_not_folded() -> None:
    cycle = examples.cycle_finding()
    closing = next(at for at, hop in enumerate(cycle.trace[:-1]) if not hop.reference)
    assert any(closing in stretch.hops and not stretch.is_folded for stretch in folded_trace(cycle))


def test_suspects_lie_between_the_last_expected_and_the_first_leaked_object() -> None:
    hops = (("expected", ".a"), ("expected", ".b"), ("unknown", ".c"), ("leaked", ".d"), ("leaked", ""))
    trace = tuple(Hop("object", "t", "instance", "", status, reference) for status, reference in hops)
    assert suspects(replace(examples.growth_finding(), trace=trace, cut=None)) == {1, 2}
    assert suspects(examples.cycle_finding()) == {0}, "all leaked: the cut"


def test_source_lines_are_found_by_the_end_of_their_path() -> None:
    run = examples.run(sources={"/home/me/train.py": ("first", "  second  "), "my project/it.py": ("one",)})
    assert source_line(run, "train.py:2 main (aten::mul)") == "second"
    assert source_line(run, "my project/it.py:1 main (aten::mul)") == "one"
    assert source_line(run, "train.py:9") == source_line(run, "") == source_line(run, "other.py:1") == ""


def test_characters_that_move_the_cursor_are_escaped() -> None:
    assert cleaned(("a\x1b[31m", {"\u202e": "ok\n\ttab é ✂"})) == ("a\\x1b[31m", {"\\u202e": "ok\n\ttab é ✂"})
    assert cleaned("\udc80\x00\x9b") == "\\udc80\\x00\\x9b"
