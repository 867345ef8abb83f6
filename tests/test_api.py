"""The public interface is what `api.txt` lists; `python tests/test_api.py` updates it."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click

FILE = Path(__file__).resolve().parents[1] / "api.txt"
MODULES = ("leakscope", "leakscope.backward", "leakscope.testing")


def api() -> str:
    """One line for each public name, with its signature, and one for each option of the command line."""
    return "\n".join([*(line for module in MODULES for line in _of_module(module)), *_of_commands(), ""])


def _of_module(name: str) -> Iterator[str]:
    module = import_module(name)
    for public in sorted(module.__all__):
        value = getattr(module, public)
        if inspect.isclass(value):
            yield from _of_class(f"{name}.{public}", value)
        elif callable(value):
            yield f"{name}.{public}{_signature(value)}"
        else:
            yield f"{name}.{public}: {type(value).__name__}"


def _of_class(name: str, kind: type) -> Iterator[str]:
    bases = [base.__name__ for base in kind.__bases__ if base is not object]
    yield f"{name}({', '.join(bases)})" if bases else name
    if not issubclass(kind, BaseException) or "__init__" in vars(kind):
        yield f"{name}.__init__{_signature(kind)}"
    fields = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    for member in sorted({m for base in kind.__mro__ if base.__module__.startswith("leakscope") for m in vars(base)}):
        if member.startswith("_"):
            continue
        value = inspect.getattr_static(kind, member, None)
        if (callable(value) and not inspect.isclass(value)) or isinstance(value, (classmethod, staticmethod)):
            yield f"{name}.{member}{_signature(getattr(kind, member))}"
        elif member not in fields:
            yield f"{name}.{member}"


def _signature(value: object) -> str:
    try:
        shown = str(inspect.signature(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(...)"
    return re.sub(r"<[^>]*?( at 0x[0-9a-f]+)?>", "...", shown)


def _of_commands() -> Iterator[str]:
    from leakscope_cli import main

    context = click.Context(main)
    for name in sorted(main.list_commands(context)):
        command = main.get_command(context, name)
        assert command is not None
        for parameter in sorted(command.params, key=lambda p: (p.param_type_name, p.opts)):
            words = " ".join([*parameter.opts, *parameter.secondary_opts])
            yield f"$ leakscope {name} {words}" + (" MULTIPLE" if parameter.multiple or parameter.nargs == -1 else "")


def test_the_public_interface_is_what_api_txt_lists() -> None:
    listed = FILE.read_text(encoding="utf-8")
    assert listed.splitlines() == api().splitlines(), "run: python tests/test_api.py"


if __name__ == "__main__":
    FILE.write_text(api(), encoding="utf-8")
