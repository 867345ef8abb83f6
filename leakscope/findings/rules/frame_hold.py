"""Tracebacks, stored exceptions, suspended generators, threads and futures that keep locals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import Facts, RuleName
from leakscope.findings.growth import MIN_SNAPSHOTS
from leakscope.findings.model import Finding
from leakscope.findings.rules.rule import Match, Rule, ToCut
from leakscope.graph.model import REACHABLE, Object, ObjectKind, ReferenceKind, RootKind

_KINDS = (
    ObjectKind.FRAME,
    ObjectKind.TRACEBACK,
    ObjectKind.EXCEPTION,
    ObjectKind.GENERATOR,
    ObjectKind.THREAD,
    ObjectKind.FUTURE,
)


class LocalsHolder(StrEnum):
    """What keeps the locals."""

    EXCEPTION = "exception"
    GENERATOR = "generator"
    TASK = "task"
    """A task whose coroutine has not ended."""
    FUTURE = "future"
    THREAD = "thread"


_KEEPERS = {
    ObjectKind.GENERATOR: LocalsHolder.GENERATOR,
    ObjectKind.FUTURE: LocalsHolder.FUTURE,
    ObjectKind.THREAD: LocalsHolder.THREAD,
}


@dataclass(frozen=True)
class FrameFacts(Facts):
    """Locals of a function that are kept."""

    SUMMED = ("alike",)

    keeper: LocalsHolder
    label: str
    alike: int
    """Similar objects that keep storages of the group."""
    given: bool
    """Whether it was passed to a thread or future, or returned by it; otherwise it is locals."""
    local: str
    """The local, as `local batch`; "" if unknown."""
    function: str
    """The function whose local it is."""
    collector: str
    """What collects such objects, as written in code; "" if that is the cut."""
    is_text: bool = False
    """Whether the program only prints or counts a kept exception."""

    def title_for(self, finding: Finding) -> str:
        """The retained locals, their referrer, and the container of such referrers."""
        if not self.collector:
            return f"{self.label} in {finding.subject} retains {_locals(self)}"
        return f"{self.collector} holds {self.alike} objects like {self.label}, each retaining {_locals(self)}"

    def advice_for(self, finding: Finding) -> str:
        """What to store instead, by the kind of referrer."""
        collector = self.collector or finding.subject
        instead = "str(error) or traceback.format_exc()" if self.is_text else "error.with_traceback(None)"
        return {
            LocalsHolder.EXCEPTION: f"Store {instead} in {collector} instead of the exception: its traceback "
            "references every frame that it passed and all their locals.",
            LocalsHolder.GENERATOR: f"Exhaust or close() the generator, and drop it from {collector}: a suspended "
            "generator retains all its locals.",
            LocalsHolder.TASK: "Await or cancel() these tasks, or start fewer: a pending task retains all locals of "
            f"its coroutine, and is itself retained by what it awaits, even if it is dropped from {collector}.",
            LocalsHolder.FUTURE: f"Drop finished futures from {collector}: each retains its result.",
            LocalsHolder.THREAD: f"Drop the finished thread from {collector}: it retains its attributes and arguments.",
        }[self.keeper]


def _locals(facts: FrameFacts) -> str:
    """`local variables (local batch in load)`."""
    if facts.given:
        return "its arguments or its result"
    inside = f" ({facts.local} in {facts.function})" if facts.local else ""
    return f"local variables{inside}"


@dataclass(frozen=True)
class CallsFacts(Facts):
    """More calls of one function run at each snapshot: threads that wait and do not end, or a recursion that goes
    deeper.
    """

    SUMMED = ("calls",)

    calls: int
    function: str
    kept: str
    """The local that each keeps; "" if unknown."""

    def title_for(self, _: Finding) -> str:
        """Number of concurrent calls."""
        kept = self.kept or "its locals"
        return f"{self.calls} concurrent calls of {self.function}(), more at each snapshot, each retaining {kept}"

    def advice_for(self, _: Finding) -> str:
        """How to limit the number of calls."""
        return (
            f"End the threads that run {self.function}(), or start a fixed number of them once "
            "(concurrent.futures.ThreadPoolExecutor): a waiting call retains its locals, and its thread the arguments. "
            "In a recursion, return before the next step."
        )

    def why_no_cut(self) -> str:
        """Reason for running calls."""
        return "no single cut is enough: each running call retains its own locals"


def _applies(candidate: Candidate) -> bool:
    return candidate.group.freed == REACHABLE and (candidate.through(*_KINDS) is not None or _piles_up(candidate))


def _piles_up(candidate: Candidate) -> bool:
    more = len(candidate.roots) >= MIN_SNAPSHOTS and all(a < b for a, b in pairwise(candidate.roots))
    return more and candidate.objects[0].root == RootKind.FRAME


def _local_of(candidate: Candidate, frame: Object | None) -> str:
    """The first local of a frame on the path."""
    if frame is None:
        return ""
    locals_ = (r.name for r in candidate.references if r.kind == ReferenceKind.LOCAL and r.holder == frame.index)
    return next(locals_, "")


def _keeper(candidate: Candidate, position: int) -> LocalsHolder:
    """For a future, whether it is a waiting task: a finished coroutine holds nothing."""
    keeper = _KEEPERS.get(candidate.objects[position].kind, LocalsHolder.EXCEPTION)
    waits = any(o.kind == ObjectKind.GENERATOR for o in candidate.before_tensor[position + 1 :])
    return LocalsHolder.TASK if keeper == LocalsHolder.FUTURE and waits else keeper


def _last_frame(candidate: Candidate, position: int) -> Object | None:
    """The last frame at or below this position."""
    frames = (ObjectKind.FRAME, ObjectKind.GENERATOR)
    return next((o for o in reversed(candidate.before_tensor[position:]) if o.kind in frames), None)


def _alike(candidate: Candidate, holder: Object) -> int:
    """Number of similar objects that keep storages of the group."""
    alike = (candidate.graph.object(index) for index in candidate.storages_below)
    return sum((o.kind, o.name) == (holder.kind, holder.name) for o in alike)


def _collector(candidate: Candidate, position: int, cut: str) -> str:
    """What collects objects like the one at this position, as written in code; "" if that is the cut."""
    path = candidate.group.path
    place = next((k for k in range(position - 1, 0, -1) if candidate.objects[k].kind == ObjectKind.CONTAINER), 0)
    items = [reference for reference in path[place:position] if place and reference not in candidate.one_of_its_kind]
    if all(cut != candidate.written(reference) for reference in (*items, *path[position : candidate.tensor_at])):
        return ""
    collector = candidate.written(path[place - 1]) if place else cut
    return "" if collector == cut else collector


def _facts(candidate: Candidate, cut: ToCut) -> FrameFacts | CallsFacts:
    place = candidate.through(*_KINDS)
    if place is None:
        root = candidate.objects[0]
        return CallsFacts(candidate.roots[-1], root.name, _local_of(candidate, root))
    holder, frame = candidate.objects[place], _last_frame(candidate, place)
    collector = _collector(candidate, place, cut.written)
    return FrameFacts(
        _keeper(candidate, place),
        holder.label,
        alike=_alike(candidate, holder) if collector else 1,
        given=frame is None and holder.kind in (ObjectKind.THREAD, ObjectKind.FUTURE),
        local=_local_of(candidate, frame),
        function=frame.name if frame else "",
        collector=collector,
    )


HELP = """\
# frame-hold

Tensors held by the locals of a frame, a generator, an exception or a thread.

## What it does

Reports exceptions, generators, futures and threads that retain the local variables of a function, with the function and
the variable.

## Why is this bad?

The locals of a function live as long as its frame, and a traceback, a stored exception, a suspended generator, a thread
or a future retains the frame.

## Example

```python title="train.py"
import torch
import leakscope

net = torch.nn.Linear(256, 256)
failures = []


def forward(batch):
    output = net(batch)
    if output.abs().max() > 0.01:
        raise FloatingPointError("the output is too large")
    return output


def train_step():
    try:
        forward(torch.randn(64, 256))
    except FloatingPointError as error:
        failures.append(error)


print(leakscope.check(train_step, repeats=3))
```

```console
$ python train.py
```

`error.__traceback__` has an entry for each call that the exception passed. Each entry references its frame, and each
frame its variables: here `batch` and `output`.

## Use instead

Store the text of an exception instead of the exception, close generators, and join threads.

```diff title="train.py"
     except FloatingPointError as error:
-        failures.append(error)
+        failures.append(str(error))
```

```console
$ python train.py
```

Other fixes:

- `traceback.format_exc()` has the lines of the traceback without its frames; `error.with_traceback(None)` has the
  exception alone.
- In a notebook, and after an uncaught exception, `sys.last_value` and `sys.last_traceback` retain the frames of the
  last exception, so memory stays full after an out-of-memory error: `del sys.last_value, sys.last_traceback`, and from
  Python 3.12 also `sys.last_exc`.
- A suspended generator retains all its variables: call `generator.close()`, or exhaust it.
- A future retains its result after `future.result()`: drop the future. A `Thread` object retains its arguments until it
  has run.

## References

- [traceback](https://docs.python.org/3/library/traceback.html): texts of exceptions without their frames.
"""
RULE = Rule(RuleName.FRAME_HOLD, HELP, Match(60, _applies, _facts), is_unintended=True)
