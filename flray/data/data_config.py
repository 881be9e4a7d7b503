"""The sections `data` and `proxy` of a configuration. Importing them loads no heavy package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from flray.core.schema.errors import ConfigError, shown
from flray.core.schema.section import Section, expand_shorthand
from flray.data.published import augmentation

DRAWN = ("holdout", "uniform_box")  # public data that are made of the private data set itself


class Augment(Section, frozen=True):
    """Training augmentation; the default is none.

    Crops, flip and brightness, in this order, change pixels before normalisation, as torchvision's RandomCrop,
    RandomResizedCrop, RandomHorizontalFlip and ColorJitter do; so padding is black (0), not the mean colour. Float
    images are neither rounded nor clipped. Cutout follows
    normalisation and is clipped at the border (DeVries and Taylor 2017).
    """

    shorthand: ClassVar[Mapping[type, str]] = {str: "preset"}
    crop_padding: int = Field(
        default=0, ge=0, description="pixels around the image before a random crop of its size; 0: no crop"
    )
    crop_mode: Literal["constant", "reflect"] = Field(
        default="constant", description="padding: black, or mirrored about the edge pixel"
    )
    resized_crop: tuple[float, float] | None = Field(
        default=None,
        description="least and largest share of the area of a random part with sides of 3:4 to 4:3, which is resized "
        "to the image (bilinear); torchvision's scale: [0.08, 1]; none: no such crop",
    )
    flip: bool = Field(default=False, description="horizontally, with probability 1/2")
    brightness: float = Field(
        default=0.0, ge=0, description="pixels are multiplied by max(0, 1 - brightness) to 1 + brightness; 0: none"
    )
    cutout: int = Field(default=0, ge=0, description="side of the square that is set to 0; 0: none")

    @property
    def active(self) -> bool:
        """Whether any option is on."""
        return bool(self.crop_padding or self.resized_crop or self.flip or self.brightness or self.cutout)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.resized_crop is not None:
            low, high = self.resized_crop
            if not 0 < low <= high <= 1:
                raise ConfigError(
                    f"data.augment.resized_crop: [{low:g}, {high:g}] is not a range of shares of the area; write two "
                    "numbers above 0 and at most 1, the smaller one first"
                )
            if self.crop_padding:
                raise ConfigError("data.augment: crop_padding and resized_crop exclude each other; leave one out")
        return self


class Constants(Section, frozen=True):
    """Per-channel mean and std on the 0..1 scale (of float images: their own), written out in the configuration."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.mean) != len(self.std) or not self.mean:
            raise ConfigError(
                f"normalize: mean has {len(self.mean)} values and std {len(self.std)}; write one for each channel"
            )
        if min(self.std) <= 0:
            raise ConfigError(f"normalize: std {self.std} has a value of 0 or less; write values above 0")
        return self


class DataConfig(Section, frozen=True):
    """One labelled data set with its official train and test split.

    `source` is a registered name, the name of a folder of Parquet files below `root`, or `hf:<id or folder>`.
    """

    shorthand: ClassVar[Mapping[type, str]] = {str: "source"}
    source: str = Field(
        description="name in `flray list datasets`, folder of Parquet files below root, or hf:<id or folder>"
    )
    root: str | None = Field(
        default=None, description="folder of data sets; default: the environment variable FLRAY_DATA"
    )
    download: bool = Field(
        default=False, description="let torchvision, medmnist or a tokenizer's hub download missing files"
    )
    label: str | None = Field(
        default=None, description="label column; default: label, fine_label, or the only ClassLabel"
    )
    input: tuple[str, ...] | None = Field(
        default=None,
        min_length=1,
        description="image column, or feature columns, one name or a list; default: the only image column, or all "
        "numbers, if each is clearly a feature",
    )
    drop: tuple[str, ...] = Field(default=(), description="columns of a table that are not read, one name or a list")
    text: tuple[str, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=2,
        description="text column, or two for pairs; default: the only one, `text`, a known pair",
    )
    tokenizer: str | None = Field(
        default=None,
        description="text: a Hugging Face tokenizer's name or folder, or `train`: WordPiece trained on the train split",
    )
    max_length: int = Field(default=128, ge=4, description="text: token ids a sample, padded or cut off")
    prompt: str | None = Field(
        default=None,
        description="text: a template with columns in braces, `sst2 sentence: {sentence}`; default: the text alone, "
        "with `words` the data set's known prompt",
    )
    words: bool | Literal["one_token"] | dict[str, str] = Field(
        default=False,
        description="text: a word for each class, for models that answer in words; its first token is scored. "
        "true: T5's words of a known data set; one_token: yes, maybe, no instead of words of several tokens; or "
        "{class: word}",
    )
    group: str | None = Field(default=None, description="column of natural client ids, for the `natural` partition")
    domain: str | None = Field(default=None, description="column of domains, for tasks of name domain_incremental")
    test_fraction: float = Field(
        default=0.2, ge=0, lt=1, description="share of the test split, only without an official one; 0: test on train"
    )
    split_seed: int = Field(default=0, description="seed of the drawn test split and of the subsamples")
    train_size: int | None = Field(default=None, gt=0, description="stratified subsample of the train split")
    test_size: int | None = Field(default=None, gt=0, description="stratified subsample of the test split")
    per_source: int | None = Field(
        default=None,
        gt=0,
        description="training samples of each domain (or set of a union), stratified; applied before train_size",
    )
    resize: int | None = Field(default=None, gt=0, le=10_000, description="images to resize x resize pixels (bilinear)")
    channels: Literal[1, 3] | None = Field(default=None, description="grey to 3 equal channels, or colour to grey")
    pca: int | None = Field(
        default=None, gt=0, description="tabular: project on the first components of the train split"
    )
    standardize: bool = Field(
        default=False, description="tabular: columns of mean 0 and std 1 over the train split, before PCA"
    )
    normalize: Literal["dataset", "fedzoo", "half", "unit"] | Constants = Field(
        default="dataset",
        description="pictures only (tables: standardize). dataset: published constants (FedSOL's), else the train "
        "split's; fedzoo: FedZoo-Bench's; half: 0.5; unit: none; or mean and std",
    )
    augment: Augment = Field(
        default=Augment(),
        description="crop_padding, crop_mode, resized_crop, flip, brightness, cutout; or none: no augmentation; or "
        "fedsol: the augmentation of FedSOL's code for this data set",
    )
    shuffle: bool = Field(
        default=True,
        description="a new order of a client's samples in every epoch; false: their order in the partition",
    )
    batch_order: str | None = Field(
        default=None,
        description="file (CSV, Parquet, JSON) with the samples of every epoch or step of local training: columns "
        "round, client, sample, and epoch or step; none: drawn",
    )
    leak_check: bool = Field(
        default=True,
        description="an error if more than 1 % of the test samples are also train samples; for fewer a warning",
    )
    options: dict[str, Any] = Field(
        default={}, description="options of the source (Parquet, hf, synthetic, cinic10, your own)"
    )

    @field_validator("source")
    @classmethod
    def _below_the_root(cls, value: str) -> str:
        path = Path(value.removeprefix("hf:"))
        if not path.parts or any(len(part.encode()) > 255 for part in path.parts):
            raise ValueError("is not the name of a data set or a folder")
        if not value.startswith("hf:") and (path.is_absolute() or ".." in path.parts):
            raise ValueError(
                "leads out of the folder of data sets; name a folder below data.root, or write hf:FOLDER or hf:FILE"
            )
        return value

    @field_validator("text", "input", "drop", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("words", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        """Class names as text, and an error for a word that YAML reads as a truth value (yes, no, on, off)."""
        if isinstance(value, str) and value != "one_token":
            raise ConfigError(f"data.words: {shown(value)} is not allowed; write true, one_token or {{class: word}}")
        if not isinstance(value, Mapping):
            return value
        named = {str(name): word for name, word in value.items()}
        for name, word in named.items():
            if isinstance(word, bool):
                raise ConfigError(
                    f"data.words.{name}: YAML reads a bare yes, no, on or off as {word}; write the word in quotes"
                )
        return named

    @model_validator(mode="before")
    @classmethod
    def _written_out(cls, data: Any) -> Any:
        """Replaces the name of a preset by its options, so that the saved configuration is explicit."""
        if not isinstance(data, Mapping) or not isinstance(data.get("source"), str):
            return data
        given = expand_shorthand(data.get("augment"), Augment)
        if given is None and "augment" in data:  # `augment=none` on the command line
            return {**data, "augment": {}}
        if isinstance(given, Mapping) and "preset" in given:
            own = {key: value for key, value in given.items() if key != "preset"}
            if not isinstance(given["preset"], str):
                raise ConfigError(
                    f"data.augment.preset: {shown(given['preset'])} is not the name of a preset; leave it out"
                )
            return {**data, "augment": augmentation(given["preset"], data["source"]) | own}
        return data


class ProxyConfig(DataConfig, frozen=True):
    """Public data on the server: another source, `holdout`, or `uniform_box`.

    `holdout` takes `size` samples out of the private train split. `uniform_box` draws `size` unlabelled points
    uniformly from the bounding box of the train features (the Iris pilot of FedProj).
    """

    size: int | None = Field(
        default=None, gt=0, description="number of samples; default: all (uniform_box: as many as train)"
    )
    labelled: bool | None = Field(default=None, description="use the labels; default: if there are any")
    same_labels: bool | None = Field(
        default=None,
        description="whether classes are those of the task; default: for holdout, and for the same source with the "
        "same root and options, or samples of an own function (a union: no other sets); with separate heads for "
        "holdout alone",
    )
    splits: Literal["train", "test", "all"] = Field("train", description="splits of the source; FedZoo-Bench uses both")
    seed: int | None = Field(
        default=None, description="seed of the draws of holdout and uniform_box; default: the run's"
    )

    @model_validator(mode="after")
    def _check_proxy(self) -> Self:
        if self.source == "uniform_box" and self.labelled:
            raise ConfigError("proxy: uniform_box points have no labels; leave out `labelled: true`")
        if self.source == "holdout" and self.size is None:
            raise ConfigError("proxy: holdout needs `size`, the number of train samples taken from the clients")
        if self.source in DRAWN and self.splits != "train":
            raise ConfigError(f"proxy: {self.source} reads the train split only; leave out `splits: {self.splits}`")
        whose = dict.fromkeys(("tokenizer", "max_length", "words"), "public text uses the private text's")
        whose |= dict.fromkeys(("augment", "shuffle", "batch_order"), "it is for the clients' samples")
        for name, why in whose.items():
            if getattr(self, name) != DataConfig.model_fields[name].default:
                raise ConfigError(f"proxy.{name}: {why}, data.{name}; leave it out")
        return self
