"""What held the device's memory when it ran out? Asked before the failing call's stack unwinds."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable

from leakscope.capture.device.accelerator import Accelerator, read_figures
from leakscope.capture.process.clock import CLOCK
from leakscope.capture.process.forks import in_forked_child
from leakscope.capture.process.guard import Guard
from leakscope.capture.source.user_frames import users_line, waiting
from leakscope.originals import _thread
from leakscope.record.folder import RankFolder
from leakscope.record.rows.device import DeviceFailure

MAX_FREE_LOOKS = 3
"""Failures, chosen: so many are looked at whatever that costs. A library that tries one size after the other fails
often and quietly."""
_SHARE = 0.02
"""Share of the run's time, chosen, that looking at further failures may take."""


class Failures:
    """Notes each time the device's memory runs out, and looks at the heap at some of them."""

    def __init__(self, note: Callable[[str], None], folder: RankFolder) -> None:
        self.kind = ""
        self.guard = Guard()
        self.look: Callable[[], bool] | None = None
        """Takes a look now; False where another is under way."""
        self.steps: Callable[[], int] = lambda: 0
        self._note, self._folder = note, folder
        self._accelerator: Accelerator | None = None
        self._in_forked_child, self._began = in_forked_child(), CLOCK.perf_counter()
        self._home = _thread.get_ident()
        self._busy = self._over = False
        self._looks, self._spent = 0, 0.0
        self._last: tuple[int, bool] | None = None

    def observe(self, accelerator: Accelerator) -> None:
        """Attach to the allocator, once; there is no way to detach, so what is attached holds this weakly."""
        if self._accelerator is None and accelerator.observe_failures is not None:
            self._accelerator = accelerator
            ran_out = self.guard.guarded("out-of-memory observer", _observer(weakref.ref(self)))
            accelerator.observe_failures(ran_out)

    def end(self) -> None:
        """From here on the observer does nothing."""
        self._over = True

    def looked_at_last(self, step: int) -> bool:
        """Whether the last failure was in this step and was looked at: no second look is needed then."""
        return self._last == (step, True)

    def ran_out(self, device: int, wanted: int, limit: int, free: int) -> None:
        """Called by the allocator, on whichever thread wants memory; what this raised would replace its error.

        `wanted` is what it asked the driver for: small requests are rounded up (c10/cuda/CUDACachingAllocator.cpp,
        get_allocation_size), as in torch's own message.
        """
        if self._over or self._busy or self._in_forked_child:
            return
        self._busy = True
        try:
            self._tell(device, wanted, limit, free)
        except Exception as error:  # noqa: BLE001 - told as a note: see above
            self._note(f"the state when memory ran out was not recorded: {type(error).__name__}: {error}")
        finally:
            self._busy = False

    def _tell(self, device: int, wanted: int, limit: int, free: int) -> None:
        step = self.steps()
        at, counted = self._place(), None
        if self._accelerator is not None:
            counted = next((f for f in read_figures(self._accelerator) or () if f.device == device), None)
        looked = self._look()
        self._last = (step, looked)
        self._folder.append(
            DeviceFailure(
                step=step,
                kind=self.kind,
                device=device,
                wanted_bytes=wanted,
                limit_bytes=limit,
                free_bytes=free,
                at=at,
                counted=counted,
                looked=looked,
            )
        )

    def _look(self) -> bool:
        began = CLOCK.perf_counter()
        if self.look is None or (self._looks >= MAX_FREE_LOOKS and self._spent > _SHARE * (began - self._began)):
            return False
        looked = self.look()
        self._looks += looked
        self._spent += CLOCK.perf_counter() - began
        return looked

    def _place(self) -> str:
        """The user's line: of this thread or, where autograd's asks for memory, of the one that waits for it."""
        here = users_line(sys._getframe(1))
        return here or users_line(waiting(self._home))


def _observer(failures: weakref.ref[Failures]) -> Callable[[int, int, int, int], None]:
    def ran_out(device: int, wanted: int, limit: int, free: int) -> None:
        observer = failures()
        if observer is not None:
            observer.ran_out(device, wanted, limit, free)

    return ran_out
