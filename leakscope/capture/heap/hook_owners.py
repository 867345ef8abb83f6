"""The grad nodes behind hook and metadata dicts. They are looked for only while such a dict has no known owner."""

from __future__ import annotations

from collections import OrderedDict
from itertools import repeat
from operator import is_
from typing import Any

import numpy as np

from leakscope.capture.heap.native.autograd import Role
from leakscope.capture.heap.native.raw_memory import dicts_of_node, node_layout, own_memory
from leakscope.capture.heap.native.references import NativeReferences
from leakscope.capture.heap.prune import PrunedHeap
from leakscope.capture.heap.raw_types import all_keys_are
from leakscope.capture.heap.refcounts import RefcountTable
from leakscope.graph.model import ReferenceKind


def find_hook_owners(native: NativeReferences, refcounts: RefcountTable, pruned: PrunedHeap) -> bool:
    """Find the grad nodes behind hook and metadata dicts whose owner is not known; True where some were found.

    The dicts are looked for in the memory of the nodes: `node.metadata` and `node.register_hook` make a dict on each
    node that has none.
    """
    objects = native.sweep.objects
    unexplained = pruned.objects[refcounts.unexplained[pruned.objects] > 0].tolist()
    missing = {id(objects[k]): k for k in unexplained if k < refcounts.objects and _may_hang_on_node(objects[k])}
    nodes = np.flatnonzero(native.role == Role.GRAD_NODE).tolist()
    if not missing or not nodes:
        return False
    found = False
    with own_memory() as words:
        layout = node_layout(words)
        if not layout.pre_hooks:
            native.problems.append("the hooks of grad nodes cannot be read in this torch")
        for index in nodes:
            for name, address in dicts_of_node(objects[index], layout, words):
                at = missing.get(address)
                if at is not None and (name == "metadata" or _is_hook_dict(objects[at])):
                    native.extra.add(index, at, ReferenceKind.HOOK, name, 1)
                    found = True
                    if name != "tensor hook":  # several nodes may keep the hooks of one tensor
                        del missing[address]
    return found


def _may_hang_on_node(obj: Any) -> bool:
    return _is_hook_dict(obj) or _is_metadata(obj)


def _is_hook_dict(obj: Any) -> bool:
    if not _exact_dict(obj) or not len(obj):
        return False
    return all_keys_are(int, obj)


def _is_metadata(obj: Any) -> bool:
    return type(obj) is dict and any(map(is_, map(type, dict.keys(obj)), repeat(str)))


def _exact_dict(obj: Any) -> bool:
    return type(obj) is dict or type(obj) is OrderedDict
