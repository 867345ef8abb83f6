"""Types are classified once and are not kept alive."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
import torch

from leakscope.heap import native_graph
from leakscope.heap.autograd import Role
from leakscope.heap.native_graph import GAINING, OURS, ROLE, flags_of_types

KINDS = (int, torch.Tensor, torch.nn.Parameter, torch.UntypedStorage, list, dict, tuple, torch.nn.Module, Role)


def test_flags_say_what_objects_of_a_type_are() -> None:
    for _ in range(2):
        flags = flags_of_types(KINDS)
        assert [Role(v) for v in (flags & ROLE).tolist()] == [0, 1, 1, 3, 0, 0, 0, 0, 0]
        assert [kind for kind, v in zip(KINDS, flags.tolist(), strict=True) if v & GAINING] == [list, dict]
        assert [kind for kind, v in zip(KINDS, flags.tolist(), strict=True) if v & OURS] == [Role]


def test_a_type_is_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    flags_of_types(KINDS)
    monkeypatch.setattr(native_graph, "_judge", lambda _: pytest.fail("judged again"))
    assert len(flags_of_types(KINDS)) == len(KINDS)


def test_no_type_is_kept_alive_and_its_address_is_free_for_another() -> None:
    class Gone(list[int]):
        pass

    address, held = id(Gone), sys.getrefcount(Gone)
    assert flags_of_types([Gone]).tolist() == [GAINING]
    assert sys.getrefcount(Gone) == held
    del Gone
    gc.collect()
    assert address in native_graph._known.addresses
    flags_of_types([])
    assert address not in native_graph._known.addresses
    known = native_graph._known
    assert [id(kind()) for kind in known.types] == known.addresses.tolist()
    assert len(known.flags) == len(known.types)


def test_no_weak_reference_is_made_of_a_class() -> None:
    class Some:
        pass

    before = weakref.getweakrefcount(Some)
    flags_of_types([Some])
    assert weakref.getweakrefcount(Some) == before
