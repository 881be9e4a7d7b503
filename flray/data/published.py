"""Published facts of data sets by name: normalisation constants, augmentation, meanings of numeric labels, prompts and
words for models that answer in words."""

from __future__ import annotations

from typing import Any

from flray.core.schema.errors import ConfigError, nearest

# per-channel mean and std of the train split, as in Lee-Gihun/FedSOL (CIFAR-100: of all 50,000 images); one number is
# for all channels
CONSTANTS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "mnist": ((0.1307,), (0.3081,)),
    "cifar10": ((0.49139968, 0.48215827, 0.44653124), (0.24703233, 0.24348505, 0.26158768)),
    "cifar100": ((0.50707516, 0.48654887, 0.44091784), (0.26733429, 0.25643846, 0.27615047)),
    "svhn": ((0.4376821, 0.4437697, 0.47280442), (0.19803012, 0.20101562, 0.19703614)),
    "cinic10": ((0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835)),
    "pathmnist": ((0.5,), (0.5,)),
    "tissuemnist": ((0.5,), (0.5,)),
}
# MMorafah/FedZoo-Bench
FEDZOO: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
}
# Lee-Gihun/FedSOL; the cutout is in its code and not in the paper
_CROP_FLIP: dict[str, Any] = {"crop_padding": 4, "flip": True}
AUGMENT: dict[str, dict[str, dict[str, Any]]] = {
    "fedsol": {
        "mnist": {**_CROP_FLIP, "cutout": 16},
        "cifar10": {**_CROP_FLIP, "cutout": 16},
        "svhn": _CROP_FLIP,
        "cinic10": {**_CROP_FLIP, "crop_mode": "reflect"},
        "pathmnist": {"flip": True},
        "tissuemnist": {"flip": True},
    }
}
# text sets whose labels are numbers: label column, value -> class name; rows with other values (neutral tweets: 2) are
# left out; the stars have the names of yelp_review_full on the hub
STARS = ("label", dict(enumerate(("1 star", "2 star", "3 stars", "4 stars", "5 stars"))))
LABELS: dict[str, tuple[str, dict[int, str]]] = {
    "sentiment140": ("sentiment", {0: "negative", 4: "positive"}),
    "amazon_reviews_multi": STARS,
    "AmazonReviewsClassification": STARS,  # the same set, as Parquet files on the hub (mteb)
}
# Text to text: the prompt of a sample, and the word of each class. Those of GLUE's and SuperGLUE's tasks are T5's own:
# `preprocessors.glue` of google-research/text-to-text-transfer-transformer puts the task's name before the columns in
# alphabetical order (wic: as `glue_utils` orders them), and the answer is the class's name (Raffel et al. 2020,
# appendix D). SNLI and MultiNLI have MNLI's. The sets after them are not T5's tasks: their prompts are flray's, and the
# words of stars are LM-BFF's of SST-5 (Gao et al. 2021, table 1).
_NLI = {name: name for name in ("entailment", "neutral", "contradiction")}
_TWO = {name: name for name in ("entailment", "not_entailment")}
_TRUE = {name: name for name in ("False", "True")}
_MOOD = {name: name for name in ("negative", "positive")}
_STARS = dict(zip(STARS[1].values(), ("terrible", "bad", "okay", "good", "great"), strict=True))
_MNLI = "mnli hypothesis: {hypothesis} premise: {premise}"
TEXT_TO_TEXT: dict[str, tuple[str, dict[str, str]]] = {
    "cola": ("cola sentence: {sentence}", {name: name for name in ("unacceptable", "acceptable")}),
    "sst2": ("sst2 sentence: {sentence}", _MOOD),
    "mrpc": (
        "mrpc sentence1: {sentence1} sentence2: {sentence2}",
        {name: name for name in ("not_equivalent", "equivalent")},
    ),
    "qqp": (
        "qqp question1: {question1} question2: {question2}",
        {name: name for name in ("not_duplicate", "duplicate")},
    ),
    "mnli": (_MNLI, _NLI),
    "multi_nli": (_MNLI, _NLI),
    "snli": (_MNLI, _NLI),
    "qnli": ("qnli question: {question} sentence: {sentence}", _TWO),
    "rte": ("rte sentence1: {sentence1} sentence2: {sentence2}", _TWO),
    "cb": ("cb hypothesis: {hypothesis} premise: {premise}", _NLI),
    "boolq": ("boolq passage: {passage} question: {question}", _TRUE),
    "wic": ("wic sentence1: {sentence1} sentence2: {sentence2} word: {word}", _TRUE),
    "sentiment140": ("sentiment140 text: {text}", _MOOD),
    "yelp_review_full": ("yelp text: {text}", _STARS),
    "amazon_review_full": ("amazon title: {title} content: {content}", _STARS),
    "amazon_reviews_multi": ("amazon text: {text}", _STARS),
    "AmazonReviewsClassification": ("amazon text: {text}", _STARS),
}
# The same with one token of T5's vocabulary for each class (`data.words: one_token`): yes, maybe and no (LM-BFF,
# table 1) for names that are several tokens.
_YES = {"entailment": "yes", "neutral": "maybe", "contradiction": "no", "not_entailment": "no"}
_YES |= {"not_equivalent": "no", "equivalent": "yes", "not_duplicate": "no", "duplicate": "yes"}
_YES |= {"False": "no", "True": "yes"}
ONE_TOKEN: dict[str, dict[str, str]] = {
    source: {label: _YES.get(label, word) for label, word in words.items()}
    for source, (_, words) in TEXT_TO_TEXT.items()
}


def plain_name(source: str) -> str:
    """`cifar10` of `cifar10`, `hf:user/cifar10` and `hf:/folder/cifar10`."""
    return source.removeprefix("hf:").rstrip("/").rsplit("/", 1)[-1]


def augmentation(preset: str, source: str) -> dict[str, Any]:
    """The options of `Augment` of a preset for a data set; `none`: no augmentation. Raises `ConfigError` for a preset
    that the data set does not have."""
    if preset == "none":
        return {}
    if preset not in AUGMENT:
        near = nearest(preset, ["none", *AUGMENT])
        raise ConfigError(f"data.augment: unknown preset {preset!r}{near}; or write crop_padding, flip, cutout")
    table, name = AUGMENT[preset], plain_name(source)
    if name not in table:
        raise ConfigError(
            f"data.augment: {preset} exists for {', '.join(table)}, not for {name!r}; write crop_padding, flip, cutout"
        )
    return table[name]
