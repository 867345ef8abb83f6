"""The parts in C, which an installation may do without: where they cannot be built, Python and scipy serve."""

from setuptools import Extension, setup

_HEAP = "leakscope/capture/heap"

setup(
    ext_modules=[
        Extension(
            "leakscope.capture.heap._gc_heap",
            [f"{_HEAP}/_gc_heap.c"],
            depends=[f"{_HEAP}/_address_table.h"],
            optional=True,
        ),
        Extension(
            "leakscope.capture.process._unheard", ["leakscope/capture/process/_unheard.c"], optional=True
        ),
        Extension("leakscope._shield", ["leakscope/_shield.c"], optional=True),
        Extension("leakscope.graph._walks", ["leakscope/graph/_walks.c"], optional=True),
    ]
)
