"""Candidates that store another value or open a cycle: the new lines of a script, and the order of the attempts."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import replace

import pytest
from findings.source.traces import finding, kept

from leakscope.findings.facts import FreedBy, RuleName
from leakscope.findings.model import Finding
from leakscope.findings.rules.uncollectable_cycle import ClosedBy, UncollectableFacts
from leakscope.findings.source.index import Sources
from leakscope.findings.source.lines import with_lines
from leakscope.fix.candidates import candidates
from leakscope.fix.model import applied

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


def texts_of(found: Finding, **files: str) -> list[str]:
    """The first file after each candidate; all of them are Python."""
    sources = kept(**files)
    name = next(iter(sources))
    before = {file: "\n".join(lines) for file, lines in sources.items()}
    index = Sources(sources)
    tried = candidates(with_lines(found, index), index)
    after = [{**before, **applied([one], before)} for one in tried]
    for texts in after:
        for text in texts.values():
            ast.parse(text)
    return [texts[name] for texts in after]


def changed(found: Finding, **files: str) -> list[str]:
    """The lines that each candidate adds, joined by `|`."""
    before = [line.strip() for line in next(iter(kept(**files).values()))]
    return [
        "|".join(line.strip() for line in text.split("\n") if line.strip() and line.strip() not in before)
        for text in texts_of(found, **files)
    ]


def dedent(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


LOOP = """
    import torch
    def main():
        losses, total = [], 0.0
        for step in range(9):
            loss = net(step)
            loss.backward()
            {line}
        print({use})
"""


@pytest.mark.parametrize(
    ("line", "use", "first"),
    [
        ("losses.append(loss)", "sum(losses)", ["losses.append(loss.item())", "losses.append(float(loss))"]),
        ("losses.append(loss)", "torch.stack(losses)", ["losses.append(loss.detach())", "losses.append(loss.item())"]),
        ("losses.append(a - b)", "losses", ["losses.append((a - b).item())", "losses.append(float(a - b))"]),
    ],
)
def test_a_loss_is_kept_as_a_number_or_without_its_graph(line: str, use: str, first: list[str]) -> None:
    found = changed(finding(LOSSES, 0, rule=RuleName.RETAINED_GRAPH), train=LOOP.format(line=line, use=use))
    assert found[: len(first)] == first


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("losses.append((step, loss))", "losses.append((step, loss.item()))"),
        ("losses.append((step, loss, other))", "losses.append((step, loss.item(), other.item()))"),
        ("losses.append(dict(step=step, loss=loss))", "losses.append(dict(step=step, loss=loss.item()))"),
        ("losses.append([x.mean() for x in loss])", "losses.append([x.mean().item() for x in loss])"),
    ],
)
def test_the_parts_that_may_be_tensors_are_edited(line: str, first: str) -> None:
    trace = LOSSES.replace("[i]", "[i]\n    tuple -> [i]")
    found = changed(finding(trace, 0, rule=RuleName.RETAINED_GRAPH), train=LOOP.format(line=line, use="losses"))
    assert found[0] == first


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("total += loss", ["total += loss.item()", "total += float(loss)", "total += loss.detach()"]),
        ("total = 0.9 * total + 0.1 * loss", ["total = 0.9 * total + 0.1 * loss.item()"]),
    ],
)
def test_a_sum_is_one_of_numbers(line: str, first: list[str]) -> None:
    found = changed(finding(TOTAL, 0, rule=RuleName.RETAINED_GRAPH), train=LOOP.format(line=line, use="total"))
    assert found[: len(first)] == first


def test_all_stores_of_a_leak_are_edited_together() -> None:
    script = """
        import torch
        def main():
            losses = []
            for step in range(9):
                losses.append(net(step))
                if step % 2:
                    losses.append(
                        other(step)  # of the other head
                    )
    """
    first = texts_of(finding(LOSSES, 0, rule=RuleName.RETAINED_GRAPH), train=script)[0]
    assert first.count(".item()") == 2
    assert "# of the other head" in first


METER = """
    frame main train.py:12 -> local meter
    object Meter train.py:1 -> .sum
    tensor float32[] -> .grad_fn
    node AddBackward0
"""


def test_where_numbers_are_passed_too_it_is_converted() -> None:
    script = """
        class Meter:
            def __init__(self):
                self.sum = self.avg = 0
                self.count = 0
            def update(self, value, n=1):
                self.sum += value * n
                self.count += n
                self.avg = self.sum / self.count

        def main():
            meter = Meter()
            for step in range(9):
                loss = net(step)
                loss.backward()
                meter.update(loss, 2)
                meter.update(time.time() - start)
    """
    found = changed(finding(METER, 1, rule=RuleName.RETAINED_GRAPH), train=script)
    assert found[0] == "self.sum += float(value * n)"
    assert "@torch.no_grad()|import torch" in {"|".join(sorted(one.split("|"))) for one in found}


def test_the_calls_of_a_function_that_stores_its_argument() -> None:
    script = """
        class Meter:
            sum = 0
            def update(self, value):
                self.sum += value

        def main():
            meter = Meter()
            for step in range(9):
                loss = net(step)
                loss.backward()
                meter.update(loss)
    """
    assert "meter.update(loss.item())" in changed(finding(METER, 1, rule=RuleName.RETAINED_GRAPH), train=script)


def test_evaluation_runs_without_grad() -> None:
    script = """
        import torch
        def evaluate(net, batch):
            return net(batch).mean()

        def main():
            losses = []
            for step in range(9):
                net(step).backward()
                losses.append(evaluate(net, step))
    """
    found = texts_of(finding(LOSSES, 0, rule=RuleName.RETAINED_GRAPH), train=script)
    assert any("@torch.no_grad()\ndef evaluate(net, batch):" in text for text in found)
    wrapped = "        with torch.no_grad():\n            losses.append(evaluate(net, step))"
    assert any(wrapped in text for text in found)
    assert not any("with torch.no_grad():\n        for" in text for text in found)


ERRORS = """
    frame main train.py:2 -> local errors
    list -> [i]
    exception ValueError -> .__traceback__
    traceback t -> .tb_frame
    frame work train.py:9 -> local batch
    tensor float32[4]
"""


@pytest.mark.parametrize(("use", "first"), [("len(errors)", "str(error)"), ("errors[0].args", "error.with_traceback")])
def test_an_error_is_kept_as_text_or_without_frames(use: str, first: str) -> None:
    script = f"""
        def main():
            errors = []
            for step in range(9):
                try:
                    work(step)
                except ValueError as error:
                    errors.append(error)
            print({use})
    """
    found = changed(finding(ERRORS, 0, rule=RuleName.FRAME_HOLD), train=script)
    assert first in found[0]
    assert {"import traceback|errors.append(traceback.format_exc())", "errors.append(repr(error))"} <= set(found)


def cycle(trace: str, place: int, freed_by: FreedBy = FreedBy.GC) -> Finding:
    rule = RuleName.TENSOR_CYCLE if freed_by == FreedBy.GC else RuleName.UNCOLLECTABLE_CYCLE
    return finding(trace, place, freed_by=freed_by, rule=rule)


WALK = """
    function*1 step.<locals>.walk train.py:2 -> closure walk
    function*1 step.<locals>.walk train.py:2 -> closure out
    list -> [i]
    tensor float32[4]
"""


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("walk(tree)\n    return out", "walk(tree)\n    del walk\n    return out"),
        ("for part in tree:\n        walk(part)\n    return out", "walk(part)\n    del walk\n    return out"),
        ("return walk(tree)", "result = walk(tree)\n    del walk\n    return result"),
        (
            "if tree:\n        return walk(tree)\n    return out",
            "try:\n        if tree:\n            return walk(tree)\n        return out\n    finally:\n        del walk",
        ),
    ],
)
def test_a_recursive_closure_is_forgotten_after_its_last_use(call: str, expected: str) -> None:
    script = f"def step(tree, out):\n    def walk(node):\n        out.append(node)\n        walk(node[0])\n    {call}"
    assert any(expected in text for text in texts_of(cycle(WALK, 0), train=script))


def test_a_recursive_function_that_needs_nothing_else_is_moved_out() -> None:
    script = """
        def step(tree):
            def walk(node):
                return sum(map(walk, node)) if isinstance(node, list) else node.mean()

            return walk(tree)
    """
    assert any(text.startswith("def walk(node):") for text in texts_of(cycle(WALK, 0), train=script))


HOOK = """
    function*1 forward.<locals>.<lambda> train.py:3 -> closure out
    tensor*2 float32[8, 8] -> ._backward_hooks
    dict -> [i]
    function*1 forward.<locals>.<lambda> train.py:3
    tensor*2 float32[8, 8]
"""


def test_a_hook_closes_over_a_detached_tensor() -> None:
    script = """
        def forward(x):
            out = net(x)
            out.register_hook(lambda grad: grad * (out > 0))
            return out
    """
    first = changed(cycle(HOOK, 0, FreedBy.NEVER), train=script)[0]
    assert first == "out_detached = out.detach()|out.register_hook(lambda grad: grad * (out_detached > 0))"


METHOD = """
    method*1 Head.score train.py:5 -> .__self__
    nn*2 Head train.py:1 -> .function
    method*1 Head.score train.py:5
"""


def test_a_bound_method_is_kept_weakly_or_as_a_function() -> None:
    script = """
        class Head(nn.Module):
            def __init__(self):
                self.function = self.score

            def score(self, x):
                return x

            def forward(self, x):
                return self.function(x)
    """
    found = changed(cycle(METHOD, 1), train=script)
    weak = "import weakref|self.function = weakref.WeakMethod(self.score)|return self.function()(x)"
    assert found[:2] == [weak, "self.function = type(self).score|return self.function(self, x)"]


PARTIAL = """
    object*1 functools.partial -> .func
    method*2 Head.score train.py:5 -> .__self__
    nn*3 Head train.py:1 -> .function
    object*1 functools.partial
"""


def test_a_partial_of_a_method_is_one_of_the_function() -> None:
    script = """
        class Head(nn.Module):
            def __init__(self):
                self.function = functools.partial(self.score, 3)

            def score(self, count, x):
                return x

            def forward(self, x):
                return self.function(x)
    """
    new = "self.function = functools.partial(type(self).score, weakref.proxy(self), 3)"
    assert f"import weakref|{new}" in changed(cycle(PARTIAL, 2), train=script)


FRAME = """
    exception*1 TooLong train.py:6 -> .__traceback__
    traceback t -> .tb_frame
    frame*2 retry train.py:1 -> local last
    exception*1 TooLong train.py:6
"""


def test_an_error_that_a_frame_keeps_is_deleted_at_its_end() -> None:
    script = """
        def retry(net):
            last = None
            for rows in (8, 4):
                try:
                    return attempt(net, rows)
                except TooLong as error:
                    last = error
            raise RuntimeError("gave up") from last
    """
    expected = dedent("""
        def retry(net):
            last = None
            try:
                for rows in (8, 4):
                    try:
                        return attempt(net, rows)
                    except TooLong as error:
                        last = error
                raise RuntimeError("gave up") from last
            finally:
                del last
    """)
    found = texts_of(cycle(FRAME, 2), train=script)
    assert "last = error.with_traceback(None)" in found[0]
    assert expected in found


HOOKED = """
    method*1 Tagger.remember train.py:6 -> .__self__
    nn*2 Tagger train.py:1 -> .encoder
    nn*3 Linear -> ._forward_hooks
    dict -> [i]
    method*1 Tagger.remember train.py:6
"""


def test_a_hook_of_its_own_child_has_a_weak_reference() -> None:
    script = """
        class Tagger(nn.Module):
            def __init__(self):
                self.encoder = nn.Linear(8, 8)
                self.encoder.register_forward_hook(self.remember)

            def remember(self, module, args, output):
                self.shape = output.shape
    """
    found = changed(cycle(HOOKED, 2), train=script)
    registered = "self.encoder.register_forward_hook(lambda *args: this.remember(*args))"
    assert found[:1] == [f"import weakref|this = weakref.proxy(self)|{registered}"]


PARENT = """
    object*1 Child train.py:1 -> .parent
    object*2 Parent train.py:6 -> .child
    object*1 Child train.py:1
"""


def test_a_back_reference_is_weak() -> None:
    script = """
        class Child:
            def __init__(self, parent):
                self.parent = parent
            def name(self):
                return self.parent.name

        class Parent:
            def __init__(self):
                self.child = Child(self)
                print(self.child)
    """
    found = changed(cycle(PARENT, 0), train=script)
    assert found[0] == "import weakref|self.parent = weakref.proxy(parent)"
    assert found[1] == "import weakref|self.parent = weakref.ref(parent)|return self.parent().name"


CONTEXT = """
    node*1 ScaleBackward train.py:3 -> .out
    tensor*2 float32[8, 8] -> .grad_fn
    node*1 ScaleBackward train.py:3
    tensor*2 float32[8, 8]
"""


def test_an_output_is_saved_for_backward_with_what_is_saved_already() -> None:
    script = """
        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, factor):
                ctx.save_for_backward(x)
                ctx.factor = factor
                ctx.out = x * factor
                return ctx.out

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return grad * ctx.factor + ctx.out - x, None
    """
    first = texts_of(cycle(CONTEXT, 0), train=script)[0]
    assert first == dedent("""
        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, factor):
                ctx.factor = factor
                out = x * factor
                ctx.save_for_backward(x, out)
                return out

            @staticmethod
            def backward(ctx, grad):
                x, out = ctx.saved_tensors
                return grad * ctx.factor + out - x, None
    """)


GRADIENT = """
    parameter*1 float32[8, 8] -> .grad
    tensor*2 float32[8, 8] -> .grad_fn
    node MulBackward0 -> .next_functions[i]
    node AccumulateGrad -> .variable
    parameter*1 float32[8, 8]
"""


def test_a_gradient_with_a_graph_is_not_made_or_dropped_after_the_step() -> None:
    script = """
        def main():
            for batch in batches:
                loss = net(batch)
                loss.backward(create_graph=True)
                optimizer.step()
                for p in net.parameters():
                    print(p.grad)
    """
    found = changed(cycle(GRADIENT, 0, FreedBy.NEVER), train=script)
    assert found[:3] == [
        "loss.backward()",
        "optimizer.zero_grad()",
        "for parameter in net.parameters():|parameter.grad = None",
    ]


PACKED = """
    tensor*1 float32[8, 8] -> .grad_fn
    node ExpBackward0 -> saved result
    tensor*1 float32[8, 8]
"""


def test_a_pack_hook_returns_a_detached_tensor() -> None:
    facts = UncollectableFacts(ClosedBy.PACK_HOOK, None)
    script = """
        with saved_tensors_hooks(lambda t: (t.device, t), unpack):
            loss = net(x)
    """
    found = changed(replace(cycle(PACKED, 1, FreedBy.NEVER), facts=facts), train=script)
    assert found[0] == "with saved_tensors_hooks(lambda t: (t.device, t.detach()), unpack):"


CACHE = """
    class Net train.py:2 -> .size
    cache Net.size train.py:4 -> cached result
    dict -> key (<Net>)
    tuple -> [i]
    nn Net train.py:2 -> .weight
    parameter float32[8, 8]
"""


def test_a_cached_method_is_a_property_or_bounded_or_not_cached() -> None:
    script = """
        import functools
        class Net(nn.Module):
            @functools.cache
            def size(self):
                return sum(p.numel() for p in self.parameters())

            def forward(self, x):
                return x / self.size()
    """
    found = changed(finding(CACHE, 1, rule=RuleName.STEP_GROWTH), train=script)
    assert {"@functools.cached_property|return x / self.size", "@functools.lru_cache(maxsize=8)", ""} <= set(found)


VIEW = """
    frame main train.py:2 -> local losses
    list -> [i]
    tensor float32[4] -> storage
"""


def test_a_view_is_copied() -> None:
    found = changed(
        finding(VIEW, 0, rule=RuleName.VIEW_HOLD), train=LOOP.format(line="losses.append(x[:4])", use="losses")
    )
    assert found[:2] == ["losses.append(x[:4].clone())", "losses.append(x[:4].detach().clone())"]


HIDDEN = """
    frame main train.py:2 -> local state
    tensor float32[4, 8] -> .grad_fn
    node TanhBackward0
"""


def test_a_state_that_is_carried_on_is_detached_after_the_call() -> None:
    script = """
        def main():
            state = torch.zeros(4, 8)
            for batch in batches:
                out, state = net(batch, state)
                out.sum().backward()
    """
    found = changed(finding(HIDDEN, 0, rule=RuleName.RETAINED_GRAPH), train=script)
    assert found[:2] == ["state = state.detach()", "state = tuple(part.detach() for part in state)"]


def test_what_is_only_counted_is_a_count() -> None:
    script = """
        def main():
            losses = []
            for step in range(9):
                losses.append(net(step))
            return len(losses)
    """
    found = texts_of(finding(VIEW, 0, rule=RuleName.STEP_GROWTH), train=script)
    assert (
        dedent("""
        def main():
            losses = 0
            for step in range(9):
                losses += 1
            return losses
    """)
        not in found
    )  # the call is needed
    assert (
        dedent("""
        def main():
            losses = 0
            for step in range(9):
                net(step)
                losses += 1
            return losses
    """)
        in found
    )


def test_what_nothing_reads_is_not_stored() -> None:
    script = """
        class Meter(Library):
            def update(self, value):
                self.sum = self.sum + value

        def main():
            meter = Meter()
            for step in range(9):
                meter.update(net(step))
    """
    found = texts_of(finding(METER, 1, rule=RuleName.RETAINED_GRAPH), train=script)
    assert any("def update(self, value):\n        pass" in text for text in found)


def test_candidates_differ_and_nothing_is_offered_for_unknown_source() -> None:
    found = finding(LOSSES, 0, rule=RuleName.RETAINED_GRAPH)
    texts = texts_of(found, train=LOOP.format(line="losses.append(loss)", use="losses"))
    assert len(set(texts)) == len(texts) > 2
    assert texts_of(found, other="x = 1") == []
    assert texts_of(replace(found, cut=None), train="x = 1") == []


def test_a_name_that_is_deleted_under_a_condition_is_not_deleted_twice() -> None:
    script = """
        def step(roots, cut):
            def walk(node):
                out = [node]
                return out + [walk(inner) for inner in node]

            walk(roots)
            if cut:
                del walk
            return roots
    """
    assert all(text.count("del walk") < 2 for text in texts_of(cycle(WALK, 0), train=script))
