"""Who records memory history? leakscope, from the device's first use on, until the script wants to do it itself."""

from __future__ import annotations

from collections.abc import Callable

from leakscope.capture.device.accelerator import Accelerator
from leakscope.capture.process.forks import in_forked_child
from leakscope.capture.process.patches import Patches

ENTRIES = 100_000
"""Events kept, the newest; an entry takes about a kilobyte of host memory, a snapshot of so many 0.7 s."""

WAITING, OURS, THEIRS, OVER = "waiting", "ours", "theirs", "over"
"""The device is unused so far; recording is leakscope's; it is the script's; there is none."""

ASIDE = (
    "the script records memory history itself, so leakscope leaves it alone: no allocator snapshots were taken from "
    "there on (`leakscope snapshot FILE` reads the script's own)"
)


class History:
    """Switches history on once the device is in use, and off only what it switched on."""

    def __init__(
        self, accelerator: Accelerator, wanted: bool, note: Callable[[str], None], begun: Callable[[], None]
    ) -> None:
        self.state = WAITING if wanted and accelerator.record is not None else OVER
        self._accelerator, self._note, self._begun = accelerator, note, begun
        self._in_forked_child = in_forked_child()
        self._callback = self.device_in_use
        """One object, so that it can be found again among what waits for the device; guarded, once attached."""

    def attach(self, patches: Patches) -> None:
        """Wait for the device's first use; a process that never uses it is left without a context."""
        device = self._accelerator
        self._callback = patches.guard.guarded(f"first use of {device.kind}", self.device_in_use)
        if self.state == WAITING and device.recorder_name is not None:
            patches.call_before(*device.recorder_name, self._somebody_records)
            patches.add(f"memory history of {device.kind}", self.end)
        if device.in_use():
            self.device_in_use()
        elif device.when_in_use is not None:
            device.when_in_use(self._callback)
            patches.add(f"a call waiting for the first use of {device.kind}", self._stop_waiting)

    def device_in_use(self) -> None:
        """Begin, unless somebody else records already.

        torch calls this in the middle of putting the device to use, and what it raises would end the script.
        """
        if self._in_forked_child:
            return
        try:
            if self.state == WAITING:
                self._begin()
            self._begun()
        except Exception as error:  # noqa: BLE001 - told as a note: see above
            self.state = OVER if self.state == WAITING else self.state
            self._note(f"memory on the device is not recorded: {type(error).__name__}: {error}")

    def _begin(self) -> None:
        device = self._accelerator
        assert device.record is not None
        if device.is_recording is not None and device.is_recording():
            self._step_aside()
            return
        # allocators without history refuse: cudaMallocAsync and pluggable ones ("does not yet support recordHistory")
        device.record(**device.record_arguments(ENTRIES))
        self.state = OURS

    def is_ours(self) -> bool:
        """Whether what a snapshot holds now is leakscope's own recording; notices a history switched off behind it."""
        if self._in_forked_child:
            return False
        asked = self._accelerator.is_recording
        if self.state == OURS and asked is not None and not asked():
            self._step_aside()
        return self.state == OURS

    def _somebody_records(self, *_: object, **__: object) -> None:
        """Ahead of the script's own call: what leakscope recorded is cleared, so that the script sees its own only."""
        if self._in_forked_child or self.state in (THEIRS, OVER):
            return
        self._switch_off()
        self._step_aside()

    def _step_aside(self) -> None:
        self.state = THEIRS
        self._note(ASIDE)

    def _switch_off(self) -> None:
        record = self._accelerator.record
        if self.state != OURS or record is None:
            return
        self.state = OVER
        try:
            record(enabled=None)  # clears the ring as well
        except RuntimeError as error:
            self._note(f"memory history could not be switched off: {error}")

    def end(self) -> None:
        """Switch off what is still leakscope's."""
        if self.is_ours():
            self._switch_off()
        self.state = OVER

    def _stop_waiting(self) -> None:
        queue = self._accelerator.queue
        if queue is not None:
            queue[:] = [entry for entry in queue if entry[0] is not self._callback]
