"""The list `uplink` of a configuration, and what its transforms do together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from flray.core.schema.errors import ConfigError, OwnCodeError, kind_of, named, shown
from flray.core.schema.own import HOME
from flray.core.schema.registry import IMPORT_PATH, MAIN, Registry, module_name
from flray.core.schema.section import dumped, one_line
from flray.uplink.attack import Attack
from flray.uplink.clip import Clip
from flray.uplink.compressor import Compressor
from flray.uplink.gaussian import Gaussian
from flray.uplink.transform import Plan, Received, Receiver, Sender, Sent, Transform

if TYPE_CHECKING:
    from flray.core.protocol.context import ClientContext, Context, UpdateNoise

UPLINKS = Registry(
    "uplink",
    {
        "topk": "flray.uplink.topk:TopK",
        "quantize": "flray.uplink.quantize:Quantize",
        "clip": "flray.uplink.clip:Clip",
        "gaussian": "flray.uplink.gaussian:Gaussian",
        "sign_flip": "flray.uplink.attack:SignFlip",
        "scaled": "flray.uplink.attack:Scaled",
    },
    base="flray.uplink.transform:Transform",
)


class Step(NamedTuple):
    """A transform and its address: its name, from its second occurrence on with the number, `clip 2`."""

    address: str
    transform: Transform


def _name(kind: type[Transform]) -> str:
    """The registered name of a transform's class; else its import path, which is the same in all processes."""
    name = UPLINKS.name_of(kind)
    if name is not None and not IMPORT_PATH.fullmatch(name):
        return name
    local = "<locals>" in kind.__qualname__
    return f"{MAIN}{kind.__name__}" if local else f"{module_name(kind.__module__)}:{kind.__qualname__}"


class Uplink:
    """The transforms of an experiment in their order."""

    def __init__(self, transforms: Sequence[Transform]) -> None:
        """Raises `ConfigError` for transforms that do not fit together."""
        seen, steps = Counter[str](), []
        for transform in transforms:
            name = _name(type(transform))
            seen[name] += 1
            steps.append(Step(name if seen[name] == 1 else f"{name} {seen[name]}", transform))
        self.steps = tuple(steps)
        self._check()

    def __bool__(self) -> bool:
        return bool(self.steps)

    @property
    def compressor(self) -> Compressor | None:
        """The transform that makes messages smaller, if there is one."""
        return next((step.transform for step in self.steps if isinstance(step.transform, Compressor)), None)

    @property
    def gaussian(self) -> Gaussian | None:
        """The transform that adds noise, if there is one."""
        return next((step.transform for step in self.steps if isinstance(step.transform, Gaussian)), None)

    @property
    def private(self) -> bool:
        """Whether the server adds noise: the run is private for each client, or refused."""
        return self.gaussian is not None and self.gaussian.where == "server"

    @property
    def update_noise(self) -> UpdateNoise | None:
        """The noise that clients add to their own updates; None: they add none."""
        from flray.core.protocol.context import UpdateNoise

        gaussian = self.gaussian
        if gaussian is None or gaussian.where == "server":
            return None
        norms = [step.transform.bound(None) for step in self.steps if isinstance(step.transform, Clip)]
        return UpdateNoise(norms[-1], gaussian.sigma)

    @property
    def has_feedback(self) -> bool:
        """Whether clients store what their compressor did not send."""
        return self.compressor is not None and self.compressor.feedback

    def _check(self) -> None:
        """Raises `ConfigError` for two compressors, two noises, noise without a clip before it, what stands behind
        noise, and what a user's class does to the mean that noise of the server is made for."""
        for what, kind in (("compress", Compressor), ("add noise", Gaussian)):
            names = [step.address for step in self.steps if isinstance(step.transform, kind)]
            if len(names) > 1:
                raise ConfigError(f"uplink: {' and '.join(names)} both {what}; leave one of them out")
        if self.gaussian is None:
            return
        noise, name = next((i, step.address) for i, step in enumerate(self.steps) if step.transform is self.gaussian)
        if name != "gaussian":
            raise ConfigError(
                f"uplink: {name} is a gaussian of your own, whose epsilon flray cannot know; take gaussian"
            )
        clips = [step.transform for step in self.steps[:noise] if isinstance(step.transform, Clip)]
        if not clips:
            raise ConfigError("uplink: gaussian needs a bound of each update; write {name: clip, norm: 1.0} before it")
        pooled = [step.address for step in self.steps if _is_own(step.transform.pooled)]
        if self.private and pooled:
            raise ConfigError(
                f"uplink: gaussian's noise is made for the mean of clipped updates, and {pooled[0]}.pooled may change "
                "that mean; leave one of the two out, or do it in an aggregation of your own, which gets the noisy mean"
            )
        if noise + 1 < len(self.steps):
            later = self.steps[noise + 1].address
            raise ConfigError(f"uplink: gaussian's noise comes last, and {later} stands behind it; move it before")
        if not self.private and any(clip.adaptive for clip in clips):
            raise ConfigError(
                "uplink: clip.adaptive pays for its bits with noise of the server; give clip a fixed norm"
            )
        if not self.private and self.compressor is not None:
            raise ConfigError(
                "uplink: with gaussian.where: client the noise that the server counts on would not be the noise that a "
                "compressor sends; leave one of the two out"
            )

    # before round 1 ---------------------------------------------------------------------------
    def start(self, ctx: Context, rates: tuple[tuple[float, int], ...], population: int) -> dict[str, Any]:
        """The server's first states by address, of the transforms that have one. Raises `ConfigError`, and
        `AlgorithmError` for a state that no checkpoint keeps."""
        for address, transform in self.steps:
            if isinstance(transform, Attack):
                transform.check_population(address, population)
        plan = Plan(ctx, rates)
        first = {address: (transform.start, transform.start(plan)) for address, transform in self.steps}
        return {address: _stored(state, start) for address, (start, state) in first.items() if state is not None}

    def check_budget(
        self, states: Mapping[str, Any], rates: tuple[tuple[float, int], ...], cohorts: Sequence[int]
    ) -> None:
        """Raises `ConfigError` if the server's noise in these states, the first or those of a checkpoint, is too small
        for a whole run: for its epsilon, or for the bits of adaptive clips. `rates`: see `Plan`; `cohorts`: K by task.
        """
        if self.gaussian is None or not self.private:
            return
        noise = float(states["gaussian"]["noise"])
        self.gaussian.check(noise, rates)
        clips = [step.transform for step in self.steps if isinstance(step.transform, Clip)]
        for cohort in cohorts:
            bits = tuple(clip.bit_noise(cohort) for clip in clips if clip.adaptive is not None)
            self.gaussian.noise_of_updates(noise, bits)

    def broadcast(self, states: Mapping[str, Any]) -> dict[str, Any]:
        """The parts of the server's states that clients get, by address."""
        parts = {
            step.address: step.transform.broadcast(states[step.address])
            for step in self.steps
            if step.address in states
        }
        return {address: part for address, part in parts.items() if part is not None}

    # a round ----------------------------------------------------------------------------------
    def of_client(
        self, ctx: ClientContext, sent: Sent, states: Mapping[str, Any], population: int, residual: Any = None
    ) -> Sent:
        """A client's update as the server pools it: all transforms at the client, then all at the server.

        `states`: of :meth:`broadcast`. `residual`: of the client's last update, for the compressor.
        """
        senders = {
            step.address: Sender(ctx, step.address, population, states.get(step.address), residual)
            for step in self.steps
        }
        attack = max((i for i, step in enumerate(self.steps) if _attacks(step, senders[step.address])), default=-1)
        for i, (address, transform) in enumerate(self.steps):
            before, sent = sent, _passed(transform.client, senders[address], sent)
            if i < attack and isinstance(transform, Clip):  # an attacker clips nothing
                sent = sent._replace(w=before.w, bounded=False)
            if self.gaussian is not None and _is_own(transform.client):
                sent = _bounded(transform, senders[address], before, sent)
        for address, transform in self.steps:
            after = _passed(transform.server, senders[address], sent)
            sent = after._replace(norm=sent.norm, bits=sent.bits if self.private else after.bits)
        return sent

    def of_mean(
        self,
        ctx: Context,
        mean: Received,
        states: Mapping[str, Any],
        poisson: bool,
        rates: tuple[tuple[float, int], ...] = (),
        report: Callable[[Mapping[str, Any], Callable[..., Any]], Mapping[str, Any]] = lambda metrics, method: metrics,
    ) -> tuple[Received, dict[str, Any]]:
        """(the mean after the step of each transform after pooling, the next states). `poisson` and `rates`: see
        `Receiver`; `report(metrics, method)`: the metrics that a method added or replaced, checked. Raises
        `AlgorithmError` for a state that no checkpoint keeps."""
        after = dict(states)
        for address, transform in self.steps:
            receiver = Receiver(ctx, address, states.get(address), poisson, self.private, rates)
            before = dict(mean.metrics)
            mean, state = _passed(transform.pooled, receiver, mean)
            own = {k: v for k, v in mean.metrics.items() if k not in before or v is not before[k]}
            mean = mean._replace(metrics={**mean.metrics, **report(own, transform.pooled)})
            if state is not None:
                after[address] = _stored(state, transform.pooled)
        return mean, after


def _attacks(step: Step, sender: Sender) -> bool:
    return isinstance(step.transform, Attack) and step.transform.is_attacker(sender)


def _is_own(method: Callable[..., Any]) -> bool:
    return not method.__module__.startswith(HOME)


def _bounded(transform: Transform, sender: Sender, before: Sent, sent: Sent) -> Sent:
    """What a user's class made of an update `before`, with the norm and the bits for which the noise is made, and
    whether w is within that norm: measured, because a write through NumPy or `.data` leaves no trace."""
    norm = transform.bound(sender.state) if isinstance(transform, Clip) else before.norm
    within = norm is not None and float(sent.w.norm()) <= norm * (1 + 1e-5)  # clipping rounds
    bits = {address: bool(bit) for address, bit in {**sent.bits, **before.bits}.items()}
    return sent._replace(norm=norm, bounded=sent.bounded and within, bits=bits)


# the section `uplink` -----------------------------------------------------------------------------
def entries(value: Any) -> list[Any]:
    """The entries of `uplink` as a list: `topk`, `{name: clip, norm: 1}`, or a list of such; none: an empty one.

    Raises `ConfigError`.
    """
    if value is None or value == "none":
        return []
    listed = [value] if isinstance(value, str | Mapping | Transform) else value
    if not isinstance(listed, list | tuple):
        raise ConfigError(f"uplink: {shown(value)} is no list; write uplink: [{{name: clip, norm: 1.0}}]")
    return [{"name": entry} if isinstance(entry, str) else entry for entry in listed]


def transforms(value: Any) -> tuple[Transform, ...]:
    """The transforms that `uplink` names, with their options checked. Raises `ConfigError`, also for options that
    `config.yaml` would not give back."""
    return tuple(map(_transform, entries(value)))


def _transform(entry: Any) -> Transform:
    if isinstance(entry, Transform):
        dumped("uplink", entry)
        return entry
    if not isinstance(entry, Mapping) or "name" not in entry:
        raise ConfigError(f"uplink: {shown(entry)} names no transform; write {{name: clip, norm: 1.0}}")
    options = {key: value for key, value in entry.items() if key != "name"}
    kind: type[Transform] = UPLINKS.get(entry["name"])
    where = f"uplink.{entry['name']}"
    with one_line(where, kind):
        transform = kind(**options)
    dumped(where, transform)
    return transform


def plain(steps: Sequence[Transform]) -> list[dict[str, Any]]:
    """The transforms as `config.yaml` has them. Raises `ConfigError` for one without a name in `UPLINKS`."""
    written = []
    for transform in steps:
        name = UPLINKS.name_of(type(transform))
        if name is None:
            kind = type(transform).__name__
            raise ConfigError(f"{kind} is not registered; add it with UPLINKS.add('name', {kind})")
        written.append({"name": name, **dumped(f"uplink.{name}", transform)})
    return written


def assign(listed: list[Any], key: str, value: Any) -> None:
    """Set an option of an entry: `uplink.clip.norm`, of the second clip `uplink.clip.2.norm`. Raises `ConfigError`."""
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in listed]
    place, option = _place(names, key)
    listed[place][option] = value


def option_of(steps: Sequence[Transform], key: str) -> Any:
    """The option that :func:`assign` sets."""
    place, option = _place([UPLINKS.name_of(type(transform)) for transform in steps], key)
    return getattr(steps[place], option)


def _place(names: Sequence[Any], key: str) -> tuple[int, str]:
    """(the place of the entry that a key means, its option)."""
    _, name, *rest = key.split(".")
    which = int(rest.pop(0)) if len(rest) > 1 and rest[0].isdecimal() else 1
    places = [place for place, each in enumerate(names) if each == name]
    if len(rest) != 1 or not 1 <= which <= len(places):
        raise ConfigError(
            f"override {key}: uplink has no such entry with options; write uplink=[{{name: {name}, OPTION: VALUE}}]"
        )
    return places[which - 1], rest[0]


def _stored(state: Any, method: Callable[..., Any]) -> Any:
    """The state that a transform's method returned, as a resume gives it back. Raises `AlgorithmError` for one that no
    checkpoint keeps."""
    from flray.core.messages import of_tensors, sendable

    return of_tensors(sendable(state, method, "state", stored=True))


def _passed(method: Callable[[Any, Any], Any], reads: Sender | Receiver, given: Sent | Received) -> Any:
    """What a transform's method returns. Raises `OwnCodeError` if it wrote into what it was given: an unchanged tensor
    travels with its own bits, so the change would be lost, and a rollback needs the old state. And for vectors of
    another size or type."""
    from flray.core.messages import write_counters
    from flray.core.protocol.returned import not_vector

    name = "sent" if isinstance(given, Sent) else "mean"
    vectors = {field: getattr(given, field) for field in ("w", "b") if hasattr(given, field)}
    writes, state_writes = write_counters(vectors), write_counters(reads.state)
    before, state_before = writes(), state_writes()
    result = method(reads, given)
    if writes() != before:
        raise OwnCodeError(f"{named(method)} wrote into the update in place; return {name}._replace(w=...)")
    if state_writes() != state_before:
        raise OwnCodeError(f"{named(method)} wrote into its state in place; work on a copy")
    after = result if isinstance(given, Sent) else result[0]
    for field, old in vectors.items():
        new = getattr(after, field)
        problem = (kind_of(new), "None") if old is None else not_vector(new, len(old), old.dtype)
        if new is not old and problem:
            raise OwnCodeError(f"{named(method)} returned {problem[0]} as {field}; {field} is {problem[1]}")
    return result
