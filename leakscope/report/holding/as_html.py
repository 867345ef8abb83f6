"""Holders of tensor memory as a table in a notebook: a piece of a page, in the notebook's own colours."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from leakscope.findings.live_objects import Alive, HeldNow, Typed, Ways
from leakscope.report.escape import one_line
from leakscope.report.holding import wording
from leakscope.units import bytes_text, plural

_CELL = "padding: 3px 10px; vertical-align: top; text-align: "
_NUMBER = Markup('style="' + _CELL + 'right; white-space: nowrap"')
_TEXT = Markup('style="' + _CELL + 'left"')
_ROW = Markup("<tr><td {0}>{1}</td><td {0}>{2}</td><td {3}>{4}</td><td {3}>{5}</td></tr>")
_COMMAND = Markup('<pre style="margin: 2px 0 6px 10px; font-family: monospace">{}{}</pre>')
_CODE = Markup("<code>{}</code>")
_QUIET = Markup('<div style="opacity: 0.75">{}</div>')


def alive_as_html(alive: Alive) -> str:
    """The table, and what to type."""
    parts = [Markup("<p><b>{}</b></p>").format(wording.headline(alive))]
    if alive.lines:
        if alive.hides:
            parts.append(Markup("<p>{}</p>").format(wording.HIDES))
        rows = [_line(alive, held) for held in alive.lines]
        if alive.smaller:
            smaller = plural(alive.smaller, "smaller holder")
            rows.append(_ROW.format(_NUMBER, bytes_text(alive.smaller_bytes), "-", _TEXT, smaller, ""))
        head = Markup("<tr><th {0}>held</th><th {0}>would be freed</th><th {1}>holder</th><th {1}>line</th></tr>")
        parts.append(
            Markup('<table style="border-collapse: collapse"><thead>{}</thead><tbody>{}</tbody></table>').format(
                head.format(_NUMBER, _TEXT), Markup("").join(rows)
            )
        )
    if alive.typed:
        parts.append(Markup("<p>{}</p>{}").format(wording.TYPE, _typed(alive.typed)))
    return str(Markup('<div class="leakscope">{}</div>').format(Markup("").join(parts)))


def _typed(steps: Sequence[Typed]) -> Markup:
    return Markup("").join(
        _COMMAND.format(text, Markup('    <span style="opacity: 0.75"># {}</span>').format(frees) if frees else "")
        for text, frees in wording.to_type(steps)
    )


def _line(alive: Alive, held: HeldNow) -> Markup:
    more = one_line(wording.together(held))
    name = _CODE.format(one_line(wording.holder(alive, held))) + (_QUIET.format(more) if more else "")
    return _ROW.format(_NUMBER, bytes_text(held.bytes), wording.freed(held), _TEXT, name, held.where)


def ways_as_html(ways: Ways, svg: str) -> str:
    """The ways in words, and the picture of them where there is one."""
    items = Markup("").join(
        Markup("<li>{}{}</li>").format(
            _CODE.format(one_line(way.written)),
            Markup(" ({})").format(way.where) if way.where else "",
        )
        for way in ways.ways
    )
    parts = [Markup("<p><b>{}</b></p><ol>{}</ol>").format(wording.ways_headline(ways), items)]
    if ways.more:
        parts.append(Markup("<p>and {}{} more</p>").format("" if ways.all_counted else "more than ", ways.more))
    parts += [
        Markup("<p>{}</p>").format(text) for text in (wording.kept_besides(ways), wording.ways_freed(ways)) if text
    ]
    parts.append(_typed(ways.typed))
    picture = Markup('<div style="overflow-x: auto">{}</div>').format(Markup(svg)) if svg else ""
    return str(Markup('<div class="leakscope">{}{}</div>').format(Markup("").join(parts), picture))
