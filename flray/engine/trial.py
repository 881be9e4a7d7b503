"""One forward pass in eval mode and one forward and backward pass in train mode before a run, on samples of its data.
They find in one line what a run would get wrong later: outputs of another form, state that training changes and
nobody sends, and, by passes with other parameters, what the network keeps of those that it had before.

Every process of a run tries the same network on the same samples, and so finds the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _NormBase

from flray.core.network.attributes import LIBRARIES, attributes, content, is_reached
from flray.core.network.buffers import KINDS, Buffer, attribute_refusal, find_buffers
from flray.core.network.convolutions import contiguous_kernels
from flray.core.network.layout import Layout
from flray.core.network.module_state import ModuleState, constant_changed
from flray.core.network.objective import APART
from flray.core.protocol.generators import preserve_globals, seed_globals
from flray.core.schema.errors import AlgorithmError, ConfigError, described, traced, warn

T = TypeVar("T")
Places = list[tuple[dict[str, Any], dict[str, Any]]]  # by module: what holds its parameters, and a copy of that

ACTIVATION_BYTES = 16 * 2**20  # of the largest activation of a block: beyond it, it no longer stays in a CPU's cache
# more samples gain nothing, even with a small model, and a test set has to make blocks for all actors
LEAST, MOST = 16, 512


BOUND = (
    "training reads the parameters as parts of one vector, and takes gradients of that: leave out hooks and attributes "
    "of parameters, isinstance(p, nn.Parameter), get_parameter and .data in forward, and write checkpoint(..., "
    "use_reentrant=False)"
)
STRIDES = "flray computes channels-last: write .reshape(...) or .flatten(1) in place of .view(...)"


class NetworkWarning(UserWarning):
    """A network of the user's own whose outputs may be something else than the logits of each sample."""


class _Pass(NamedTuple):
    """Logits `[B, C]` of a forward pass in train mode, the parameters' gradients, and the attributes after it."""

    logits: Tensor
    gradients: tuple[Tensor | None, ...]
    attributes: dict[str, str]


def try_network(
    name: str, build: Callable[[], nn.Module], x: Tensor, classes: int, seed: int, dtype: torch.dtype = torch.float32
) -> tuple[nn.Module, int]:
    """(the network that `build()` gives, after a trial on the inputs `x [B, ...]`; the samples that a test reads at
    once, see :func:`try_in_eval`). What the trial changed is put back.

    `name`: of the configured model. `dtype`: of its parameters.

    A running mean or variance of a norm layer that runs in eval mode by itself is marked as a constant. Warns if a
    test's logits of a sample depend on the other samples. Raises
    `ConfigError` for state that training changes without a declared kind, for parameters that a forward pass registers,
    writes to or reads past the module, or that have NaN, for gradients that only `backward()` on the module gives, for
    logits of eval mode that are those of earlier parameters, and `AlgorithmError` for outputs other than logits
    `[B, C]`.
    """
    module = build()
    _check_registered(name, module)
    trial, before = _Trial(module, classes, seed, dtype), attributes(module)
    trial.check_finite()
    at_once = trial.seeded(lambda: try_in_eval(module, x, classes, name))
    trial.warn_of_batch(name, x)
    if not any(p.requires_grad for p in module.parameters()):
        return module, at_once  # `Objective` raises
    x = x if len(x) > 1 else torch.cat([x, x])  # batch norm needs two
    after = trial.run(x)
    trial.check_gradients(x, after)
    changed = trial.changed_buffers()
    trial.put_back()
    constants = trial.constants(changed)
    declared = {leaf for part in module.modules() for leaf in getattr(part, KINDS, {})}
    moved = [each for each in {**before, **after.attributes} if before.get(each) != after.attributes.get(each)]
    if not moved:
        trial.check_bound(x)
        trial.check_two_points(x)
        trial.check_memory(x)
        return _marked(module, constants, trial.features_apart(x)), at_once
    moved = [each for each in moved if each.rpartition(".")[2] not in declared]
    own = [each for each in moved if not is_reached(each)]
    # harmless if a forward pass does not read what an earlier one left: a cache, the last attention
    other = x.flip(0) if x.dtype in (torch.int64, torch.int32) else 0.5 * x.flip(0)
    # under other draws: noise that an earlier pass left is not the noise that the first pass of a process draws
    fresh = build()
    trial.seed = seed + 1
    expected, found = _Trial(fresh, classes, seed + 1, dtype).run(other), trial.run(other)
    differing = [each for each in own if expected.attributes.get(each) != found.attributes.get(each)]
    if differing or (moved and not _same(expected, found)):
        first = (differing or moved)[0]
        raise ConfigError(attribute_refusal(type(module).__name__, first, {**before, **after.attributes}[first]))
    trial.check_bound(x)
    trial.check_two_points(x)
    trial.check_memory(x)
    return _marked(build(), constants, trial.features_apart(x)), at_once


def _check_registered(name: str, module: nn.Module) -> None:
    """Raises `ConfigError` for layers and parameters that an attribute holds in lists, tuples or dictionaries: the
    module does not know them, so nothing trains, sends or stores them. Frozen ones may be kept so."""
    parameters = {id(p) for p in module.parameters()}
    for part in module.modules():
        for attribute, value in vars(part).items():
            for held in [] if attribute.startswith("_") else _inside(value):
                layer = isinstance(held, nn.Module)
                lost = held.parameters() if isinstance(held, nn.Module) else [held]
                if any(p.requires_grad and id(p) not in parameters for p in lost):
                    kind = type(value).__name__
                    of = ("Module" if layer else "Parameter") + ("Dict" if kind == "dict" else "List")
                    raise ConfigError(
                        f"model {name!r}: self.{attribute} of {type(part).__name__} holds "
                        f"{'layers' if layer else 'parameters'} in a {kind}, which nothing trains; use nn.{of}, or "
                        "requires_grad_(False) for what is not to be trained"
                    )


def _inside(value: Any) -> Iterator[nn.Module | nn.Parameter]:
    """The layers and parameters in a list, tuple or dictionary, and in those that it holds."""
    if isinstance(value, list | tuple | dict):
        for held in value.values() if isinstance(value, dict) else value:
            yield from [held] if isinstance(held, nn.Module | nn.Parameter) else _inside(held)


class _Trial:
    """A network and how its tensors were before."""

    def __init__(self, module: nn.Module, classes: int, seed: int, dtype: torch.dtype) -> None:
        self.module, self.classes, self.seed, self.name = module, classes, seed, type(module).__name__
        self.parameters = dict(module.named_parameters())
        self._flags = {name: (p.requires_grad, p._version) for name, p in self.parameters.items()}
        # the user's own class, or what a function of theirs returns; libraries have no such habits
        self._own = type(module).__module__.partition(".")[0] not in LIBRARIES or type(module) is nn.Sequential
        self._contents = {name: self._content(p) for name, p in self.parameters.items()}
        self.buffers = find_buffers(module, dtype)
        self._copies = [buffer.tensor.clone() for buffer in self.buffers]
        self._trained = [p for p in self.parameters.values() if p.requires_grad]

    def seeded(self, call: Callable[[], T]) -> T:
        """The result of a call under the trial's seed."""
        with preserve_globals():
            seed_globals(self.seed)
            return call()

    def check_finite(self) -> None:
        """Raises `ConfigError` for a trained parameter with NaN or infinity: so would be each client's update."""
        for name, p in self.parameters.items():
            if p.requires_grad and not p.isfinite().all():
                raise ConfigError(
                    f"model {self.name}: parameter {name} has NaN or infinity before training; give it values in "
                    "__init__"
                )

    def warn_of_batch(self, name: str, x: Tensor) -> None:
        """Warns if the logits of a sample in eval mode are others beside itself than beside another sample."""
        if len(x) < 2 or type(self.module).__module__.startswith("flray."):
            return
        with _in_mode(self.module, False), torch.no_grad():
            beside_another = self.seeded(lambda: self.module(x[:2].clone()))[0]
            beside_itself = self.seeded(lambda: self.module(torch.cat([x[:1], x[:1]])))[0]
        if not _near(beside_another, beside_itself):
            warn(
                f"model {name!r}: its logits of a sample in eval mode depend on the other samples of the batch, so "
                "test results depend on evaluate.batch_size; norm layers need track_running_stats=True",
                NetworkWarning,
            )

    def run(self, x: Tensor) -> _Pass:
        """A forward and backward pass in train mode under the trial's seed."""
        return self.seeded(lambda: self._run(x))

    def _run(self, x: Tensor) -> _Pass:
        training = self.module.training
        try:
            self.module.train()  # a user's own may return nothing
            logits = self.module(x)
        except Exception as error:
            _check_view(self.name, error)
            what = f"model {self.name} failed in train mode on inputs of shape {list(x.shape)}"
            raise AlgorithmError(f"{what}: {traced(error)}") from None
        finally:
            self._settled = [part.training for part in self.module.modules()]
            self.module.train(training)
        check_output(self.name, logits, len(x), self.classes, "in train mode ")
        self._check_untouched()
        if not logits.requires_grad:
            raise ConfigError(
                f"model {self.name}: its logits have no gradient in train mode; look for no_grad, detach or NumPy in "
                "forward"
            )
        now = attributes(self.module)
        try:
            gradients = torch.autograd.grad(_loss(logits), self._trained, allow_unused=True)
        except RuntimeError as error:
            raise ConfigError(f"model {self.name}: {described(error)}; {BOUND}") from None
        return _Pass(logits.detach(), gradients, now)

    def _check_untouched(self) -> None:
        """Raises `ConfigError` for parameters that a forward pass added, replaced, froze, or wrote to."""
        now = dict(self.module.named_parameters())
        for name in now.keys() ^ self.parameters.keys():
            what = "registers" if name in now else "removes"
            raise ConfigError(
                f"model {self.name}: a forward pass {what} parameter {name}; register it in __init__, with its shape"
            )
        for name, p in self.parameters.items():
            requires_grad, version = self._flags[name]
            if now[name] is not p or p.requires_grad != requires_grad:
                raise ConfigError(
                    f"model {self.name}: a forward pass replaces parameter {name} or sets its requires_grad; set it in "
                    "__init__; tasks.freeze is for parts that are frozen in some tasks"
                )
            if p.requires_grad and (p._version != version or self._content(p) != self._contents[name]):
                raise ConfigError(
                    f"model {self.name}: a forward pass writes into parameter {name}, which other clients read; "
                    "compute with a changed copy instead"
                )

    def check_gradients(self, x: Tensor, after: _Pass) -> None:
        """Raises `ConfigError` for sparse gradients and for parameters that are read past the module."""
        sparse = [g is not None and g.layout != torch.strided for g in after.gradients]
        if any(sparse):
            name = next(n for n, p in self.parameters.items() if p is self._trained[sparse.index(True)])
            raise ConfigError(
                f"model {self.name}: the gradient of {name} is sparse, and gradients here are dense vectors; write "
                "sparse=False"
            )
        self._check_read_through_module(x)

    def _check_read_through_module(self, x: Tensor) -> None:
        """Raises `ConfigError` for a parameter that is read past its module, where the flat vector cannot reach it."""
        self.put_back()
        others = {n: p.detach().clone().requires_grad_() for n, p in self.parameters.items() if p.requires_grad}
        try:
            with _in_mode(self.module, True):
                logits = self.seeded(lambda: self._called(others, x))
        except Exception as error:  # as a module with its own parameters it ran
            raise ConfigError(
                f"model {self.name}: {described(error)} with plain tensors as parameters; {BOUND}"
            ) from None
        found: tuple[Tensor | None, ...] = (None,) * len(self._trained)
        if logits.requires_grad:
            found = torch.autograd.grad(_loss(logits), self._trained, allow_unused=True)
        names = [name for name, p in self.parameters.items() if p.requires_grad]
        for name, gradient in zip(names, found, strict=True):
            if gradient is not None:
                raise ConfigError(
                    f"model {self.name}: forward reads parameter {name} past its module (from a list, a closure or "
                    "another attribute), where training cannot reach it; read it as self.NAME, or use nn.ParameterList"
                )

    def check_bound(self, x: Tensor) -> None:
        """Raises `ConfigError` if the module's own `backward()` gives other logits or gradients than its parameters as
        plain tensors, as which training binds them."""
        if not self._own:
            return
        self._check_strides(x)
        plain = self._backward(x)
        self._check_counters(x)
        others = {n: p.detach().clone().requires_grad_(p.requires_grad) for n, p in self.parameters.items()}
        bound = self._passed(lambda: self._called(others, x), list(others.values()))
        names = ["", *self.parameters]
        differing = [place for place, pair in enumerate(zip(plain, bound, strict=True)) if not _near(*pair)]
        again = self._backward(x) if differing else plain
        for place in differing:
            name = names[place]
            if _near(plain[place], again[place]):
                what = f"the gradient of {name} is not that" if name else "its logits are not those"
                raise ConfigError(f"model {self.name}: {what} of its backward() and forward() by themselves; {BOUND}")

    def check_memory(self, x: Tensor) -> None:
        """Raises `ConfigError` for logits that change with what lies in the memory of a trained parameter or an
        averaged buffer, as through a stored `weight.data` or array: training has its values elsewhere."""
        if not self._own:
            return
        self.put_back()
        memory = {name: p.data for name, p in self.parameters.items() if p.requires_grad}
        memory |= {b.name: b.tensor.data for b in self.buffers if b.kind in ("average", "direction")}
        values = {name: tensor.clone() for name, tensor in memory.items()}
        others = self.seeded(lambda: {name: _perturbed(value).detach() for name, value in values.items()})

        def logits(*changed: str) -> Tensor:
            self.put_back()
            try:
                for name in changed:
                    memory[name].copy_(others[name])
                training = self.module.training
                bound = {n: v.clone().requires_grad_(training and n in self.parameters) for n, v in values.items()}
                with torch.set_grad_enabled(training):
                    return self.seeded(lambda: self._called(bound, x.clone())).detach()
            finally:
                for name in changed:
                    memory[name].copy_(values[name])

        def read() -> str | None:
            right = logits()
            if torch.equal(right, logits(*memory)) or not torch.equal(right, logits()):  # noise without a seed
                return None
            return next((name for name in memory if not torch.equal(right, logits(name))), None)

        for mode in (True, False):
            where = "train" if mode else "eval"
            try:
                with self._passes(mode):
                    name = read()
            except Exception as error:  # likewise; in eval mode they have no gradient
                raise ConfigError(
                    f"model {self.name}: {described(error)} in {where} mode with plain tensors as parameters; {BOUND}"
                ) from None
            if name is not None:
                raise ConfigError(
                    f"model {self.name}: forward reads {name} in {where} mode past its module (an attribute, a list or "
                    "an array that was made of it), where training cannot reach it; read it from its module in forward"
                )

    def _check_strides(self, x: Tensor) -> None:
        """Raises `ConfigError` if forward fails with the strides that the parameters have in the flat vector."""
        trained = {n: p for n, p in self.parameters.items() if p.requires_grad}
        whole = {id(p) for p in contiguous_kernels(self.module)}
        layout = Layout({n: p.shape for n, p in trained.items()}, {n for n, p in trained.items() if id(p) in whole})
        views = layout.views(layout.flatten(trained, dtype=self._trained[0].dtype))
        if all(view.is_contiguous() for view in views.values()):
            return
        try:
            with self._passes(True):
                self._without_gradient(lambda: self._called(views, x))
        except RuntimeError as error:  # with other strides it ran
            raise ConfigError(f"model {self.name}: {described(error)}; {STRIDES}") from None

    def _content(self, p: Tensor) -> tuple[int, str]:
        """Where a parameter lies, and its norm as text, since NaN is unequal to itself: `_version` does not count what
        is written to `.data`."""
        if not self._own:
            return (0, "")
        normed = p.is_complex() or (p.is_floating_point() and p.itemsize > 1)  # torch has no norm of other types
        values = p.detach() if normed else p.detach().double()
        return (p.data_ptr(), float(torch.linalg.vector_norm(values)).hex())

    def _check_counters(self, x: Tensor) -> None:
        """Raises `ConfigError` for a `num_batches_tracked` that a forward pass reads: nobody sends it."""
        counters = [buffer for buffer in self.buffers if buffer.kind == "counter"]
        averages = [buffer for buffer in self.buffers if buffer.kind == "average"]
        if not counters:
            return

        def passed(count: int) -> list[Tensor | None]:
            self.put_back()
            for buffer in counters:
                buffer.tensor.detach().fill_(count)
            found: list[Tensor | None] = [self.module(x).detach()]
            return found + [None if (now := _current(each)) is None else now.clone() for each in averages]

        with self._passes(True):
            pairs = zip(self.seeded(lambda: passed(0)), self.seeded(lambda: passed(7)), strict=True)
            read = not all(_near(*pair) for pair in pairs)
        if read:
            raise ConfigError(constant_changed(self.name, counters[0].name, counters[0].tensor, counters[0].persistent))

    def _called(self, others: dict[str, Tensor], x: Tensor) -> Tensor:
        """The logits with these tensors as parameters. The parameters are put back here: of a module with two names
        `functional_call` leaves `others`."""
        held = [(part._parameters, dict(part._parameters)) for part in self.module.modules()]
        try:
            logits: Tensor = functional_call(self.module, others, (x,))
        finally:
            for holder, parameters in held:
                holder.update(parameters)
        return logits

    def _backward(self, x: Tensor) -> list[Tensor | None]:
        parameters = list(self.parameters.values())
        before = [p.grad for p in parameters]
        for p in parameters:
            p.grad = None
        try:
            return self._passed(lambda: self.module(x), parameters)
        finally:
            for p, gradient in zip(parameters, before, strict=True):
                p.grad = gradient

    def _passed(self, forward: Callable[[], Tensor], leaves: Sequence[Tensor]) -> list[Tensor | None]:
        """The logits and the gradients of a pass in train mode that begins with the buffers of before."""
        self.put_back()
        try:
            with self._passes(True):
                logits = self.seeded(forward)
                _loss(logits).backward()
        except RuntimeError as error:  # of a hook
            raise ConfigError(f"model {self.name}: {described(error)}; {BOUND}") from None
        return [logits.detach(), *(leaf.grad for leaf in leaves)]

    def features_apart(self, x: Tensor) -> dict[bool, str]:
        """In eval mode (False) and in train mode (True), what is wrong with head(features(x)) of a network that has
        both; {}: it is forward(x). Every layer draws its masks anew from the trial's seed: draws of forward alone,
        such as noise for another loss, would shift them."""
        features, head = getattr(self.module, "features", None), getattr(self.module, "head", None)
        own = not type(self.module).__module__.startswith("flray.")
        if not (own and callable(features) and isinstance(head, nn.Module)):
            return {}
        found = dict[bool, str]()
        seeded = [part.register_forward_pre_hook(lambda *_: seed_globals(self.seed)) for part in self.module.modules()]
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._passes(False))
            for hook in seeded:
                stack.callback(hook.remove)
            for mode in (False, True):
                self.module.train(mode)
                whole = self._without_gradient(lambda: self.module(x.clone()))
                try:
                    apart = self._without_gradient(lambda: _head_of_features(features, head, x))
                except Exception as error:
                    found[mode] = f"head(features(x)) fails ({described(error)})"
                    continue
                if apart is not None and not (apart.shape == whole.shape and _near(apart, whole)):
                    found[mode] = f"head(features(x)) is not forward(x) in {'train' if mode else 'eval'} mode"
        return found

    @contextlib.contextmanager
    def _passes(self, training: bool) -> Iterator[None]:
        """A block of passes in train or eval mode, after which mode and buffers are as before."""
        try:
            with _in_mode(self.module, training):
                yield
        finally:
            self.put_back()

    def _without_gradient(self, call: Callable[[], T]) -> T:
        """The result of a call under the trial's seed, with the buffers of before."""
        self.put_back()
        with torch.no_grad():
            return self.seeded(call)

    def check_two_points(self, x: Tensor) -> None:
        """Raises `ConfigError` for a frozen parameter that train mode writes to, if only through `.data`, and for
        logits of eval mode that are those of the point before. With its first parameters a network shows neither: a
        teacher is a copy of its student, and LoRA adds 0."""
        if not self._own:
            return
        places = [(part._parameters, dict(part._parameters)) for part in self.module.modules()]
        training, before = self.module.training, self._frozen()
        try:
            evaluated, trained, stale = self._at_two_points(x, places)
        except Exception:  # it cannot be at another point: an assertion of its own
            return
        finally:
            _bind(places, {})
            self.module.train(training)
            self.put_back()
        for name, norm in before.items():
            if norm == evaluated[name] != trained[name]:
                raise ConfigError(constant_changed(self.name, name, self.parameters[name]))
        if stale:
            raise ConfigError(
                f"model {self.name}: its logits in eval mode are those of parameters that it had before, so tests give "
                "wrong numbers; compute merged or cached weights anew in every pass (loralib: merge_weights=False)"
            )

    def _at_two_points(self, x: Tensor, places: Places) -> tuple[dict[str, str], dict[str, str], bool]:
        """Eval mode with other parameters and with its own, train mode with the others, eval mode with its own: (the
        frozen parameters before train mode, those after it, whether both logits of its own differ). As in a run, the
        parameters come first, and then the mode where it is another. `places`: what the modules have."""
        state, own = ModuleState(self.module, self.buffers), dict[int, Tensor]()
        others = self.seeded(lambda: {id(p): _perturbed(p.detach()) for p in self._trained})

        def logits(point: dict[int, Tensor], mode: bool) -> Tensor:
            self.put_back()
            state.restore()
            _bind(places, point)
            if self.module.training is not mode:
                self.module.train(mode)
            with torch.set_grad_enabled(mode):
                found: Tensor = self.seeded(lambda: self.module(x.clone()))
            return found.detach()

        logits(others, False)
        stale, evaluated = logits(own, False), self._frozen()
        logits(others, True)
        trained, right = self._frozen(), logits(own, False)
        differ = not torch.equal(right, stale) and not _near(right, stale, 1e-5)
        return evaluated, trained, differ and torch.equal(right, logits(own, False))  # no noise without a seed

    def _frozen(self) -> dict[str, str]:
        return {name: self._content(p)[1] for name, p in self.parameters.items() if not p.requires_grad}

    def changed_buffers(self) -> set[str]:
        """The first names of buffers that a forward pass wrote to or replaced. Raises `ConfigError` for new ones."""
        now, known = dict(self.module.named_buffers()), {name for buffer in self.buffers for name in buffer.names}
        for name in now.keys() - known:
            raise ConfigError(
                f"model {self.name}: a forward pass registers buffer {name}; register it in __init__, with its shape"
            )
        pairs = zip(self.buffers, self._copies, strict=True)
        return {buffer.name for buffer, copy in pairs if not _equal(_current(buffer), copy)}

    def constants(self, changed: set[str]) -> list[str]:
        """The running means and variances that are constants: of a norm layer that runs in eval mode by itself, or of
        a module of another kind that left them alone. Raises `ConfigError` for a constant that changed."""
        training, found = dict(zip(self.module.modules(), self._settled, strict=True)), list[str]()
        for name, p in self.parameters.items():
            if not p.requires_grad and p._version != self._flags[name][1]:
                raise ConfigError(constant_changed(self.name, name, p))
        for buffer in self.buffers:
            if buffer.kind == "constant" and buffer.name in changed:
                raise ConfigError(constant_changed(self.name, buffer.name, buffer.tensor, buffer.persistent))
            declared = buffer.sites[0][1] in getattr(buffer.owner, KINDS, {})
            fixed = not isinstance(buffer.owner, _NormBase) or not training.get(buffer.owner, True)
            if buffer.kind == "average" and buffer.name not in changed and fixed and not declared:
                found.append(buffer.name)
        return found

    def put_back(self) -> None:
        """The buffers as before. Raises `ConfigError` for one whose memory has another shape or type now."""
        for buffer, copy in zip(self.buffers, self._copies, strict=True):
            for holder, key in buffer.sites:
                holder[key] = buffer.tensor
            if (buffer.tensor.shape, buffer.tensor.dtype) != (copy.shape, copy.dtype):
                raise ConfigError(
                    f"model {self.name}: a forward pass changes the shape of {buffer.name} from {list(copy.shape)} to "
                    f"{list(buffer.tensor.shape)}, or its type; register it with its shape and type"
                )
            if not _equal(buffer.tensor, copy):
                buffer.tensor.detach().copy_(copy)


@contextlib.contextmanager
def _in_mode(module: nn.Module, training: bool) -> Iterator[None]:
    """A block in train or eval mode."""
    before = module.training
    try:
        module.train(training)
        yield
    finally:
        module.train(before)


def _marked(module: nn.Module, constants: list[str], apart: dict[bool, str]) -> nn.Module:
    """The network, with these buffers marked as constants, and with what :meth:`_Trial.features_apart` says."""
    if apart:
        setattr(module, APART, apart)
    for name in constants:
        place, _, leaf = name.rpartition(".")
        owner = module.get_submodule(place)
        setattr(owner, KINDS, {**getattr(owner, KINDS, {}), leaf: "constant"})
    return module


def check_output(model: str, logits: object, samples: int, classes: int, mode: str = "") -> None:
    """Raises `AlgorithmError` unless the output of a network is logits `[samples, classes]` of floats."""
    right = isinstance(logits, Tensor) and logits.shape == (samples, classes) and logits.is_floating_point()
    if right:
        return
    advice = ""
    if isinstance(logits, Tensor):
        form = f"a tensor {list(logits.shape)}" + ("" if logits.is_floating_point() else f" of {logits.dtype}")
    elif logits is None:
        form, advice = "None", " (a return is missing)"
    else:
        form = f"a {type(logits).__name__}"
        if isinstance(logits, tuple | list | Mapping):
            advice = "; return its logits alone (of a network with auxiliary heads: aux_logits=False)"
    raise AlgorithmError(
        f"model {model} gives {form} {mode}for {samples} samples; it must give logits [{samples}, {classes}], one for "
        f"each of {classes} classes{advice}"
    )


def _check_view(model: str, error: Exception) -> None:
    """Raises `ConfigError` for the error of a view of a tensor that lies channels-last, as images do."""
    if isinstance(error, RuntimeError) and "view size is not compatible" in str(error):
        raise ConfigError(f"model {model}: {described(error)}; {STRIDES}") from None


def _near(one: Tensor | None, other: Tensor | None, rounding: float = 1e-3) -> bool:
    """Whether two tensors are equal but for rounding; None is 0."""
    if one is None or other is None:
        return all(t is None or not t.any() for t in (one, other))
    return bool((one - other).norm() <= rounding * one.norm() + 1e-7) or bool(one.isnan().any())


def _bind(places: Places, point: Mapping[int, Tensor]) -> None:
    """Give modules the parameters that they had, or by their ids those of a `point`."""
    for holder, parameters in places:
        holder.update({name: point.get(id(p), p) for name, p in parameters.items()})


def _perturbed(p: Tensor) -> Tensor:
    """Another value of a parameter, which may be 0: every row moves at random. Draws for each number would take as long
    as a pass."""
    rows = torch.rand(p.shape[:1] + (1,) * (p.dim() - 1), dtype=p.dtype) - 0.5
    return torch.addcmul(p, rows, p.abs().add_(0.1), value=0.4).requires_grad_()


def _loss(logits: Tensor) -> Tensor:
    return cross_entropy(logits.float(), torch.zeros(len(logits), dtype=torch.long))


def _current(buffer: Buffer) -> Tensor | None:
    holder, key = buffer.sites[0]
    return holder.get(key)


def _equal(one: Tensor | None, other: Tensor) -> bool:
    if one is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(content(one), content(other))


def _same(one: _Pass, other: _Pass) -> bool:
    pairs = [(one.logits, other.logits), *zip(one.gradients, other.gradients, strict=True)]
    return all(a is b if a is None or b is None else _equal(a, b) for a, b in pairs)


# in eval mode ------------------------------------------------------------------------------------
def try_in_eval(module: nn.Module, x: Tensor, classes: int | None = None, name: str | None = None) -> int:
    """Run a network once in eval mode on samples `x [B, ...]`; the number of samples in one forward pass of a test.

    That is the largest power of two from 16 to 512 with which the largest activation takes at most 16 MiB. It depends
    on the module and on the shape of `x`. It does not depend on the machine, because a kernel may round differently for
    another number of samples. On one core of a server CPU FedAvg's CNN takes 319, 257 and 354
    microseconds a sample with 16, 128 (chosen) and 512 at once.

    Raises `AlgorithmError` with the module's traceback if it fails on `x`, and if it does not return logits of so many
    `classes`. With a model's `name` a network of the user's own is checked, see :func:`_check_own`.
    """
    own, largest = name is not None and not type(module).__module__.startswith("flray."), x.numel()

    def note(_module: nn.Module, _inputs: object, output: object) -> None:
        nonlocal largest
        for tensor in output if isinstance(output, tuple | list) else (output,):
            if isinstance(tensor, Tensor):
                largest = max(largest, tensor.numel())

    hooks = [part.register_forward_hook(note) for part in module.modules()]
    given = x.clone()
    try:
        with _in_mode(module, False), torch.set_grad_enabled(own):
            logits = module(x)
    except Exception as error:
        _check_view(type(module).__name__, error)
        what = f"model {type(module).__name__} failed on inputs of shape {list(x.shape)}"
        raise AlgorithmError(f"{what}: {traced(error)}") from None
    finally:
        for hook in hooks:
            hook.remove()
    if classes is not None:
        check_output(type(module).__name__, logits, len(x), classes)
    if own and isinstance(logits, Tensor):
        _check_own(f"model {name!r}", module, given, x, logits)
    fitting = ACTIVATION_BYTES * len(x) // (4 * largest)
    return max(LEAST, min(MOST, 1 << max(fitting.bit_length() - 1, 0)))


def _check_own(what: str, module: nn.Module, given: Tensor, x: Tensor, logits: Tensor) -> None:
    """Checks the `logits` of a network of the user's own; `given` are the inputs, `x` what they are after the pass.

    Raises `ConfigError` if it wrote into its inputs, if no gradient reaches its parameters, and if it has a method
    `features` and a `head` whose logits are not its own. Warns if its outputs are probabilities.
    """
    if not torch.equal(x, given):
        raise ConfigError(f"{what}: its forward writes into its inputs; work on a copy: x = x * 2, not x.mul_(2)")
    if not logits.requires_grad:
        raise ConfigError(
            f"{what}: no gradient reaches its parameters from its outputs; leave detach, torch.no_grad, .data and "
            "NumPy out of forward"
        )
    features, head = getattr(module, "features", None), module._modules.get("head")
    apart = None
    try:
        if head is not None and callable(features) and not isinstance(features, nn.Module):
            with _in_mode(module, False), torch.no_grad():
                apart = _head_of_features(features, head, given)
    except Exception:  # an algorithm that reads features names it
        return
    if apart is not None and not (apart.shape == logits.shape and torch.allclose(apart.to(logits), logits, 1e-3, 1e-4)):
        raise ConfigError(
            f"{what}: head(features(x)) is not forward(x), and methods that read features need both alike; return "
            "self.head(self.features(x)) from forward, or give features another name"
        )
    sums = logits.sum(-1)
    if logits.shape[1:] != (1,) and bool((logits >= 0).all()) and torch.allclose(sums, torch.ones_like(sums)):
        warn(
            f"{what}: its outputs are probabilities (they sum to 1), and the loss takes logits; leave softmax out",
            NetworkWarning,
        )


def _head_of_features(features: Callable[[Tensor], Tensor], head: nn.Module, x: Tensor) -> Tensor | None:
    """`head(features(x))`; None: the network has no features, or they give none."""
    try:
        logits = head(features(x.clone()))
    except NotImplementedError:  # a `Classifier` with a forward of its own
        return None
    return logits if isinstance(logits, Tensor) else None
