"""The native heap reader, which an installation may do without: where it cannot be built, the Python reader serves."""

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
    ]
)
