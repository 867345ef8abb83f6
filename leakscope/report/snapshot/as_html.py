"""What a memory snapshot says, as one page that opens offline."""

from __future__ import annotations

from leakscope.allocator.figures import DeviceReport, SnapshotReport
from leakscope.allocator.judging import SnapshotsReport
from leakscope.report.cleaning import cleaned
from leakscope.report.snapshot.as_text import signed
from leakscope.report.snapshot.plot import Curve, memory_curves
from leakscope.report.snapshot.wording import concern_text, facts, failure_texts, host_text, title, verdict_line
from leakscope.units import bytes_text

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{{ verdict }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #111827; margin: 2rem auto; max-width: 62rem; padding: 0 1rem }
h1 { font-size: 1.3rem; border-left: .4rem solid #6b7280; padding-left: .7rem; overflow-wrap: anywhere }
h1.leaks { border-color: #b91c1c } h1.clean { border-color: #15803d } h1.inconclusive { border-color: #a16207 }
h2 { font-size: 1.1rem; margin-top: 2.2rem; overflow-wrap: anywhere } h3 { font-size: 1rem; margin: 1.2rem 0 .3rem }
table { border-collapse: collapse; width: 100% } td, th { padding: .2rem .6rem .2rem 0; text-align: left; vertical-align: top }
tr { border-bottom: 1px solid #e5e7eb } .n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
.where { font-family: ui-monospace, monospace; font-size: .87rem; overflow-wrap: anywhere } .note { color: #4b5563 } svg { width: 100% }
</style></head><body>
<h1 class="{{ word }}">{{ verdict }}</h1>
{% if concerns|length > 1 %}<ul>{% for text in concerns %}<li>{{ text }}</li>{% endfor %}</ul>{% endif %}
{% macro places(entries) %}<table>{% for entry in entries[:rows] %}
<tr><td class="n">{{ entry.bytes|size }}</td><td class="n">{{ entry.count }}&times;</td>
<td class="where" title="{{ entry.site.filename }}">{{ entry.site.where }}</td></tr>{% endfor %}</table>
{% if entries|length > rows %}<p class="note">and {{ entries|length - rows }} more places</p>{% endif %}{% endmacro %}
{% if together %}{{ together }}{% endif %}
{% if comparison %}<h2>{{ comparison.new.name }} against {{ comparison.base.name }}</h2>
<p>end {{ comparison.end_bytes|signed }}, peak {{ comparison.peak_bytes|signed }}, reserved {{ comparison.reserved_bytes|signed }}</p>
<table><tr><th class="n">end</th><th class="n">peak</th><th>place</th></tr>{% for site in comparison.sites[:40] %}
<tr><td class="n">{{ (site.new_end_bytes - site.base_end_bytes)|signed }}</td>
<td class="n">{{ (site.new_peak_bytes - site.base_peak_bytes)|signed }}</td><td class="where">{{ site.where }}</td></tr>{% endfor %}</table>{% endif %}
{% if snapshots|length > 1 and not comparison %}<table><tr><th>rank</th><th class="n">end</th><th class="n">peak</th>
<th class="n">reserved</th><th class="n">pending</th></tr>{% for snapshot in snapshots %}{% for device in snapshot.devices %}
<tr><td>{{ snapshot|title }}{% if snapshot.devices|length > 1 %}, device {{ device.device }}{% endif %}</td>
<td class="n">{{ device.requested_bytes|size }}</td><td class="n">{{ device.peak_bytes|size }}</td>
<td class="n">{{ device.reserved_bytes|size }}</td><td class="n">{{ device.pending.bytes|size }}</td></tr>{% endfor %}{% endfor %}</table>{% endif %}
{% for snapshot in snapshots %}<h2>{{ snapshot|title }}</h2>
{% for device in snapshot.devices %}{% if snapshot.devices|length > 1 %}<h3>Device {{ device.device }}</h3>{% endif %}
{% if snapshots|length <= drawn %}{{ device|plot(snapshot) or "" }}{% endif %}
<table>{% for label, text in device|facts %}<tr><th>{{ label }}</th><td>{{ text }}</td></tr>{% endfor %}</table>
{% for note in device.notes %}<p class="note">{{ note }}</p>{% endfor %}
{% for text in device|failures %}<p>Out of memory at {{ text }}</p>{% endfor %}
{% for failure in device.out_of_memory[:1] %}<h3>Alive when memory ran out</h3>{{ places(failure.alive_sites) }}{% endfor %}
{% if device.growth.growing %}<h3>Allocated each step and never freed</h3><table>
<tr><th class="n">a step</th><th class="n">kept</th><th class="n">steps</th><th>first user frame</th></tr>
{% for grown in device.growth.growing[:rows] %}<tr><td class="n">{{ grown.bytes_per_step|size }}</td>
<td class="n">{{ grown.kept_bytes|size }}</td><td class="n">{{ grown.steps }}</td>
<td class="where" title="{{ grown.site.filename }}">{{ grown.site.where }}</td></tr>{% endfor %}</table>{% endif %}
<h3>Alive at the end, by first user frame</h3>{{ places(device.end_sites) }}
{% if device.peak_event >= 0 %}<h3>Alive at the peak, by first user frame</h3>{{ places(device.peak_sites) }}{% endif %}
{% if device.pending.sites %}<h3>Waiting for another stream</h3>{{ places(device.pending.sites) }}{% endif %}
{% endfor %}{% if snapshot.host %}<p>{{ snapshot.host|host }}</p>{% endif %}
{% endfor %}</body></html>
"""


def snapshot_html(report: SnapshotsReport) -> str:
    """The report as one HTML page without a script or an outside address; all that comes from the files is escaped."""
    from jinja2 import Environment

    report = cleaned(report)
    environment = Environment(autoescape=True, trim_blocks=True)
    environment.filters.update(
        size=bytes_text, signed=signed, title=title, facts=facts, failures=failure_texts, host=host_text, plot=_plot
    )  # fmt: skip
    several = len(report.snapshots) > 1
    page = environment.from_string(_PAGE).render(
        verdict=verdict_line(report),
        word=report.judgement.verdict,
        concerns=[concern_text(concern, several) for concern in report.judgement.concerns],
        snapshots=report.snapshots,
        comparison=report.comparison,
        together=memory_curves(_curves(report.snapshots)) if several else None,
        rows=20,
        drawn=8,
    )
    return page + "\n"


def _curves(snapshots: tuple[SnapshotReport, ...]) -> list[Curve]:
    """One curve for each device of each snapshot."""
    return [
        Curve(title(snapshot) + (f", device {device.device}" if len(snapshot.devices) > 1 else ""), device.timeline)
        for snapshot in snapshots
        for device in snapshot.devices
    ]


def _plot(device: DeviceReport, snapshot: SnapshotReport) -> object:
    failures = [
        failure.at if device.timeline.clock and failure.at is not None else float(failure.event)
        for failure in device.out_of_memory
    ]
    return memory_curves([Curve(title(snapshot), device.timeline)], failures)
