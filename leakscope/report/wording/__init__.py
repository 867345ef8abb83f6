"""The one place that makes sentences: all formats say the same thing in the same words."""

from __future__ import annotations

from leakscope.report.wording.clock import clock_text, processes_text
from leakscope.report.wording.comm import comm_notes
from leakscope.report.wording.ended import (
    ended_badly,
    ended_text,
    error_text,
    failure_text,
    hung_text,
    is_hung,
    status_text,
    was_text,
)
from leakscope.report.wording.held import (
    also_text,
    cut_frees_text,
    cut_name,
    cycle_text,
    figures,
    freed_text,
    held_text,
    holds_nothing,
    line_to_edit,
    new_reasons,
    no_cut_text,
    proved_text,
    reason_text,
    seen_text,
    status_word,
    when_text,
    would_be_freed,
)
from leakscope.report.wording.memory import at_end_text
from leakscope.report.wording.numbers import bytes_span, count_span, listed_numbers, plural, ranks_text
from leakscope.report.wording.sections import (
    avoidable,
    is_fault,
    is_worth_telling,
    leaks,
    library,
    notes,
    of_block,
    steps_of,
)
from leakscope.report.wording.sentences import advice, avoidable_text, run_text, title
from leakscope.report.wording.verdict.known import suppressed_by_text, suppression_notes
from leakscope.report.wording.verdict.ledger import ledger_by_interval, ledger_table, lines_text, rose_text
from leakscope.report.wording.verdict.next_step import first_cut, next_text
from leakscope.report.wording.verdict.why import unjudged_text, why_text

__all__ = [
    "advice",
    "also_text",
    "at_end_text",
    "avoidable",
    "avoidable_text",
    "bytes_span",
    "clock_text",
    "comm_notes",
    "count_span",
    "cut_frees_text",
    "cut_name",
    "cycle_text",
    "ended_badly",
    "ended_text",
    "error_text",
    "failure_text",
    "figures",
    "first_cut",
    "freed_text",
    "held_text",
    "holds_nothing",
    "hung_text",
    "is_fault",
    "is_hung",
    "is_worth_telling",
    "leaks",
    "ledger_by_interval",
    "ledger_table",
    "library",
    "line_to_edit",
    "lines_text",
    "listed_numbers",
    "new_reasons",
    "next_text",
    "no_cut_text",
    "notes",
    "of_block",
    "plural",
    "processes_text",
    "proved_text",
    "ranks_text",
    "reason_text",
    "rose_text",
    "run_text",
    "seen_text",
    "status_text",
    "status_word",
    "steps_of",
    "suppressed_by_text",
    "suppression_notes",
    "title",
    "unjudged_text",
    "was_text",
    "when_text",
    "why_text",
    "would_be_freed",
]
