"""A small view, detached slice or numpy array that keeps a large storage."""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import Facts, RuleName
from leakscope.findings.model import Finding
from leakscope.findings.rules.rule import Match, Rule, ToCut
from leakscope.graph.model import REACHABLE, Object, ReferenceKind
from leakscope.units import bytes_text

_LARGER = 2
"""Minimum ratio of a storage to what is needed of it. Heuristic."""


@dataclass(frozen=True)
class ViewFacts(Facts):
    """What is held spans a small part of its storage."""

    held: str
    needed_bytes: int
    storage_bytes: int
    by_base: bool
    """It is a view, and holds its base."""

    def title_for(self, finding: Finding) -> str:
        """The used bytes and the size of the storage."""
        needed, storage = bytes_text(self.needed_bytes), bytes_text(self.storage_bytes)
        return f"{self.held} in {finding.subject} uses {needed} but retains a storage of {storage}"

    def advice_for(self, finding: Finding) -> str:
        """How to store the used part only."""
        if self.by_base:
            return (
                f"Drop the view in {finding.subject}, or store a .detach().clone() of it: a view references its base "
                "through ._base, even if its .data is replaced."
            )
        return f"Store clones in {finding.subject} (.detach().clone()): a slice shares the whole storage of its tensor."


def _arrays(candidate: Candidate) -> list[Object]:
    return [o for o in candidate.before_tensor if o.type.endswith(("ndarray", "memoryview"))]


def _sizes(candidate: Candidate) -> tuple[int, int]:
    """(bytes that what is held spans, bytes its storage owns)."""
    spans = [o.size for o in _arrays(candidate) if o.size >= 0]
    return min([*spans, candidate.objects[candidate.tensor_at].size]), candidate.objects[-1].bytes


def _applies(candidate: Candidate) -> bool:
    needed, storage = _sizes(candidate)
    only_memory = all(r.kind == ReferenceKind.MEMORY for r in candidate.references[candidate.tensor_at :])
    return candidate.group.freed == REACHABLE and only_memory and 0 <= needed * _LARGER <= storage


def _facts(candidate: Candidate, _cut: ToCut) -> ViewFacts:
    needed, storage = _sizes(candidate)
    held = next(iter(_arrays(candidate)), candidate.objects[candidate.tensor_at])
    return ViewFacts(held.label, needed, storage, by_base=any(r.name == "._base" for r in candidate.references))


HELP = """\
# view-hold

A small view that retains a large storage.

## What it does

Reports live containers that gain slices, detached rows or numpy arrays which each retain at least twice the memory that
they use, with both sizes.

## Why is this bad?

A view shares the memory of its base tensor and retains all of it.

## Example

```python title="encode.py"
import torch
import leakscope

encoder = torch.nn.Linear(256, 256)
summaries = []


def encode():
    with torch.no_grad():
        hidden = encoder(torch.randn(512, 256))
    summaries.append(hidden[0])


print(leakscope.check(encode, repeats=3, min_bytes="64 KiB"))
```

```console
$ python encode.py
```

A storage is freed as a whole: the first row of 512 also retains the other 511. The same holds for `narrow`, `chunk`,
`unbind`, `detach`, `expand`, `tensor.numpy()` and a `memoryview`.

## Use instead

Store a clone of the used part.

```diff title="encode.py"
         hidden = encoder(torch.randn(512, 256))
-    summaries.append(hidden[0])
+    summaries.append(hidden[0].clone())
```

```console
$ python encode.py
```

The list still gains a row every step, which is reported as a note because it is below the `min_bytes` of `check`. Set a
bound for long runs.

Other fixes:

- Use `hidden[0].tolist()` or `.item()` if numbers are enough.
- `torch.save` of a view also writes the whole storage: save a clone.
- Use `numpy().copy()` for arrays that outlive the tensor.

## References

- [Tensor views](https://docs.pytorch.org/docs/stable/tensor_view.html).
"""
RULE = Rule(RuleName.VIEW_HOLD, HELP, Match(80, _applies, _facts), may_fill=True)
