"""The report of a session as a folder: an index, and for each distinct leak its `findings.json` and its page."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from leakscope.originals import Path
from leakscope.pytest_plugin.grouped import grouped, pages_of
from leakscope.pytest_plugin.summary import Session, summary_text

if TYPE_CHECKING:
    from leakscope.pytest_plugin.grouped import Group

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>leakscope: what the tests left behind</title>
<style>
:root {{ color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }}
body {{ max-width: 70rem; margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: left; vertical-align: top; padding: .4rem .6rem; border-bottom: 1px solid #8886 }}
td.number {{ text-align: right; white-space: nowrap }}
code, pre {{ font: 13px/1.45 ui-monospace, monospace }}
pre {{ overflow-x: auto }}
ul {{ margin: .2rem 0 0; padding-left: 1.2rem }}
</style></head><body>
<h1>What the tests left behind</h1>
{table}
<h2>As told in the terminal</h2>
<pre>{text}</pre>
</body></html>
"""
_WIDTH = 110


def write_pages(folder: Path, session: Session) -> Path:
    """Write all of it into a folder, which may be there; gives the index. Raises OSError where it cannot be written."""
    from leakscope.record.descriptors import write_whole_for_all

    folder.mkdir(parents=True, exist_ok=True)
    groups, text = grouped(session.judgements), summary_text(session, _WIDTH)
    pages = pages_of(session.judgements)
    for fingerprint, files in pages.items():
        own = folder / fingerprint
        own.mkdir(exist_ok=True)
        for name, content in files.items():
            write_whole_for_all(own / name, content.encode())
    table = _table(groups, frozenset(pages))
    write_whole_for_all(folder / "index.txt", f"{text}\n".encode())
    write_whole_for_all(folder / "index.html", _PAGE.format(table=table, text=escape(text)).encode())
    return folder / "index.html"


def _table(groups: tuple[Group, ...], with_page: frozenset[str]) -> str:
    if not groups:
        return "<p>No leaks.</p>"
    head = "<tr><th>Leak</th><th>Does</th><th>At most</th><th>In all</th><th>Tests</th></tr>"
    return "\n".join(("<table>", head, *(_row(group, group.fingerprint in with_page) for group in groups), "</table>"))


def _row(group: Group, has_page: bool) -> str:
    from leakscope.report.wording.numbers import plural
    from leakscope.units import bytes_text

    left = group.largest
    title = escape(left.title)
    if has_page:
        title = f'<a href="{escape(left.fingerprint)}/report.html">{title}</a>'
    line = f"<br>line to edit: <code>{escape(left.line)}</code>" if left.line else ""
    tests = "".join(f"<li><code>{escape(test)}</code></li>" for test in group.tests)
    return (
        f"<tr><td>{title} <code>[{escape(left.fingerprint)}]</code><br>cut: {escape(left.cut)}{line}"
        f"<details><summary>{plural(len(group.tests), 'test')}</summary><ul>{tests}</ul></details></td>"
        f"<td>{escape(', '.join(group.states))}</td><td class=number>{bytes_text(left.bytes)}</td>"
        f"<td class=number>{bytes_text(group.bytes)}</td><td class=number>{len(group.tests)}</td></tr>"
    )
