"""The suggested edit keeps all of a line but what leaks, and there is none where it may not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from findings.source.traces import edit, finding, hops, kept

from leakscope.findings.facts import FreedBy, RuleName
from leakscope.findings.model import CutReference
from leakscope.findings.rules.frame_hold import FrameFacts, LocalsHolder
from leakscope.findings.source.index import Sources
from leakscope.findings.source.lines import with_lines

LOSSES = """
    frame main train.py:2 -> local losses
    list -> [i]
    tensor float32[] -> .grad_fn
    node MeanBackward0
"""
TOTAL = """
    frame main train.py:2 -> local total
    tensor float32[] -> .grad_fn
    node AddBackward0
"""
HIDDEN = """
    frame main train.py:2 -> local h
    tensor float32[4, 8] -> .grad_fn
    node TanhBackward0
"""
ERRORS = """
    frame main train.py:2 -> local errors
    list -> [i]
    exception ValueError -> .__traceback__
    traceback t -> .tb_frame
    frame work train.py:9 -> local batch
    tensor float32[4]
"""


def loop(first: str, line: str, after: str = "pass") -> str:
    return f"def main():\n    {first}\n    for step in range(9):\n        loss = net(step)\n        {line}\n    {after}"


def edited(trace: str, first: str, line: str, after: str = "pass") -> str | None:
    """What is suggested for a line of a loop."""
    found = edit(finding(trace, 0), train=loop(first, line, after))
    return found.after if found else None


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("losses.append(loss)  # for the plot", "losses.append(loss.item())  # for the plot"),
        ("losses.append(net(step, 'ü'))", "losses.append(net(step, 'ü').item())"),
        ("losses.append(a + loss)", "losses.append((a + loss).item())"),
        ("losses.append(-loss)", "losses.append((-loss).item())"),
        ("losses += [loss]", "losses += [loss.item()]"),
        ("losses.append(loss.item() if quiet else loss)", "losses.append(loss.item() if quiet else loss.item())"),
        ("losses.extend([loss, other])", None),
        ("losses.extend(make())", None),
    ],
)
def test_a_number_is_kept_of_a_loss(line: str, after: str | None) -> None:
    found = edit(finding(LOSSES, 0), train=loop("losses = []", line))
    assert (found.after if found else None) == after
    assert found is None or (found.before, found.where) == (line, "train.py:5")


@pytest.mark.parametrize(
    ("use", "method"),
    [
        ("torch.stack(losses).mean()", "detach"),
        ("print(losses[-1].item())", "detach"),
        ("for k, x in enumerate(losses): print(x.shape)", "detach"),
        ("print(sum(losses) / len(losses))", "item"),
        ("print([float(x) for x in losses])", "item"),
        ("losses", "item"),
    ],
)
def test_what_is_used_as_a_tensor_stays_one(use: str, method: str) -> None:
    assert edited(LOSSES, "losses = []", "losses.append(loss)", use) == f"losses.append(loss.{method}())"


@pytest.mark.parametrize(
    ("change", "line", "after"),
    [
        (("float32[]", "float32[8, 4]"), "losses.append(loss)", "losses.append(loss.detach())"),
        (("[i]", "[i]\ntuple -> [i]"), "losses.append((step, loss))", "losses.append((step, loss.item()))"),
        (("[i]", "[i]\ntuple -> [i]"), "losses.append((loss, other))", None),
        (("[i]", "[i]\ndict -> ['loss']"), "losses.append({'out': out, 'loss': loss})",
         "losses.append({'out': out, 'loss': loss.item()})"),
    ],
    ids=["no number", "in a tuple", "one of two", "in a dict"],
)  # fmt: skip
def test_the_element_that_leaks_is_edited(change: tuple[str, str], line: str, after: str | None) -> None:
    assert edited(LOSSES.replace(*change), "losses = []", line) == after


@pytest.mark.parametrize(
    ("line", "use", "after"),
    [
        ("total += loss", "pass", "total += loss.item()"),
        ("total = 0.9 * total + 0.1 * loss", "pass", "total = 0.9 * total + 0.1 * loss.item()"),
        ("total = r * total + (1 - r) * loss", "pass", "total = r * total + ((1 - r) * loss).item()"),
        ("total = total - loss * total", "pass", None),
        ("total, _ = net(step)", "pass", None),
        ("total += loss", "total.backward()", None),
        ("total += loss", "(total / 9).backward()", None),
    ],
)
def test_a_sum_adds_numbers_where_no_backward_needs_it(line: str, use: str, after: str | None) -> None:
    assert edited(TOTAL, "total = 0.0", line, use) == after


@pytest.mark.parametrize(
    ("backward", "after"),
    [
        ("h.sum().backward()", "h = cell(step, h.detach())"),
        ("head(h).backward()", "h = cell(step, h.detach())"),
        ("pass", None),
    ],
)
def test_a_state_is_detached_where_each_turn_is_a_step(backward: str, after: str | None) -> None:
    assert edited(HIDDEN, "h = torch.zeros(4, 8)", f"h = cell(step, h)\n        {backward}") == after


@pytest.mark.parametrize("line", ["total = torch.cat([total, loss])", "total = torch.cat((loss, total), 0)"])
def test_what_is_joined_to_a_tensor_is_detached(line: str) -> None:
    trace = TOTAL.replace("[]", "[9]")
    assert edited(trace, "total = make()", line, "print(total)") == line.replace("loss", "loss.detach()")


CATCH = """def main():
    errors = []
    try:
        work()
    except ValueError as error:
        {line}
    {after}
"""


@pytest.mark.parametrize(
    ("line", "after", "edited"),
    [
        ("errors.append(error)", "pass", "errors.append(str(error))"),
        ("errors.append((1, error))", "pass", "errors.append((1, str(error)))"),
        ("errors.append(error)", "raise errors[0]", "errors.append(error.with_traceback(None))"),
        ("errors.append(error)", "print(errors[0].args)", "errors.append(error.with_traceback(None))"),
        ("errors.append(error); raise", "pass", None),
    ],
)
def test_an_exception_is_kept_as_text_or_without_its_traceback(line: str, after: str, edited: str | None) -> None:
    trace = ERRORS.replace("list -> [i]", "list -> [i]\n    tuple -> [i]") if "(1," in line else ERRORS
    found = edit(finding(trace, 0), train=CATCH.format(line=line, after=after))
    assert (found.after if found else None) == edited


def view(kind: str, **fields: Any) -> Any:
    trace = f"frame main train.py:2 -> local kept\nlist -> [i]\n{kind}\nstorage s"
    return finding(trace, 0, rule=RuleName.VIEW_HOLD, **fields)


@pytest.mark.parametrize(
    ("kind", "line", "keeps_graphs", "after"),
    [
        ("tensor float32[4] -> storage", "kept.append(batch[0])", False, "kept.append(batch[0].clone())"),
        ("array numpy.ndarray -> (unnamed)", "kept.append(rows[:3])", False, "kept.append(rows[:3].copy())"),
        ("tensor float32[4] -> ._base", "kept.append(out)", False, None),
        ("tensor float32[4] -> storage", "kept.append(batch[:1].expand(99))", False, None),
        # a copy would keep the graph
        ("tensor float32[] -> storage", "kept.append(out)", True, "kept.append(out.item())"),
        ("tensor float32[4] -> storage", "kept.append(out)", True, None),
    ],
)
def test_a_view_is_copied(kind: str, line: str, keeps_graphs: bool, after: str | None) -> None:
    found = edit(view(kind, keeps_graphs=keeps_graphs), train=loop("kept = []", line))
    assert (found.after if found else None) == after


HOOKS = """
    frame main train.py:1 -> local net
    nn Linear -> ._forward_hooks
    dict -> [i]
    function main.<locals>.<lambda> train.py:3 -> closure seen
    tensor float32[4]
"""
FORWARD = "net.register_forward_hook(lambda *_: seen)"


@pytest.mark.parametrize(
    ("block", "edited"),
    [
        ((FORWARD, "loss = net(x).mean()", "log(loss)"), 2),
        ((FORWARD, "loss = net(x).mean()", "loss.backward()", "log(loss)"), 3),
        ((FORWARD, "for x in batches:", "    net(x)", "log(net)"), 3),
        ((FORWARD, "if quiet:", "    return", "net(x)"), None),
        ((FORWARD, "return net(x)"), None),
        ((FORWARD, *["x = x + 1"] * 20, "net(x)"), None),
        ((f"self.handle = {FORWARD}", "net(x)"), None),
        (("handle = other()", FORWARD, "net(x)"), None),
    ],
)
def test_a_hooks_handle_is_kept_to_be_removed_behind_what_runs_it(block: tuple[str, ...], edited: int | None) -> None:
    source = "\n".join(["def main(net, seen, x):", "", *(f"    {line}" for line in block)])
    found = edit(finding(HOOKS, 1), train=source)
    after = None if edited is None else ("handle = " + block[0], *block[1:edited], "handle.remove()")
    assert (tuple(found.after.splitlines()) if found else None) == after
    assert found is None or tuple(found.before.splitlines()) == block[:edited]


@pytest.mark.parametrize(
    ("after", "edited"),
    [
        (("x.grad = None", "net(x).mean().backward()", "send(x.grad)"), 2),
        (("torch.autograd.backward(net(x))",), 1),
        (("net(x)", "send(x)"), None),
        (("if go:", "    net(x).backward()", "send(x)"), 2),
    ],
)
def test_a_tensors_hook_is_removed_behind_backward(after: tuple[str, ...], edited: int | None) -> None:
    trace = HOOKS.replace("local net", "local x").replace("nn Linear -> ._forward", "tensor float32[4] -> ._backward")
    register = "x.register_hook(lambda *_: seen)"
    source = "\n".join(["def main(x, seen):", "", *(f"    {line}" for line in (register, *after))])
    found = edit(finding(trace, 1), train=source)
    assert (found.after if found else None) == (
        None if edited is None else "\n".join([f"handle = {register}", *after[:edited], "handle.remove()"])
    )


CTX = """class Keeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        made = x * 2
        {line}
        return {returned}
"""


@pytest.mark.parametrize(
    ("line", "returned", "edited"),
    [
        ("ctx.made = made", "made", "ctx.save_for_backward(made)"),
        ("ctx.made = x * 2", "made", None),
        ("ctx.save_for_backward(x); ctx.made = made", "made", None),
    ],
)
def test_an_output_is_saved_by_autograd(line: str, returned: str, edited: str | None) -> None:
    trace = "node*0 KeepsBackward train.py:5 -> .made\ntensor*1 float32[4] -> .grad_fn\nnode*0 KeepsBackward train.py:5"
    found = edit(finding(trace, 0, freed_by=FreedBy.GC), train=CTX.format(line=line, returned=returned))
    assert (found.after.splitlines()[0] if found else None) == edited


WALK = """def run(tree):
    def walk(node):
        return [walk(child) for child in node]
    {line}
    return {returned}
"""


@pytest.mark.parametrize(
    ("line", "returned", "edited"),
    [
        ("out = walk(tree)", "out", "out = walk(tree)\ndel walk"),
        ("out = walk(tree)", "walk(tree)", None),
        ("out = walk(tree)", "walk", None),
    ],
)
def test_a_function_that_refers_to_itself_is_forgotten_behind_its_last_call(
    line: str, returned: str, edited: str | None
) -> None:
    trace = "function*0 run.<locals>.walk train.py:2 -> closure walk\nfunction*0 run.<locals>.walk train.py:2"
    found = edit(finding(trace, 0, freed_by=FreedBy.GC), train=WALK.format(line=line, returned=returned))
    assert (found.after if found else None) == edited


def test_of_a_call_of_several_lines_the_last_one_is_edited() -> None:
    text = "def main():\n    losses = []\n    losses.append(\n        net(x)\n    )\n    losses.append(net(\n    x))"
    found = edit(finding(LOSSES, 0), train=text)
    assert found is not None
    assert [(one.where, one.before, one.after) for one in found.places] == [
        ("train.py:4", "net(x)", "net(x).item()"),
        ("train.py:7", "x))", "x).item())"),
    ]


HELPERS = """def main():
    losses = []
    for step in range(9):
        loss = net(step)
        losses.append(loss)
    {use}

def show(values):
    {body}
"""


@pytest.mark.parametrize(
    ("use", "body", "method"),
    [
        ("show(losses)", "return torch.stack(values).mean().item()", "detach"),
        ("show(losses)", "print(sum(values) / len(values))", "item"),
        ("kept = losses; show(kept)", "print(values[0].shape)", "detach"),
        ("unknown(losses)", "pass", "detach"),
        ("for one in losses: one.backward()", "pass", None),
        ("show(losses)", "(sum(values) / 9).backward()", None),
        ("a = sum(losses); b = a * 2; b.backward()", "pass", None),
        ("total = torch.stack(losses).sum()\n    total.backward()", "pass", None),
        ("return losses", "sum(main()).backward()", None),
    ],
)
def test_every_use_under_any_name_decides_the_edit(use: str, body: str, method: str | None) -> None:
    found = edit(finding(LOSSES, 0), train=HELPERS.format(use=use, body=body))
    assert (found.after if found else None) == (method and f"losses.append(loss.{method}())")


def test_a_value_is_followed_through_three_helpers() -> None:
    helpers = "def first(a):\n    second(a)\n\ndef second(b):\n    third(b)\n\ndef third(c):\n    c[0].backward()\n"
    text = loop("losses = []", "losses.append(loss)", "first(losses)") + "\n\n" + helpers
    assert edit(finding(LOSSES, 0), train=text) is None


def test_items_of_other_kinds_make_the_edit_test_the_type() -> None:
    found = finding(LOSSES, 0)
    mixed = replace(found, trace=(found.trace[0], replace(found.trace[1], others=3), *found.trace[2:]))
    text = "import torch\n" + loop("losses = []", "losses.append(loss)")
    edited = edit(mixed, train=text)
    assert edited is not None
    assert edited.after == "losses.append(loss.detach() if isinstance(loss, torch.Tensor) else loss)"
    assert edit(mixed, train=text.removeprefix("import torch\n")) is None
    assert edit(mixed, train=text.replace("append(loss)", "append(net(step))")) is None
    sometimes = text.replace("losses.append", "if step: loss = None\n        losses.append")
    of_source = edit(found, train=sometimes)
    assert of_source is not None and of_source.after == edited.after


def test_what_backward_reads_of_ctx_is_edited_with_it() -> None:
    trace = "node*0 KeepsBackward train.py:5 -> .made\ntensor*1 float32[4] -> .grad_fn\nnode*0 KeepsBackward train.py:5"
    text = CTX.format(line="ctx.made = made", returned="made") + (
        "    @staticmethod\n    def backward(context, grad):\n        return context.made * grad\n"
    )
    found = edit(finding(trace, 0, freed_by=FreedBy.GC), train=text)
    assert found is not None
    assert "ctx.save_for_backward(made)" in found.after
    assert "return context.saved_tensors[0] * grad" in found.after
    assert "context.made" not in found.after
    far = text.replace("        return context", "        pass\n" * 12 + "        return context")
    assert edit(finding(trace, 0, freed_by=FreedBy.GC), train=far) is None
    sets = text.replace("return context.made", "context.made = None; return context.made")
    assert edit(finding(trace, 0, freed_by=FreedBy.GC), train=sets) is None


@pytest.mark.parametrize(
    ("use", "edited"),
    [
        ("print([error.args for error in given.values()])", "error.with_traceback(None)"),
        ("print(len(given))", "str(error)"),
        ("return {type(error) for error in given.values()}", "error.with_traceback(None)"),
    ],
)
def test_what_a_caller_does_with_an_error_decides_its_edit(use: str, edited: str) -> None:
    text = CATCH.format(line="errors.append(error)", after="show(errors)") + f"\ndef show(given):\n    {use}\n"
    found = edit(finding(ERRORS, 0), train=text)
    assert found is not None and found.after == f"errors.append({edited})"
    facts = FrameFacts(LocalsHolder.EXCEPTION, "ValueError exception", 1, False, "", "", "errors")
    reported = with_lines(finding(ERRORS, 0, facts=facts), Sources(kept(train=text))).facts
    assert isinstance(reported, FrameFacts) and reported.is_text == (edited == "str(error)")


KEPT = "frame main train.py:2 -> local kept\nlist -> [i]\ntensor float32[4] -> storage\nstorage s"
CACHE = KEPT.replace("list", "dict")


@pytest.mark.parametrize(
    ("line", "after", "edited"),
    [
        ("kept.append(out)", "print(kept[-1])", "kept.append(out)\ndel kept[:-1]"),
        ("kept.append(out)", "print(kept[-9:])", "kept.append(out)\ndel kept[:-9]"),
        ("kept.append(out)", "print(kept[-1::-1])", None),
        ("kept.append(out)", "print(len(kept))", None),
        ("kept.append(out)", "return kept", None),
        ("kept.append(out)", "print(locals())", None),
        ("kept.insert(0, out)", "print(kept[-1])", None),
    ],
)
def test_a_list_of_which_the_last_items_are_read_keeps_those(line: str, after: str, edited: str | None) -> None:
    found = edit(finding(KEPT, 0), train=loop("kept = []", line, after))
    assert (found.after if found else None) == edited


@pytest.mark.parametrize(
    ("test", "after", "edited"),
    [
        ("if step not in kept:", "kept[step].sum()", True),
        ("if step not in kept:", "kept[0].sum()", False),
        ("if step not in kept:", "list(kept.values())", False),
        ("if other not in kept:", "kept[step].sum()", False),
    ],
)
def test_a_cache_whose_entries_are_made_anew_takes_out_the_oldest(test: str, after: str, edited: bool) -> None:
    text = (
        f"def main():\n    kept = {{}}\n    for step in data:\n        {test}\n"
        f"            kept[step] = make(step)\n        {after}\n"
    )
    found = edit(finding(CACHE, 0), train=text)
    assert (found is not None) == edited
    evict = "if len(kept) >= 32: kept.pop(next(iter(kept)))\nkept[step] = make(step)"
    assert found is None or found.after == evict


@pytest.mark.parametrize(
    ("begin", "line", "edited"),
    [
        ("kept = []", "kept += [out.clone()]", ""),
        ("kept = ()", "kept = kept + (out.cpu(),)", ""),
        ("kept = []", "heapq.heappush(kept, (step, out))", ""),
        ("kept = queue.Queue()", "kept.put(out)", ""),
        ("kept = torch.empty(0)", "kept = torch.cat([kept, out])", ""),
        ("kept = {}", "kept.setdefault('a', []).append(out)", ""),
        ("kept = {}", "kept[step] = out", ""),
        ("kept = []", "kept.append(net(step))", "net(step)"),
        ("kept = []", "kept.append(y := net(step))", "(y := net(step))"),
        ("kept = []", "kept.append((yield step))", "yield step"),
        ("kept = []", "kept.append((step, torch.randn(9)))", "torch.randn(9)"),
        ("kept = []", "kept.append((net(step), net(step)))", None),
        ("kept = []", "if step: kept.append(out)", "if step: pass"),
        ("kept = []", "a = 1; kept.append(out);b = 2", "a = 1; b = 2"),
        ("kept = []", "if kept: kept.append(out)", None),
        ("kept = []", "kept.append(out); print(vars())", None),
    ],
)
def test_what_nothing_reads_is_not_kept(begin: str, line: str, edited: str | None) -> None:
    kind = {"kept = ()": "tuple", "kept = {}": "dict", "kept = queue.Queue()": "object queue.Queue -> .queue\ndeque"}
    trace = KEPT.replace("list", kind.get(begin, "list"))
    if "torch.empty" in begin:
        trace = "frame main train.py:2 -> local kept\ntensor float32[4] -> storage\nstorage s"
    if "setdefault" in line:
        trace = KEPT.replace("list -> [i]", "dict -> ['a']\nlist -> [i]")
    if "(step," in line:
        trace = KEPT.replace("list -> [i]", "list -> [i]\ntuple -> [i]")
    found = edit(finding(trace, int("Queue" in begin)), train=loop(begin, line))
    assert (found.after if found else None) == edited


@pytest.mark.parametrize(
    ("base", "file", "elsewhere", "edited"),
    [
        ("", "train", "", True),
        ("(nn.Module)", "train", "", True),
        ("(LightningModule)", "train", "", False),
        ("", "train", "print(len(tracker.rows))", False),
        ("", "train", "rows = 1; print(rows)", False),
    ],
)
def test_what_may_be_read_elsewhere_is_kept(base: str, file: str, elsewhere: str, edited: bool) -> None:
    trace = "object Tracker train.py:1 -> .rows\nlist -> [i]\ntensor float32[4] -> storage\nstorage s"
    text = (
        f"class Tracker{base}:\n    def __init__(self):\n        self.rows = []\n"
        "    def update(self, out):\n        self.rows.append(out)\n"
    )
    found = edit(finding(trace, 0), **{file: text, "other": elsewhere})
    assert (found is not None and found.after == "pass") == edited


@pytest.mark.parametrize(("other", "edited"), [("pass", ""), ("print(net.dbg_3)", None), ("print('dbg_')", None)])
def test_an_attribute_of_a_made_up_name_is_not_set_where_nothing_has_its_beginning(
    other: str, edited: str | None
) -> None:
    trace = "frame main train.py:2 -> local net\nnn Linear -> .dbg_{i}\ntensor float32[4] -> storage\nstorage s"
    found = edit(finding(trace, 1), train=loop("net = make()", "setattr(net, f'dbg_{step}', loss)", other))
    assert (found.after if found else None) == edited


def test_each_of_two_holders_has_its_edit_or_there_is_none() -> None:
    text = loop("losses, best = [], []", "losses.append(loss); k = 1\n        best.append(loss)")
    found = finding(LOSSES, 0)
    assert found.cut is not None
    second = CutReference("local best", "", "best", path=hops(LOSSES.replace("losses", "best")), indexes=(7,))
    path = (replace(second.path[0], references=(7,)), *second.path[1:])
    both = replace(found, cut=replace(found.cut, references=(*found.cut.references, replace(second, path=path))))
    edited = edit(both, train=text)
    assert edited is not None
    assert [one.where for one in edited.places] == ["train.py:5", "train.py:6"]
    assert [one.after for one in edited.places] == ["losses.append(loss.item()); k = 1", "best.append(loss.item())"]
    assert edit(both, train=text.replace("best.append(loss)", "best.extend(make())")) is None


def test_each_line_that_adds_has_its_edit_or_there_is_none() -> None:
    lines = "losses.append(loss)\n        losses.append({})"
    edited = edit(finding(LOSSES, 0), train=loop("losses = []", lines.format("net(1)")))
    assert edited is not None
    assert [one.after for one in edited.places] == ["losses.append(loss.item())", "losses.append(net(1).item())"]
    mended = edit(finding(LOSSES, 0), train=loop("losses = []", lines.format("loss.detach()")))
    assert mended is not None and [one.after for one in mended.places] == ["losses.append(loss.item())"]
    assert edit(finding(LOSSES, 0), train=loop("losses = []", lines.format("*make()"))) is None


@pytest.mark.parametrize(
    ("use", "edited"),
    [
        ("for work in works: work.wait()", True),
        ("for work in works[3:]: work.wait()", True),
        ("[work.wait() for work in works]", True),
        ("first = len(works); send()\n    for work in works[first:]: work.wait()", True),
        ("for work in works:\n        if work.is_completed(): work.wait()", False),
        ("for work in works: work.wait()\n    print(len(works))", False),
        ("for work in works:\n        work.wait()\n        break", False),
        ("pass", False),
    ],
)
def test_works_are_dropped_when_they_have_been_waited_for(use: str, edited: bool) -> None:
    trace = "frame main train.py:2 -> local works\nlist -> [i]\nwork Work -> send buffer\ntensor float32[4]"
    found = edit(finding(trace, 0, rule=RuleName.P2P_BUFFER), train=loop("works = []", "works.append(send(loss))", use))
    assert (found is not None and found.after.endswith("\nworks.clear()")) == edited


UPDATE = """import torch
class Ema:
    def update(self, model):
        for s, p in zip(self.shadow, model.parameters()):
            {line}
        {after}
"""


@pytest.mark.parametrize(
    ("line", "after", "edited"),
    [
        ("s.mul_(0.9).add_(p, alpha=0.1)", "pass", True),
        ("s.lerp_(p, 0.1)", "pass", True),
        ("s.lerp_(p.detach(), 0.1)", "pass", False),
        ("s.lerp_(p, 0.1)", "self.shadow[0].mul_(2)", False),
        ("s.lerp_(p, 0.1)", "torch.autograd.grad(x, y, create_graph=True)", False),
        ("with torch.no_grad(): s.lerp_(p, 0.1)", "pass", False),
    ],
)
def test_updates_in_place_are_made_without_grad(line: str, after: str, edited: bool) -> None:
    trace = "object Ema train.py:2 -> .shadow\nlist -> [i]\ntensor float32[4] -> storage\nstorage s"
    found = edit(finding(trace, 1, keeps_graphs=True), train=UPDATE.format(line=line, after=after))
    assert (found is not None and found.after.startswith("with torch.no_grad():\n    for s, p in zip")) == edited
    assert edit(finding(trace, 1), train=UPDATE.format(line=line, after=after)) is None


def test_where_a_tensor_begins_is_not_where_it_gains_a_graph() -> None:
    trace = "module __main__ train.py:2 -> .average\ntensor float32[4] -> storage\nstorage s"
    text = "import torch\naverage = torch.zeros(4)\nfor x in data:\n    average.mul_(0.9).add_(net(x))\n    print(x)\n"
    found = edit(finding(trace, 0, keeps_graphs=True), train=text)
    assert found is not None and (found.where, found.before) == ("train.py:4", "average.mul_(0.9).add_(net(x))")
    assert found.after == "with torch.no_grad():\n    average.mul_(0.9).add_(net(x))"
    assert edit(finding(trace, 0, keeps_graphs=True), train=text.replace("average.mul_", "x.mul_")) is None


def test_tensors_that_pile_up_are_not_mended_by_taking_their_graphs() -> None:
    text = loop("kept = []", "kept.append(loss)", "print(torch.stack(kept))")
    assert edit(finding(KEPT, 0, keeps_graphs=True), train=text) is None
    assert edit(
        finding(LOSSES.replace("[]", "[4]"), 0, rule=RuleName.RETAINED_GRAPH), train=text.replace("kept", "losses")
    )


@pytest.mark.parametrize(("begin", "edited"), [("deque()", True), ("deque([1])", False), ("deque(maxlen=99)", False)])
def test_a_deque_of_which_the_last_item_is_read_has_a_bound(begin: str, edited: bool) -> None:
    text = loop(f"kept = {begin}", "kept.append(loss)", "print(kept[-1])")
    found = edit(finding(KEPT.replace("list", "deque"), 0), train=text)
    assert (found.after if found else None) == ("kept = deque(maxlen=1)" if edited else None)


@pytest.mark.parametrize(("reads", "edited"), [("pass", True), ("return self.trunk.net", False)])
def test_a_cycle_is_not_closed_by_a_reference_that_nothing_reads(reads: str, edited: bool) -> None:
    trace = (
        "object*0 Trunk train.py:2 -> .head\nobject*1 Head train.py:6 -> .trunk\n"
        "object*0 Trunk train.py:2 -> .out\ntensor float32[4]"
    )
    text = (
        "class Trunk:\n    def __init__(self):\n        self.head = Head(self)\n    def run(self):\n"
        "        return self.head.loss()\nclass Head:\n    def __init__(self, trunk):\n        self.trunk = trunk\n"
        f"        self.count = 0\n    def loss(self):\n        {reads}\n"
    )
    found = edit(finding(trace, 0, rule=RuleName.TENSOR_CYCLE, freed_by=FreedBy.GC), train=text)
    assert (found is not None and (found.before, found.after) == ("self.trunk = trunk", "")) == edited


@pytest.mark.parametrize(
    ("block", "places"),
    [
        (("for m in net:", "    m.register_forward_hook(note)", "out = net(x)", "return out"), 3),
        (("for m in net: m.register_forward_hook(note)", "a = 1; net(x)", "return a"), 2),
        (("for m in net:", "    if m: m.register_forward_hook(note)", "return net(x)"), 0),
        (("for m in net:", "    m.register_forward_hook(note)", "other(x)"), 0),
    ],
)
def test_handles_of_hooks_that_a_loop_registers_are_removed(block: tuple[str, ...], places: int) -> None:
    trace = (
        "frame main train.py:1 -> local net\nnn Sequential -> [i]\nnn Linear -> ._forward_hooks\ndict -> [i]\n"
        "function note train.py:9 -> closure seen\ntensor float32[4]"
    )
    source = "\n".join(["def main(net, note, x):", *(f"    {line}" for line in block)])
    found = edit(finding(trace, 2, rule=RuleName.HOOK_PILEUP), train=source)
    assert len(found.places if found else ()) == places
    assert found is None or found.places[-1].after.endswith("for handle in handles:\n    handle.remove()")
