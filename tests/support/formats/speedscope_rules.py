"""What speedscope's importer refuses (its src/lib/file-format-spec.ts), of what leakscope writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema


def _object(needed: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": needed.split(), "properties": properties}


_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
FILE = _object(
    "$schema shared profiles",
    **{"$schema": {"const": "https://www.speedscope.app/file-format-schema.json"}},
    name=_TEXT,
    exporter=_TEXT,
    activeProfileIndex=_COUNT,
    shared=_object(
        "frames",
        frames={"type": "array", "items": _object("name", name=_TEXT, file=_TEXT, line=_COUNT, col=_COUNT)},
    ),
    profiles={
        "type": "array",
        "minItems": 1,
        "items": _object(
            "type name unit startValue endValue samples weights",
            type={"const": "sampled"},
            name=_TEXT,
            unit={"enum": ["none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes"]},
            startValue=_COUNT,
            endValue=_COUNT,
            samples={"type": "array", "items": {"type": "array", "items": _COUNT}},
            weights={"type": "array", "items": _COUNT},
        ),
    },
)


def problems(file: Mapping[str, Any]) -> Iterator[str]:
    """What it would refuse or show wrongly."""
    for error in jsonschema.Draft202012Validator(FILE).iter_errors(file):
        yield f"{error.json_path}: {error.message}"
    frames = len(file["shared"]["frames"])
    for profile in file["profiles"]:
        if len(profile["samples"]) != len(profile["weights"]):
            yield f"{profile['name']} has another number of weights than of samples"
        if any(frame >= frames for stack in profile["samples"] for frame in stack):
            yield f"{profile['name']} names a frame that there is not"
        if profile["endValue"] - profile["startValue"] != sum(profile["weights"]):
            yield f"{profile['name']} is as wide as its samples are not"
