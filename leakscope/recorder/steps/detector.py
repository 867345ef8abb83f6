"""Detects where a step ends: optimizers, backward passes and module calls."""

from __future__ import annotations

import ast
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import torch

from leakscope.originals import Path, _thread, os
from leakscope.process.guard import Guard, call_traced, untraced
from leakscope.process.patches import Patches
from leakscope.process.raw_types import instance_dict, mro, type_dict, type_name
from leakscope.process.torch_compat import (
    ENGINE,
    MODULES,
    NO_TASK,
    PARAMETERS,
    STEP_OF_OPTIMIZER,
    RecordingPart,
    call_of_module,
    grad_of,
    graph_task,
    lacks,
    version_of,
    without_functions,
)
from leakscope.process.user_code import is_ours, is_users
from leakscope.run.rows import StepSourceKind

MAX_CALLS_IN_A_STEP = 8
"""Calls of one optimizer without one of the optimizer that ends steps, after which it ends them instead.

A GAN's critic may step several times in a step.
"""


class OptimizerDetector:
    """Ends a step at each call of one optimizer: the first that steps, until it is freed, silent or superseded.

    It is superseded once an optimizer steps that was created since its last call, for a gradient computed since then: a
    search creates a new one for each trial and may keep the old ones. Optimizers created together, as a GAN's, belong
    to one step.
    """

    def __init__(self, guard: Guard | None = None) -> None:
        self._died = (guard or Guard()).finalizer_safe("death of an optimizer", self._forget)
        self._source: _KnownOptimizer | None = None
        self._known: dict[int, _KnownOptimizer] = {}
        """By address: an optimizer may define `__eq__`."""
        self._steps = 0
        self.backwards = self._backwards_before = 0
        """Number of outermost backwards begun, in total and before the last call that ended a step."""

    @property
    def has_ended_step(self) -> bool:
        """Whether any optimizer has ended a step."""
        return self._steps > 0

    def each(self) -> Iterator[Any]:
        """The live optimizers."""
        for known in list(self._known.values()):
            optimizer = known()
            if optimizer is not None:
                yield optimizer

    def created(self, optimizer: object) -> None:
        """Record an optimizer that was created, copied or loaded; a known one keeps its age."""
        known = self._known.get(id(optimizer))
        if known is None or known() is not optimizer:
            self._add(optimizer, self._steps)

    def _add(self, optimizer: object, created: int) -> _KnownOptimizer:
        known = self._known[id(optimizer)] = _KnownOptimizer(optimizer, self._died)
        known.address, known.step, known.count, known.created, known.stepped = id(optimizer), -1, 0, created, False
        return known

    def backward_began(self) -> None:
        """Record the start of an outermost backward."""
        self.backwards += 1

    def ends_with(self, optimizer: object) -> bool:
        """Whether the call of this optimizer that is ending ends a step."""
        known = self._known.get(id(optimizer))
        if known is None or known() is not optimizer:
            known = self._add(optimizer, -1)
        new, known.stepped = not known.stepped, True
        known.count = known.count + 1 if known.step == self._steps else 1
        known.step = self._steps
        if not self._is_source(known, optimizer, new) or _in_another_step():
            return False
        self._source = known
        self._steps += 1
        self._backwards_before = self.backwards
        return True

    def _is_source(self, known: _KnownOptimizer, optimizer: object, new: bool) -> bool:
        source = None if self._source is None else self._source()
        if source is None or source is optimizer or known.count > MAX_CALLS_IN_A_STEP:
            return True
        # One for each parameter, created at its first gradient, belongs to the current step: it is the same
        # backward's. If gradients come from elsewhere there is no backward to go by.
        if known.created == self._steps and new and (not self.backwards or self.backwards > self._backwards_before):
            return True
        # One after the warm-up's, made together with it. Those of the other parameters, one each, belong to the running
        # step; and so does one that existed before: two that train the same parameters may both step at every step.
        return new and _trains(optimizer, _first(source))

    def _forget(self, known: _KnownOptimizer) -> None:
        if self._known.get(known.address) is known:
            del self._known[known.address]


class _KnownOptimizer(weakref.ref[Any]):
    """An optimizer that was created or has stepped."""

    __slots__ = ("address", "count", "created", "step", "stepped")
    address: int
    count: int
    """Its calls since the source's last one."""
    created: int
    """Number of steps ended when it was created; -1 if unknown."""
    step: int
    stepped: bool


def _in_another_step() -> bool:
    """Whether the optimizer was called by another's step, or by that of its own subclass: both run torch's hooks."""
    return _steps_running() > 1


def in_optimizer_step() -> bool:
    """Whether an optimizer's step is running: backwards and calls of its closure end no step."""
    return _steps_running() > 0


def _steps_running() -> int:
    """Number of optimizer steps on this thread's stack."""
    frame: FrameType | None = sys._getframe(1)
    calls = 0
    while frame is not None:
        calls += frame.f_code.co_qualname == STEP_OF_OPTIMIZER
        frame = frame.f_back
    return calls


def parameters(optimizer: Any) -> Iterator[Any]:
    """The parameters of an optimizer, as far as they can be read without running its code."""
    groups = dict.get(instance_dict(optimizer, type(optimizer)) or {}, "param_groups")
    for group in groups if type(groups) is list else ():
        held = dict.get(group, "params") if type(group) is dict else None
        yield from held if type(held) is list else ()


def _first(optimizer: Any) -> Any:
    return next(parameters(optimizer), None)


def _trains(optimizer: Any, parameter: Any) -> bool:
    return parameter is not None and any(trained is parameter for trained in parameters(optimizer))


_TORCH = f"{os.sep}site-packages{os.sep}torch{os.sep}"
_MAX_OTHER_CALLS = 256
"""Calls from elsewhere after which all calls of a library count again. An adaptive solver evaluates a model 14 to some
hundred times per call: at 32 its evaluations end steps; at ten thousand an unknown trainer that starts with a check
has no step in a short run.
"""
_MAX_CHAINS = 8
"""Maximum places in the script that are remembered to name the step function."""
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class LibraryCalls:
    """Selects the first of the calls that one call into a library makes: a solver evaluates a model many times.

    The return of a library function is not visible without tracing the script, but its first call site is: a step goes
    from one call at that place to the next. A trainer's loop calls at one place, so each of its iterations ends a step.
    Only numbers are kept of a frame.
    """

    def __init__(self) -> None:
        self._first: int | None = None
        self._others = 0

    def is_first(self, frame: FrameType | None) -> bool:
        """Whether a call below `frame` is made by the script, or is the first of a library's call."""
        place = _place_in_library(frame)
        if place is None:
            return True
        if self._first is None or self._others >= _MAX_OTHER_CALLS:
            self._first = place
        if place == self._first:
            self._others = 0
            return True
        self._others += 1
        return False


def _place_in_library(frame: FrameType | None) -> int | None:
    """A hash of the lines from the script's innermost frame to a call, None if there are no library
    lines between them.
    """
    place: list[tuple[int, int]] = []
    between = False
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return hash((*place, id(frame.f_code), frame.f_lasti)) if between else None
        between = between or _is_library(file)
        place.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return None


@lru_cache(maxsize=4096)
def _is_library(file: str) -> bool:
    """Whether a file outside the script is neither torch's nor leakscope's."""
    return _TORCH not in file and not is_ours(file)


class CallPlace(NamedTuple):
    """A line of the script that makes a call."""

    file: str
    line: int
    module: str
    function: str
    """Qualified name of its function, `<module>` outside of all."""


class ScriptCalls:
    """Call stacks of the script that led to some calls, as lines only."""

    def __init__(self) -> None:
        self._chains: dict[tuple[CallPlace, ...], None] = {}

    def note(self, frame: FrameType | None) -> None:
        """Record the script's frames of the current call."""
        if len(self._chains) >= _MAX_CHAINS:
            return
        chain = []
        while frame is not None:
            code = frame.f_code
            if is_users(code.co_filename):
                module = frame.f_globals.get("__name__")
                chain.append(
                    CallPlace(code.co_filename, frame.f_lineno, module if type(module) is str else "", code.co_qualname)
                )
            frame = frame.f_back
        self._chains[tuple(reversed(chain))] = None

    def step_functions(self) -> tuple[str, ...]:
        """Functions called in a loop of the script that led to the calls, as `--step-function` takes them.

        With nested loops the outermost one that calls a function counts.
        """
        return tuple(dict.fromkeys(name for chain in self._chains for name in _called_in_loop(chain)))


def _called_in_loop(chain: tuple[CallPlace, ...]) -> Iterator[str]:
    for caller, called in pairwise(chain):
        if (caller.function.endswith(_COMPREHENSIONS) or _is_in_loop(caller)) and "<" not in called.function.replace(
            ".<locals>.", "."
        ):
            name = called.function.rpartition("<locals>.")[2]
            yield name if called.module in ("__main__", "") else f"{called.module}.{name}"
            return


def _is_in_loop(place: CallPlace) -> bool:
    """Whether a line is in a loop of its own function."""
    try:
        tree = ast.parse(Path(place.file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return False
    own = within = False
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, in_loop = waiting.pop()
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", None) or 0
        if isinstance(node, ast.stmt) and first <= place.line <= last:
            own, within = True, in_loop
        for below in ast.iter_child_nodes(node):
            around = in_loop and not isinstance(node, _FUNCTIONS)
            waiting.append((below, around or isinstance(node, _LOOPS)))
    return own and within


CALLS_WITHOUT_BACKWARD = 8
"""Calls that build a graph after which no backward is expected any more. Heuristic: a GAN's first step makes three, a
pipeline's one for each microbatch. Without grad mode none can come.
"""
_MAX_NEW_MODULES = 1 << 12
"""Maximum modules remembered until the next step: more than a model of a step is likely to have."""


class ModuleDetector:
    """Ends a step at each call of one module with parameters: the first, until it is freed or silent.

    A search creates a new one of the same type for each trial and may keep the old ones: one created since the last
    call takes its place. A loss or a transform has no parameters and belongs to the current step.
    """

    def __init__(self) -> None:
        self._source: weakref.ref[Any] | None = None
        self._waiting = CALLS_WITHOUT_BACKWARD
        self._others = 0
        """Calls of other modules since the source's last one."""
        self._solver = LibraryCalls()
        self._created: list[weakref.ref[Any]] = []
        """Modules created since the source's last call."""

    @property
    def module(self) -> Any:
        """The module whose calls end steps, None before the first one or once it is freed."""
        return None if self._source is None else self._source()

    def created(self, module: Any) -> None:
        """Record that a module was given a parameter or a submodule."""
        if len(self._created) < _MAX_NEW_MODULES and not (self._created and self._created[-1]() is module):
            self._created.append(weakref.ref(module))

    def ends_with(self, module: Any, builds_graph: bool, frame: FrameType | None) -> bool:
        """Whether this module's outermost call, ending below `frame`, ends a step."""
        source = self.module
        if source is not module:
            if not has_parameters(module):
                return False
            self._others += 1
            alike = source is not None and type_name(type(source)) == type_name(type(module))
            created = alike and any(one() is module for one in self._created)
            if source is not None and self._others <= MAX_CALLS_IN_A_STEP and not created:
                return False
            self._source = weakref.ref(module)
        self._others = 0
        self._created.clear()
        if not self._solver.is_first(frame):
            return False
        self._waiting -= builds_graph and self._waiting > 0
        return not builds_graph or self._waiting == 0


def module_parameters(module: Any) -> Iterator[Any]:
    """The parameters of a module and its submodules, each module once; runs none of their code."""
    waiting, seen = [module], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        own = instance_dict(one, type(one)) or {}
        parameters, below = dict.get(own, PARAMETERS), dict.get(own, MODULES)
        if isinstance(parameters, dict):
            yield from [value for value in dict.values(parameters) if value is not None]
        if isinstance(below, dict):
            waiting += [each for each in dict.values(below) if each is not None]


def has_parameters(module: Any) -> bool:
    """Whether a module or a submodule has parameters; runs none of their code."""
    return any(True for _ in module_parameters(module))


def custom_call_of(module: Any) -> type | None:
    """The class that defines a module's own `__call__`, which runs no global hooks; None for most, and for one that is
    already watched.
    """
    for kind in mro(type(module)):
        called = type_dict(kind).get("__call__")
        if called is not None:
            name = type_dict(kind).get("__module__")
            of_torch = type(name) is str and name.partition(".")[0] == "torch"
            plain = type(called) is FunctionType and called.__code__ is not _CUSTOM_CALL
            return kind if plain and not of_torch else None
    return None


def calling_then(called: Callable[..., Any], ended: Callable[[Any], object]) -> Callable[..., Any]:
    """Return a `__call__` that passes its module to `ended` when it returns."""

    def module_call(*args: Any, **kwargs: Any) -> Any:
        result = called(*args, **kwargs)
        module = args[0] if args else None
        del args, kwargs  # a snapshot must not find them here
        ended(module)
        return result

    return module_call


_CUSTOM_CALL: CodeType = calling_then(id, id).__code__


def outermost_call() -> FrameType | None:
    """The frame of the module's call that is ending, None if another module's call encloses it."""
    codes = (call_of_module.__code__, _CUSTOM_CALL)
    frame: FrameType | None = sys._getframe(1)
    found = None
    while frame is not None:
        if frame.f_code in codes:
            if found is not None:
                return None
            found = frame
        frame = frame.f_back
    return found


def is_outermost() -> bool:
    """Whether no other module's call encloses the one whose hook runs."""
    return outermost_call() is not None


_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Gradients:
    """Detects gradients that were used between two backwards without an optimizer step.

    Accumulation leaves them as they are: neither the tensor nor its version changes before the next backward.
    """

    def __init__(self, optimizers: OptimizerDetector) -> None:
        self._optimizers = optimizers
        self._seen: tuple[weakref.ref[Any], int, int] | None = None
        """A parameter, the address of its gradient, and the gradient's version."""
        self._parameter: tuple[weakref.ref[Any], int, int] | None = None
        """A parameter, the address of its memory, and its version."""

    def backward_ended(self) -> None:
        """Record a gradient that exists now."""
        self._seen = None
        if lacks(RecordingPart.BY_HAND):
            return
        with without_functions():
            self._seen = self._first_gradient()

    def _first_gradient(self) -> tuple[weakref.ref[Any], int, int] | None:
        for optimizer in self._optimizers.each():
            for parameter in parameters(optimizer):
                gradient = _gradient(parameter)
                if gradient is not None:
                    return weakref.ref(parameter), id(gradient), version_of(gradient)
        return None

    def parameters_changed(self) -> bool:
        """Whether the optimizers' first parameter has changed since the last call: a manual update with
        torch.autograd.grad, whose gradients no parameter has.
        """
        if lacks(RecordingPart.BY_HAND):
            return False
        before, self._parameter = self._parameter, None
        with without_functions():
            for optimizer in self._optimizers.each():
                first = next(
                    (p for p in parameters(optimizer) if type(p) in _PLAIN and p.layout is torch.strided), None
                )
                if first is not None:
                    self._parameter = weakref.ref(first), first.data_ptr(), version_of(first)
                    return before is not None and before[0]() is first and before[1:] != self._parameter[1:]
        return False

    def were_used(self) -> bool:
        """Whether the gradient of the last backward has been removed or changed."""
        if self._seen is None:
            return False
        reference, address, version = self._seen
        parameter = reference()
        with without_functions():
            gradient = None if parameter is None else _gradient(parameter)
            return gradient is None or id(gradient) != address or version_of(gradient) != version


def _gradient(parameter: Any) -> Any:
    """A parameter's gradient, read without a subclass's `.grad`; only for plain tensors of torch."""
    if torch.Tensor not in mro(type(parameter)):
        return None
    gradient = grad_of(parameter)
    return gradient if type(gradient) is torch.Tensor else None


BACKWARDS_BY_HAND = 3
"""Consecutive backwards with used gradients and no optimizer step after which they count. Heuristic: a gradient scaler
skips a first step or two, and an optimizer that never steps is recognised at the fourth.
"""

UPDATES_BY_HAND = 8
"""Updates of parameters between calls of torch.autograd.grad without an optimizer step, after which each is a step. An
inner loop of meta-learning makes one to five before its optimizer's step: at 3 those end steps, at 30 a `--steps 12`
run of forty has none.
"""


class StepEnd(NamedTuple):
    """The end of a step."""

    source: StepSourceKind
    name: str
    """What ended it: `Adam`, `Net`, `train_step`; "" for a backward."""


MARK = StepEnd(StepSourceKind.MARK, "")
"""A mark set by the program."""


class StepDetector:
    """Decides which of the observed events end a step.

    Without a stepping optimizer the end of each outermost backward counts, whatever it is for: microbatches of a step
    and alternating losses cannot be told apart. A source gives way to one earlier in the list, and never takes over
    again. While an optimizer steps, only its end counts: LBFGS calls a closure that runs many backwards. Of the calls
    that one library call makes, such as a solver's, the first counts.
    """

    def __init__(self, step_alone: Callable[[], bool] = lambda: True, guard: Guard | None = None) -> None:
        """`step_alone` says whether this rank may step by its own backwards and calls; evaluated for each."""
        self._optimizers = OptimizerDetector(guard)
        self._gradients = Gradients(self._optimizers)
        self._modules = ModuleDetector()
        self._step_alone = step_alone
        self._by_hand = self._updates = 0
        self._updated = False
        self._solver = LibraryCalls()
        self.calls = ScriptCalls()
        """Where in the script the backwards ran that ended no step."""

    def optimizer_created(self, optimizer: object) -> None:
        """Record an optimizer that was created, copied or loaded."""
        self._optimizers.created(optimizer)

    def optimizer_stepped(self, optimizer: object) -> StepEnd | None:
        """Called when an optimizer's step is ending."""
        ends = self._optimizers.ends_with(optimizer)
        return StepEnd(StepSourceKind.OPTIMIZER, type_name(type(optimizer))) if ends else None

    def backward_began(self, accumulates: bool = True) -> None:
        """Called at the start of an outermost backward; one that accumulates leaves gradients on parameters."""
        self._optimizers.backward_began()
        if self._optimizers.has_ended_step or in_optimizer_step():
            return
        self._by_hand = self._by_hand + 1 if self._gradients.were_used() else 0
        self._updated = not accumulates and self.optimizers_alive and self._gradients.parameters_changed()
        self._updates += self._updated

    def backward_ended(self, frame: FrameType | None = None) -> StepEnd | None:
        """Called at the end of an outermost backward, which was called below `frame`."""
        if self._optimizers.has_ended_step or in_optimizer_step():
            return None
        if self.optimizers_alive:
            self._gradients.backward_ended()
            by_hand = self._by_hand >= BACKWARDS_BY_HAND
            if not by_hand and not (self._updated and self._updates >= UPDATES_BY_HAND):
                self.calls.note(frame)
                return None
        ends = self._solver.is_first(frame) and self._step_alone()
        return StepEnd(StepSourceKind.BACKWARD, "") if ends else None

    def module_created(self, module: Any) -> None:
        """Record that a module was given a parameter or a submodule."""
        self._modules.created(module)

    def module_called(self, module: Any, builds_graph: bool, frame: FrameType | None = None) -> StepEnd | None:
        """Called when a module's outermost call, made below `frame`, is ending, in grad mode or not."""
        ends = not in_optimizer_step() and self._modules.ends_with(module, builds_graph, frame) and self._step_alone()
        return StepEnd(StepSourceKind.CALL, type_name(type(module))) if ends else None

    @property
    def called_module(self) -> Any:
        """The module whose calls would end steps, None if there is none."""
        return self._modules.module

    @property
    def backwards(self) -> int:
        """Number of outermost backwards so far."""
        return self._optimizers.backwards

    @property
    def optimizers_alive(self) -> bool:
        """Whether there is an optimizer, even if it never steps."""
        return any(True for _ in self._optimizers.each())


class StepEvents:
    """Passes events to a detector, and reports the end of a step."""

    def __init__(
        self,
        detector: StepDetector,
        step_ended: Callable[[StepEnd], None],
    ) -> None:
        """`step_ended` may raise to end the script, and only for that."""
        self._detector, self._step_ended = detector, step_ended
        self._home = _thread.get_ident()
        self._calls = Patches()

    def install(self, patches: Patches) -> None:
        """Start listening."""
        from torch.nn.modules.module import (
            register_module_forward_hook,
            register_module_module_registration_hook,
            register_module_parameter_registration_hook,
        )
        from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

        patches.hook("optimizer step hook", register_optimizer_step_post_hook, self._after_optimizer, self._step_ended)
        for name in ("__init__", "__setstate__"):
            patches.call_before(Optimizer, name, self._before_optimizer_created)
        begins = patches.guard.guarded("beginning of a backward", self._before_backward)
        ended = patches.guard.guarded("end of a backward", self._after_backward, self._step_ended)
        if lacks(RecordingPart.BACKWARDS):  # a module's call ends a step only without a backward
            return
        owner, name = ENGINE
        patches.replace(owner, name, _Engine(getattr(owner, name), begins, ended))
        self._calls = patches.part()
        if not lacks(RecordingPart.CALLS):
            self._calls.hook("module call hook", register_module_forward_hook, self._after_call, self._step_ended)
            self._custom_call_ended = patches.guard.guarded("call of a module", self._after_call, self._step_ended)
            for register in (register_module_module_registration_hook, register_module_parameter_registration_hook):
                self._calls.hook("module registration hook", register, self._after_registration)
        patches.guard.at_end.append(lambda _: patches.guard.later.append(self._calls.take_out))
        patches.call_before_tracing(self._no_calls_any_more)

    def _no_calls_any_more(self, *_: Any, **__: Any) -> None:
        self._calls.take_out()

    def _before_optimizer_created(self, optimizer: Any, *_: Any, **__: Any) -> None:
        self._calls.take_out()
        self._detector.optimizer_created(optimizer)

    def _after_optimizer(self, optimizer: object, *_: object) -> StepEnd | None:
        return self._detector.optimizer_stepped(optimizer)

    def _after_registration(self, module: Any, *_: object) -> None:
        """Watch the calls of a class whose `__call__` runs no global hooks, such as gpytorch's models."""
        self._detector.module_created(module)
        owner = custom_call_of(module)
        if owner is not None:
            self._calls.wrap(owner, "__call__", lambda called: calling_then(called, self._custom_call_ended))

    def _before_backward(self, accumulates: bool) -> None:
        self._calls.take_out()
        self._detector.backward_began(accumulates)

    def _after_backward(self) -> StepEnd | None:
        return self._detector.backward_ended(sys._getframe(1))

    def _after_call(self, module: Any, *_: object) -> StepEnd | None:
        if _thread.get_ident() != self._home:
            return None
        call = outermost_call()
        if call is None:
            return None
        return self._detector.module_called(module, torch.is_grad_enabled(), call.f_back)


class _Engine:
    """Wraps torch's autograd engine and reports the start and end of an outermost backward.

    Tensor.backward, torch.autograd, torch.func and hand-written pipelines all call it at `ENGINE`
    (torch/autograd/graph.py).
    """

    def __init__(self, engine: Any, begins: Callable[[bool], None], ended: Callable[[], None]) -> None:
        self._engine, self._begins, self._ended = engine, begins, ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @untraced
    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """As the engine's, which calls the script's hooks."""
        if graph_task() != NO_TASK:  # a nested backward, which may run on an engine thread
            return call_traced(self._engine.run_backward, *args, **kwargs)
        self._begins(kwargs.get("accumulate_grad", True) is not False)
        result = call_traced(self._engine.run_backward, *args, **kwargs)
        del args, kwargs
        self._ended()
        return result
