"""Private names of torch, each bound once with the part of leakscope that needs it.

The import raises `UnsupportedTorch` where torch is too old. What a newer torch lacks is left out, part by part.
"""

from __future__ import annotations

import inspect
import multiprocessing
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from operator import attrgetter, methodcaller
from typing import Any

import torch

from leakscope.errors import check_python, check_torch
from leakscope.originals import os
from leakscope.process.raw_types import instance_dict
from leakscope.shield import Block, PureBlock, contextmanager

check_python()  # imported first by everything that reads live tensors
check_torch()


class RecordingPart(StrEnum):
    """A part of the recording that needs private names; its value completes the sentence `this torch has no X: `."""

    SNAPSHOTS = "no heap snapshots are taken"
    NATIVE = "references held only by C++ may count as native memory, and the bytes freed by a cut are unknown"
    SPARSE = "memory of sparse tensors is not recorded"
    COLLECTED = "the memory freed by garbage collection and by cuts is not measured"
    WATCHED = "allocation sites and last uses of tensors are not recorded"
    BACKWARDS = "steps that end with a backward or a module call are not detected"
    CALLS = "steps that end with a module call are not detected"
    BY_HAND = "steps that use gradients without an optimizer are not detected"
    OPTIMIZERS = "an optimizer's step within another one's step counts as a step"
    COMM = "communication is not recorded"
    FUNCTIONAL = "functional collectives are not recorded"
    CONTEXTS = "distributed autograd contexts are not recorded"
    COMPILED = "calls of compiled code are not recorded"
    DEVICE = "memory of another vendor's accelerator is not recorded"
    WORKERS = "memory of DataLoader workers is not recorded"
    BLOCKS = "blocks of the allocator are not matched to tensors"


NEEDS = {
    RecordingPart.COLLECTED: RecordingPart.SNAPSHOTS,
    RecordingPart.WATCHED: RecordingPart.SNAPSHOTS,
    RecordingPart.BLOCKS: RecordingPart.SNAPSHOTS,
    RecordingPart.COMM: RecordingPart.SNAPSHOTS,
    RecordingPart.BY_HAND: RecordingPart.SNAPSHOTS,
    RecordingPart.CALLS: RecordingPart.BACKWARDS,
    RecordingPart.FUNCTIONAL: RecordingPart.COMM,
    RecordingPart.CONTEXTS: RecordingPart.COMM,
}
"""Parts that are left out together with another one."""


@dataclass(frozen=True)
class Private:
    """One private name of torch."""

    path: str
    """The path, as `torch._C._has_storage`."""
    part: RecordingPart
    """The part that needs it."""
    works: Callable[[Any], object] | None = None
    """Tests the name on a probe object: False, or an error, if it behaves differently."""
    optional: bool = False
    """Whether its parent may be missing: torch can be built without it."""

    def is_there(self) -> bool:
        """Whether this torch has it and it works."""
        if self.optional and at(self.path.rpartition(".")[0]) is None:
            return True
        found = at(self.path)
        try:
            return found is not None and (self.works is None or self.works(found) is not False)
        except Exception:  # noqa: BLE001 - whatever another torch does there, it is not what is used here
            return False


TABLE: list[Private] = []
"""Every private name in use, in the order in which they are bound."""


class LackedByTorch(RuntimeError):
    """Raised when a private name is used that this torch lacks."""


class MissingName:
    """Placeholder for a missing name: attribute access works, calls raise."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: object, **__: object) -> Any:
        """Raises LackedByTorch."""
        raise LackedByTorch(f"this torch has no {self._path}")


def at(path: str) -> Any:
    """The object at `torch.a.b`, None if missing; imports nothing."""
    found: Any = torch
    for name in path.split(".")[1:]:
        found = getattr(found, name, None)
    return found


def bind(path: str, part: RecordingPart, **more: Any) -> Any:
    """The object at a path, recorded in the table with the fields of its `Private`; a `MissingName` if missing."""
    TABLE.append(Private(path, part, **more))
    found = at(path)
    return MissingName(path) if found is None else found


def getter(path: str, part: RecordingPart, **more: Any) -> Any:
    """A function that reads a getter of a C class. A missing one returns None."""
    found = bind(path, part, **more)
    if isinstance(found, MissingName):
        return nothing
    return found.fget if isinstance(found, property) else found.__get__


def nothing(*_: object) -> None:
    """Do nothing, with any arguments."""


@cache
def lacking() -> tuple[Private, ...]:
    """The entries of the table that this torch lacks; computed once in less than a millisecond."""
    with past_modes():
        return tuple(private for private in TABLE if not private.is_there())


def lacks(part: RecordingPart) -> bool:
    """Whether a part is left out, because a name that it needs is missing or a part that it builds on is."""
    below = NEEDS.get(part)
    return any(private.part is part for private in lacking()) or (below is not None and lacks(below))


def sentences() -> tuple[str, ...]:
    """One sentence for each part that is affected."""
    paths: dict[RecordingPart, list[str]] = {}
    for private in lacking():
        paths.setdefault(private.part, []).append(private.path)
    return tuple(f"this torch has no {' and no '.join(names)}: {part.value}" for part, names in paths.items())


# reading without being observed

without_functions = bind("torch._C.DisableTorchFunction", RecordingPart.SNAPSHOTS)
"""A block in which no `__torch_function__` runs."""
without_dispatch = bind("torch._C._DisableTorchDispatch", RecordingPart.SPARSE)
with_keys = bind("torch._C._ForceDispatchKeyGuard", RecordingPart.SPARSE)
keys_put_in = bind("torch._C._dispatch_tls_local_include_set", RecordingPart.SPARSE)
keys_left_out = bind("torch._C._dispatch_tls_local_exclude_set", RecordingPart.SPARSE)
_lacked = isinstance(keys_put_in, MissingName) or isinstance(keys_left_out, MissingName)
OUTSIDE_OF_MODES = () if _lacked else (keys_put_in(), keys_left_out())
"""Dispatch keys outside of any mode, for `with_keys`; empty if unknown."""


@contextmanager
def past_modes() -> Iterator[None]:
    """A block in which no mode of the script sees the operations."""
    functions, dispatch = (
        nullcontext() if isinstance(guard, MissingName) else guard() for guard in (without_functions, without_dispatch)
    )
    with functions, dispatch:
        yield


_set_gradients = bind("torch._C._set_grad_enabled", RecordingPart.SPARSE)


def without_gradients() -> PureBlock[None]:
    """As `torch.no_grad()`, whose exit is written in Python and can be interrupted before it restores the state."""
    enabled = torch.is_grad_enabled()
    return Block(partial(_set_gradients, False), partial(_set_gradients, enabled))


def _probe() -> Any:
    """A tensor of zero bytes."""
    return torch.empty(0, device="cpu")


# tensors and storages

TensorBase = bind("torch._C.TensorBase", RecordingPart.SNAPSHOTS)
StorageBase = bind("torch._C.StorageBase", RecordingPart.SNAPSHOTS)
has_storage = bind("torch._C._has_storage", RecordingPart.SNAPSHOTS, works=lambda has: has(_probe()) is True)
storage_address = bind(
    "torch._C._storage_address",
    RecordingPart.SNAPSHOTS,
    works=lambda read_address: _address_is_known(read_address, _probe()),
)
address_of_tensor = getter("torch._C.TensorBase._cdata", RecordingPart.SNAPSHOTS)
address_of_storage = attrgetter("_cdata")
"""Address of a storage from its Python object; found with the previous name."""
uses_of_tensor = bind("torch._C.TensorBase._use_count", RecordingPart.SNAPSHOTS, works=lambda uses: uses(_probe()) == 1)
"""Number of C++ owners of a tensor, its Python object counted as one."""
uses_of_storage = bind(
    "torch._C._storage_Use_Count", RecordingPart.SNAPSHOTS, works=lambda uses: _uses_are_known(uses, _probe())
)
"""Number of owners of a storage by address, its Python object counted as one."""
PYTHON, FUNCTIONALIZE, LAZY = (
    bind(f"torch._C.DispatchKey.{name}", RecordingPart.SNAPSHOTS) for name in ("Python", "Functionalize", "Lazy")
)
dispatch_keys = bind(
    "torch._C._dispatch_keys", RecordingPart.SNAPSHOTS, works=lambda keys: keys(_probe()).has(PYTHON) is False
)
no_dispatch_of_its_own = bind("torch._C._disabled_torch_dispatch_impl", RecordingPart.SNAPSHOTS)
"""`__torch_dispatch__` of a type that does not define one."""
sparse_indices = bind("torch._C.TensorBase._indices", RecordingPart.SPARSE)
sparse_values = bind("torch._C.TensorBase._values", RecordingPart.SPARSE)
data_address = bind(
    "torch._C._data_address", RecordingPart.BLOCKS, works=lambda address: type(address(_probe())) is int
)


def _becomes_dead(weakly: Any) -> bool:
    storage: Any = _probe().untyped_storage()
    weak = weakly(storage)
    alive = not weak.expired()
    del storage
    return alive and bool(weak.expired())


StorageWeakRef = bind("torch.multiprocessing.reductions.StorageWeakRef", RecordingPart.COLLECTED, works=_becomes_dead)
grad_of = getter("torch._C.TensorBase.grad", RecordingPart.BY_HAND)
version_of = getter("torch._C.TensorBase._version", RecordingPart.BY_HAND)


def _address_is_known(address: Any, tensor: Any) -> bool:
    return bool(address(tensor) == address_of_storage(tensor.untyped_storage()))


def _uses_are_known(uses: Any, tensor: Any) -> bool:
    shares = tensor.untyped_storage()
    return bool(uses(storage_address(tensor)) == len((tensor, shares)))


# references in C++ only

base_of = getter("torch._C.TensorBase._base", RecordingPart.NATIVE, works=lambda base: base.__get__(_probe()) is None)
gradient_of = getter(
    "torch._C.TensorBase._grad", RecordingPart.NATIVE, works=lambda grad: grad.__get__(_probe()) is None
)
"""As `.grad`, which warns for some tensors."""
hooks_of_tensor = getter("torch._C.TensorBase._backward_hooks", RecordingPart.NATIVE)
hooks_after_accumulate = getter("torch._C.TensorBase._post_accumulate_grad_hooks", RecordingPart.NATIVE)
HOOKS_OF_TENSOR = {"._backward_hooks": hooks_of_tensor, "._post_accumulate_grad_hooks": hooks_after_accumulate}
"""What gc reports of a tensor's C++ part, by its name in code."""
RAW_SAVED = "_raw_saved_"
"""Prefix of the getters of saved tensors that run no unpack hook."""
bind("torch._C._functions.ExpBackward0._raw_saved_result", RecordingPart.NATIVE)  # shared by all


def _hooks_are_known(make: Any) -> bool:
    node = make("", 1)
    handle = node.register_prehook(nothing)
    hooks = hooks_behind(handle)
    is_listed = list(hooks.values()) == [nothing]
    handle.remove()
    return is_listed and type(node.metadata) is dict


node_without_tensors = bind("torch._C._functions.DelayedError", RecordingPart.NATIVE, works=_hooks_are_known)
"""Creates a grad node from a message and a count; the handle of a hook registered on it gives the node's hooks."""
hooks_behind = methodcaller("hooks_dict_ref")
"""From a hook's handle, the dict that contains the hook."""


BACKWARD_OF = "_forward_cls"
"""Attribute of a custom Function's grad nodes: the class as written."""
MODULE_DICTS = PARAMETERS, BUFFERS, MODULES = "_parameters", "_buffers", "_modules"
"""Dicts of every module, in its own dict (torch/nn/modules/module.py)."""
bind(
    "torch.nn.Module.__annotations__",
    RecordingPart.CALLS,
    works=lambda names: names.keys() >= {*MODULE_DICTS},
)
IS_PARAMETER = "_is_param"
"""Attribute of a tensor of another class that was made a parameter (torch/nn/parameter.py)."""

# dispatched operations

DispatchMode = bind("torch.utils._python_dispatch.TorchDispatchMode", RecordingPart.WATCHED)
modes_running = bind(
    "torch._C._len_torch_dispatch_stack", RecordingPart.WATCHED, works=lambda running: type(running()) is int
)
mode_at = bind("torch._C._get_dispatch_stack_at", RecordingPart.WATCHED)
node_running = bind(
    "torch._C._current_autograd_node", RecordingPart.WATCHED, works=lambda running: running() is None or True
)


def _overloads_are_as_known(overload: Any) -> bool:
    # read from its code: torch creates an overload on first access
    return {"_op", "_schema"} <= set(overload.__init__.__code__.co_names)


Overload = bind("torch._ops.OpOverload", RecordingPart.WATCHED, works=_overloads_are_as_known)
CALLED = "_op"
called_by = attrgetter(CALLED)
"""What an overload, or a packet of overloads, calls."""
bind("torch._C._functions.ExpBackward0._sequence_nr", RecordingPart.WATCHED)  # shared by all
sequence_of = methodcaller("_sequence_nr")
"""Sequence number of a grad node."""
name_of_packet = attrgetter("_qualified_op_name")


def schema_of(operator: Any) -> Any:
    """Arguments and results of an operator; None if it does not define them."""
    return getattr(operator, "_schema", None)


@cache
def watching_base() -> Any:
    """A base class of modes that observe operations only."""

    class Watching(DispatchMode):  # type: ignore[misc, valid-type]
        # without it torch.cond and flex_attention raise under a mode (torch/_ops.py, HigherOrderOperator.dispatch)
        supports_higher_order_operators = True

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # torch would wrap every call in torch._disable_dynamo, a third of a mode's cost; nothing is compiled here
            return False

    return Watching


# ends of steps

ENGINE = (torch.autograd.Variable, "_execution_engine")
"""Where the autograd engine is called: (class, attribute)."""
engine = bind(
    "torch.autograd.Variable._execution_engine",
    RecordingPart.BACKWARDS,
    works=lambda engine: callable(engine.run_backward),
)
graph_task = bind("torch._C._current_graph_task_id", RecordingPart.BACKWARDS, works=lambda task: type(task()) is int)
"""Number of the backward that this thread runs, also on an engine thread; `NO_TASK` for none."""
NO_TASK = -1
call_of_module = bind("torch.nn.Module._call_impl", RecordingPart.CALLS, works=lambda call: call.__code__)
HOOKS_WITH_KWARGS = bind("torch.nn.modules.module._global_forward_hooks_with_kwargs", RecordingPart.CALLS)
"""Which global module hooks take keyword arguments, by the number of the hook."""
STEP_OF_OPTIMIZER = "Optimizer.profile_hook_step.<locals>.wrapper"
"""Qualified name of the function around every optimizer's step."""


def _wraps_steps(wrap: Any) -> bool:
    wrapped = wrap(nothing)
    return bool(wrapped.__code__.co_qualname == STEP_OF_OPTIMIZER)


bind("torch.optim.Optimizer.profile_hook_step", RecordingPart.OPTIMIZERS, works=_wraps_steps)


# communication

_C10D = "torch._C._distributed_c10d"
bind(f"{_C10D}.ProcessGroup", RecordingPart.COMM, optional=True)
c10d: Any = getattr(torch._C, "_distributed_c10d", None)
"""The module of process groups; None if torch was built without it."""
for _name in ("Backend", "Work", "Work.wait", "Work.is_completed"):
    bind(f"{_C10D}.{_name}", RecordingPart.COMM, optional=True)
group_named = bind(f"{_C10D}._resolve_process_group", RecordingPart.COMM, optional=True)
source_of = bind(f"{_C10D}.Work._source_rank", RecordingPart.COMM, optional=True)
Future = bind("torch._C.Future", RecordingPart.COMM)
OTHER_COLLECTIVES = ("_allgather_base", "_reduce_scatter_base")
"""Collectives of a process group with private names."""
COALESCING = ("_start_coalescing", "_end_coalescing")
bind("torch.distributed.distributed_c10d._world.pg_group_ranks", RecordingPart.COMM, optional=True)
for _name in ("_c10d_functional", "_c10d_functional_autograd"):
    bind(f"torch.ops.{_name}", RecordingPart.FUNCTIONAL)
register_builtin = bind("torch.jit._builtins._register_builtin", RecordingPart.FUNCTIONAL)
builtins_known = bind("torch.jit._builtins._get_builtin_table", RecordingPart.FUNCTIONAL)
"""TorchScript's table of operators, by the id of what they call."""


def ranks_of(group: Any) -> Mapping[int, int]:
    """Rank of the world, mapped to the rank in the group; empty for a group that torch.distributed did not create."""
    ranks: Mapping[int, int] = torch.distributed.distributed_c10d._world.pg_group_ranks.get(group, {})
    return ranks


def functional_operators() -> tuple[Any, Any]:
    """Return (namespace of the functional collectives, namespace of those with a backward)."""
    return torch.ops._c10d_functional, torch.ops._c10d_functional_autograd


# distributed autograd

_AUTOGRAD, _RPC = "torch._C._distributed_autograd", "torch._C._distributed_rpc"
counts_of_contexts = bind(f"{_AUTOGRAD}._get_debug_info", RecordingPart.CONTEXTS, optional=True)
must_be_open = bind(f"{_AUTOGRAD}._is_valid_context", RecordingPart.CONTEXTS, optional=True)
context_at = bind(f"{_AUTOGRAD}._retrieve_context", RecordingPart.CONTEXTS, optional=True)
for _name in ("_send_functions", "_recv_functions", "_known_worker_ids"):
    bind(f"{_AUTOGRAD}.DistAutogradContext.{_name}", RecordingPart.CONTEXTS, optional=True)
sends_of, receives_of, workers_of = map(methodcaller, ("_send_functions", "_recv_functions", "_known_worker_ids"))
"""Of a context: its sending and receiving grad nodes, and its known workers."""
agent_is_set = bind(f"{_RPC}._is_current_rpc_agent_set", RecordingPart.CONTEXTS, optional=True)
current_agent = bind(f"{_RPC}._get_current_rpc_agent", RecordingPart.CONTEXTS, optional=True)

# torch.compile, whose modules a script may import later

compiling = bind("torch._C._dynamo.eval_frame.set_eval_frame", RecordingPart.COMPILED)
"""Set what dynamo does with each frame, None for nothing; return the previous value."""

DYNAMO_RULES = "torch._dynamo.trace_rules"
LOADER_WORKERS = "torch.utils.data._utils.worker"
"""Module that runs in the workers of a DataLoader."""
COMPILE_WORKERS = "torch._inductor"
"""Package that runs in the compile workers."""


def skipped_folders() -> tuple[list[str], Any] | None:
    """Return (folders whose functions dynamo does not compile, function that rereads that list); None if unknown."""
    rules = sys.modules.get(DYNAMO_RULES)
    folders, read_again = getattr(rules, "SKIP_DIRS", None), getattr(rules, "_recompile_re", None)
    return None if type(folders) is not list or read_again is None else (folders, read_again)


def frames_compiled() -> Mapping[str, int]:
    """torch.compile's counters of frames; empty if it was not used."""
    return dict(getattr(sys.modules.get("torch._dynamo.utils"), "counters", {}).get("frames", {}))


def compiles() -> bool:
    """Whether anything was passed to torch.compile, even if never called (torch/_dynamo/eval_frame.py)."""
    return any(getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", {}).values())


def inductor_options() -> Any:
    """The configuration of Inductor; None if it was not used."""
    return sys.modules.get("torch._inductor.config")


# accelerators; which of these exist depends on the kind

name_of_backend = bind("torch._C._get_privateuse1_backend_name", RecordingPart.DEVICE)
"""Name of another vendor's backend, once registered."""
BUILT_FOR = tuple(kind for kind in ("cuda", "xpu") if hasattr(torch._C, f"_{kind}_init"))
ACCELERATOR = {
    "when_in_use": ("_lazy_call",),
    "queue": ("_queued_calls",),
    "has_context": ("_{kind}_hasPrimaryContext",),
    "is_recording": ("_{kind}_isHistoryEnabled", "_{kind}_is_history_enabled"),
    "record": ("_record_memory_history", "record_memory_history"),
    "snapshot": ("_snapshot", "snapshot"),
    "observe_failures": (
        "_{kind}_attach_out_of_memory_observer", "_attach_out_of_memory_observer", "attach_out_of_memory_observer",
    ),
}  # fmt: skip
"""Field of an `Accelerator`, mapped to its possible names in this torch."""


def modules_of_c(kind: str) -> tuple[Any, Any]:
    """Torch's own C module, and that of a foreign backend such as `torch_npu`, or None."""
    return torch._C, getattr(sys.modules.get(f"torch_{kind}"), "_C", None)


def _word(address: int, place: int = 0) -> int:
    """Read a word of memory; 0 if unreadable, since another torch may have a different layout."""
    size = struct.calcsize("P")
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return int(struct.unpack("P", os.pread(memory, size, address + place * size))[0])
    except (OSError, OverflowError, struct.error):
        return 0
    finally:
        os.close(memory)


SAVED_TENSOR = bind("torch._C._autograd.SavedTensor", RecordingPart.NATIVE)
saved_data = getter("torch._C._autograd.SavedTensor.data", RecordingPart.NATIVE)
saved_unpack_hook = getter("torch._C._autograd.SavedTensor.unpack_hook", RecordingPart.NATIVE)
SAVED_TENSORS_READABLE = nothing not in (saved_data, saved_unpack_hook)
"""Whether a saved tensor exposes its content and unpack hook. Otherwise saved tensors are not read."""


def _flags_at() -> int | None:
    """Find the word of a SavedTensor that says whether Python owns it; None if the layout is not recognised.

    The flags are pybind11's (pybind11/detail/common.h, `struct instance`): the last word, whose lowest bit is `owned`.
    """
    make = at("torch._C._autograd._make_saved_tensor")
    if make is None or not SAVED_TENSORS_READABLE:
        return None
    with (
        past_modes(),
        torch.inference_mode(False),
        torch.enable_grad(),
        # not `lambda tensor: tensor`: the output that a node saves would hold the node, in an uncollectable cycle
        torch.autograd.graph.saved_tensors_hooks(nothing, nothing),  # type: ignore[arg-type]
    ):
        tensor = torch.empty(0, requires_grad=True, device="cpu", dtype=torch.float32)
        node: Any = tensor.exp().grad_fn
        owned, shown = make(tensor, False), node._raw_saved_result
    place = int(type(owned).__basicsize__) // struct.calcsize("P") - 1
    return place if [_word(id(each), place) & 1 for each in (owned, shown)] == [1, 0] else None


OWNED_FLAGS = _flags_at()
"""Word of a SavedTensor whose lowest bit says that Python owns it, as for checkpointing; None if none can be made or
recognised.
"""


LOADER_ITERATOR = bind("torch.utils.data.dataloader._MultiProcessingDataLoaderIter", RecordingPart.WORKERS)
"""Starts the workers when constructed and ends them in `ENDS_WORKERS`."""
ENDS_WORKERS = "_shutdown_workers"
bind(f"torch.utils.data.dataloader._MultiProcessingDataLoaderIter.{ENDS_WORKERS}", RecordingPart.WORKERS)


_CONTEXT = "_DataLoader__multiprocessing_context"


def setting(loader: Any, name: str) -> Any:
    """The argument a loader was constructed with; runs no property of the user."""
    return (instance_dict(loader, type(loader)) or {}).get(name)


def method_of(loader: Any) -> str:
    """How a loader starts its workers, as `fork`. Reading it decides nothing."""
    context = setting(loader, _CONTEXT)
    named = None if context is None else context.get_start_method(allow_none=True)
    # the first is the default
    return str(named or multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0])


def places_in_worker(target: Any) -> tuple[int, int, int] | None:
    """Positions of the worker number, the dataset and the index queue in the arguments of a worker function; None for
    other functions.
    """
    if getattr(target, "__module__", "") != LOADER_WORKERS:
        return None
    names = list(inspect.signature(target).parameters)
    wanted = ("worker_id", "dataset", "index_queue")
    if not set(wanted) <= set(names):
        return None
    number, dataset, queue = map(names.index, wanted)
    return number, dataset, queue


def loader_workers_of(iterator: Any) -> list[Any]:
    """The processes that an iterator has started, ordered by worker id; empty if unknown."""
    workers = vars(iterator).get("_workers")
    return list(workers) if type(workers) is list else []


def pins(iterator: Any) -> bool:
    """Whether a thread of this process copies an iterator's batches to pinned memory."""
    return vars(iterator).get("_pin_memory_thread") is not None


def pinned_bytes() -> int | None:
    """Pinned host memory of tensors; None if no device is in use or torch does not count it.

    Excludes blocks that torch's allocator caches for reuse (ATen/core/CachingHostAllocator.h: `active_bytes` is in use,
    `allocated_bytes` includes cached blocks).
    """
    cuda = sys.modules.get("torch.cuda")
    stats, is_initialized = getattr(cuda, "host_memory_stats", None), getattr(cuda, "is_initialized", None)
    if stats is None or is_initialized is None or not is_initialized():
        return None
    try:
        stats_read = stats()
    except RuntimeError:  # a device error of an operation
        return None
    active = stats_read.get("active_bytes.current") if isinstance(stats_read, Mapping) else None
    return active if type(active) is int else None
