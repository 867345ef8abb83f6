"""Runs the user's script as `__main__`, as `python script.py` and `python -m module` do."""

from __future__ import annotations

import builtins
import importlib.util
import io
import marshal
import pkgutil
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
from importlib.util import MAGIC_NUMBER
from types import CodeType, ModuleType, TracebackType
from typing import Any

from leakscope.bootstrap import FILE, RECORDING, leave_to_script
from leakscope.originals import os
from leakscope.process.frames import raised_at
from leakscope.process.user_code import without_source
from leakscope.run.rows import EndKind

Compiled = Callable[[str | bytes, str, str], CodeType]
"""Type of `StepFunction.compiled`."""
_PYC_HEADER = 16
"""Bytes before the code in a bytecode file (PEP 552)."""


@dataclass(frozen=True)
class End:
    """How the script's main code ended."""

    how: EndKind
    """Finished, exited or raised."""
    status: int


def prepare(
    target: str, module: bool, arguments: list[str], compiled: Compiled | None = None
) -> tuple[CodeType, ModuleType]:
    """Set up `__main__`, `sys.argv` and `sys.path` as python does (CPython Modules/main.c, Lib/runpy.py).

    `target` is a source or bytecode file, a folder or zip file with a `__main__`, or the name of a module. `compiled`
    compiles its source, given path and package. Raises what python would: OSError, SyntaxError or ImportError.
    """
    main = ModuleType("__main__")
    ours = sys.modules["__main__"].__dict__
    names = main.__dict__
    names["__builtins__"] = builtins
    if sys.version_info < (3, 14):  # python gives every __main__ one until then
        names["__annotations__"] = {}
    sys.argv[:] = ["-m" if module else target, *arguments]
    # as typed: for `./train.py` python shows `/home/me/./train.py`
    path = target if module or os.path.isabs(target) else f"{os.getcwd()}/{target}"
    importer = None if module else pkgutil.get_importer(path)
    if module or importer is not None:
        leave_to_script(path if importer is not None else _working_directory())
        spec = _module_spec(target) if importer is None else _main_spec(path)
        code = _code(spec, compiled)
        if module:
            sys.argv[0] = spec.origin or ""
        names.update(__file__=spec.origin, __spec__=spec, __loader__=spec.loader, __package__=spec.parent)
        cached = spec.cached
    else:
        leave_to_script(None if sys.flags.safe_path else os.path.dirname(os.path.realpath(target)))
        code, loader = _of_file(path, compiled)
        names.update(__file__=path, __loader__=loader)
        cached = None
    if "__cached__" in ours:
        names["__cached__"] = cached
    sys.modules["__main__"] = main
    return code, main


def hide_from_orig_argv(words: int) -> None:
    """Make `sys.orig_argv` that of python alone; `words` follow the file that starts this process."""
    first = len(sys.orig_argv) - words
    if sys.orig_argv[first - 1 : first] == [FILE]:
        del sys.orig_argv[first - 1 : first + 1]


def _working_directory() -> str | None:
    """The first entry of the path under `python -m`: none if disabled, or if the folder is gone."""
    try:
        return None if sys.flags.safe_path else os.getcwd()
    except OSError:
        return None


def _of_file(path: str, compiled: Compiled | None) -> tuple[CodeType, object]:
    """The code of a source or bytecode file, and the loader that python reports for it."""
    with io.open_code(path) as stream:
        text = stream.read()
    if path.endswith(".pyc") or text.startswith(MAGIC_NUMBER[:2]):
        loader = SourcelessFileLoader("__main__", path)
        if not text.startswith(MAGIC_NUMBER):
            raise RuntimeError("Bad magic number in .pyc file")
        code = marshal.loads(text[_PYC_HEADER:])
        if not isinstance(code, CodeType):
            raise RuntimeError("Bad code object in .pyc file")
        return code, loader
    code = compile(text, path, "exec", dont_inherit=True) if compiled is None else compiled(text, path, "")
    return code, SourceFileLoader("__main__", path)


def _code(spec: ModuleSpec, compiled: Compiled | None) -> CodeType:
    """The code of a module; compiled by leakscope from source if requested and available."""
    loader: Any = spec.loader
    source = None if compiled is None else loader.get_source(spec.name)
    code = loader.get_code(spec.name) if compiled is None or source is None else None
    if code is not None:
        return code  # type: ignore[no-any-return]
    if compiled is None or source is None:
        raise ImportError(f"No code object available for {spec.name}")
    return compiled(source, spec.origin or "", spec.parent or "")


def _main_spec(path: str) -> ModuleSpec:
    ours = sys.modules.pop("__main__")  # that of this process would be found instead
    try:
        spec = importlib.util.find_spec("__main__")
    finally:
        sys.modules["__main__"] = ours
    if spec is None or spec.loader is None:
        raise ImportError(f"can't find '__main__' module in {path!r}")
    return spec


def _module_spec(name: str) -> ModuleSpec:
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    if spec is None or spec.loader is None:
        raise ImportError(f"No module named {name}")
    return spec


def execute(code: CodeType, main: ModuleType) -> tuple[End, BaseException | None]:
    """Run the main code to its end.

    Also returns the exception to raise again so that the process ends as under python. No object of leakscope keeps it
    or the namespace of `main`: a heap snapshot would report it as a referrer.
    """
    try:
        exec(code, main.__dict__)
    except BaseException as error:  # noqa: BLE001 - raised again at the very end
        return end_of(error), error
    return End(EndKind.FINISHED, 0), None


def end_of(error: BaseException) -> End:
    """How a script that raises this ends."""
    if isinstance(error, SystemExit):
        status = _status(error.code)
        return End(EndKind.EXITED if status else EndKind.FINISHED, status)
    return End(EndKind.RAISED, 130 if isinstance(error, KeyboardInterrupt) else 1)


def _status(code: object) -> int:
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def error_details(end: End, error: BaseException | None, source: bool) -> tuple[str, str, tuple[str, ...]]:
    """(last line, place, stack) of the error that the script ended with; the stack has lines of code with `source`."""
    if end.how != EndKind.RAISED or error is None:
        return _last_error_line(end, error), "", ()
    stack = _stack_of(error)
    return _last_error_line(end, error), raised_at(error), stack if source else without_source(stack)


def _last_error_line(end: End, error: BaseException | None) -> str:
    """`ValueError: no such layer`, as the last line of the traceback has it, or the text that sys.exit was given."""
    if end.how == EndKind.EXITED and isinstance(error, SystemExit):
        return error.code if isinstance(error.code, str) else ""
    if end.how != EndKind.RAISED or error is None:
        return ""
    formatted = traceback.TracebackException.from_exception(error, limit=0)
    formatted.__notes__ = None  # they would be last (PEP 678)
    return list(formatted.format_exception_only())[-1].strip()


def _stack_of(error: BaseException | None) -> tuple[str, ...]:
    """The traceback's lines, without leakscope's own frames."""
    if error is None or isinstance(error, SystemExit):
        return ()
    trim(error)
    return tuple("".join(traceback.format_exception(error)).splitlines())


def trim(error: BaseException) -> None:
    """Remove leakscope's frames from the traceback of an error and its causes."""
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
        if filename != FILE and not filename.startswith((*RECORDING, "<frozen runpy>")):
            kept.append(trace)
        trace = trace.tb_next
    for place, above in enumerate(kept):
        above.tb_next = kept[place + 1] if place + 1 < len(kept) else None
    return kept[0] if kept else None  # a cause that was never raised has no traceback


def trimmed_excepthook() -> Callable[..., object]:
    """The script's `sys.excepthook`, given tracebacks without leakscope's frames."""
    shown = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> object:
        with suppress(Exception):  # a whole traceback is better than none
            trim(error)
            trace = error.__traceback__
        return shown(kind, error, trace)

    return hook
