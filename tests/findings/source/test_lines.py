"""The lines that add to a cut are found in the source, and none is guessed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from findings.source.traces import finding, kept, reported
from hypothesis import example, given, settings
from hypothesis import strategies as st

from leakscope.findings.source.index import Sources, parse
from leakscope.findings.source.lines import with_lines
from leakscope.findings.source.stores import stores_for

LIST_OF_MAIN = """
    frame main train.py:2 -> local history
    list -> [i]
    tensor float32[] -> .grad_fn
    node AddBackward0
"""
LIST_OF_OBJECT = """
    frame main train.py:2 -> local trainer
    object __main__.Trainer train.py:3 -> .history
    list -> [i]
    tensor float32[8] -> storage
    storage s
"""


@pytest.mark.parametrize(
    "line",
    [
        "history.append(loss)",
        "history.insert(0, loss)",
        "history += [loss]",
        "history = [*history, loss]",
        "history[len(history):] = history + [loss]",
        "heapq.heappush(history, (x, loss))",
        "bisect.insort(history, loss)",
        "operator.iadd(history, [loss])",
        "add = history.append; add(loss)",
        "loop.call_later(1, history.append, loss)",
        "deque(map(history.append, net(x)), maxlen=0)",
        "[history.append(y) for y in loss]",
    ],
)
def test_what_is_added_to_a_local_of_the_function(line: str) -> None:
    text = f"""
        def main():
            history = []
            for x in data:
                loss = net(x)
                {line}
            return history

        def other():
            history = []
            history.append(make())
    """
    assert reported(finding(LIST_OF_MAIN, 0), train=text) == [line]


@pytest.mark.parametrize(
    "line",
    [
        "self.history[self.step] = x",
        "self.history.setdefault(self.step, x)",
        "self.history = self.history + [x]",
        "self.history |= {x}",
        "self.history.update({self.step: x})",
        "getattr(self, 'history').append(x)",
        "operator.setitem(self.history, self.step, x)",
        "self.history.__setitem__(self.step, x)",
    ],
)
def test_what_is_added_to_an_attribute_in_the_methods_of_its_class(line: str) -> None:
    text = f"""
        class Other:
            def keep(self, x):
                self.history.append(x)

        class Trainer:
            def __init__(self):
                self.history = []

            def keep(self, x):
                {line}
    """
    assert reported(finding(LIST_OF_OBJECT, 1), train=text) == [line]


def test_methods_of_base_and_subclass_are_the_objects_too() -> None:
    text = """
        class Base:
            def keep(self, x):
                self.history.append(x)

        class Trainer(Base):
            pass

        class Special(Trainer):
            def keep_more(self, x):
                self.history.extend(x)

        class Sibling(Base):
            def keep_else(self, x):
                self.history.insert(0, x)
    """
    assert reported(finding(LIST_OF_OBJECT, 1), train=text) == ["self.history.append(x)", "self.history.extend(x)"]


def test_an_alias_and_a_parameter_are_followed() -> None:
    text = """
        def main():
            history = []
            log = history
            log.append(first())
            fill(1, history)

        def fill(count, rows):
            for _ in range(count):
                rows.append(net())

        def elsewhere(rows):
            rows.append(net())
    """
    assert reported(finding(LIST_OF_MAIN, 0), train=text) == ["rows.append(net())", "log.append(first())"]


def test_a_global_is_filled_in_its_module_and_where_it_is_imported() -> None:
    trace = """
        module log -> .ROWS
        list -> [i]
        tensor float32[4] -> storage
        storage s
    """
    log = """
        ROWS = []

        def keep(x):
            ROWS.append(x)

        def local():
            ROWS = []
            ROWS.append(net())
    """
    use = """
        import log
        from log import ROWS as rows

        log.ROWS.append(net())
        rows.insert(0, net())
    """
    other = """
        ROWS = []
        ROWS.append(net())
    """
    expected = ["ROWS.append(x)", "log.ROWS.append(net())", "rows.insert(0, net())"]
    assert reported(finding(trace, 0), log=log, use=use, other=other) == expected


def test_numbers_texts_and_empty_things_hold_no_tensor() -> None:
    text = """
        def main():
            history = []
            note = f"{epoch}"
            for x in data:
                loss = net(x)
                history.append(loss.item())
                history.append("epoch")
                history.append(note)
                history.append(float(loss))
                history.append([])
                history.append(loss)
    """
    assert reported(finding(LIST_OF_MAIN, 0), train=text) == ["history.append(loss)"]


@pytest.mark.parametrize(
    "text",
    [
        "def main(:\n    history.append(loss)",  # no Python
        "def main():\n    print(history)",
        "def other():\n    history = []\n    history.append(loss)",
        "history = []\nhistory.append(loss)",  # a global of the same name
        "class A:\n    def f(self, history):\n        self.history.append(history)",
    ],
)
def test_nothing_is_told_that_is_not_shown(text: str) -> None:
    assert reported(finding(LIST_OF_MAIN, 0), train=text) == []


def test_each_file_is_read_once_and_only_if_it_names_what_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(
        "leakscope.findings.source.index.parse", lambda name, text: read.append(name) or parse(name, text)
    )
    files = {f"other{k}": "def main():\n    rows = []\n    rows.append(net())" for k in range(50)}
    sources = Sources(kept(**files, train="def main():\n    history = []\n    history.append(net())"))
    found = finding(LIST_OF_MAIN, 0)
    for _ in range(3):
        with_lines(found, sources)
    assert read == ["train.py"]


WORDS = ["def main():", "    history = []", "    history.append(history)", "history", "(", ")", "lambda:", "self.", "*"]


@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(WORDS)).map("\n".join)))
@example("x" + ".history" * 300)
@example("(" * 200)
@example("history = history\ndef main(history=history): history = history.history; history += history(history)")
@example("\0")
@settings(max_examples=15, deadline=None)
def test_no_text_of_a_source_fails(text: str) -> None:
    for found in (finding(LIST_OF_MAIN, 0), finding(LIST_OF_OBJECT, 1), finding(LIST_OF_OBJECT, 2)):
        assert found.cut is not None
        stores_for(found, found.cut.references[0], Sources({"train.py": text.split("\n")}))
        assert with_lines(found, Sources({"train.py": text.split("\n")})).fingerprint == found.fingerprint


def test_another_cell_of_a_notebook_shares_the_globals() -> None:
    trace = """
        module __main__ In[1]:1 -> .history
        list -> [i]
        tensor float32[8] -> storage
        storage s
    """
    found = finding(trace, 0)
    found = replace(found, trace=(replace(found.trace[0], where="In[1]:1"), *found.trace[1:]))
    cells = {"In[1]": ("history = []",), "In[4]": ("for x in data:", "    history.append(net(x))")}
    assert found.cut is not None
    assert [store.where for store in stores_for(found, found.cut.references[0], Sources(cells))] == ["In[4]:2"]


@pytest.mark.parametrize(
    ("holder", "line"),
    [
        ("object weakref.finalize._Info", "weakref.finalize(owner, forget, batch)"),
        ("object asyncio.events.TimerHandle", "loop.call_later(60, forget, batch)"),
        ("object atexit", "atexit.register(forget, batch)"),
    ],
)
def test_what_is_handed_to_a_registry_of_pythons_own_is_told_where_it_is_handed_on(holder: str, line: str) -> None:
    trace = f"module registry -> .entries\ndict -> [i]\n{holder} -> .args\ntuple -> [i]\ntensor float32[8] -> storage"
    text = f"""
        def step(owner, loop, batch):
            batch = batch * 2
            {line}
    """
    assert reported(finding(trace + "\nstorage s", 0), train=text) == [line]


def test_a_second_attribute_of_the_same_object_is_filled_at_its_own_line() -> None:
    found = finding(LIST_OF_OBJECT, 1)
    assert found.cut is not None
    first = replace(found.cut.references[0], written="trainer.history")
    second = replace(first, name=".best", written="trainer.best", trace=None, indexes=(7,))
    both = replace(found, cut=replace(found.cut, references=(first, second)))
    lines = ("self.history.append(x)", "self.best.append(x)", "self.best = [x]")
    text = "class Trainer:\n    def keep(self, x):\n" + "".join(f"        {line}\n" for line in lines)
    assert [store.where for store in stores_for(both, second, Sources(kept(train=text)))] == ["train.py:4"]


def test_items_of_another_key_are_not_those_that_grow() -> None:
    trace = """
        frame main train.py:2 -> local history
        dict -> ['val']
        list -> [i]
        tensor float32[] -> .grad_fn
        node N
    """
    text = """
        def main():
            history = {"val": [], "train": []}
            history["train"].append(net())
            history["val"].append(net())
    """
    assert reported(finding(trace, 1), train=text) == ['history["val"].append(net())']
