"""Checksums of parameters and gradients at each step, by which the trainings of two runs are compared."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from types import MemberDescriptorType
from typing import Any

import torch

from leakscope.heap.storages import device_of, sparse_parts, storage_of
from leakscope.process.guard import call_traced, is_the_scripts, untraced
from leakscope.process.patches import Patches
from leakscope.process.raw_types import instance_dict, mro, type_dict, type_name
from leakscope.process.torch_compat import (
    ENGINE,
    NO_TASK,
    OUTSIDE_OF_MODES,
    PYTHON,
    RecordingPart,
    TensorBase,
    dispatch_keys,
    gradient_of,
    graph_task,
    lacks,
    with_keys,
    without_dispatch,
    without_functions,
    without_gradients,
)
from leakscope.recorder.accelerator import Accelerator, find
from leakscope.recorder.steps.detector import module_parameters, parameters
from leakscope.run.rows import TrainingState
from leakscope.run.writer import RankFolder

_LANES = 64
"""Sums of one tensor, of one segment each: small differences of opposite sign cancel only within a segment. With fewer
words than this every word is a sum of its own, and the rows of 256 tensors take 128 KiB.
"""
_BATCH = 256
"""Tensors of one device that are summed before their sums are copied to the host."""
_CHUNK = 1 << 22
"""Maximum bytes that are copied at once of a tensor that is not aligned or not dense."""
_WORD = 8
"""Bytes of an int64, of which the sums are made."""
_MAX_LOSSES = 8
"""Maximum values recorded of a step: a GAN has three to six, a pipeline one for each microbatch."""
_MAX_LETTERS = 300
"""Maximum characters of an error message in a note."""
_MAX_NODES = 1 << 16
"""Maximum autograd nodes visited to find the leaves of a backward."""
_MAX_LEAVES = 1 << 14
"""Maximum leaves remembered until the end of a step."""
_DEEPEST = 3
"""Maximum nesting of tensor subclasses: a parameter that is a DTensor of a quantized tensor."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_INCOMPLETE = "AsyncCollectiveTensor"
"""A subclass whose tensor may still be written by a collective on another stream; reading it does not wait for that."""


class TrainingStateRecorder:
    """Records the state of the training in each step; inactive unless installed.

    The parameters and gradients of an optimizer are read at the end of each of its steps, before the script can remove
    the gradients. Until an optimizer steps, those of the leaves of the step's backwards are read at the end of the
    step, or, without backwards, those of the module whose calls end the steps. Nothing that is allocated for a step
    outlives it, so that the counted bytes at the ends of steps grow by what the script allocates.
    """

    def __init__(self, folder: RankFolder) -> None:
        self._folder = folder
        self._active = False
        self._accelerator: Accelerator | None = None
        self._optimizers_step = False
        """Whether an optimizer has ever stepped."""
        self._leaves: dict[int, weakref.ref[Any]] = {}
        """Leaves of the backwards of this step, by address, in the order of their first use."""
        self._losses: list[Any] = []
        """Values of this step: a number, or a tensor on a device that is not read before the end of the step."""
        self._state = _State()

    def install(self, patches: Patches) -> None:
        """Start recording; must precede what ends steps at the same events."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        if not OUTSIDE_OF_MODES or lacks(RecordingPart.SPARSE) or lacks(RecordingPart.SNAPSHOTS):
            self._folder.note("checksums of the training are not recorded: this torch lacks what they need")
            return
        self._active = True
        neutral = patches.guard.gc_neutral
        patches.hook("training state", register_optimizer_step_post_hook, neutral(self._after_optimizer))
        if not lacks(RecordingPart.BACKWARDS):
            owner, name = ENGINE
            before = patches.guard.guarded("roots of a backward", neutral(self._before_backward))
            patches.replace(owner, name, _Engine(getattr(owner, name), before))
        patches.add("training state", self._clear)

    def step_ended(self, step: int, module: object | None) -> None:
        """Write the row of a step; `module` is the one whose call may have ended it."""
        if not self._active:
            return
        self._reading(lambda: self._write(step, module))

    def own_objects(self) -> tuple[object, ...]:
        """Objects that heap snapshots leave out."""
        return (self._leaves, self._losses, *self._losses)

    def _reading(self, read: Callable[[], None]) -> None:
        """Call a function that reads tensors, unobserved by the script; an error ends this record only."""
        try:
            with (
                without_functions(),
                with_keys(*OUTSIDE_OF_MODES),  # past autocast and functorch
                without_dispatch(),
                without_gradients(),
            ):
                read()
        except Exception as error:
            if is_the_scripts(error):
                raise
            self._clear()
            text = " ".join(str(error).split())[:_MAX_LETTERS]
            self._folder.note(f"checksums of the training are no longer recorded: {type(error).__name__}: {text}")

    def _clear(self) -> None:
        self._active = False
        self._leaves.clear()
        self._losses.clear()

    def _after_optimizer(self, optimizer: Any, *_: object) -> None:
        if self._active:
            self._optimizers_step = True
            self._leaves.clear()
            self._reading(lambda: self._add(parameters(optimizer)))

    def _before_backward(self, roots: Any) -> None:
        if not self._active:
            return
        outermost = graph_task() == NO_TASK
        if not outermost and self._optimizers_step:
            return
        tensors = [root for root in _as_sequence(roots) if TensorBase in mro(type(root))]

        def read() -> None:
            if not self._optimizers_step:
                self._add_leaves(tensors)
            for root in tensors if outermost else ():
                if len(self._losses) < _MAX_LOSSES:
                    self._losses += self._loss(root)

        self._reading(read)

    def _add_leaves(self, roots: Sequence[Any]) -> None:
        for leaf in _leaves(roots):
            if len(self._leaves) >= _MAX_LEAVES:
                return
            known = self._leaves.get(id(leaf))
            if known is None or known() is not leaf:
                self._leaves[id(leaf)] = weakref.ref(leaf)

    def _loss(self, root: Any) -> list[Any]:
        """The value of a root that is one real number; empty for others."""
        parts = _parts(root)
        if parts is None or len(parts) != 1:
            return []
        (value,) = parts
        if TensorBase.numel(value) != 1 or value.is_complex():
            return []
        value = TensorBase.detach(value)
        if value.device.type == "cpu":
            return [float(value.item())]
        # on a device only at the end of the step: a pipeline may not wait for a result in the middle of it
        return [] if self._is_capturing() else [value.clone()]

    def _is_capturing(self) -> bool:
        """Whether a graph of the device is being captured, during which results cannot be read."""
        self._accelerator = self._accelerator or find()
        accelerator = self._accelerator
        if accelerator is None or accelerator.is_capturing is None or not accelerator.in_use():
            return False
        return bool(accelerator.is_capturing())

    def _add(self, trained: Iterable[Any]) -> None:
        """Add these parameters, each once, and their gradients to the state of the step."""
        each = list({id(parameter): parameter for parameter in trained if TensorBase in mro(type(parameter))}.values())
        gradients = [gradient_of(parameter) for parameter in each]
        if self._is_capturing():
            self._state.skipped += len(each)
            return
        self._state.add(each, gradients)

    def _write(self, step: int, module: object | None) -> None:
        if not self._optimizers_step:
            leaves = [leaf for reference in self._leaves.values() if (leaf := reference()) is not None]
            self._add(leaves or (() if module is None else module_parameters(module)))
        losses = [loss if type(loss) is float else float(loss.item()) for loss in self._losses]
        row = self._state.row(step, losses)
        self._state = _State()
        self._leaves.clear()
        self._losses.clear()
        self._folder.append(row)


class _State:
    """The running checksums of one step."""

    def __init__(self) -> None:
        self._parameters, self._gradients = blake2b(digest_size=_WORD), blake2b(digest_size=_WORD)
        self._tensors = 0
        self.skipped = 0

    def add(self, trained: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Add tensors in order; a gradient may be None."""
        for tensors, checksum in ((trained, self._parameters), (gradients, self._gradients)):
            parts = [[] if tensor is None else _parts(tensor) for tensor in tensors]
            sums = iter(_sums([part for each in parts for part in each or ()]))
            for each in parts:
                found = [next(sums) for _ in each or ()]
                is_read = each is not None and None not in found
                self._tensors += is_read and bool(found)
                self.skipped += not is_read
                checksum.update(b"%d:" % (len(found) if is_read else -1))
                for part in found:
                    checksum.update(part or b"")

    def row(self, step: int, losses: Sequence[float]) -> TrainingState:
        """The row of this step."""
        return TrainingState(
            step=step,
            parameters=int.from_bytes(self._parameters.digest(), "little"),
            gradients=int.from_bytes(self._gradients.digest(), "little"),
            losses=tuple(losses),
            tensors=self._tensors,
            skipped=self.skipped,
        )


class _Engine:
    """Wraps torch's autograd engine and passes on the roots of each backward."""

    def __init__(self, engine: Any, before: Callable[[Any], object]) -> None:
        self._engine, self._before = engine, before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @untraced
    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """As the engine's, whose first argument are the roots."""
        self._before(args[0] if args else kwargs.get("tensors"))
        return call_traced(self._engine.run_backward, *args, **kwargs)


def _as_sequence(values: Any) -> Sequence[Any]:
    return values if type(values) in (tuple, list) else (values,)


def _leaves(roots: Sequence[Any]) -> Iterator[Any]:
    """The leaf tensors to which a backward from these roots accumulates, in a fixed order."""
    for root in roots:
        if TensorBase.is_leaf.__get__(root) and TensorBase.requires_grad.__get__(root):
            yield root
    waiting = [node for root in reversed(roots) if (node := TensorBase.grad_fn.__get__(root)) is not None]
    seen: set[Any] = set()
    while waiting and len(seen) < _MAX_NODES:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if type_name(type(node)) == "AccumulateGrad":
            yield node.variable
        waiting += [below for below, _ in reversed(node.next_functions) if below is not None]


def _parts(tensor: Any, deep: int = _DEEPEST) -> list[Any] | None:
    """The plain tensors that contain the values of a tensor, or of a subclass that wraps others; None if unknown."""
    kind = type(tensor)
    if not any(kind is plain for plain in _PLAIN) and dispatch_keys(tensor).has(PYTHON):
        if not deep or type_name(kind) == _INCOMPLETE:
            return None
        inner = [_parts(value, deep - 1) for value in _attributes(tensor, kind) if TensorBase in mro(type(value))]
        known = [parts for parts in inner if parts is not None]
        return [part for parts in known for part in parts] if known and len(known) == len(inner) else None
    layout = TensorBase.layout.__get__(tensor)
    if layout is not torch.strided:
        return [part for _, part in sparse_parts(tensor)] or None
    if TensorBase.is_nested.__get__(tensor) or TensorBase.is_quantized.__get__(tensor):
        return None
    if storage_of(tensor) is None:
        return [] if TensorBase.is_meta.__get__(tensor) else None
    return [tensor]


def _attributes(tensor: Any, kind: type) -> Iterator[Any]:
    """Values of the attributes and slots of a tensor of a subclass, without running its code."""
    yield from (instance_dict(tensor, kind) or {}).values()
    for base in mro(kind):
        for slot in list(type_dict(base).values()):
            if type(slot) is MemberDescriptorType:
                try:
                    yield slot.__get__(tensor)
                except AttributeError:  # it is empty
                    continue


def _sums(tensors: Sequence[Any]) -> list[bytes | None]:
    """The sums of plain tensors as bytes, None for one that cannot be read."""
    sums: list[bytes | None] = [None] * len(tensors)
    by_device: dict[torch.device, list[int]] = {}
    for place, tensor in enumerate(tensors):
        by_device.setdefault(device_of(tensor), []).append(place)
    for device, places in by_device.items():
        for first in range(0, len(places), _BATCH):
            batch = places[first : first + _BATCH]
            rows = torch.zeros((len(batch), _LANES), dtype=torch.int64, device=device)
            added = [_add_words(row, tensors[place]) for row, place in zip(rows.unbind(0), batch, strict=True)]
            for place, is_added, row in zip(batch, added, rows.cpu().numpy(), strict=True):
                tensor = tensors[place]
                head = b"%d,%d;" % (TensorBase.numel(tensor), TensorBase.element_size(tensor))
                sums[place] = head + row.tobytes() if is_added else None
    return sums


def _add_words(row: Any, tensor: Any) -> bool:
    """Add the memory of a tensor's elements, as integers, to its row of sums; False if it cannot be read."""
    try:
        for piece, count in _pieces(TensorBase.detach(tensor)):
            _add_piece(row, piece, count)
    except RuntimeError:  # a storage that was resized, or a kind of tensor without views
        return False
    return True


def _pieces(tensor: Any) -> Iterator[tuple[Any, int]]:
    """The elements of a tensor as aligned vectors with their lengths: the tensor itself where possible, else copies of
    limited size.
    """
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    count, item = tensor.numel(), tensor.element_size()
    if not count:
        return
    # `as_strided` checks that the storage is that large: FSDP frees it while a tensor is not in use
    if _is_dense(tensor):
        # in the order of memory, whatever the order of the dimensions
        flat = tensor.as_strided((count,), (1,))
        if tensor.storage_offset() * item % _WORD == 0:
            yield flat, count
        else:
            for piece in flat.split(_CHUNK // item):
                yield piece.clone(), piece.numel()
        return
    tensor = tensor.as_strided(tensor.shape, tensor.stride())
    for piece in tensor.split(max(1, _CHUNK * tensor.shape[0] // (count * item))):
        yield piece.contiguous().flatten(), piece.numel()


def _is_dense(tensor: Any) -> bool:
    """Whether the elements fill a range of memory, each once."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _add_piece(row: Any, flat: Any, count: int) -> None:
    """Add a vector of `count` elements, read as int64: none is converted, so there is no copy of it.

    The words make segments of equal length, one for each sum; what remains is added word by word.
    """
    item = flat.element_size()
    words, rest = divmod(count * item, _WORD)
    if words:
        view = (flat[: words * _WORD // item] if rest else flat).view(torch.int64)
        length, left = divmod(words, _LANES)
        if length:
            row.add_((view[: words - left] if left else view).view(_LANES, length).sum(1))
        if left:
            row[:left].add_(view[words - left :] if length else view)
    if rest:
        row[_LANES - rest :].add_(flat[words * _WORD // item :].view(torch.uint8))
