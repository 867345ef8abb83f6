"""What the Jenkins schema of JUnit files (junit-10.xsd of its xunit plugin) refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from xml.etree import ElementTree

_OUTCOME = ({"type", "message"}, set(), set())
_ELEMENTS: Mapping[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": ({"name", "time", "tests", "failures", "errors"}, set(), {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors", "group", "time", "skipped", "timestamp", "hostname", "id", "package"}
        | {"file", "log", "url", "version"},
        {"name", "tests", "failures", "errors"},
        {"testsuite", "properties", "testcase", "system-out", "system-err"},
    ),
    "testcase": (
        {"name", "time", "classname", "group"},
        {"name"},
        {"skipped", "error", "failure", "system-out", "system-err"},
    ),
    "failure": _OUTCOME,
    "error": _OUTCOME,
    "skipped": _OUTCOME,
    "system-out": (set(), set(), set()),
    "system-err": (set(), set(), set()),
}
"""Element to its attributes, those that it must have, and the elements in it."""
_TEXT = {"failure", "error", "skipped", "system-out", "system-err"}
_TIME = re.compile(r"(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]{0,3})?")


def problems(text: str) -> Iterator[str]:
    """What Jenkins would refuse; raises ParseError for what is no XML."""
    root = ElementTree.fromstring(text)
    if root.tag not in ("testsuites", "testsuite"):
        yield f"{root.tag} is no root"
    for element in root.iter():
        allowed, needed, inner = _ELEMENTS.get(element.tag, (set(), set(), set()))
        if element.tag not in _ELEMENTS:
            yield f"there is no element {element.tag}"
        if element.attrib.keys() - allowed or needed - element.attrib.keys():
            yield f"{element.tag} has the attributes {sorted(element.attrib)}"
        if {child.tag for child in element} - inner:
            yield f"{element.tag} holds {sorted({child.tag for child in element})}"
        if element.tag not in _TEXT and (element.text or "").strip():
            yield f"{element.tag} holds text"
        if element.tag != "testcase" and not _TIME.fullmatch(element.get("time", "")):
            yield f"{element.tag} has the time {element.get('time')}"
