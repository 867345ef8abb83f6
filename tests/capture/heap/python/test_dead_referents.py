"""Heap readers skip freed objects that CPython still reports as referents."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


@pytest.mark.process
def test_the_free_list_of_asyncio_is_not_looked_into() -> None:
    """Before 3.12.6 a reference to what module _asyncio shows of it frees it again (CPython gh-122695)."""
    script = """
        import asyncio, _asyncio
        import faulthandler, gc, resource, sys
        from leakscope.originals import gc as original
        from leakscope import native
        from leakscope.heap import sweep, _sweep_fallback

        resource.setrlimit(resource.RLIMIT_AS, (6 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
        faulthandler.dump_traceback_later(60, exit=True)
        loop = asyncio.new_event_loop()
        future = loop.create_future()
        iterators = [iter(future) for _ in range(3)]
        freed = set(map(id, iterators))
        del iterators
        readers = [_sweep_fallback.read, *[sweep.read_natively] * (native.gc_heap() is not None)]
        for read in readers * 2:
            found = read(gc.get_objects, True)
            assert not freed & set(map(id, found.untracked))
            assert len(found.objects) > 1_000
            assert any(obj is _asyncio for obj in found.objects)
            del found
            assert vars(_asyncio) in original.get_referents(_asyncio, [])
        gc.collect()
        made = [iter(future) for _ in range(3)]
        assert len(set(map(id, made))) == 3
        loop.close()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
