"""A storage lives from the operation that made it to the one that let it go, whatever tensors came and went over it."""

from __future__ import annotations

import threading

import numpy as np
import torch
from support.lived_steps import BIG, REST, big, idle_bytes, measured_peak, scratch, watched
from torch import Tensor

from leakscope.report.finding_text import title


def test_a_view_uses_its_storage() -> None:
    def step() -> None:
        tensor = big()
        view = tensor[:4]
        scratch()
        view.sum()

    assert idle_bytes(watched(step)) == []


def test_a_view_keeps_the_whole_storage() -> None:
    def step() -> None:
        view = big()[:4]
        view.sum()
        scratch()

    lived = watched(step)
    assert idle_bytes(lived) == [BIG]
    assert "view in" in title(lived.told[0])


def test_in_place_operations_are_uses() -> None:
    def step() -> None:
        tensor = big()
        scratch()
        tensor.add_(1)

    assert idle_bytes(watched(step)) == []


def test_out_argument_is_a_use() -> None:
    def step() -> None:
        tensor = big()
        scratch()
        torch.add(tensor.new_ones(BIG // 4), 1, out=tensor)

    assert idle_bytes(watched(step)) == []


def test_set_lets_the_old_storage_go() -> None:
    def step() -> None:
        tensor = big()
        tensor.set_(torch.ones(2).untyped_storage(), 0, (2,))
        scratch()
        tensor.sum()

    assert idle_bytes(watched(step)) == []


def test_data_swap_lets_the_old_storage_go() -> None:
    def step() -> None:
        tensor = big()
        tensor.data = tensor.new_empty(1)
        scratch()

    assert idle_bytes(watched(step)) == []


def test_data_swap_keeps_what_a_view_still_holds() -> None:
    def step() -> None:
        tensor = big()
        view = tensor[1:]
        tensor.data = tensor.new_empty(1)
        scratch()
        del view

    assert idle_bytes(watched(step)) == [BIG]


def test_resized_storage_counts_as_what_it_is_now() -> None:
    def step() -> None:
        tensor = torch.ones(1)
        tensor.resize_(BIG // 4)
        scratch()

    assert idle_bytes(watched(step)) == [BIG]


def test_tensors_made_in_another_thread_are_met_when_used() -> None:
    def step() -> None:
        made: list[Tensor] = []
        thread = threading.Thread(target=lambda: made.append(big()))
        thread.start()
        thread.join()
        made[0].sum()
        scratch()
        made.clear()

    lived = watched(step)
    assert lived.unjudged == ()
    assert lived.step.peak_bytes - lived.step.start_bytes >= REST


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


def test_numpy_after_the_peak_is_a_use() -> None:
    def step() -> None:
        tensor = big()
        scratch()
        np.asarray(tensor).sum()

    assert idle_bytes(watched(step)) == []


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


def test_a_storage_shrunk_after_the_peak_counts_in_full_there() -> None:
    def step() -> None:
        tensor = big()
        tensor.sum()
        scratch()
        tensor.untyped_storage().resize_(0)

    lived = watched(step)
    assert lived.step.peak_bytes - lived.step.start_bytes == BIG + REST
    assert idle_bytes(lived) == [], "letting go of it is a use: nobody else did anything with it in between"


def test_a_storage_that_grows_by_itself_is_in_the_peak() -> None:
    def step() -> None:
        tensor = torch.ones(1)
        tensor.untyped_storage().resize_(BIG)
        scratch()
        tensor.sum()

    lived = watched(step)
    assert lived.step.peak_bytes - lived.step.start_bytes == BIG + REST
    assert idle_bytes(lived) == []


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
