"""Every `findings.json` validates against the shipped JSON Schema, which rejects unknown keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support import SAMPLES, examples

from leakscope.errors import LeakscopeError
from leakscope.findings import judge
from leakscope.findings.facts import FreedBy, HopStatus, Origin, Severity
from leakscope.findings.model import LineKind, RankSummary
from leakscope.graph.model import ObjectKind
from leakscope.report import FORMATS
from leakscope.report.formats.as_json import FORMAT
from leakscope.run.reader import read_run
from leakscope.run.rows import EndKind
from leakscope.verdict import Verdict

SCHEMA: dict[str, Any] = json.loads(files("leakscope.report.formats").joinpath("findings.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def objects(schema: object) -> Iterator[dict[str, Any]]:
    """Every object that the schema describes by its keys."""
    if isinstance(schema, dict):
        if "properties" in schema:
            yield schema
        for inner in schema.values():
            yield from objects(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from objects(inner)


def problems(text: str) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(json.loads(text))]


def test_the_schema_is_one_and_lets_no_key_pass_that_it_does_not_name() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    described = list(objects(SCHEMA))
    assert len(described) > 10
    for one in described:
        assert one["additionalProperties"] is False and one["required"] == list(one["properties"])
    assert SCHEMA["properties"]["format"] == {**SCHEMA["properties"]["format"], "const": FORMAT}


def test_the_words_of_the_schema_are_those_of_the_code() -> None:
    defs = SCHEMA["$defs"]
    finding, hop = defs["finding"]["properties"], defs["hop"]["properties"]
    for words, reported in (
        (SCHEMA["properties"]["verdict"], Verdict),
        (finding["origin"], Origin),
        (finding["severity"], Severity),
        (finding["freed_by"], FreedBy),
        (hop["kind"], ObjectKind),
        (hop["status"], HopStatus),
    ):
        assert words["enum"] == [str(word) for word in reported]
    assert defs["interval"]["properties"]["lines"]["required"] == [str(kind) for kind in LineKind]
    ended = defs["run"]["properties"]["ended"]["additionalProperties"]["properties"]["kind"]["enum"]
    assert {*ended} == {str(kind) for kind in EndKind}


@pytest.mark.parametrize("run", sorted(path.name for path in (SAMPLES / "p2p_pipeline").iterdir() if path.is_dir()))
def test_every_sample_run_fits(run: str) -> None:
    folder = SAMPLES / "p2p_pipeline" / run
    if not (folder / "run.json").exists():
        pytest.skip("no run")
    recorded = read_run(folder)
    assert problems(FORMATS["json"](recorded, judge(recorded))) == []


def test_a_key_more_or_less_does_not_fit() -> None:
    data = json.loads(FORMATS["json"](*examples.leaking()))
    assert problems(json.dumps({**data, "more": 1})) and problems(json.dumps({**data, "format": 1}))
    del data["findings"][0]["cut"]["references"][0]["trace_index"]
    assert problems(json.dumps(data))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_baselines_of_all_formats_are_read(number: int, tmp_path: Path) -> None:
    from leakscope_cli.recorded import baseline_of

    file = tmp_path / "findings.json"
    file.write_text(json.dumps({"format": number, "findings": [{"fingerprint": "b41c07e2"}]}))
    assert [known.pattern for known in baseline_of(file)] == ["b41c07e2"]
    file.write_text(json.dumps({"format": FORMAT + 1, "findings": []}))
    with pytest.raises(LeakscopeError, match="newer leakscope"):
        baseline_of(file)


def test_what_is_unknown_is_null() -> None:
    run, findings = examples.leaking()
    data = json.loads(FORMATS["json"](run, replace(findings, ranks={0: RankSummary()})))
    assert {finding["fix"] for finding in data["findings"]} == {None} == {data["fix"]}
    assert {key for key, value in data["ranks"]["0"].items() if value is not None} == {"storage_bytes"}
