"""A storage lives from the operation that made it to the one that let it go, whatever tensors came and went over it."""

from __future__ import annotations

import threading

import torch
from support.lived_steps import BIG, REST, big, idle_bytes, measured_peak, scratch, watched
from torch import Tensor


def test_a_view_uses_its_storage() -> None:
    def step() -> None:
        tensor = big()
        view = tensor[:4]
        scratch()
        view.sum()

    assert idle_bytes(watched(step)) == []


def test_resized_storage_counts_as_what_it_is_now() -> None:
    def step() -> None:
        tensor = torch.ones(1)
        tensor.resize_(BIG // 4)
        scratch()

    assert idle_bytes(watched(step)) == [BIG]


def test_what_lives_through_the_step_is_nobodys_drag() -> None:
    kept = big()
    cache: list[Tensor] = [big()]

    def step() -> None:
        kept.sum()
        scratch()

    assert idle_bytes(watched(step)) == []
    assert cache


def test_numpy_uses_what_it_was_handed_for_as_long_as_it_lives() -> None:
    def step() -> None:
        tensor = big()
        array = tensor.numpy()
        scratch()
        array.sum()

    lived = watched(step)
    assert idle_bytes(lived) == []
    assert lived.step.peak_bytes - lived.step.start_bytes == BIG + REST


def test_tolist_is_a_use_and_no_longer_than_that() -> None:
    def after() -> None:
        tensor = big()
        scratch()
        tensor.tolist()

    def before() -> None:
        tensor = big()
        tensor.tolist()
        scratch()
        del tensor

    assert idle_bytes(watched(after)) == []
    assert idle_bytes(watched(before)) == [BIG]


def test_a_storage_shrunk_to_nothing_is_let_go() -> None:
    def step() -> None:
        tensor = big()
        tensor.sum()
        tensor.untyped_storage().resize_(0)
        scratch()
        del tensor

    lived = watched(step)
    assert idle_bytes(lived) == []
    assert lived.step.peak_bytes - lived.step.start_bytes == REST == measured_peak(step)


def test_a_birth_in_another_thread_is_idle_like_any_other() -> None:
    def step() -> None:
        made: list[Tensor] = []
        thread = threading.Thread(target=lambda: made.append(big()))
        thread.start()
        thread.join()
        made[0].sum()
        scratch()
        made.clear()

    lived = watched(step)
    assert lived.step.peak_bytes - lived.step.start_bytes == BIG + REST
    assert idle_bytes(lived) == [BIG]
