"""Edits of what keeps a value are drafted where the source reads it, in the order of plausibility."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import pytest
from findings.source.traces import finding, kept

from leakscope.findings.facts import FreedBy
from leakscope.findings.model import Cut, CutReference, Finding
from leakscope.findings.source.index import Sources
from leakscope.fix.container_edits import container_candidates
from leakscope.fix.model import applied

ITEMS = 9
"""Items of each dict of a trace."""
ROWS_OF_MAIN = """
    frame main train.py:2 -> local rows
    list -> [i]
    tensor float32[8] -> storage
    storage s
"""
ROWS_OF_OBJECT = """
    frame main train.py:2 -> local metric
    object __main__.Metric train.py:3 -> .rows
    list -> [i]
    tensor float32[8] -> storage
    storage s
"""


def edits(found: Finding, **files: str) -> list[list[str]]:
    """What each candidate adds, and `- ` before what it removes; every text is Python."""
    long = [replace(hop, object=f"dict, {ITEMS} items") if hop.name == "dict" else hop for hop in found.trace]
    found = replace(found, trace=tuple(long))
    sources = kept(**files)
    texts = {name: "\n".join(lines) + "\n" for name, lines in sources.items()}
    candidates = list(container_candidates(found, (), Sources(sources)))
    for candidate in candidates:
        for text in applied([candidate], texts).values():
            ast.parse(text)
    return [
        [
            line
            for change in candidate.changes
            for line in (*(f"- {old.strip()}" for old in change.removed), *map(str.strip, change.added))
            if line.strip("- ")
        ]
        for candidate in candidates
    ]


def test_what_nothing_reads_is_not_stored() -> None:
    found = edits(
        finding(ROWS_OF_MAIN, 0),
        train="""
        def main():
            rows = []
            for x in data:
                loss = net(x)
                rows.append(loss)

        main()
        """,
    )
    assert found[0] == ["- rows.append(loss)"]


def test_a_call_in_what_is_not_stored_stays() -> None:
    found = edits(
        finding(ROWS_OF_MAIN, 0),
        train="""
        def main():
            rows = []
            for x in data:
                rows.append(step(x).detach())

        main()
        """,
    )
    assert found[0] == ["- rows.append(step(x).detach())", "step(x)"]


def test_a_list_is_emptied_at_the_end_of_the_loop_that_reads_it() -> None:
    found = edits(
        finding(ROWS_OF_MAIN, 0),
        train="""
        def main():
            rows = []
            for epoch in range(3):
                for x in data:
                    rows.append(net(x))
                report(rows)

        main()
        """,
    )
    text = "\n".join("|".join(lines) for lines in found)
    assert found[0] == ["rows.clear()"]
    assert "- rows.append(net(x))" not in text


@pytest.mark.parametrize(
    ("read", "first"),
    [
        ("print(rows[-1])", "rows = deque(maxlen=1)"),
        ("use(rows.pop())", "rows = deque(maxlen=1)"),
        ("print(sum(rows[-4:]))", "del rows[:-4]"),
    ],
)
def test_a_list_of_which_the_last_items_are_read_is_bounded(read: str, first: str) -> None:
    found = edits(
        finding(ROWS_OF_MAIN, 0),
        train=f"""
        def main():
            rows = []
            for x in data:
                rows.append(net(x))
                {read}

        main()
        """,
    )
    assert first in found[0]


def test_the_method_of_the_owner_that_empties_it_is_called_where_its_turn_ends() -> None:
    found = edits(
        finding(ROWS_OF_OBJECT, 1),
        train="""
        class Metric:
            def __init__(self):
                self.rows = []

            def update(self, row):
                self.rows.append(row)

            def compute(self):
                return cat(self.rows)

            def reset(self):
                self.rows = []

        def main():
            metric = Metric()
            for epoch in range(3):
                for x in data:
                    metric.update(net(x))
                metric.compute()

        main()
        """,
    )
    assert found[0] == ["metric.reset()"]
    assert ["- return cat(self.rows)", "result = cat(self.rows)", "self.rows.clear()", "return result"] in found
    assert ["metric.rows.clear()"] in found


def test_a_list_that_is_read_under_another_name_is_emptied_after_that() -> None:
    found = edits(
        finding(ROWS_OF_OBJECT, 1),
        train="""
        class Metric:
            def update(self, row):
                self.rows.append(row)

            def compute(self):
                rows = self.rows
                total = sum(rows)
                return total

        def main():
            metric = Metric()
            for x in data:
                metric.update(net(x))
                metric.compute()

        main()
        """,
    )
    assert ["rows.clear()"] in found


def test_a_list_is_emptied_under_the_name_of_a_parameter() -> None:
    found = edits(
        finding(ROWS_OF_MAIN, 0),
        train="""
        def main():
            rows = []
            for epoch in range(3):
                run(rows, epoch)

        def run(kept, epoch):
            for x in data:
                step(kept, x)

        def step(rows, x):
            rows.append(net(x))
            print(sum(rows))

        main()
        """,
    )
    assert found[0] == ["rows.clear()"]
    assert ["kept.clear()"] in found


def test_a_list_that_is_returned_is_handed_over() -> None:
    found = edits(
        finding(ROWS_OF_OBJECT, 1),
        train="""
        class Metric:
            def update(self, row):
                self.rows.append(row)

            def all_rows(self):
                return self.rows

        metric = Metric()
        for x in data:
            metric.update(net(x))
            print(sum(metric.all_rows()))
        """,
    )
    assert ["- return self.rows", "rows, self.rows = self.rows, []", "return rows"] in found


def test_a_global_is_not_rebound_as_a_local() -> None:
    found = edits(
        finding(
            """
            module __main__ train.py:1 -> .rows
            tuple -> [i]
            tensor float32[8] -> storage
            storage s
            """,
            0,
        ),
        train="""
        rows = ()

        def step(x):
            global rows
            rows = rows + (net(x),)
            print(rows)

        def main():
            for x in data:
                step(x)

        main()
        """,
    )
    assert ["rows = ()"] in found
    assert sum(lines == ["rows = ()"] for lines in found) == 2  # at the end and the start of step(), not in main()


def test_a_container_of_a_hook_is_emptied_where_the_model_is_trained() -> None:
    found = edits(
        finding(
            """
            module __main__ train.py:1 -> .net
            nn __main__.Net train.py:2 -> .acts
            dict -> [i]
            tensor float32[8] -> storage
            storage s
            """,
            1,
        ),
        train="""
        class Net(Module):
            def __init__(self):
                self.acts = {}
                self.fc.register_forward_hook(lambda m, i, o: self.acts.__setitem__(len(self.acts), o))

        net = Net()
        for x in data:
            net(x).sum().backward()
        """,
    )
    assert found[0] == ["net.acts.clear()"]


def test_a_cache_is_bounded_by_less_than_it_had() -> None:
    found = edits(
        finding(
            """
            frame main train.py:2 -> local net
            nn __main__.Net train.py:2 -> .cache
            dict -> [i]
            tensor float32[8] -> storage
            storage s
            """,
            1,
        ),
        train="""
        class Net(Module):
            def __init__(self):
                self.cache = {}

            def forward(self, n):
                if n not in self.cache:
                    self.cache[n] = table(n)
                return self.cache[n]
        """,
    )
    assert found[0] == ["if len(self.cache) >= 4:", "self.cache.pop(next(iter(self.cache)))"]
    assert found[1] == ["self.cache.clear()"]


CACHE_OF_FUNCTION = """
    module __main__ train.py:1 -> .table
    cache table train.py:3 -> cached result
    dict -> [i]
    tensor float32[8] -> storage
    storage s
"""


@pytest.mark.parametrize(
    ("decorator", "imported", "bounded"),
    [
        ("functools.cache", "import functools", "@functools.lru_cache(maxsize=4)"),
        ("functools.lru_cache(maxsize=None)", "import functools", "@functools.lru_cache(maxsize=4)"),
        ("lru_cache(None)", "from functools import lru_cache", "@lru_cache(4)"),
        ("cache", "from functools import cache", "@lru_cache(maxsize=4)"),
    ],
)
def test_the_cache_of_a_function_is_bounded_or_left_out(decorator: str, imported: str, bounded: str) -> None:
    found = edits(
        finding(CACHE_OF_FUNCTION, 1),
        train=f"""
        {imported}

        @{decorator}
        def table(n):
            return make(n)
        """,
    )
    assert bounded in found[0]
    assert found[1] == [f"- @{decorator}"]


def test_the_cache_of_a_method_is_left_out_first() -> None:
    trace = CACHE_OF_FUNCTION.replace(".table", ".Net", 1).replace("cache table", "cache Net.table", 1)
    found = edits(
        finding(trace, 1),
        train="""
        import functools

        class Net:
            @functools.cache
            def table(self):
                return make(self)
        """,
    )
    assert found[0] == ["- @functools.cache"]


@pytest.mark.parametrize(
    ("line", "new"),
    [
        ('self.add_module(f"stage_{self.calls}", Linear(8, 8))', 'self.add_module("stage", Linear(8, 8))'),
        ('self.register_buffer(f"seen_{self.calls}", x.clone())', 'self.register_buffer("seen", x.clone())'),
    ],
)
def test_what_is_registered_under_a_new_name_each_time_gets_one_name(line: str, new: str) -> None:
    found = edits(
        finding(
            """
            frame main train.py:2 -> local net
            nn __main__.Net train.py:2 -> .stage_{i}
            nn torch.nn.Linear -> .weight
            parameter float32[8] -> storage
            storage s
            """,
            1,
        ),
        train=f"""
        class Net(Module):
            def forward(self, x):
                {line}
        """,
    )
    assert found[0] == [f"- {line}", new]


@pytest.mark.parametrize(
    ("kind", "reference", "new"),
    [
        ("dict -> key (<Job>)", "seen = {}", "seen = WeakKeyDictionary()"),
        ("set -> [i]", "seen = set()", "seen = WeakSet()"),
        ("dict -> [i]", "seen = {}", "seen = WeakValueDictionary()"),
    ],
)
def test_a_registry_of_objects_is_held_weakly(kind: str, reference: str, new: str) -> None:
    adds = "seen.add(Job(x))" if "set" in kind else "seen[Job(x)] = 1" if "key" in kind else "seen[x] = Job(x)"
    found = edits(
        finding(
            f"""
            module __main__ train.py:1 -> .seen
            {kind}
            object __main__.Job train.py:2 -> .x
            tensor float32[8] -> storage
            storage s
            """,
            0,
        ),
        train=f"""
        {reference}

        def step(x):
            {adds}
            print(list(seen))

        for x in data:
            step(x)
        """,
    )
    assert any(new in lines for lines in found)


def test_listeners_are_weak_references_that_are_called_where_they_are_alive() -> None:
    found = edits(
        finding(
            """
            module __main__ train.py:1 -> .listeners
            list -> [i]
            object __main__.Job train.py:2 -> .x
            tensor float32[8] -> storage
            storage s
            """,
            0,
        ),
        train="""
        listeners = []

        def step(x):
            listeners.append(Job(x))
            for listener in listeners:
                listener.notify()
        """,
    )
    weak = next(lines for lines in found if any("weakref.ref(Job(x))" in line for line in lines))
    assert "listener = reference()" in weak
    assert "for reference in listeners:" in weak


def test_callbacks_that_are_bound_methods_are_weak_methods() -> None:
    found = edits(
        finding(
            """
            module __main__ train.py:1 -> .bus
            object __main__.Bus train.py:1 -> .callbacks
            list -> [i]
            method Job.done train.py:12 -> .__self__
            object __main__.Job train.py:9 -> .x
            tensor float32[8] -> storage
            storage s
            """,
            1,
        ),
        train="""
        class Bus:
            def subscribe(self, callback):
                self.callbacks.append(callback)

            def publish(self, event):
                for callback in self.callbacks:
                    callback(event)

        bus = Bus()
        for x in data:
            bus.subscribe(Job(x).done)
            bus.publish(x)
        """,
    )
    weak = next(lines for lines in found if any("weakref.WeakMethod(callback)" in line for line in lines))
    assert "callback = reference()" in weak


def test_a_list_of_named_values_becomes_a_dict() -> None:
    found = edits(
        finding(ROWS_OF_MAIN.replace("list -> [i]", "list -> [i]\n    tuple -> [1]"), 0),
        train="""
        def main():
            rows = []
            for x in data:
                for name, value in losses(x):
                    rows.append((name, value))
                for name, value in rows:
                    print(name, value)

        main()
        """,
    )
    keyed = next(lines for lines in found if "rows = {}" in lines)
    assert "rows[name] = value" in keyed
    assert "for name, value in rows.items():" in keyed


@pytest.mark.parametrize(
    ("store", "new"),
    [
        ("self.rows.append(x)", "self.rows = deque(maxlen=capacity)"),
        ("self.rows.append(x)", "del self.rows[:-self.capacity]"),
        ("self.rows = torch.cat([self.rows, x])", "self.rows = torch.cat([self.rows, x])[-self.capacity:]"),
    ],
)
def test_a_number_that_is_meant_as_a_bound_bounds(store: str, new: str) -> None:
    found = edits(
        finding(ROWS_OF_OBJECT if "append" in store else ROWS_OF_OBJECT.replace("list -> [i]\n", ""), 1),
        train=f"""
        class Metric:
            def __init__(self, capacity=100):
                self.capacity = capacity
                self.rows = []

            def push(self, x):
                {store}

            def sample(self):
                return choose(self.rows)
        """,
    )
    assert any(new.replace("maxlen=capacity", "maxlen=self.capacity") in lines for lines in found)


def test_a_figure_is_closed_after_its_last_use() -> None:
    found = edits(
        finding(
            """
            module matplotlib._pylab_helpers -> .Gcf
            class matplotlib._pylab_helpers.Gcf -> .figs
            dict -> [i]
            object matplotlib.figure.Figure -> .x
            tensor float32[8] -> storage
            storage s
            """,
            1,
        ),
        train="""
        import matplotlib.pyplot as plt

        def show(x):
            fig, ax = plt.subplots()
            ax.plot(x)
            fig.savefig("x.png")
            return x.mean()
        """,
    )
    assert found[0] == ["plt.close(fig)"]


def test_an_executor_is_shut_down_by_with() -> None:
    found = edits(
        finding(
            """
            module __main__ train.py:1 -> .jobs
            list -> [i]
            object concurrent.futures.thread.ThreadPoolExecutor -> ._work_queue
            tensor float32[8] -> storage
            storage s
            """,
            0,
        ),
        train="""
        def step(x):
            pool = ThreadPoolExecutor(2)
            jobs.append(pool)
            total = sum(pool.map(run, x))
            return total
        """,
    )
    assert "with ThreadPoolExecutor(2) as pool:" in found[0]
    assert any("pool.shutdown()" in lines for lines in found)


def test_a_default_argument_is_made_by_each_call() -> None:
    found = edits(
        finding(
            """
            module __main__ train.py:1 -> .keep
            function keep train.py:1 -> .__defaults__
            tuple -> [0]
            list -> [i]
            tensor float32[8] -> storage
            storage s
            """,
            1,
        ),
        train="""
        def keep(row, rows=[]):
            rows.append(row)
            return len(rows)
        """,
    )
    assert any("if rows is None:" in lines and "rows = []" in lines for lines in found)


def test_works_are_waited_for_before_they_are_dropped() -> None:
    found = edits(
        finding(
            """
            frame main train.py:2 -> local sends
            list -> [i]
            work torch.distributed.Work -> send buffer
            tensor float32[8] -> storage
            storage s
            """,
            0,
        ),
        train="""
        def main():
            sends = []
            for x in data:
                sends.append(dist.isend(net(x), 1))

        main()
        """,
    )
    assert ["for work in sends:", "work.wait()", "sends.clear()"] in found


def test_works_that_a_loop_waits_for_are_dropped_after_it() -> None:
    found = edits(
        finding(
            """
            frame main train.py:2 -> local runner
            object __main__.Runner train.py:2 -> .sends
            list -> [i]
            tuple -> [0]
            work torch.distributed.Work -> send buffer
            tensor float32[8] -> storage
            storage s
            """,
            1,
        ),
        train="""
        class Runner:
            def send(self, x):
                self.sends.append((dist.isend(x, 1), x))

            def flush(self):
                for work, _ in self.sends:
                    work.wait()

        def main():
            runner = Runner()
            for x in data:
                runner.send(x)
                runner.flush()

        main()
        """,
    )
    assert found[0] == ["self.sends.clear()"]


def test_an_item_is_taken_out_where_it_is_read_by_position() -> None:
    outputs = ROWS_OF_OBJECT.replace(".rows", ".outputs")
    found = edits(
        finding(outputs, 1),
        train="""
        class Metric:
            def keep(self, x):
                self.outputs.append(x)

            def oldest(self):
                self.done += 1
                return self.outputs[self.done - 1]

        def main():
            metric = Metric()
            for x in data:
                metric.keep(x)
                metric.oldest()

        main()
        """,
    )
    assert found[0] == ["- return self.outputs[self.done - 1]", "return self.outputs.pop(0)"]


def test_parameter_groups_are_replaced_or_added_once() -> None:
    found = edits(
        finding(
            """
            frame main train.py:2 -> local opt
            optimizer torch.optim.SGD -> .param_groups
            list -> [i]
            dict -> ['params']
            list -> [i]
            parameter float32[8] -> storage
            storage s
            """,
            1,
        ),
        train="""
        def main():
            opt = SGD(net.parameters())
            for x in data:
                opt.add_param_group({"params": [Parameter(x)]})
                opt.step()

        main()
        """,
    )
    assert found[0] == ["del opt.param_groups[1:]"]
    assert any("if len(opt.param_groups) == 1:" in lines for lines in found)


def test_an_average_of_entries_is_not_emptied() -> None:
    found = edits(
        finding(
            """
            frame main train.py:2 -> local ema
            object __main__.Ema train.py:3 -> .shadow
            dict -> ['weight']
            tensor float32[8] -> .grad_fn
            node AddBackward0
            """,
            1,
        ),
        train="""
        class Ema:
            def update(self, named):
                for n, p in named:
                    self.shadow[n] = 0.9 * self.shadow[n] + 0.1 * p
        """,
    )
    assert found == []


def test_all_references_of_a_cut_are_edited_together() -> None:
    both = finding(ROWS_OF_OBJECT, 1)
    trace = both.trace
    assert both.cut is not None
    first = CutReference(".rows", "", "metric.rows in main()", trace=1)
    second = CutReference(".names", "", "metric.names in main()")
    found = edits(
        finding(ROWS_OF_OBJECT, 1, cut=Cut((first, second), 1 << 20)),
        train="""
        class Metric:
            def update(self, row):
                self.rows.append(row)
                self.names.append(row)

            def show(self):
                print(sum(self.rows), sum(self.names))

        def main():
            metric = Metric()
            for x in data:
                metric.update(net(x))
                metric.show()

        main()
        """,
    )
    assert trace
    assert ["self.rows.clear()", "self.names.clear()"] in found or ["self.names.clear()", "self.rows.clear()"] in found


# ---------------------------------------------------------------------------------- hooks, contexts, exit handlers

HOOKS = """
    frame main train.py:2 -> local net
    nn torch.nn.Linear -> ._forward_hooks
    dict -> [i]
    function main.<locals>.note train.py:5 -> closure x
    tensor float32[8] -> storage
    storage s
"""


def test_a_hook_is_removed_after_the_statement_that_runs_it() -> None:
    found = edits(
        finding(HOOKS, 1),
        train="""
        def main():
            net = Linear(8, 8)
            for x in data:
                def note(*args):
                    print(x)
                net.register_forward_hook(note)
                loss = net(x)
                opt.step()

        main()
        """,
    )
    assert found[0] == [
        "- net.register_forward_hook(note)",
        "handle = net.register_forward_hook(note)",
        "handle.remove()",
    ]
    assert any("finally:" in lines for lines in found)


def test_hooks_of_a_loop_are_removed_together() -> None:
    found = edits(
        finding(HOOKS, 1),
        train="""
        def main():
            for x in data:
                def note(*args):
                    print(x)
                for net in nets:
                    net.register_forward_hook(note)
                loss = run(nets, x)
                loss.backward()

        main()
        """,
    )
    assert "handles = []" in found[0]
    assert "for handle in handles:" in found[0]


def test_a_hook_that_depends_on_nothing_of_the_loop_is_registered_before_it() -> None:
    found = edits(
        finding(HOOKS, 1),
        train="""
        def note(*args):
            print(args)

        def main():
            net = Linear(8, 8)
            for x in data:
                net.register_forward_hook(note)
                net(x)

        main()
        """,
    )
    assert ["net.register_forward_hook(note)", "- net.register_forward_hook(note)"] in found


def test_a_hook_of_forward_is_registered_in_init() -> None:
    found = edits(
        finding(HOOKS.replace("nn torch", "nn __main__.Net train.py:2 -> .fc\n    nn torch"), 2),
        train="""
        class Net(Module):
            def __init__(self):
                self.fc = Linear(8, 8)

            def note(self, *args):
                print(args)

            def forward(self, x):
                self.fc.register_forward_hook(self.note)
                return self.fc(x)
        """,
    )
    line = "self.fc.register_forward_hook(self.note)"
    assert any(line in lines and f"- {line}" in lines and len(lines) == 2 for lines in found)
    assert any("self._hook_handle.remove()" in lines for lines in found)


def test_a_handle_is_removed_where_its_object_is_used_last() -> None:
    found = edits(
        finding(
            """
            method Net.note train.py:6 -> .__self__
            nn*1 __main__.Net train.py:2 -> .fc
            nn torch.nn.Linear -> ._forward_hooks
            dict -> [i]
            method Net.note train.py:6 -> .__self__
            nn*1 __main__.Net train.py:2 -> .x
            tensor float32[8] -> storage
            storage s
            """,
            3,
            freed_by=FreedBy.GC,
        ),
        train="""
        class Net(Module):
            def __init__(self):
                self.handle = self.fc.register_forward_hook(self.note)

            def note(self, *args):
                print(args)

        def fold(x):
            net = Net()
            loss = net(x)
            return loss.item()
        """,
    )
    assert ["net.handle.remove()"] in found
    assert any("note = weakref.WeakMethod(self.note)" in lines for lines in found)


RECURSIVE = """
    function*1 run.<locals>.collect train.py:3 -> closure collect
    function*1 run.<locals>.collect train.py:3 -> closure roots
    list -> [i]
    tensor float32[8] -> storage
    storage s
"""


def test_a_recursive_closure_is_replaced_by_stage_backward() -> None:
    found = edits(
        finding(RECURSIVE, 0, freed_by=FreedBy.GC),
        train="""
        import torch

        def run(outputs, grads):
            roots, root_grads = [], []
            def collect(output, grad):
                if isinstance(output, torch.Tensor):
                    roots.append(output)
                    root_grads.append(grad)
                else:
                    for pair in zip(output, grad):
                        collect(*pair)
            collect(outputs, grads)
            torch.autograd.backward(roots, root_grads)
            return take(outputs)
        """,
    )
    whole = next(lines for lines in found if "stage_backward(outputs, grads, ())" in lines)
    assert "from leakscope.backward import stage_backward" in whole
    assert "- collect(outputs, grads)" in whole


def test_a_closure_that_is_forgotten_at_times_is_forgotten_always() -> None:
    found = edits(
        finding(RECURSIVE, 0, freed_by=FreedBy.GC),
        train="""
        def run(edges, grads, tidy):
            roots = []
            def collect(edge):
                roots.append(edge) if flat(edge) else [collect(inner) for inner in edge]
            collect(edges)
            if tidy:
                del collect
            torch.autograd.backward(roots, grads)
        """,
    )
    assert found[0] == ["- if tidy:", "- del collect", "del collect"]


def of_context(where: str, **fields: Any) -> Finding:
    cut = Cut((CutReference("the open context", where, "the open context"),), 1 << 20)
    trace = "object torch._C.DistAutogradContext -> gradient\ntensor float32[8] -> storage\nstorage s"
    return finding(trace, rule="dist-autograd-context", cut=cut, **fields)


def test_a_context_entered_by_hand_becomes_a_with() -> None:
    found = edits(
        of_context("train.py:2"),
        train="""
        def step(x):
            context_id = dist_autograd.context().__enter__()
            loss = forward(x)
            return loss

        def other(x):
            context = dist_autograd.context()
            context_id = context.__enter__()
            loss = forward(x)
            context.__exit__(None, None, None)
            return loss
        """,
    )
    assert len(found) == 1
    assert "with dist_autograd.context() as context_id:" in found[0]


def test_a_context_left_by_hand_is_left_on_errors_too() -> None:
    found = edits(
        of_context("train.py:3"),
        train="""
        def step(x):
            context = dist_autograd.context()
            context_id = context.__enter__()
            loss = forward(x)
            context.__exit__(None, None, None)
            return loss
        """,
    )
    assert "with dist_autograd.context() as context_id:" in found[0]
    assert "- context.__exit__(None, None, None)" in found[0]
    assert "- return loss" not in found[0]


def test_an_exit_handler_is_unregistered_by_its_own_method() -> None:
    from leakscope.findings.rules.step_growth import GrowsIn, GrowthFacts

    facts = GrowthFacts.__new__(GrowthFacts)
    object.__setattr__(facts, "grows_in", GrowsIn.CALLBACK)
    found = edits(
        finding(
            """
            method Server.close train.py:7 -> .__self__
            object __main__.Server train.py:4 -> .table
            tensor float32[8] -> storage
            storage s
            """,
            0,
            facts=facts,
        ),
        train="""
        import atexit

        class Server:
            def __init__(self):
                atexit.register(self.close)

            def close(self):
                self.open = False

        def step():
            server = Server()
            server.close()
        """,
    )
    assert found[0] == ["atexit.unregister(self.close)"]
    assert ["atexit.unregister(server.close)"] in found


def test_no_more_than_a_dozen_candidates_each_once() -> None:
    loops = "\n".join(f"{'    ' * (k + 1)}for x{k} in data:" for k in range(9))
    body = "    " * 10
    text = f"def main():\n    rows = []\n{loops}\n{body}rows.append(x1)\n{body}print(rows)\n"
    found = edits(finding(ROWS_OF_MAIN, 0), train=text)
    assert 0 < len(found) <= 12
