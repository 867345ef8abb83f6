"""Heap readers survive types with broken traversal, freed referents and out-of-memory errors."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

from leakscope import native

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(native.gc_heap() is None, reason="no native heap reader"),
]
SOURCE = Path(__file__).with_name("broken_traverse.c")


def run(script: str, *arguments: object) -> None:
    """Run a script, in a process that may die of it."""
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the module of the broken types."""
    compiler = shutil.which("cc")
    if compiler is None or not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        pytest.skip("no compiler")
    folder = tmp_path_factory.mktemp("broken")
    flags = ["-shared", "-fPIC", f"-I{sysconfig.get_paths()['include']}"]
    built = folder / f"broken{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(built)], check=True, capture_output=True, timeout=60)
    return folder


def test_types_with_a_broken_traversal_are_read(broken: Path) -> None:
    run(
        """
        import gc, sys
        gc.disable()
        sys.path.insert(0, sys.argv[1])
        import broken
        from leakscope.heap.sweep import read_natively as read

        held = [object()]
        names = ("nothing", "twice", "fails", "silent", "borrows", "endless")
        objects = [held, *(getattr(broken, name)(held) for name in names)]
        for _ in range(3):
            found = read(objects, True)
            assert found.lengths.tolist() == [1, 1, 2, 1, 0, 3, 5000], found.lengths
            assert found.firsts[1:].tolist() == [id(held)] * 3 + [0, id(objects[5]), id(held)]
            between = found.starts[-1]
            pairs = list(zip(found.holder[:between].tolist(), found.held[:between].tolist()))
            assert pairs[:5] == [(1, 0), (2, 0), (2, 0), (3, 0), (5, 5)], pairs[:5]
            assert pairs[5:] == [(6, 0)] * 5000
            assert [type(obj) for obj in found.untracked] == [tuple, bytes], found.untracked
            whole = read([obj for obj in gc.get_objects()], True)
            assert whole.holder.max() < len(whole.addresses) and whole.held.max() < len(whole.addresses)
        import os
        try:
            read([broken.circle([])], True)
        except MemoryError:
            os._exit(0)  # CPython's own collection at exit may not live through them
        os._exit(1)
        """,
        broken,
    )


def test_a_reader_that_runs_out_of_memory_keeps_nothing() -> None:
    run(
        """
        import gc, resource, sys
        gc.disable()
        from leakscope.heap.sweep import read_natively as read

        ballast = [[{"row": [k]}] for k in range(100_000)]
        objects = gc.get_objects()
        array = objects[-1]

        def mapped():
            with open("/proc/self/statm") as sizes:
                return int(sizes.read().split()[0]) * resource.getpagesize()

        read(objects, True).untracked.clear()
        counts = [sys.getrefcount(obj) for obj in ballast[:100]]
        unlimited = resource.getrlimit(resource.RLIMIT_AS)
        failed, least = 0, mapped()
        for room in range(0, 48 << 20, 1 << 20):
            before = mapped()
            resource.setrlimit(resource.RLIMIT_AS, (before + room, unlimited[1]))
            try:
                read(objects, True).untracked.clear()
            except MemoryError:
                failed += 1
            finally:
                resource.setrlimit(resource.RLIMIT_AS, unlimited)
            assert mapped() - before < 2 << 20, (room, mapped() - before)
        assert failed > 5, failed
        assert counts == [sys.getrefcount(obj) for obj in ballast[:100]]
        found = read(objects, True)
        assert len(found.lengths) == len(objects)
        """
    )


def test_freed_objects_that_asyncio_still_lists_are_not_read() -> None:
    """Before 3.12.6 a reference to what module _asyncio shows of its free list frees it again (CPython gh-122695)."""
    run(
        """
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
    )
