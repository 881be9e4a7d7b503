"""What is asked of the language model for each GLUE task and label: control code, prompts, decoding.

The settings are SuperGen's (Meng et al. 2022, NeurIPS, arXiv:2202.04538; yumeng5/SuperGen). A text begins with

    CONTROL before SENTENCE after        a pair: the sentence is from a corpus, what follows is the second text
    CONTROL before OPENING               one text: the opening is its own first words

and ends at the first end of a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from flray.core.schema.errors import unknown
from flray.core.schema.registry import Registry
from flray.core.schema.section import Section


class Prompt(Section, frozen=True):
    """The text before and after the first text, and the effect of a repetition on a token's logit `s`: `s < 0`
    becomes `s a`, any other `s / a`, with `a` the `reward` for tokens of the first text and the `penalty` for all
    others."""

    before: str = Field("", description="after the control code")
    after: str = Field("", description="of a pair: after the first text")
    reward: float | None = Field(None, gt=0, description="a of the first text's tokens; below 1 they become likelier")
    penalty: float = Field(1.2, gt=0, description="a of all other tokens so far")


class Template(Section, frozen=True):
    """One task. `streams` are the kinds of generated texts: one for each label, unless one serves several."""

    columns: ClassVar[tuple[str, ...]]  # of the texts, as on the hub
    labels: ClassVar[tuple[str, ...]]  # as on the hub, by number
    later: ClassVar[str | None] = None  # the label of a later sentence of the same text (QNLI)
    by_rank: ClassVar[bool] = False  # the likelier half has the last label, the other half the first (CoLA)
    random: ClassVar[frozenset[str]] = frozenset()  # labels whose texts are drawn, and not the likeliest
    stops: ClassVar[tuple[str, ...]] = (". ",)  # what ends a text
    longest: ClassVar[bool] = False  # of the first of each of these ends the last one counts, and not the first
    bad: ClassVar[tuple[str, ...]] = ("\n",)  # what no text may hold
    new_line: ClassVar[bool] = False  # whether a text may begin with a line break

    control: str = Field(min_length=1, description="control code, with which every text begins")
    prompts: dict[str, Prompt] = Field(description="prompts by label")
    sentences: Literal["sentences", "questions"] | None = Field(
        None, description="the corpus of first texts; none: one text, no pair"
    )
    words: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] = Field(
        (5, 30), description="fewest and most words of a first text"
    )
    openings: tuple[str, ...] = Field((), description="one of these begins the text")
    temperature: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        (0.0,), min_length=1, description="0: greedy, the likeliest token; of several each text draws one"
    )
    top_k: int = Field(10, ge=1, description="tokens to sample from; a greedy text does not read it")
    max_new_tokens: int = Field(40, ge=1, description="tokens generated for a text")
    per_label: int = Field(25_000, ge=1, description="texts generated a label (a stream, where one serves both)")

    @field_validator("prompts", mode="before")
    @classmethod
    def _over_the_default(cls, value: Any) -> Any:
        """The fields given for one prompt replace its defaults."""
        default = cls.model_fields["prompts"].default
        if not isinstance(value, Mapping):
            return value
        for name in value:
            if name not in default:
                raise unknown("label", str(name), default, "prompts")
        return {
            name: {**prompt.model_dump(), **value[name]} if isinstance(value.get(name), Mapping) else prompt
            for name, prompt in default.items()
        }

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of the generated streams, in the order of the labels."""
        return tuple(self.prompts)

    @property
    def longest_start(self) -> int:
        """The most tokens with which a text may begin; SuperGen drops a longer one."""
        return int(1.5 * self.max_new_tokens)


class Mnli(Template, frozen=True):
    columns = ("premise", "hypothesis")
    labels = ("entailment", "neutral", "contradiction")
    random = frozenset({"neutral"})
    control: str = "Wikipedia"
    prompts: dict[str, Prompt] = Field(
        {
            "entailment": Prompt(after="In other words,", reward=0.8, penalty=1.1),
            "neutral": Prompt(after="Furthermore,", reward=1.3, penalty=1.3),
            "contradiction": Prompt(
                before="There is a rumor that", after="However, the truth is:", reward=1.1, penalty=1.1
            ),
        }
    )
    sentences: Literal["sentences", "questions"] | None = "sentences"


class Rte(Template, frozen=True):
    columns = ("sentence1", "sentence2")
    labels = ("entailment", "not_entailment")
    control: str = "Wikipedia"
    prompts: dict[str, Prompt] = Field(
        {
            "entailment": Prompt(after="In other words,", reward=0.8, penalty=1.1),
            "not_entailment": Prompt(after="Furthermore,", reward=1.1, penalty=1.1),
        }
    )
    sentences: Literal["sentences", "questions"] | None = "sentences"
    words: tuple[int, int] = (20, 70)
    per_label: int = 30_000


class Mrpc(Rte, frozen=True):
    labels = ("not_equivalent", "equivalent")
    prompts: dict[str, Prompt] = Field(
        {
            "not_equivalent": Prompt(after="Furthermore,", reward=1.1, penalty=1.1),
            "equivalent": Prompt(after="In other words,", reward=0.8, penalty=1.1),
        }
    )


class Qqp(Template, frozen=True):
    columns = ("question1", "question2")
    labels = ("not_duplicate", "duplicate")
    stops = ("? ", "?\n")
    control: str = "Links"
    prompts: dict[str, Prompt] = Field(
        {
            "not_duplicate": Prompt(after="Furthermore,", reward=1.2, penalty=1.2),
            "duplicate": Prompt(after="In other words,", reward=1.0, penalty=1.2),
        }
    )
    sentences: Literal["sentences", "questions"] | None = "questions"
    words: tuple[int, int] = (3, 50)
    max_new_tokens: int = 50


class Qnli(Template, frozen=True):
    """The sentence after a question answers it; a later sentence does not."""

    columns = ("question", "sentence")
    labels = ("entailment", "not_entailment")
    later = "not_entailment"
    bad = ("?", "\n")
    new_line = True
    control: str = "Links"
    prompts: dict[str, Prompt] = Field({"entailment": Prompt(reward=0.9, penalty=1.2)})
    sentences: Literal["sentences", "questions"] | None = "questions"
    words: tuple[int, int] = (3, 50)
    max_new_tokens: int = 100


class Sst2(Template, frozen=True):
    columns = ("sentence",)
    labels = ("negative", "positive")
    stops = (". ", "? ", "! ", "\n")
    longest = True
    bad = ('"', "“", "”", "\n")
    control: str = "Reviews"
    prompts: dict[str, Prompt] = Field(
        {
            "negative": Prompt(before="Rating: 1.0"),
            "positive": Prompt(before="Rating: 5.0"),
        }
    )
    openings: tuple[str, ...] = (
        "The movie", "The film", "This movie", "This film", "the movie", "the film", "this movie", "this film",
    )  # fmt: skip
    temperature: tuple[float, ...] = (0.2,)


# words that carry grammar: pronouns, articles, prepositions, conjunctions, quantifiers, adverbs of time and place
FUNCTION_WORDS = (
    "I You He She It We They This That These Those My Your His Her Its Our Their A An The Some Any Each Both All Most "
    "More Few Many No Such Other Same In On At By For From To With Of About Under Over Above Below Between Against "
    "Before After During Until Since While When Where If Because Although As Than And But Or So Then Once Again Here "
    "There Now Just Only Too Who What Which How Why"
)


class Cola(Template, frozen=True):
    """Texts of both temperatures are ranked together: likely ones are acceptable, unlikely ones are not."""

    columns = ("sentence",)
    labels = ("unacceptable", "acceptable")
    by_rank = True
    stops = (". ", "? ", "! ")
    bad = ('"', "“", "”", "\n")
    control: str = "Links"
    prompts: dict[str, Prompt] = Field({"both": Prompt()})
    openings: tuple[str, ...] = tuple(FUNCTION_WORDS.split())
    temperature: tuple[float, ...] = (0.1, 10.0)
    per_label: int = 20_000


TEMPLATES = Registry(
    "task",
    {
        name: f"flray.synthesis.templates:{name.capitalize()}"
        for name in ("cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2")
    },
    beside="",
    base="flray.synthesis.templates:Template",
)
