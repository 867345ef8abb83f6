"""Keeps torch.compile out of leakscope's functions: it would trace what wraps the script's calls, and break on it."""

from __future__ import annotations

from collections.abc import Callable

from leakscope.capture.process.import_hook import AfterImport
from leakscope.capture.process.patches import Patches
from leakscope.originals import Path

_CAPTURE = str(Path(__file__).resolve().parent.parent) + "/"


def leave_us_out(patches: Patches, tell: Callable[[str], object]) -> None:
    """Put this folder among those that dynamo skips, once the script has dynamo loaded; `tell` why it cannot be."""
    from leakscope.capture.private_names import Part
    from leakscope.capture.torch_private import DYNAMO_RULES, skipped_folders

    def skip() -> None:
        known = skipped_folders()
        if known is None:
            tell(f"this torch has no {DYNAMO_RULES}.SKIP_DIRS: {Part.COMPILED.value}")
            return
        folders, read_again = known
        folders.append(_CAPTURE)
        read_again()
        patches.add("skipped folder of dynamo", unskip)

    def unskip() -> None:
        known = skipped_folders()
        if known is not None and _CAPTURE in known[0]:
            folders, read_again = known
            folders.remove(_CAPTURE)
            read_again()

    AfterImport(DYNAMO_RULES, skip).install(patches)


def without_compiling(call: Callable[[], object]) -> None:
    """Call it with dynamo off: inside a compiled function that breaks its graph, dynamo compiles whatever is called."""
    from leakscope.capture.private_names import Part, lacks
    from leakscope.capture.torch_private import compiling

    if lacks(Part.COMPILED):
        call()
        return
    before = compiling(None)
    try:
        call()
    finally:
        compiling(before)
