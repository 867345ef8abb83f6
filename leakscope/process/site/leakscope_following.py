"""Follows a process until it trains, and passes the same on to those it starts."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in typing, which takes longer to import than this whole file
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from leakscope.originals import open_file, os
    from leakscope.stand_ins import ImportHook, put_everywhere, stand_in


def _light(name: str) -> Any:
    """Load a module of leakscope from its file: `import` would load the package, or a module that shadows it."""
    from importlib import _bootstrap, _bootstrap_external  # `importlib.util` takes as long as everything else here

    load: Any = vars(_bootstrap)["_load"]
    spec: Any = vars(_bootstrap_external)["spec_from_file_location"]

    package = __file__.rpartition("/process/site/")[0]
    return sys.modules.get(name) or load(spec(name, f"{package}/{name.rpartition('.')[2]}.py"))


if not TYPE_CHECKING:
    _originals, _stand_ins = _light("leakscope.originals"), _light("leakscope.stand_ins")
    open_file, os = _originals.open_file, _originals.os
    put_everywhere, stand_in, ImportHook = _stand_ins.put_everywhere, _stand_ins.stand_in, _stand_ins.ImportHook

VARIABLE = "LEAKSCOPE_FOLLOW"
"""Environment variable of a followed process: the run's folder, and `sys.prefix` of its reader."""
# first in the PYTHONPATH of a followed process
SITE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(SITE))
_BOOTSTRAP = "leakscope.bootstrap"
_path: list[str] = []
"""`sys.path` of this process before Python inserts the script's folder."""
_WITH_VALUE = "cmWX"  # options of python before a value; the script's arguments follow c and m
_NOT_FOLLOWED = "EIS"  # with these it ignores PYTHONPATH, or imports no `sitecustomize`
_HELPERS = ("multiprocessing.resource_tracker", "torch._inductor.compile_worker")
_run = {"folder": ""}  # that of the run; "" if nothing is followed
_put_in: list[tuple[Any, str, Any, Any]] = []
"""(owner, name, previous value, replacement) of each function replaced until the process trains."""


def begin(folder: str) -> None:
    """Follow this process, which has just started, and its children."""
    _path[:] = sys.path
    if os.path.exists(f"{folder}/overlay"):
        _light("leakscope.overlay").install_overlay(folder)
    follow(folder)
    put_everywhere(*((made.__wrapped__, made) for _, _, made in places()))
    wait_for_torch()


def follow(folder: str) -> None:
    """Follow children of this process through the replacements in `places`."""
    if not _run["folder"]:
        os.register_at_fork(after_in_child=_forked)
    _run["folder"] = folder


def places() -> list[tuple[Any, str, Any]]:
    """(owner, name, replacement) of each function that starts processes."""
    import _posixsubprocess
    import posix  # functions that `os` has too

    makers: list[tuple[Any, str, Any]] = [(_posixsubprocess, "fork_exec", _fork_exec)]
    makers += [(posix, name, _posix_spawn) for name in ("posix_spawn", "posix_spawnp")]
    makers += [(posix, "execv", _execv), (posix, "execve", _execve)]
    found = [(owner, name, _made(getattr(owner, name), make)) for owner, name, make in makers if hasattr(owner, name)]
    # no duplicates, as in a run within another
    return [place for place in found if not hasattr(place[2].__wrapped__, "__wrapped__")]


def variables() -> dict[str, str]:
    """The variables that a followed process adds to the environment."""
    return {VARIABLE: _run["folder"] + os.pathsep + sys.prefix, "PYTHONPATH": SITE} if _run["folder"] else {}


def stop() -> None:
    """Stop following."""
    _run["folder"] = ""
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder) is not _Finder]
    _take_out()


def _made(there: Any, make: Callable[[Any], Any]) -> Any:
    return stand_in(there, make(there), binds=type(there) is not type(len))


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    there = getattr(owner, name)
    made = _made(there, make)
    _put_in.append((owner, name, there, made))
    put_everywhere((there, made))
    setattr(owner, name, made)


# the started program


def is_followed(program: Any, words: Sequence[Any]) -> bool:
    """Whether this Python would run and import `sitecustomize`.

    `program` is a path, `words` are the arguments of the process.
    """
    if not _run["folder"]:
        return False
    try:
        python = _words_of_python(os.fsdecode(program), [os.fsdecode(word) for word in words][1:])
    except (OSError, TypeError, ValueError):
        return False
    return python is not None and _reads_path(python)


def _words_of_python(program: str, words: list[str]) -> list[str] | None:
    """The arguments of this Python; None for another program. A script may name it in its first line."""
    if os.sep not in program:
        program = _found(program)
    if _is_this_python(program):
        return words
    with open_file(program, "rb") as stream:
        start = stream.read(256)
    if not start.startswith(b"#!"):
        return None
    interpreter = os.fsdecode(start[2:].split(b"\n")[0]).split()
    if interpreter and os.path.basename(interpreter[0]) == "env" and len(interpreter[1:]) == 1:
        interpreter = [_found(interpreter[1])]
    return [*interpreter[1:], program, *words] if interpreter and _is_this_python(interpreter[0]) else None


def _reads_path(words: list[str]) -> bool:
    """Whether Python, with these arguments, imports what its environment names, and may run a training."""
    if any(helper in word for word in words for helper in _HELPERS):
        return False
    value = False
    for word in words:
        if value:
            value = False
            continue
        if not word.startswith("-") or word in ("-", "--"):
            return True
        if word.startswith("--"):
            continue
        flags = word[1 : 1 + next((at for at, letter in enumerate(word[1:]) if letter in _WITH_VALUE), len(word))]
        if any(letter in _NOT_FOLLOWED for letter in flags):
            return False
        rest = word[1 + len(flags) :]
        if rest[:1] in ("c", "m"):
            return True
        value = len(rest) == 1
    return True


def _found(name: str) -> str:
    for folder in os.get_exec_path():
        if os.access(os.path.join(folder, name), os.X_OK):
            return os.path.join(folder, name)
    return name


def _is_this_python(program: str) -> bool:
    here = sys.executable
    return program == here or (bool(here) and os.path.realpath(program) == os.path.realpath(here))


def _environment(environment: Mapping[Any, Any] | None) -> dict[bytes, bytes]:
    """The environment as a dictionary of bytes, with the variables of a followed process."""
    given = os.environb if environment is None else environment
    all_of_it = {os.fsencode(key): os.fsencode(value) for key, value in given.items()}
    path = all_of_it.get(b"PYTHONPATH")
    all_of_it |= {key.encode(): os.fsencode(value) for key, value in variables().items()}
    if path is not None:
        all_of_it[b"PYTHONPATH"] += os.fsencode(os.pathsep) + path
    return all_of_it


def _first_there(programs: Sequence[bytes]) -> bytes:
    return next((program for program in programs if os.access(program, os.X_OK)), programs[0])


def _fork_exec(called: Callable[..., Any]) -> Callable[..., Any]:
    def fork_exec(  # as it is called
        args: Any, executable_list: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any, *others: Any
    ) -> Any:
        if _run["folder"] and is_followed(_first_there(executable_list), args):
            given = None if env is None else dict(entry.partition(b"=")[::2] for entry in env)
            env = [key + b"=" + value for key, value in _environment(given).items()]
        return called(args, executable_list, close_fds, pass_fds, cwd, env, *others)

    return fork_exec


def _posix_spawn(called: Callable[..., Any]) -> Callable[..., Any]:
    def posix_spawn(path: Any, argv: Any, env: Any, **others: Any) -> Any:
        if _run["folder"] and is_followed(path, argv):
            env = _environment(env)
        return called(path, argv, env, **others)

    return posix_spawn


def _execv(called: Callable[..., Any]) -> Callable[..., Any]:
    execve = os.execve

    def execv(path: Any, argv: Any, /) -> Any:
        if _run["folder"] and is_followed(path, argv):
            return execve(path, argv, _environment(None))
        return called(path, argv)

    return execv


def _execve(called: Callable[..., Any]) -> Callable[..., Any]:
    def execve(path: Any, argv: Any, env: Any) -> Any:
        if _run["folder"] and not isinstance(path, int) and is_followed(path, argv):
            env = _environment(env)
        return called(path, argv, env)

    return execve


# until it trains


def wait_for_torch() -> None:
    """Wait for the script's `import torch`."""
    if "torch" in sys.modules:
        _wait_for_training()
    else:
        _Finder("torch", _wait_for_training, lambda: _run["folder"]).install()


class _Finder(ImportHook):
    """Also forgets the `sitecustomize` of followed processes, once Python has imported it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if getattr(sys.modules.get("sitecustomize"), "__file__", None) == os.path.join(SITE, "sitecustomize.py"):
            del sys.modules["sitecustomize"]
        return super().find_spec(name, path, target)


def _wait_for_training() -> None:
    """Watch for the first optimizer and the first process group."""
    optimizers = sys.modules.get("torch.optim.optimizer")
    if optimizers is None or _put_in or not _run["folder"]:
        return
    _replace(optimizers.Optimizer, "__init__", _trains)
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is not None:
        _replace(distributed, "init_process_group", _trains)


def _take_out() -> None:
    while _put_in:
        owner, name, there, made = _put_in.pop()
        put_everywhere((made, there))
        if vars(owner).get(name) is made:
            setattr(owner, name, there)


def _trains(called: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `called` so that a recorder starts first; afterwards only the recorder's hooks remain."""

    def first(*args: Any, **kwargs: Any) -> Any:
        places = [(owner, name) for owner, name, _, made in _put_in if made is first and vars(owner).get(name) is made]
        if not _put_in:
            return called(*args, **kwargs)
        _take_out()
        if _run["folder"]:
            _attach()
        owner, name = places[0] if places else (None, "")
        return (called if owner is None else vars(owner)[name])(*args, **kwargs)

    return first


def _attach() -> None:
    """Record this process with leakscope's modules from their own folder, whatever the script's path contains."""
    bootstrap = sys.modules.get(_BOOTSTRAP)
    if bootstrap is None:
        from importlib.machinery import SourceFileLoader  # frozen: cannot be shadowed by a file of the script

        loader = SourceFileLoader(_BOOTSTRAP, os.path.join(_PACKAGE, "bootstrap.py"))
        bootstrap = type(sys)(_BOOTSTRAP)
        bootstrap.__file__ = loader.path
        sys.modules[_BOOTSTRAP] = bootstrap
        loader.exec_module(bootstrap)
        bootstrap.remember(_path)
    try:
        with bootstrap.own_imports():
            bootstrap.load_package()
            from leakscope.recorder.children import attach
    except Exception as error:  # noqa: BLE001 - the script goes on without
        sys.stderr.write(f"leakscope: process {os.getpid()} is not recorded: {type(error).__name__}: {error}\n")
        return
    attach(_run["folder"])


def _forked() -> None:
    """Called in a forked child, which may start to train whatever its parent did."""
    _take_out()
    if _run["folder"] and "torch" in sys.modules:
        _wait_for_training()
