"""Imported by Python before the script: begins to follow a process that a followed script started."""

import os
import sys

_HERE = os.path.dirname(__file__)
_OURS = sys.modules[__name__]


def _take_out() -> str:
    """Restore environment and path; return the variable's value."""
    value = os.environ.pop("LEAKSCOPE_FOLLOW", "")
    first, colon, rest = os.environ.get("PYTHONPATH", "").partition(os.pathsep)
    if first == _HERE:
        if colon:
            os.environ["PYTHONPATH"] = rest
        else:
            del os.environ["PYTHONPATH"]
    if _HERE in sys.path:
        sys.path.remove(_HERE)
    return value


def _begin(value: str) -> None:
    folder, _, prefix = value.partition(os.pathsep)
    if not folder or prefix != sys.prefix:  # another environment, which may not have leakscope
        return
    sys.path.insert(0, _HERE)
    try:
        import leakscope_following  # type: ignore[import-not-found,unused-ignore]
    finally:
        sys.path.remove(_HERE)
    leakscope_following.begin(folder)


def _let_the_hidden_one_run() -> None:
    del sys.modules[__name__]
    try:
        import sitecustomize  # type: ignore[import-not-found,unused-ignore] # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules[__name__] = _OURS  # importlib reads it; removed with the next import


_begin(_take_out())
sys.path_importer_cache.pop(_HERE, None)
_let_the_hidden_one_run()
