"""Runs the user's script as `__main__`, the way `python script.py` and `python -m module` do."""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import io
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, ModuleType, TracebackType

from leakscope.record.kinds import EndKind

Compiled = Callable[[str | bytes, str, str], CodeType]
"""As `StepFunction.compiled`."""
_CAPTURE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@dataclass(frozen=True)
class End:
    """How the script's main code ended."""

    how: EndKind
    """Finished, exited or raised."""
    status: int


def prepare(
    target: str, module: bool, arguments: list[str], compiled: Compiled | None = None
) -> tuple[CodeType, ModuleType]:
    """Make `__main__`, `sys.argv` and `sys.path[0]` what they are under python.

    `compiled` makes the code of its source, its path and its package, where that is asked for. Raises what python
    would: OSError, SyntaxError or ImportError.
    """
    main = ModuleType("__main__")
    names = main.__dict__
    names["__builtins__"] = builtins
    if module:
        sys.path[0] = os.getcwd()
        sys.argv[:] = ["-m", *arguments]
        spec = _module_spec(target)
        assert spec.loader is not None and spec.origin is not None
        source = None if compiled is None else spec.loader.get_source(spec.name)  # type: ignore[attr-defined]
        if compiled is None or source is None:
            code = spec.loader.get_code(spec.name)  # type: ignore[attr-defined]
        else:
            code = compiled(source, spec.origin, spec.parent or "")
        sys.argv[0] = spec.origin
        names.update(__file__=spec.origin, __spec__=spec, __loader__=spec.loader, __package__=spec.parent)
        names["__cached__"] = spec.cached
    else:
        path = os.path.abspath(target)
        sys.path[0] = os.path.dirname(os.path.realpath(target))
        sys.argv[:] = [target, *arguments]
        with io.open_code(path) as stream:
            text = stream.read()
        code = compile(text, path, "exec", dont_inherit=True) if compiled is None else compiled(text, path, "")
        names.update(__file__=path, __loader__=importlib.machinery.SourceFileLoader("__main__", path))
        names["__cached__"] = None
    sys.modules["__main__"] = main
    return code, main


def _module_spec(name: str) -> importlib.machinery.ModuleSpec:
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    if spec is None or spec.loader is None:
        raise ImportError(f"No module named {name}")
    return spec


def execute(code: CodeType, main: ModuleType) -> tuple[End, BaseException | None]:
    """Run the main code to its end, whatever end that is.

    Beside it stands what has to be raised again for the process to end as it would have under python. No object of
    leakscope's holds it: a look would take that for a holder of all that the error's frames hold.
    """
    try:
        exec(code, main.__dict__)
    except SystemExit as error:
        status = _status(error.code)
        return End(EndKind.EXITED if status else EndKind.FINISHED, status), error
    except KeyboardInterrupt as error:
        return End(EndKind.RAISED, 130), error
    except BaseException as error:  # noqa: BLE001 - raised again at the very end
        return End(EndKind.RAISED, 1), error
    return End(EndKind.FINISHED, 0), None


def _status(code: object) -> int:
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def what_it_said(end: End, error: BaseException | None) -> str:
    """`ValueError: no such layer`, as the last line of the traceback has it, or the text that sys.exit was given."""
    if end.how == EndKind.EXITED and isinstance(error, SystemExit):
        return error.code if isinstance(error.code, str) else ""
    if end.how != EndKind.RAISED or error is None:
        return ""
    told = traceback.TracebackException.from_exception(error, limit=0)
    told.__notes__ = None  # they would come last (PEP 678)
    return list(told.format_exception_only())[-1].strip()


def stack_of(error: BaseException | None) -> tuple[str, ...]:
    """The traceback's lines, without leakscope's own frames."""
    if error is None or isinstance(error, SystemExit):
        return ()
    trim(error)
    return tuple("".join(traceback.format_exception(error)).splitlines())


def trim(error: BaseException) -> None:
    """Take leakscope's frames out of the traceback of an error and of those it came from."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        raised = waiting.pop()
        if raised is None or id(raised) in seen:
            continue
        seen.add(id(raised))
        raised.__traceback__ = _without_ours(raised.__traceback__)
        waiting += [raised.__cause__, raised.__context__]


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    kept = []
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if not filename.startswith(_CAPTURE) and not filename.startswith("<frozen runpy>"):
            kept.append(trace)
        trace = trace.tb_next
    for place, above in enumerate(kept):
        above.tb_next = kept[place + 1] if place + 1 < len(kept) else None
    return kept[0] if kept else None  # a cause that was never raised has no traceback


def trimmed_excepthook() -> Callable[..., object]:
    """The script's `sys.excepthook`, shown tracebacks without leakscope's frames."""
    shown = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> object:
        del trace
        trim(error)
        return shown(kind, error, error.__traceback__)

    return hook
