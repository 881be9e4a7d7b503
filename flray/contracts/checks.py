"""What is tried on an algorithm, a rule of aggregation or an uplink transform of a user's own, and what was found.

Each play is a process of its own, forked before anything has run, so nothing that one leaves in memory reaches another:
`alone` plays three rounds; `again` plays them in a new Python with another hash seed and other global generators;
`apart` cuts the cohort into three chunks, each trained in a fork of its own, the last one first, as actors would;
`resumed` is two plays, of which the second begins with the checkpoint of the first.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flray.config.experiment import Experiment
from flray.config.loader import load_config
from flray.contracts.played import Local, Unchanging, bits, flatten
from flray.core.messages import Message, tensors
from flray.core.schema.errors import ConfigError, FlrayError, headline
from flray.core.schema.hp import Hyperparameter, hyperparameters
from flray.engine.captured import CapturedSteps
from flray.engine.exchanges import ExchangePlan, Turn
from flray.engine.rounds import TurnResult
from flray.engine.this_process import elsewhere as in_another_thread, in_compute_thread
from flray.files import atomic_write, write_text

ROUNDS = 3
LIMIT_S = 300  # of one play
ROUNDING = 1e-5  # of the largest weight: float32 after three rounds
BASE: Mapping[str, Any] = {
    "name": "check",
    "seed": 3,
    "rounds": ROUNDS,
    "data": {"source": "iris", "standardize": True},
    "partition": {"name": "dirichlet", "clients": 5, "alpha": 1.0, "variant": "plain", "min_size": 6},
    "proxy": {"source": "holdout", "size": 24, "labelled": True},  # for all, so that all have the same clients
    "cohort": {"size": 3},
    "model": {"name": "mlp", "hidden": [8]},
    "algorithm": {"name": "fedavg", "lr": 0.1, "local_epochs": 2, "batch_size": 8},
    "resources": {"executor": "local", "server": {"threads": 1}, "client": {"num_cpus": 1}},
}
TASKS = {  # four classes in two tasks
    "data": {"source": "synthetic", "options": {"shape": [4], "num_classes": 4, "num_train": 160, "num_test": 40}},
    "tasks": {"num_tasks": 2},
    "rounds": 2,
}
# a shape or a branch that depends on values
READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "unique_consecutive"}
HINT = "flray replay RUN_FOLDER"
Verdict = Literal["holds", "fails", "look", "not tried"]  # look: right or wrong, only its author knows


class Finding(NamedTuple):
    """One contract: whether it holds, and what was seen or why it was not tried."""

    contract: str
    verdict: Verdict
    found: str


@dataclass
class Seen:
    """What a play shows: the state and the clients' states after each round as bits, and what was noticed."""

    states: list[dict[str, Any]] = field(default_factory=list)
    clients: list[dict[int, dict[str, Any]]] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)  # halves that changed what they were given
    with_grad: list[str] = field(default_factory=list)
    not_finite: list[str] = field(default_factory=list)
    miscounted: list[str] = field(default_factory=list)


class Apart(Local):
    """A cohort in chunks, each trained in a fork, the last one first; their sums are added in order."""

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        super().__init__(experiment, folder, chunks=3)
        client = self.executor.client
        work, done = client.work_neighbours, dict[int, Any]()

        def trained(chunks: Any, *arguments: Any) -> Any:
            assert len(chunks) == 1  # of one version
            return done.pop(id(chunks[0])) if id(chunks[0]) in done else work(chunks, *arguments)

        run = self.executor.run

        def in_forks(plan: ExchangePlan, turn: Turn, *ahead: Any) -> TurnResult:
            if in_another_thread():
                return in_compute_thread(lambda: in_forks(plan, turn, *ahead))
            broadcast = self.executor._broadcast
            assert broadcast is not None
            for chunk in reversed(turn.chunks):
                states = [self.server.states(chunk.clients)]
                done[id(chunk)] = forked(functools.partial(work, [chunk], plan.exchange, [broadcast[1]], states))
            return run(plan, turn, *ahead)

        client.work_neighbours = trained  # type: ignore[method-assign, assignment]
        self.executor.run = in_forks  # type: ignore[method-assign, assignment]


class Reruns:
    """In place of `CudaGraphs`: a CUDA graph without a GPU, which calls the recorded step again, on the recorded
    tensors, with the recorded context.

    What a graph cannot follow, a value of a tensor that the host reads, refuses the step as a wait for the GPU does
    there: where other code than flray's reads it, some of which reads on a CPU alone.
    """

    renewed = 0  # how often all graphs were dropped

    def __call__(self) -> Rerun:
        return Rerun()

    def renew(self) -> None:
        self.renewed += 1

    def without_waits(self) -> AbstractContextManager[Any]:
        """A block in which a value that the host reads raises `RuntimeError`."""
        return _NothingRead()  # type: ignore[no-untyped-call]


class Rerun:
    """What reaches the step by another way than its tensors is what it was when it was recorded, as in a CUDA graph."""

    def record(self, step: Callable[[], Message]) -> Message:
        self._step = step
        self._after = step()
        return self._after

    def replay(self) -> None:
        for place, value in zip(tensors(self._after).values(), tensors(self._step()).values(), strict=True):
            if place.data_ptr() != value.data_ptr():
                place.copy_(value)


class _NothingRead(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in READS and not _by_flray():
            raise RuntimeError(f"it reads values of a tensor ({name}), and a GPU waits for that")
        return func(*args, **(kwargs or {}))


def _by_flray() -> bool:
    """Whether the innermost frame outside of PyTorch and of this module is one of flray's."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "torch":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).startswith("flray.")


def _without_hint(error: FlrayError) -> FlrayError:
    """The error without the line that repeats a client from its run folder: a check leaves none."""
    lines = str(error).splitlines()
    kept = [line for line in lines if HINT not in line]
    return error if len(kept) == len(lines) else type(error)("\n".join(kept))


def forked(work: Callable[[], Any]) -> Any:
    """What `work` returns in a fork of this process. Its errors are raised here; `FlrayError` where the fork ended."""
    here, there = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            try:
                answer: tuple[bool, Any] = (True, work())
            except Exception as error:
                answer = (False, _without_hint(error) if isinstance(error, FlrayError) else FlrayError(headline(error)))
            there.send_bytes(pickle.dumps(answer))
            code = 0
        finally:
            os._exit(code)
    there.close()
    try:
        if not here.poll(LIMIT_S):
            raise FlrayError(f"a play took more than {LIMIT_S} s")
        good, answer = pickle.loads(here.recv_bytes())
    except EOFError:
        raise FlrayError("its process ended without an answer") from None
    except BaseException:  # Ctrl-C: nothing is left running
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        here.close()
        os.waitpid(child, 0)
    if isinstance(answer, BaseException) and not good:
        raise answer
    return answer


def look(local: Local, seen: Seen) -> None:
    """Add to `seen` what stands after a round."""
    seen.states.append(bits(local.state))
    seen.clients.append({number: bits(state) for number, state in local.client_states().items()})
    where = f"round {local.position.done}"
    seen.with_grad += [f"{name} in {where}" for name, tensor in tensors(local.state).items() if tensor.requires_grad]
    seen.not_finite += [
        f"{name} in {where}"
        for name, array in flatten(local.state).items()
        if array.dtype.kind == "f" and not np.isfinite(array).all()
    ]


def _played(local: Local, rounds: int = ROUNDS) -> Seen:
    """What stands before the first round and after each."""
    seen = Seen(states=[bits(local.state)])
    for _ in range(rounds):
        local.play(1)
        look(local, seen)
    return seen


def play(experiment: Experiment, rounds: int = ROUNDS) -> Seen:
    watch = Unchanging()
    with tempfile.TemporaryDirectory() as folder:
        local = Local(experiment, Path(folder), watch)
        seen = _played(local, rounds)
        seen.changed = list(dict.fromkeys(watch.changed))
        for number, (row, sent) in enumerate(zip(local.rows, local.sent, strict=True), 1):
            seen.miscounted += [
                f"round {number}: {row[way]} bytes {way} are counted, {sent[way]} travel"
                for way in (("down",) if experiment.uplink else ("down", "up"))  # up is what a transform returns
                if row[way] != sent[way]
            ]
    return seen


def rerun(experiment: Experiment) -> tuple[Seen, int, list[str]]:
    """The rounds with steps that are repeated as CUDA graphs; how many were, and why others were not."""
    with tempfile.TemporaryDirectory() as folder:
        local = Local(experiment, Path(folder))
        steps = local.executor.client.captured = CapturedSteps(Reruns())
        seen = _played(local)
    return seen, steps.replays, list(dict.fromkeys(steps.refused.values()))


def apart(experiment: Experiment) -> Seen:
    """The rounds with each third of a cohort in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return _played(Apart(experiment, Path(folder)))


def again(experiment: Experiment) -> Seen:
    """The rounds in a new Python with another hash seed and other global generators."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "config.yaml", Path(folder) / "seen"
        write_text(path, experiment.yaml())
        code = f"from flray.contracts.checks import elsewhere; elsewhere({str(path)!r}, {str(out)!r})"
        hashed = "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"
        there = {**os.environ, "PYTHONHASHSEED": hashed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            done = subprocess.run(
                [sys.executable, "-c", code], env=there, capture_output=True, text=True, check=False, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            raise FlrayError(f"a play took more than {LIMIT_S} s") from None
        if not out.exists():
            lines = [line for line in done.stderr.strip().splitlines() if HINT not in line] or [
                "its process ended without an answer"
            ]
            raise FlrayError(lines[-1])
        seen: Seen = pickle.loads(out.read_bytes())
    return seen


def elsewhere(config: str, out: str) -> None:
    """In the new Python of :func:`again`."""
    torch.set_num_threads(1)
    random.seed(11)
    np.random.seed(11)
    torch.manual_seed(11)
    seen = play(load_config(config)[0])
    with atomic_write(Path(out)) as aside:
        aside.write_bytes(pickle.dumps(seen))


def resumed(experiment: Experiment) -> Seen:
    """Two rounds in one process, the third in another, which begins with the checkpoint."""
    with tempfile.TemporaryDirectory() as folder:

        def first() -> None:
            local = Local(experiment, Path(folder))
            local.play(2)
            local.executor.store.save(1)

        def second() -> Seen:
            local, seen = Local(experiment, Path(folder)), Seen()
            position = local.executor.store.load()
            assert position is not None, "the play before has saved one"
            local.position = position
            look(local, seen)
            local.play(1)
            look(local, seen)
            return seen

        forked(first)
        seen: Seen = forked(second)
    return seen


def over_tasks(experiment: Experiment) -> Seen:
    with tempfile.TemporaryDirectory() as folder:
        local, seen = Local(experiment, Path(folder)), Seen()
        for _ in range(2):
            local.play(2)
            local.task_end()
            look(local, seen)
    return seen


@dataclass(frozen=True)
class Subject:
    """What is tried: `section` is algorithm, aggregation or uplink, `name` its name there, `overrides` those of the
    experiment."""

    section: str
    name: str
    kind: Any
    overrides: Mapping[str, Any]
    imports: Sequence[str]

    def experiment(
        self, more: Mapping[str, Any] | None = None, sections: Mapping[str, Any] | None = None
    ) -> Experiment:
        """The small experiment; `more` are overrides, `sections` replace those of `BASE`. Raises `ConfigError`."""
        base = {**BASE, **(sections or {})}
        return load_config(base, {self.section: self.name, **self.overrides, **(more or {})}, self.imports)[0]

    def key(self, option: str) -> str:
        """The key of one of its options in an experiment."""
        return f"{self.section}.{self.name}.{option}" if self.section == "uplink" else f"{self.section}.{option}"

    @property
    def own(self) -> list[Hyperparameter]:
        """The hyper-parameters that its class declares itself; of a class inside flray's module tree none is own."""
        theirs = {
            name for base in self.kind.__mro__ if base.__module__.startswith("flray.") for name in _declared(base)
        }
        return [each for each in hyperparameters(self.kind) if each.name.partition(".")[0] not in theirs]


def _declared(base: type) -> Sequence[str]:
    return list(vars(base).get("__annotations__", {}))


def other_value(parameter: Hyperparameter, present: Any) -> Any:
    """Another value of a hyper-parameter, within its range; None if none is known."""
    if parameter.type == "choice":
        return next((value for value in parameter.bounds.split(" | ") if value != str(present)), None)
    if isinstance(present, bool):
        return not present
    if parameter.space is not None:
        values = [value for value in parameter.space.values if value != present]
        return values[-1] if values else None
    if isinstance(present, int):
        return present + 1
    if isinstance(present, float):
        return present / 2 if present else 0.5
    return None


def check(subject: Subject, reduces_to: str | None = None) -> list[Finding]:
    """The contracts, tried in their order. Raises `ConfigError` if the experiment itself is wrong."""
    experiment = subject.experiment()
    if reduces_to is not None:
        _reduced(reduces_to)
    try:
        alone: Seen = forked(lambda: play(experiment))
    except FlrayError as error:
        return [Finding("runs", "fails", str(error))]
    found = [
        _of("runs", alone.not_finite, "three rounds, the state stays finite", "not finite: {}"),
        _of("changes no argument", alone.changed, "state, broadcast and updates stay as they are", "the {} half does"),
        _of("bytes", alone.miscounted, "what is counted is what travels", "{}"),
        _form(alone),
    ]
    found += [
        _same("same bits again", alone, lambda: again(experiment), "in a new process with other global generators"),
        _same("any number of actors", alone, lambda: forked(lambda: apart(experiment)), "each third in a process"),
        _same("resume", alone, lambda: resumed(experiment), "from the checkpoint after round 2", begin=2),
    ]
    if subject.section == "algorithm":
        found.append(_recorded(experiment, alone))
    found += [_option(subject, each, experiment, alone) for each in subject.own]
    found.append(_tasks(subject))
    if reduces_to is not None:
        found.append(_reduction(subject, reduces_to, alone))
    return found


def _of(contract: str, wrong: Sequence[str], good: str, bad: str) -> Finding:
    return Finding(contract, "fails", bad.format(", ".join(wrong[:3]))) if wrong else Finding(contract, "holds", good)


def _form(seen: Seen) -> Finding:
    """Whether names, types and shapes of the state stay what they are after the first round. What grows is to be looked
    at: a window that fills, or a checkpoint without end."""
    first, *others = seen.states[1:]
    wrong, grown = [*seen.with_grad], []
    for number, state in enumerate(others, 2):
        grown += [f"{name} comes in round {number}" for name in sorted(state.keys() - first.keys())]
        wrong += [f"{name} is gone in round {number}" for name in sorted(first.keys() - state.keys())]
        for name in sorted(first.keys() & state.keys()):
            (kind, shape, _), (now, size, _) = first[name], state[name]
            if kind != now:
                wrong.append(f"{name}: {kind} becomes {now} in round {number}")
            elif shape != size:
                larger = len(size) == len(shape) and all(a >= b for a, b in zip(size, shape, strict=True))
                (grown if larger else wrong).append(f"{name}: {list(shape)} becomes {list(size)} in round {number}")
    if grown and not wrong:
        says = f"{', '.join(grown[:3])}: does it end? Checkpoints grow with it"
        return Finding("form of the state", "look", says)
    return _of("form of the state", wrong, "names, shapes and types stay", "{}")


def _same(contract: str, one: Seen, other: Callable[[], Seen], how: str, begin: int = 0) -> Finding:
    """Whether another play has the bits of the first; `begin`: the round with which it begins."""
    try:
        seen = other()
    except FlrayError as error:
        return Finding(contract, "fails", f"{how}: {error}")
    for place, state in enumerate(seen.states):
        round, theirs = place + begin, one.states[place + begin]
        if differing := _apart(theirs, state):
            return Finding(contract, "fails", f"{how}: {differing} differs after round {round}")
    clients = one.clients[begin - 1 if begin else 0 :]
    for place, (ours, theirs_) in enumerate(zip(clients, seen.clients, strict=True)):
        for number in ours.keys() | theirs_.keys():
            if differing := _apart(ours.get(number, {}), theirs_.get(number, {})):
                after = place + max(begin, 1)
                return Finding(contract, "fails", f"{how}: {differing} of client {number} differs after round {after}")
    return Finding(contract, "holds", how)


def _apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The first name whose bits differ; "" if there is none."""
    return next((name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)), "")


def _option(subject: Subject, parameter: Hyperparameter, experiment: Experiment, alone: Seen) -> Finding:
    name, contract = parameter.name, f"option {parameter.name}"
    present = _present(subject, experiment, name)
    value = other_value(parameter, present)
    if value is None:
        return Finding(contract, "not tried", f"no other value than {present!r} is known; declare a search range")
    try:
        changed = subject.experiment({subject.key(name): value})
        seen: Seen = forked(lambda: play(changed))
    except FlrayError as error:
        return Finding(contract, "not tried", f"{name}={value}: {error}")
    same = seen.states == alone.states and seen.clients == alone.clients
    says = f"{present} and {value} give {'the same bits: it changes nothing here' if same else 'other bits'}"
    return Finding(contract, "fails" if same else "holds", says)


def _present(subject: Subject, experiment: Experiment, option: str) -> Any:
    value: Any = experiment.uplink[0] if subject.section == "uplink" else getattr(experiment, subject.section)
    for name in option.split("."):
        value = getattr(value, name)
    return value.value if isinstance(value, Enum) else value


def _recorded(experiment: Experiment, alone: Seen) -> Finding:
    """Whether its local steps, repeated as a GPU repeats a CUDA graph, have the same bits."""
    contract, how = "recorded steps", "steps that are repeated as CUDA graphs"
    if not experiment.algorithm.capturable:
        how = "for a GPU: state capturable: ClassVar[bool] = True, see the page On a GPU"
        return Finding(contract, "not tried", how)
    try:
        seen, replays, refused = forked(lambda: rerun(experiment))
    except FlrayError as error:
        return Finding(contract, "fails", f"{how}: {error}")
    found = _same(contract, alone, lambda: seen, how)
    if found.verdict == "holds" and not replays:
        return Finding(contract, "not tried", f"no step can be recorded: {', '.join(refused) or 'too few are alike'}")
    return found


def _tasks(subject: Subject) -> Finding:
    try:
        experiment = subject.experiment(sections=TASKS)
    except ConfigError as error:
        return Finding("two tasks", "not tried", str(error))
    try:
        seen: Seen = forked(lambda: over_tasks(experiment))
    except FlrayError as error:
        return Finding("two tasks", "fails", str(error))
    return _of("two tasks", seen.not_finite, "of two classes each, the state stays finite", "not finite: {}")


def _reduced(text: str) -> list[str]:
    """The words of `"fedavg mu=0"`. Raises `ConfigError` for others."""
    words = text.split()
    if len(words) < 2 or "=" in words[0] or any("=" not in word for word in words[1:]):
        raise ConfigError(f"--reduces-to {text!r}: write a name and own options, for example 'fedavg mu=0'")
    return words


def _reduction(subject: Subject, text: str, alone: Seen) -> Finding:
    """Whether it has the model of another algorithm under some of its own values: `"fedavg mu=0"`."""
    other, *values = _reduced(text)
    options = {subject.key(key): value for key, _, value in (value.partition("=") for value in values)}
    plain = {key: value for key, value in subject.overrides.items() if not key.startswith(subject.section)}
    chosen = {} if other == "plain" else {subject.section: other}
    theirs = load_config(BASE, {**plain, **chosen})
    ours = subject.experiment(options)
    pair = [forked(functools.partial(play, one)) for one in (ours, theirs[0])]
    models = [[{name: state.get(name) for name in ("w", "b")} for state in seen.states] for seen in pair]
    how = "the same bits"
    if models[0] != models[1]:
        first = next(i for i, (one, two) in enumerate(zip(*models, strict=True)) if one != two)
        far = max(_far(one["w"], two["w"]) for one, two in zip(*models, strict=True))
        if not far <= ROUNDING:
            says = f"differs after round {first}, by up to {far:.2g} of its largest weight"
            return Finding(f"is {other}", "fails", f"with {' '.join(values)} the model {says}")
        how = f"the same model up to rounding ({far:.1g} of its largest weight)"
    if alone.states == pair[0].states:
        return Finding(f"is {other}", "fails", f"also without {' '.join(values)}: the options change nothing")
    return Finding(f"is {other}", "holds", f"with {' '.join(values)} {how}, without them another")


def _far(one: tuple[str, Any, bytes], other: tuple[str, Any, bytes]) -> float:
    """The largest difference of two vectors, as a share of the largest entry."""
    if one[:2] != other[:2]:
        return float("inf")
    a, b = (np.frombuffer(data, dtype=kind).astype(float) for kind, _, data in (one, other))
    return float(np.abs(a - b).max() / max(np.abs(a).max(), np.abs(b).max(), 1e-30))
