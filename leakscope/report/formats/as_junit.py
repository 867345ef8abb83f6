"""The story for continuous integration: JUnit XML, one case for the verdict, each finding and each rank."""

from __future__ import annotations

from xml.etree import ElementTree

from leakscope.findings.model import Finding, Findings
from leakscope.report.finding_text import advice, held_text, seen_text, title
from leakscope.report.rank_text import ended_badly, ended_text, error_text
from leakscope.report.rendering import cleaned
from leakscope.report.text.finding import details
from leakscope.report.verdict_text import suppressed_by_text, unjudged_together, why_text
from leakscope.run.model import Rank, Run
from leakscope.units import ranks_text
from leakscope.verdict import Verdict


def render(run: Run, findings: Findings) -> str:
    """One `testsuite` with a failure exactly if the findings have failed: each leak, or else the verdict.

    Ranks that ended badly are errors; suppressed and unjudged findings are skipped.
    """
    run, findings = cleaned(run), cleaned(findings)
    suite = ElementTree.Element("testsuite", name="leakscope")
    _verdict(suite, findings)
    for finding in findings.findings:
        case = _case(suite, finding.rule, f"{title(finding)} [{finding.fingerprint}]")
        if finding.is_leak:
            _add(case, "failure", _summary(finding), finding.rule, _details(run, finding))
        else:
            ElementTree.SubElement(case, "system-out").text = f"{_summary(finding)}\n{_details(run, finding)}"
    for finding in findings.suppressed:
        case = _case(suite, finding.rule, f"{title(finding)} [{finding.fingerprint}]")
        ElementTree.SubElement(
            case, "skipped", message=f"{suppressed_by_text(finding) or 'suppressed'}; {_summary(finding)}"
        )
    for rule, ranks, why in unjudged_together(findings.unjudged):
        case = _case(suite, rule, f"{rule} on {ranks_text(ranks)}")
        ElementTree.SubElement(case, "skipped", message=why)
    for rank in run.ranks:
        _rank(suite, rank)
    return _counted(suite)


def _verdict(suite: ElementTree.Element, findings: Findings) -> None:
    case = _case(suite, "verdict", "verdict")
    if findings.failed and not findings.leaks:  # each leak is a failure of its own
        _add(case, "failure", f"{findings.verdict}: {why_text(findings)}", str(findings.verdict), why_text(findings))
    elif findings.verdict == Verdict.INCONCLUSIVE:
        ElementTree.SubElement(case, "skipped", message=f"inconclusive: {why_text(findings)}")
    else:
        ElementTree.SubElement(case, "system-out").text = f"{findings.verdict}: {why_text(findings)}"


def _rank(suite: ElementTree.Element, rank: Rank) -> None:
    case = _case(suite, "rank", f"rank {rank.number} ended well")
    if ended_badly(rank):
        ended = ended_text(rank)
        details = "\n".join((*rank.ended.stack, error_text(rank), rank.ended.log)).strip()
        _add(case, "error", ended, ended.split()[0], details)


def _case(suite: ElementTree.Element, group: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=f"leakscope.{group}", name=name, time="0")


def _add(case: ElementTree.Element, tag: str, message: str, kind: str, details: str) -> None:
    ElementTree.SubElement(case, tag, message=message, type=kind).text = details


def _summary(finding: Finding) -> str:
    return f"{held_text(finding)}; {seen_text(finding)}"


def _details(run: Run, finding: Finding) -> str:
    return "\n".join(line for line in (*details(run, finding), advice(finding)) if line)


def _counted(suite: ElementTree.Element) -> str:
    counts = {
        "tests": len(suite),
        "failures": sum(case.find("failure") is not None for case in suite),
        "errors": sum(case.find("error") is not None for case in suite),
        "skipped": sum(case.find("skipped") is not None for case in suite),
    }
    for name, count in counts.items():
        suite.set(name, str(count))
    of_all = {name: str(count) for name, count in counts.items() if name != "skipped"}  # no attribute of testsuites
    suites = ElementTree.Element("testsuites", of_all)
    suites.append(suite)
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"
