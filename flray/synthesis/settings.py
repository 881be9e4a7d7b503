"""The configuration of `flray synthesize`: a YAML file, its preset and overrides, checked and complete."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from flray.config.experiment import PositiveOrAuto
from flray.config.read import read_yaml
from flray.config.resolve import resolve_section
from flray.core.schema.plain import document
from flray.core.schema.section import Section, build_sections, named_entries, one_line
from flray.synthesis.templates import TEMPLATES, Template


class StandIn(Section, frozen=True):
    """A GPT-2 with a byte-level BPE tokenizer, both trained on the corpora, to test the program. Its texts look like
    sentences and do not depend on labels."""

    layers: int = Field(2, ge=1, description="blocks")
    hidden: int = Field(128, ge=8, description="width")
    heads: int = Field(4, ge=1, description="attention heads")
    tokens: int = Field(4000, ge=300, description="size of the vocabulary, at most")
    steps: int = Field(300, ge=0, description="training steps (AdamW); 0: it stays random")
    batch_size: int = Field(16, ge=1, description="sequences a step")
    length: int = Field(64, ge=8, le=256, description="tokens of a sequence; the model has 256 positions")
    lr: float = Field(3e-3, gt=0, description="learning rate")

    @model_validator(mode="after")
    def _divides(self) -> StandIn:
        if self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden} is not a multiple of heads {self.heads}")
        return self


class GeneratorConfig(Section, frozen=True):
    """The causal language model: one of Hugging Face on this machine, or a stand-in that is trained first."""

    shorthand: ClassVar = {str: "name", dict: "train"}
    name: str | None = Field(None, description="folder, or name in the local hub cache; nothing is downloaded")
    train: StandIn | None = Field(None, description="make a small one on the corpora instead")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="of its parameters")

    @model_validator(mode="after")
    def _one(self) -> GeneratorConfig:
        if (self.name is None) == (self.train is None):
            raise ValueError("give either name or train")
        return self


class CorpusConfig(Section, frozen=True):
    """The source of first texts: a text column of a folder of Parquet files, cut into sentences."""

    shorthand: ClassVar = {str: "source"}
    source: str = Field(description="folder of Parquet files below root")
    column: str = Field("text", description="its text column")
    split: str = Field("train", description="which of its splits")
    root: str | None = Field(None, description="folder of data sets; default: the environment variable FLRAY_DATA")


class SynthesisResources(Section, frozen=True):
    """The processes that generate. They do not change the texts, except `num_cpus` (threads) and a GPU."""

    executor: Literal["ray", "local"] = Field(
        "ray", description="actors of a Ray cluster; or this process, without Ray"
    )
    actors: PositiveOrAuto = Field("auto", description="actors; auto: what the cluster holds")
    num_cpus: float = Field(1.0, gt=0, description="CPUs of an actor; it runs max(1, int(num_cpus)) threads")
    num_gpus: float = Field(0.0, ge=0, description="GPU share of an actor; 0: it computes on the CPU")
    address: str | None = Field(
        None, description="Ray cluster; none: a new one here (or RAY_ADDRESS); auto: the one here"
    )
    insecure_ray: bool = Field(False, description="as `resources.insecure_ray` of a run")

    @property
    def threads(self) -> int:
        return max(1, int(self.num_cpus))


class Synthesis(Section, frozen=True):
    """A complete, checked synthesis; `flray synthesize DIR/config.yaml` repeats it."""

    seed: int = Field(0, description="address of every draw")
    generator: GeneratorConfig
    tasks: tuple[str | dict[str, Any], ...] = Field(
        min_length=1, description="names, or {name: ..., option: ...}: cola, mnli, mrpc, qnli, qqp, rte, sst2"
    )
    sentences: CorpusConfig | None = Field(None, description="corpus of first sentences: mnli, mrpc, rte")
    questions: CorpusConfig | None = Field(None, description="corpus of first questions: qnli, qqp")
    quota: int = Field(6_000, ge=1, description="texts a task in the result, the same number of each label")
    per_label: int | None = Field(None, ge=1, description="for all tasks: texts generated a label")
    max_new_tokens: int | None = Field(None, ge=1, description="for all tasks: tokens generated for a text")
    batch_size: int = Field(
        32, ge=1, description="texts generated at once; another one rounds differently, so texts may differ"
    )
    resources: SynthesisResources = SynthesisResources()

    @field_validator("tasks", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        """Writes out every option. Names on the command line may be separated by commas."""
        if isinstance(value, str):
            value = [name.strip() for name in value.split(",")]
        return named_entries("tasks", value, TEMPLATES)

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Synthesis:
        for name, template in self.templates().items():
            if template.sentences and getattr(self, template.sentences) is None:
                raise ValueError(
                    f"{name} begins with {template.sentences} of a corpus; add for example "
                    f"{template.sentences}: {{source: boolq, column: passage}}"
                )
        if self.generator.train is not None and self.sentences is None and self.questions is None:
            raise ValueError("generator.train learns from the corpora; add `sentences`")
        return self

    def templates(self) -> dict[str, Template]:
        """The tasks by name, in their order."""
        common = {"per_label": self.per_label, "max_new_tokens": self.max_new_tokens}
        update = {key: value for key, value in common.items() if value is not None}
        return {name: task.model_copy(update=update) for name, task in build_sections(self.tasks, TEMPLATES).items()}

    def yaml(self) -> str:
        return document(self.model_dump(mode="json"))


def load_synthesis(path: str | Path, overrides: Iterable[str] = ()) -> Synthesis:
    """The synthesis of a YAML file, its preset and overrides `key.sub=value`; commas make no grid.

    Raises `ConfigError`: what is wrong, where, and what to write.
    """
    values = resolve_section(read_yaml(Path(path)), overrides, Synthesis)
    with one_line("", Synthesis):
        return Synthesis(**values)
