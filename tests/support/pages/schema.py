"""The schema of `findings.json` as tables for people: a section for each kind of object, a line for each key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
_ROOT = "the whole file"


def tables(schema: Schema) -> str:
    """Markdown, from the schema on disk."""
    objects = {_ROOT: schema, **schema["$defs"]}
    return "\n".join(line for name, one in objects.items() for line in _section(name, one))


def _section(name: str, schema: Schema) -> Iterator[str]:
    yield from ("", f"## {name}", "")
    if name != _ROOT and "description" in schema:
        yield from (schema["description"], "")
    yield from ("| key | value | |", "|-|-|-|")
    yield from _rows("", schema)


def _rows(above: str, schema: Schema) -> Iterator[str]:
    for key, value in schema["properties"].items():
        name = f"{above}{key}"
        reported, optional = value.get("description", ""), "" if key in schema["required"] else " (may be missing)"
        yield f"| `{name}` | {_kind(value)} | {reported}{optional} |"
        for suffix, inner in _inner(value):
            yield from _rows(f"{name}{suffix}", inner)


def _inner(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Objects that a value is made of and that have no name of their own in the schema."""
    beside = [(".", one) for one in (schema, *schema.get("anyOf", ()))]
    for suffix, one in [*beside, ("[].", schema.get("items")), (".*.", schema.get("additionalProperties"))]:
        if isinstance(one, Mapping) and "properties" in one:
            yield suffix, one


def _kind(schema: Schema) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name})"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return " or ".join(_of_many(kind, schema) for kind in kinds)


def _of_many(kind: str, schema: Schema) -> str:
    each = schema.get("items") or schema.get("additionalProperties")
    if kind not in ("array", "object") or not isinstance(each, Mapping):
        return str(kind)
    return f"{'list' if kind == 'array' else 'by name'}: {_kind(each)}"
