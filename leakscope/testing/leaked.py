"""Tensors that a block leaves in the garbage, and what holds them."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from leakscope.profiler import watch
from leakscope.verdict import Verdict

if TYPE_CHECKING:
    from leakscope.findings.model import Findings
    from leakscope.heap.fast_check import WeakIdSet
    from leakscope.heap.liveness import Liveness
    from leakscope.run.model import Run


class LeakedTensors(list[Any]):
    """The tensors that a block left as garbage, empty until it ends. The list keeps them alive."""

    findings: Findings
    """What holds them, and which reference to cut; set after the block."""
    run: Run
    """The recording of the block, as `leakscope.judge` takes it."""


class check_leaked_tensors(watch):
    """A replacement for torch's `check_leaked_tensors` that also names what holds each tensor.

    It takes the same arguments. Torch's version (torch/testing/_internal/common_utils.py) sees only what gc can free,
    not tensors that C++ holds in a cycle. This one sees both, frees nothing, and sets no gc debug flags. After the
    block, a warning gives the number of tensors and what holds them.

    Args:
        limit: Number of leaks to describe in the warning.
        matched_type: Type, or tuple of types, of the listed objects [default: torch.Tensor]. Objects of other types are
            found only if they lead to tensor memory.

    >>> import warnings, torch
    >>> from leakscope.testing import check_leaked_tensors
    >>> def leave_a_cycle():
    ...     outputs = [torch.ones(1024)]
    ...     outputs.append(outputs)
    >>> with warnings.catch_warnings(record=True) as caught, check_leaked_tensors() as leaked:
    ...     leave_a_cycle()
    >>> len(leaked), leaked.findings.findings[0].rule.value
    (1, 'tensor-cycle')

    """

    def __init__(self, limit: int = 1, matched_type: type | tuple[type, ...] | None = None) -> None:
        super().__init__()
        self._limit, self._matched_type = limit, matched_type

    def __enter__(self) -> LeakedTensors:  # type: ignore[override]  # what torch's gives
        self._leaked = LeakedTensors()
        self._before: WeakIdSet | None = None
        super().__enter__()
        return self._leaked

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leaked = self._leaked
        super().__exit__(kind, error, trace)
        leaked.findings, leaked.run = self.findings, self.run
        if leaked:
            warnings.warn(f"{len(leaked)} tensors were found in the garbage.{self._listed()}", stacklevel=2)
        elif self.findings.verdict == Verdict.INCONCLUSIVE and not self._not_inspected:  # that was warned of
            warnings.warn(f"the block was not judged: {self.findings.why}", stacklevel=2)
        del self._leaked

    def _listed(self) -> str:
        from leakscope.report.text.page import render_in_test

        some = replace(self.findings, findings=self.findings.findings[: self._limit])
        return f"\n\n{render_in_test(self.run, some)}" if some.findings else ""

    def _learn_before(self, heap: Liveness) -> None:
        super()._learn_before(heap)
        from leakscope.heap.fast_check import WeakIdSet

        self._before = WeakIdSet(self._garbage_among(heap))

    def _learn_after(self, heap: Liveness) -> None:
        super()._learn_after(heap)
        self._leaked.extend(self._garbage_among(heap))

    def _garbage_among(self, heap: Liveness) -> list[Any]:
        """Objects of the requested types that are garbage now and were not before."""
        from leakscope.heap.fast_check import RETENTION_CHECK, garbage_among

        types = self._matched_type if self._matched_type is not None else sys.modules["torch"].Tensor
        found = garbage_among(heap, types if type(types) is tuple else (types,))
        before = self._before
        return [
            obj for obj in found if not (RETENTION_CHECK.was_garbage(obj) or (before is not None and before.has(obj)))
        ]
