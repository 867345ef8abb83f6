"""The packages, and the optional parts in C: where they cannot be built, Python serves."""

from setuptools import Extension, find_packages, setup

_HEAP = "leakscope/heap"

setup(
    packages=[
        *find_packages(include=["leakscope", "leakscope.*"]),
        "leakscope_cli",
        *(f"leakscope_cli.{name}" for name in find_packages("cli")),
        "leakscope.samples",
    ],
    ext_modules=[
        Extension(
            "leakscope.heap._gc_heap",
            [f"{_HEAP}/_gc_heap.c"],
            depends=[f"{_HEAP}/_address_table.h"],
            optional=True,
        ),
        Extension("leakscope.process._untraced", ["leakscope/process/_untraced.c"], optional=True),
        Extension("leakscope._shield", ["leakscope/_shield.c"], optional=True),
        Extension("leakscope.graph._walks", ["leakscope/graph/_walks.c"], optional=True),
    ],
)
