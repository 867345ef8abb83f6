"""What does leakscope use of torch that torch promises to nobody?

Each name is bound once, after torch was imported, and stands in the table of `private_names`, which finds when
recording starts what this torch lacks, and says so. No other file of capture names what is private to torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import cache, partial
from operator import attrgetter, methodcaller
from typing import Any

import torch

import leakscope.capture.torch_older  # noqa: F401 - its part of the table
from leakscope.capture.private_names import Lacked, Part, bind, getter, nothing
from leakscope.shield import Block, PureBlock, contextmanager

# how to ask without anybody's hearing of it

without_functions = bind("torch._C.DisableTorchFunction", Part.LOOKS)
"""No `__torch_function__` runs in its block."""
without_dispatch = bind("torch._C._DisableTorchDispatch", Part.SPARSE)
with_keys = bind("torch._C._ForceDispatchKeyGuard", Part.SPARSE)
keys_put_in = bind("torch._C._dispatch_tls_local_include_set", Part.SPARSE)
keys_left_out = bind("torch._C._dispatch_tls_local_exclude_set", Part.SPARSE)
_lacked = isinstance(keys_put_in, Lacked) or isinstance(keys_left_out, Lacked)
OUTSIDE_OF_MODES = () if _lacked else (keys_put_in(), keys_left_out())
"""How torch dispatches outside of any mode, for `with_keys`; empty where that is not known."""


@contextmanager
def past_modes() -> Iterator[None]:
    """A block in which no mode of the script's hears what is done."""
    functions, dispatch = (
        nullcontext() if isinstance(guard, Lacked) else guard() for guard in (without_functions, without_dispatch)
    )
    with functions, dispatch:
        yield


_set_gradients = bind("torch._C._set_grad_enabled", Part.SPARSE)


def without_gradients() -> PureBlock[None]:
    """As `torch.no_grad()`, whose exit is written in Python and can be interrupted before it restores anything."""
    enabled = torch.is_grad_enabled()
    return Block(partial(_set_gradients, False), partial(_set_gradients, enabled))


def _probe() -> Any:
    """A tensor of no bytes."""
    return torch.empty(0, device="cpu")


# tensors and storages

TensorBase = bind("torch._C.TensorBase", Part.LOOKS)
StorageBase = bind("torch._C.StorageBase", Part.LOOKS)
has_storage = bind("torch._C._has_storage", Part.LOOKS, works=lambda has: has(_probe()) is True)
storage_address = bind("torch._C._storage_address", Part.LOOKS, works=lambda told: _address_is_told(told, _probe()))
address_of_tensor = getter("torch._C.TensorBase._cdata", Part.LOOKS)
address_of_storage = attrgetter("_cdata")
"""Of the Python object of a storage; found with the one before."""
uses_of_tensor = bind("torch._C.TensorBase._use_count", Part.LOOKS, works=lambda uses: uses(_probe()) == 1)
"""Owners of a tensor in C++, its Python object counted as one."""
uses_of_storage = bind("torch._C._storage_Use_Count", Part.LOOKS, works=lambda uses: _uses_are_told(uses, _probe()))
"""Owners of a storage by its address, its Python object counted as one."""
PYTHON, FUNCTIONALIZE, LAZY = (
    bind(f"torch._C.DispatchKey.{name}", Part.LOOKS) for name in ("Python", "Functionalize", "Lazy")
)
dispatch_keys = bind("torch._C._dispatch_keys", Part.LOOKS, works=lambda keys: keys(_probe()).has(PYTHON) is False)
no_dispatch_of_its_own = bind("torch._C._disabled_torch_dispatch_impl", Part.LOOKS)
"""`__torch_dispatch__` of a type that has none of its own."""
sparse_indices = bind("torch._C.TensorBase._indices", Part.SPARSE)
sparse_values = bind("torch._C.TensorBase._values", Part.SPARSE)
data_address = bind("torch._C._data_address", Part.BLOCKS, works=lambda address: type(address(_probe())) is int)


def _goes_dead(weakly: Any) -> bool:
    storage: Any = _probe().untyped_storage()
    weak = weakly(storage)
    alive = not weak.expired()
    del storage
    return alive and bool(weak.expired())


StorageWeakRef = bind("torch.multiprocessing.reductions.StorageWeakRef", Part.COLLECTED, works=_goes_dead)
grad_of = getter("torch._C.TensorBase.grad", Part.BY_HAND)
version_of = getter("torch._C.TensorBase._version", Part.BY_HAND)


def _address_is_told(address: Any, tensor: Any) -> bool:
    return bool(address(tensor) == address_of_storage(tensor.untyped_storage()))


def _uses_are_told(uses: Any, tensor: Any) -> bool:
    shares = tensor.untyped_storage()
    return bool(uses(storage_address(tensor)) == len((tensor, shares)))


# what only C++ holds

base_of = getter("torch._C.TensorBase._base", Part.NATIVE, works=lambda base: base.__get__(_probe()) is None)
gradient_of = getter("torch._C.TensorBase._grad", Part.NATIVE, works=lambda grad: grad.__get__(_probe()) is None)
"""As `.grad`, which warns for some tensors."""
hooks_of_tensor = getter("torch._C.TensorBase._backward_hooks", Part.NATIVE)
hooks_after_accumulate = getter("torch._C.TensorBase._post_accumulate_grad_hooks", Part.NATIVE)
HOOKS_OF_TENSOR = {"._backward_hooks": hooks_of_tensor, "._post_accumulate_grad_hooks": hooks_after_accumulate}
"""What gc shows of a tensor's C++ part, by its name in code."""
RAW_SAVED = "_raw_saved_"
"""How a grad node's getters of saved tensors begin that run no unpack hook."""
bind("torch._C._functions.ExpBackward0._raw_saved_result", Part.NATIVE)  # one for all


def _hooks_are_told(make: Any) -> bool:
    node = make("", 1)
    handle = node.register_prehook(nothing)
    hooks = hooks_behind(handle)
    told = list(hooks.values()) == [nothing]
    handle.remove()
    return told and type(node.metadata) is dict


node_without_tensors = bind("torch._C._functions.DelayedError", Part.NATIVE, works=_hooks_are_told)
"""Makes a grad node of a message and a count; a handle of a hook registered on it gives the node's hooks."""
hooks_behind = methodcaller("hooks_dict_ref")
"""Of a hook's handle: the dict that the hook is in."""


BACKWARD_OF = "_forward_cls"
"""Attribute of a custom Function's grad nodes: the class that it was written as."""
MODULE_DICTS = PARAMETERS, BUFFERS, MODULES = "_parameters", "_buffers", "_modules"
"""Dicts of every module, in its own (torch/nn/modules/module.py)."""
bind(
    "torch.nn.Module.__annotations__",
    Part.CALLS,
    works=lambda names: names.keys() >= {*MODULE_DICTS},
)
IS_PARAMETER = "_is_param"
"""Attribute of a tensor of another class that was made a parameter (torch/nn/parameter.py)."""

# operations as they are dispatched

DispatchMode = bind("torch.utils._python_dispatch.TorchDispatchMode", Part.WATCHED)
modes_running = bind("torch._C._len_torch_dispatch_stack", Part.WATCHED, works=lambda running: type(running()) is int)
mode_at = bind("torch._C._get_dispatch_stack_at", Part.WATCHED)
node_running = bind("torch._C._current_autograd_node", Part.WATCHED, works=lambda running: running() is None or True)


def _overloads_are_as_known(overload: Any) -> bool:
    # read of its code, as torch makes an overload when it is first asked for
    return {"_op", "_schema"} <= set(overload.__init__.__code__.co_names)


Overload = bind("torch._ops.OpOverload", Part.WATCHED, works=_overloads_are_as_known)
CALLED = "_op"
called_by = attrgetter(CALLED)
"""What an overload or a packet of overloads calls."""
bind("torch._C._functions.ExpBackward0._sequence_nr", Part.WATCHED)  # one for all
sequence_of = methodcaller("_sequence_nr")
"""The number of a grad node."""
name_of_packet = attrgetter("_qualified_op_name")


def schema_of(operator: Any) -> Any:
    """What an operator takes and returns; None where it does not say."""
    return getattr(operator, "_schema", None)


@cache
def watching_base() -> Any:
    """A class of modes that stand over every operation and nothing else."""

    class Watching(DispatchMode):  # type: ignore[misc, valid-type]
        # without it torch.cond and flex_attention raise under a mode (torch/_ops.py, HigherOrderOperator.dispatch)
        supports_higher_order_operators = True

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # torch would wrap every call in torch._disable_dynamo, a third of a mode's cost; nothing is compiled here
            return False

    return Watching


# what ends a step

ENGINE = (torch.autograd.Variable, "_execution_engine")
"""Where the autograd engine is asked for: (class, attribute)."""
engine = bind(
    "torch.autograd.Variable._execution_engine", Part.BACKWARDS, works=lambda engine: callable(engine.run_backward)
)
graph_task = bind("torch._C._current_graph_task_id", Part.BACKWARDS, works=lambda task: type(task()) is int)
"""The number of the backward that this thread runs, also on a thread of the engine's; `NO_TASK` for none."""
NO_TASK = -1
call_of_module = bind("torch.nn.Module._call_impl", Part.CALLS, works=lambda call: call.__code__)
HOOKS_WITH_KWARGS = bind("torch.nn.modules.module._global_forward_hooks_with_kwargs", Part.CALLS)
"""Which global hooks of modules take keyword arguments, by the number of the hook."""
STEP_OF_OPTIMIZER = "Optimizer.profile_hook_step.<locals>.wrapper"
"""Qualified name of the function around every optimizer's step."""


def _wraps_steps(wrap: Any) -> bool:
    wrapped = wrap(nothing)
    return bool(wrapped.__code__.co_qualname == STEP_OF_OPTIMIZER)


bind("torch.optim.Optimizer.profile_hook_step", Part.OPTIMIZERS, works=_wraps_steps)


# communication

_C10D = "torch._C._distributed_c10d"
bind(f"{_C10D}.ProcessGroup", Part.COMM, optional=True)
c10d: Any = getattr(torch._C, "_distributed_c10d", None)
"""The module of process groups; None where torch was built without."""
for _name in ("Backend", "Work", "Work.wait", "Work.is_completed"):
    bind(f"{_C10D}.{_name}", Part.COMM, optional=True)
group_named = bind(f"{_C10D}._resolve_process_group", Part.COMM, optional=True)
source_of = bind(f"{_C10D}.Work._source_rank", Part.COMM, optional=True)
Future = bind("torch._C.Future", Part.COMM)
OTHER_COLLECTIVES = ("_allgather_base", "_reduce_scatter_base")
"""Collectives of a process group that go by private names."""
COALESCING = ("_start_coalescing", "_end_coalescing")
bind("torch.distributed.distributed_c10d._world.pg_group_ranks", Part.COMM, optional=True)
for _name in ("_c10d_functional", "_c10d_functional_autograd"):
    bind(f"torch.ops.{_name}", Part.FUNCTIONAL)
register_builtin = bind("torch.jit._builtins._register_builtin", Part.FUNCTIONAL)
builtins_known = bind("torch.jit._builtins._get_builtin_table", Part.FUNCTIONAL)
"""TorchScript's table of operators, by the id of what they call."""


def ranks_of(group: Any) -> Mapping[int, int]:
    """Rank of the world to place in the group; empty for a group that torch.distributed has not made."""
    ranks: Mapping[int, int] = torch.distributed.distributed_c10d._world.pg_group_ranks.get(group, {})
    return ranks


def functional_operators() -> tuple[Any, Any]:
    """(namespace of the functional collectives, that of those with a backward)."""
    return torch.ops._c10d_functional, torch.ops._c10d_functional_autograd


# distributed autograd

_AUTOGRAD, _RPC = "torch._C._distributed_autograd", "torch._C._distributed_rpc"
counts_of_contexts = bind(f"{_AUTOGRAD}._get_debug_info", Part.CONTEXTS, optional=True)
must_be_open = bind(f"{_AUTOGRAD}._is_valid_context", Part.CONTEXTS, optional=True)
context_at = bind(f"{_AUTOGRAD}._retrieve_context", Part.CONTEXTS, optional=True)
for _name in ("_send_functions", "_recv_functions", "_known_worker_ids"):
    bind(f"{_AUTOGRAD}.DistAutogradContext.{_name}", Part.CONTEXTS, optional=True)
sends_of, receives_of, workers_of = map(methodcaller, ("_send_functions", "_recv_functions", "_known_worker_ids"))
"""Of a context: its grad nodes that send and receive, and the workers that it knows."""
agent_is_set = bind(f"{_RPC}._is_current_rpc_agent_set", Part.CONTEXTS, optional=True)
current_agent = bind(f"{_RPC}._get_current_rpc_agent", Part.CONTEXTS, optional=True)

# torch.compile, whose modules a script may import later

compiling = bind("torch._C._dynamo.eval_frame.set_eval_frame", Part.COMPILED)
"""Sets what dynamo does with each frame, None for nothing; gives what it did."""

DYNAMO_RULES = "torch._dynamo.trace_rules"
LOADER_WORKERS = "torch.utils.data._utils.worker"
"""Module of what runs in the workers of a DataLoader."""
COMPILE_WORKERS = "torch._inductor"
"""Package of what runs in the workers that compile."""


def skipped_folders() -> tuple[list[str], Any] | None:
    """(folders whose functions dynamo does not compile, what makes it read that list again); None where not known."""
    rules = sys.modules.get(DYNAMO_RULES)
    folders, read_again = getattr(rules, "SKIP_DIRS", None), getattr(rules, "_recompile_re", None)
    return None if type(folders) is not list or read_again is None else (folders, read_again)


def frames_compiled() -> Mapping[str, int]:
    """What torch.compile counts of the frames that it has met; empty where it was not used."""
    return dict(getattr(sys.modules.get("torch._dynamo.utils"), "counters", {}).get("frames", {}))


def compiles() -> bool:
    """Whether anything was handed to torch.compile, even if it was never called (torch/_dynamo/eval_frame.py)."""
    return any(getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", {}).values())


def inductor_options() -> Any:
    """How Inductor is set; None where it was not used."""
    return sys.modules.get("torch._inductor.config")


# accelerators; which of these there are depends on the kind

name_of_backend = bind("torch._C._get_privateuse1_backend_name", Part.DEVICE)
"""Of another vendor's, once it has registered one."""
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
"""Field of an `Accelerator` to the names that it may go by in this torch."""


def modules_of_c(kind: str) -> tuple[Any, Any]:
    """Torch's own module in C, and that of a foreign backend such as `torch_npu`, None where there is none."""
    return torch._C, getattr(sys.modules.get(f"torch_{kind}"), "_C", None)
