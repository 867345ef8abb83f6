"""Reading what frames and instances hold: nothing is made, cleared or missed, by C and by ctypes alike.

What is read is compared with a reader of raw memory of the test's own.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leakscope.heap.referents import FRAMES_CAN_BE_READ, frame_contents
from leakscope.native import gc_heap
from leakscope.process import raw_types
from leakscope.process.raw_types import LAYOUT_IS_KNOWN, instance_dict

pytestmark = pytest.mark.skipif(not LAYOUT_IS_KNOWN, reason="not a build of CPython 3.11 to 3.13 with the GIL")


@pytest.fixture(params=["C", "ctypes"], autouse=True)
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test with the part in C and without it."""
    monkeypatch.delenv("LEAKSCOPE_PURE", raising=False)
    if request.param == "ctypes":
        monkeypatch.setenv("LEAKSCOPE_PURE", "1")
    elif gc_heap() is None:
        pytest.skip("the part in C is not built")


class Thing:
    """Something that can be held, and told apart."""


def _values(obj: Any) -> dict[str, Any]:
    """Bound variables by name, the content of a cell in place of a cell."""
    found = {}
    for name, value in frame_contents(obj).variables:
        if type(value) is not types.CellType:
            found[name] = value
        elif value != types.CellType():
            found[name] = value.cell_contents
    return found


def test_all_sorts_of_variables_are_read() -> None:
    free = Thing()

    def called(first: Any, *rest: Any, key: Any, **more: Any) -> dict[str, Any]:
        local, closed, gone = Thing(), Thing(), Thing()
        del gone
        inner = lambda: closed  # noqa: E731
        shown = _values(sys._getframe())
        expected = dict(first=first, rest=rest, key=key, more=more, local=local, closed=closed, free=free, inner=inner)
        assert shown.keys() == expected.keys()
        assert all(shown[name] is expected[name] for name in expected)
        never = 1
        return {"never": never}

    called(Thing(), Thing(), key=Thing(), other=Thing())


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="PEP 667: f_locals keeps nothing")
def test_a_dict_of_f_locals_is_what_the_frame_holds_and_is_not_refreshed() -> None:
    rebound: Any = Thing()
    names = locals()
    old, rebound = rebound, None
    contents = frame_contents(sys._getframe())
    assert contents.namespace is names
    assert names["rebound"] is old and dict(contents.variables)["rebound"] is None


def test_generators_are_read_without_a_frame_object() -> None:
    def made(first: Any) -> Iterator[Any]:
        later = Thing()
        yield later
        yield first

    def frame_object(generator: Any) -> int:
        inner = id(generator) + type(generator).__basicsize__ - 72
        return ctypes.c_size_t.from_address(inner + 8 * (5 if sys.version_info < (3, 12) else 6)).value

    first = Thing()
    generator = made(first)
    assert _values(generator) == {"first": first}
    later = next(generator)
    assert _values(generator) == {"first": first, "later": later}
    assert frame_object(generator) == 0 and frame_contents(generator).frame is None
    frame = generator.gi_frame  # type: ignore[attr-defined]
    assert frame_object(generator) == id(frame) and frame_contents(generator).frame is frame
    assert _values(frame) == _values(generator)
    assert [*generator] == [first]
    assert frame_contents(generator).variables == []


class Plain:
    pass


class Slotted:
    __slots__ = ("__dict__", "first")


@pytest.mark.parametrize(
    "make",
    [
        Plain, Slotted, Exception, lambda: (lambda: 0), type("Items", (list,), {}),
        *(lambda kind=kind, value=value: type("Of", (kind,), {})(value)
          for kind, value in ((int, 0), (int, -(10**40)), (tuple, ()), (tuple, (1, 2)), (bytes, b"abc"), (str, "abc"))),
    ],
)  # fmt: skip
def test_the_dict_of_an_instance_is_read_and_not_made(make: Callable[[], Any]) -> None:
    obj, value = make(), Thing()
    before = _dicts_of(obj)
    assert not instance_dict(obj, type(obj))
    assert _dicts_of(obj) == before
    obj.first, obj.other = value, [value]
    own = _dicts_of(obj) - before
    read = instance_dict(obj, type(obj))
    assert read is not None and read["other"] is obj.other
    assert _dicts_of(obj) - before == own and own in (set(), {id(read)})
    there = obj.__dict__
    assert instance_dict(obj, type(obj)) is there == read


def _dicts_of(obj: Any) -> set[int]:
    return {id(held) for held in gc.get_referents(obj) if type(held) is dict}


def test_a_property_of_the_users_is_not_run() -> None:
    class Odd:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise AssertionError("asked")

    assert instance_dict(Odd(), Odd) is None


UNKNOWN = """
import sys
sys.gettotalrefcount = lambda: 0  # as a debug build has it, of which the layout is not known
from leakscope.heap.referents import FRAMES_CAN_BE_READ, frame_contents
from leakscope.process.raw_types import instance_dict
class Plain: pass
plain = Plain()
plain.value = []
print(FRAMES_CAN_BE_READ, frame_contents(sys._getframe()).variables, instance_dict(plain, Plain))
plain.__dict__ = {'value': []}
print(instance_dict(plain, Plain))
"""


@pytest.mark.process
def test_where_the_layout_is_not_known_nothing_is_read_and_nothing_made() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", UNKNOWN], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    assert done.stdout.splitlines() == ["False [] None", "{'value': []}"]
    assert FRAMES_CAN_BE_READ and raw_types.LAYOUT_IS_KNOWN
