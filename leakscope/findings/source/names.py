"""How does a name of the source compare to one of a trace?"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from leakscope.findings.model import Hop
from leakscope.findings.naming.expressions import INSTANCES
from leakscope.findings.naming.place import file_at
from leakscope.findings.source.parsed import Scope
from leakscope.findings.source.sources import Sources
from leakscope.graph.model import ObjectKind

OWNERS = (*INSTANCES, ObjectKind.TENSOR, ObjectKind.PARAMETER)
"""Kinds of objects that a class in the source may give attributes."""
_NODE_SUFFIX = "Backward"
"""torch names the grad nodes of a Function so (torch/autograd/function.py, FunctionMeta)."""
_FIRST = (
    *("append", "appendleft", "add", "extend", "extendleft", "put", "put_nowait", "push", "send", "update"),
    *("__iadd__", "__ior__"),
)
_SECOND = ("insert", "setdefault", "__setitem__")
BY_NAME = ("register_buffer", "register_parameter", "register_module", "add_module", "setattr")
"""Of nn.Module (torch/nn/modules/module.py), and Python's own: they are told a name and what is to have it."""
ADDERS = {
    **dict.fromkeys(_FIRST, 0),
    **dict.fromkeys((*_SECOND, *BY_NAME), 1),
    "add_param_group": 0,
}
"""Methods that put an argument into the object they are called on, and which one."""


def file_of(hop: Hop) -> str:
    """The source file that a hop's line is in, "" where it has none."""
    return file_at(hop.where)


def class_of(hop: Hop) -> str:
    """The class that an object is an instance of, or is, without its module; "" where it has none of the user's."""
    if hop.kind == ObjectKind.GRAD_NODE:
        return hop.type.removesuffix(_NODE_SUFFIX)
    if hop.kind == ObjectKind.CLASS:
        return hop.name.rpartition(".")[2]
    return hop.type.rpartition(".")[2] if hop.kind in OWNERS else ""


def last_name(node: ast.expr) -> str:
    """`append` of `self.rows.append`, "" of what has no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def is_item(reference: str) -> bool:
    """Whether a reference of a trace leads to an item: `[i]`, `['loss']`, `key <Tensor>`."""
    return reference.startswith(("[", "key ", "{")) or reference == "(unnamed)"


def key_of(node: ast.expr) -> str | None:
    """`['loss']` for a key or a place that the source shows; None where it is worked out."""
    return f"[{node.value!r}]" if isinstance(node, ast.Constant) else None


def same_key(reference: str, key: str | None) -> bool:
    """Whether an item of the trace can be the one of a key in the source; both may tell none."""
    literal = re.fullmatch(r"\['.*'\]|\[\d+\]", reference)
    return key is None or literal is None or key == reference


def is_static(function: Scope) -> bool:
    """Whether a method has no `self`."""
    decorators = getattr(function.node, "decorator_list", [])
    return any(last_name(decorator) == "staticmethod" for decorator in decorators)


def is_file(hop: Hop, file: str) -> bool:
    """Whether an object's line may be in this file: also where it has none."""
    own = file_of(hop)
    return not own or own == file or own.endswith("/" + file) or file.endswith("/" + own)


def ends_with(dotted: str, end: str) -> bool:
    """Whether a dotted name is another one, or that in a package."""
    return bool(end) and (dotted == end or dotted.endswith("." + end))


def related(hop: Hop, around: Scope, sources: Sources) -> bool:
    """Whether a class of the source is the object's own, or above or below it."""
    own = around.name.rpartition(".")[2]
    kind = class_of(hop)
    if own == kind:
        return is_file(hop, around.file) or not file_of(hop)
    return kind in sources.bases(own) or own in sources.bases(kind)


def is_cell(file: str) -> bool:
    """Whether a file is a notebook's cell: all of them share their globals."""
    return file.startswith("In[")


def is_module(hop: Hop, file: str) -> bool:
    """Whether this namespace is that of a file."""
    if hop.name == "__main__":
        return is_file(hop, file) or (is_cell(file) and (is_cell(file_of(hop)) or not file_of(hop)))
    path = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return ends_with(path, hop.name) or ends_with(hop.name, path)


def default_of(trace: Sequence[Hop], place: int, name: str, owner: Scope) -> frozenset[int]:
    """The default of a parameter, which its function holds in a tuple or a dict."""
    hop, below = trace[place], trace[place + 1 : place + 2]
    arguments = owner.node.args if isinstance(owner.node, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
    if arguments is None or not below:
        return frozenset()
    key = below[0].reference
    if hop.reference == ".__defaults__":
        with_default = owner.parameters[len(owner.parameters) - len(arguments.defaults) :]
        index = with_default.index(name) if name in with_default else None
        return frozenset({place + 2}) if index is not None and key in (f"[{index}]", "[i]") else frozenset()
    return frozenset({place + 2}) if hop.reference == ".__kwdefaults__" and key == f"['{name}']" else frozenset()
