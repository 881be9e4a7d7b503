"""What a configuration reads of an algorithm or a rule of aggregation; importing it imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal, NamedTuple

from flray.core.protocol.batching import LastBatch
from flray.core.schema.hp import hp
from flray.core.schema.section import Section


class Setting(NamedTuple):
    """What of an experiment decides whether a method suits it.

    `rounds`: per task; `clients`: the population; `cohort`: clients of a round; `proxy_examples`: public samples on the
    server. Each of these three is None if the configuration leaves it to the data. `personalised`: whether each
    client's fine-tuned model is tested.
    """

    rounds: int
    tasks: int
    clients: int | None
    cohort: int | None
    proxy_examples: int | None
    personalised: bool

    @property
    def participations(self) -> float | None:
        """Rounds in which a client takes part, on average."""
        if self.clients is None or self.cohort is None:
            return None
        return self.rounds * self.tasks * self.cohort / self.clients


# which rules of aggregation fit: any; none but the algorithm's own server half; those that combine updates linearly
ServerRule = Literal["any", "own", "linear"]


class MethodSection(Section, frozen=True):
    """What an algorithm and a rule of aggregation declare of themselves alike."""

    shorthand: ClassVar[Mapping[type, str]] = {str: "name"}
    needs_proxy: ClassVar[bool] = False  # public data, `ctx.proxy`, at the server; of an algorithm at the clients, too
    # what of it computes in float32, so that it refuses `model.dtype: float64`; "": nothing
    float32_only: ClassVar[str] = ""
    # functions of the setting: sentences on why the method fails in it, from the known failures of its card
    cautions: ClassVar[tuple[Callable[[Setting], tuple[str, ...]], ...]] = ()

    def reads_proxy(self) -> bool:
        """Whether these options read public data; by default as `needs_proxy` declares."""
        return self.needs_proxy

    def unsuited(self, setting: Setting) -> tuple[str, ...]:
        """Sentences on what of this experiment keeps the method from working, by default those of `cautions`. They are
        shown before the run begins."""
        return tuple(sentence for caution in self.cautions for sentence in caution(setting))


class AlgorithmSection(MethodSection, frozen=True):
    """The section `algorithm`: the hyper-parameter of every algorithm, and what each declares of itself."""

    elsewhere: ClassVar[Mapping[str, str]] = {  # freezing is the engine's
        "freeze": "the engine freezes: write tasks.freeze",
        "frozen_bn_stats": "the engine freezes: write tasks.frozen_bn_stats",
        "old_heads": "the engine freezes: write tasks.freeze, unreached (the default; was trained) or old_heads (was "
        "frozen)",
    }
    keeps_exemplars: ClassVar[bool] = False  # samples of earlier stages, chosen from `ClientData.previous`
    # what of earlier tasks' samples is kept, where, and who sees it: a line beside the accuracy; "": nothing
    keeps: ClassVar[str] = ""
    needs_new_classes: ClassVar[bool] = False  # in every task: it cannot read domains
    global_model: ClassVar[bool] = True  # False: nothing to test or save but each client's own model
    # True: another kind of run, which no exchange belongs to: one optimiser over all samples (`engine/ray/train/`)
    centralized: ClassVar[bool] = False
    # True: fields of its update are declared with an encoding with error feedback, whose residual is client state
    error_feedback: ClassVar[bool] = False
    # True: the training updates are all that clients send in a run; a class that changes the exchanges and does not say
    # sends more
    sends_once: ClassVar[bool] = False
    # True: what it sends besides the training update's `w` has the noise that `Context.update_noise` says
    adds_update_noise: ClassVar[bool] = False
    # True: its own server half may read updates that started from older models (`coordination: buffered`), as every
    # server half that is only the average does
    asynchronous: ClassVar[bool] = False
    # whether another rule of aggregation may stand in its server half, and why not; a class that overrides `aggregate`
    # and does not say is "own"
    server_rule: ClassVar[ServerRule] = "own"
    server_reason: ClassVar[str] = "it has a server half of its own (aggregate)"
    # True: all local steps after the first run the same operations on tensors of the same shapes, so a GPU can repeat
    # them as a CUDA graph (`engine/captured.py`); a class of one's own says it for itself
    capturable: ClassVar[bool] = False
    # hyper-parameters that may change between two rounds (`schedule`): no state, no plan of a round hangs on them
    changes_midrun: ClassVar[frozenset[str]] = frozenset()

    last_batch: LastBatch = hp(
        "keep", doc="an epoch's last, short batch: keep, drop, or merge it into the one before; an only one stays"
    )

    def fitting_rules(self) -> tuple[ServerRule, str]:
        """(which rules of aggregation fit with these options, why no other does)."""
        return self.server_rule, "" if self.server_rule == "any" else self.server_reason

    @property
    def reads_step_number(self) -> bool:
        """Whether a local step computes with its number, beyond whether it is the first, so that no two are alike."""
        return False


def of_tasks_alone(setting: Setting) -> tuple[str, ...]:
    """A sentence for a method that is its base where there is one task."""
    if setting.tasks > 1:
        return ()
    return ("there is one task, so it protects nothing and trains as fedavg does; add a section tasks",)


def of_fine_tuned_models(setting: Setting) -> tuple[str, ...]:
    """A sentence for a method of which only the personalised test shows anything."""
    if setting.personalised:
        return ()
    return ("its subject is each client's fine-tuned model, which is not tested; set evaluate.finetune_epochs=[5]",)


def of_returning_clients(setting: Setting) -> tuple[str, ...]:
    """A sentence for a method that reads the state of a client's previous round, if few clients have one."""
    rounds = setting.participations
    if rounds is None or rounds >= 2:
        return ()
    every = f"a client takes part in {rounds:.2g} rounds on average"
    return (f"{every}, and its state is read from its second round on; raise rounds or cohort.size",)
