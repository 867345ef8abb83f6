"""Ways to one tensor as a picture, in graphviz's own language."""

from __future__ import annotations

from leakscope.findings.live_objects import Ways
from leakscope.report.escape import one_line

_MOST = 60
"""Characters of a label; longer ones make boxes that nobody can look at."""


def ways_as_dot(ways: Ways) -> str:
    """Boxes for objects, arrows for references; the memory is the last box, roots are filled."""
    import graphviz

    graph = graphviz.Digraph("ways", node_attr={"shape": "box", "style": "rounded", "fontname": "monospace"})
    graph.attr("edge", fontname="monospace", fontsize="11")
    graph.attr("node", fontsize="11")
    ends = {way.links[-1].held for way in ways.ways if way.links}
    begins = {way.links[0].holder for way in ways.ways if way.links}
    for index, place in enumerate(ways.objects):
        label = f"{place.label[:_MOST]}\n{place.where}" if place.where else place.label[:_MOST]
        filled = {"style": "rounded,filled"} if index in ends | begins else {}
        colour = {"fillcolor": "#fde2dd" if index in ends else "#e3edf7"} if filled else {}
        graph.node(f"o{index}", graphviz.escape(label), **filled, **colour)
    links = dict.fromkeys((link.holder, link.held, link.name) for way in ways.ways for link in way.links)
    for holder, held, name in links:
        graph.edge(f"o{holder}", f"o{held}", graphviz.escape(one_line(name)))
    return str(graph.source)
