"""Hooks, closures, caches and registered modules are located at the source lines that create them."""

from __future__ import annotations

import pytest
from findings.source.traces import edit, finding, reported

from leakscope.findings.facts import FreedBy
from leakscope.findings.rules.uncollectable_cycle import ClosedBy, UncollectableFacts


def test_hooks_that_a_factory_makes_are_told_where_it_is_called() -> None:
    trace = """
        frame main train.py:2 -> local weight
        parameter float32[4] -> ._backward_hooks
        dict -> [i]
        function scaled.<locals>.hook train.py:3 -> closure scale
        tensor float32[4]
    """
    text = """
        def scaled(scale):
            def hook(grad):
                return grad * scale
            return hook

        def step(weight):
            weight.register_hook(scaled(torch.ones(4)))
    """
    assert reported(finding(trace, 1), train=text) == ["weight.register_hook(scaled(torch.ones(4)))"]


def test_a_default_argument_is_told_in_its_function() -> None:
    trace = """
        module __main__ train.py:1 -> .keep
        function keep train.py:1 -> .__defaults__
        tuple -> [0]
        list -> [i]
        tensor float32[4]
    """
    text = """
        def keep(row, rows=[]):
            rows.append(row)
    """
    assert reported(finding(trace, 2), train=text) == ["rows.append(row)"]


def test_the_one_line_that_sets_hooks_for_saved_tensors_is_told_where_they_close_a_cycle() -> None:
    trace = """
        tensor*0 float32[4] -> .grad_fn
        node*1 SigmoidBackward0 -> saved result
        tensor*0 float32[4]
    """
    text = """
        def forward(x):
            with saved_tensors_hooks(pack, unpack):
                return torch.sigmoid(x)
    """
    found = finding(trace, 1, freed_by=FreedBy.NEVER, facts=UncollectableFacts(ClosedBy.PACK_HOOK, None))
    assert reported(found, train=text) == ["with saved_tensors_hooks(pack, unpack):"]
    assert reported(found, train=text, other=text) == []
    assert edit(found, train=text) is None, "the pack hook is not in the file"


@pytest.mark.parametrize(
    ("pack", "line", "edited"),
    [
        ("return t", "return t", "return t.detach()"),
        ("return t.cpu()", "return t.cpu()", None),
        ("t = t.view(-1); return t", "t = t.view(-1); return t", None),
        ("if t.is_leaf: return t\n    return t", "if t.is_leaf: return t", None),
    ],
)
def test_what_a_pack_hook_returns_is_the_line_to_edit(pack: str, line: str, edited: str | None) -> None:
    trace = """
        tensor*0 float32[4] -> .grad_fn
        node*1 SigmoidBackward0 -> saved result
        tensor*0 float32[4]
    """
    text = f"def pack(t):\n    {pack}\n\ndef forward(x):\n    with saved_tensors_hooks(pack, unpack):\n        net(x)"
    found = finding(trace, 1, freed_by=FreedBy.NEVER, facts=UncollectableFacts(ClosedBy.PACK_HOOK, None))
    lines = reported(found, train=text)
    assert (lines[0], lines[-1]) == (line, "with saved_tensors_hooks(pack, unpack):")
    edit_of = edit(found, train=text)
    assert (edit_of.after if edit_of is not None else None) == edited
