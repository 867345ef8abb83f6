"""Recording files never use the descriptors of the standard streams."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leakscope.run.descriptors import Descriptor

pytestmark = pytest.mark.process


def test_a_file_never_has_the_number_of_a_stream(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        os.closerange(0, 3)
        number = Descriptor(tmp_path / "steps.jsonl", os.O_WRONLY | os.O_CREAT).number
        open_now = [n for n in range(3) if os.path.exists(f"/proc/self/fd/{n}")]
        os._exit(0 if number > 2 and not open_now and not os.get_inheritable(number) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
