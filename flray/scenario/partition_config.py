"""The section `partition` of a configuration, and the table of partitions by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from flray.core.schema.errors import ConfigError, nearest
from flray.core.schema.plain import numbers
from flray.core.schema.registry import Registry
from flray.core.schema.section import Section

# the options of each partition with their defaults; "": required
_READS: dict[str, dict[str, Any]] = {
    "iid": {"clients": "", "variant": "fedzoo"},
    "dirichlet": {
        "clients": "",
        "alpha": "",
        "variant": "fedzoo",
        "min_size": None,
        "min_per_class": None,
        "max_retries": 10_000,
    },
    "dirichlet_client": {"clients": "", "alpha": ""},
    "shards": {"clients": "", "shards_per_client": 2},
    "label_skew": {"clients": "", "classes_per_client": 2, "max_retries": 10_000},
    "table": {"table": "", "clients": None},
    "natural": {"clients": None},
    "csv": {"file": "", "clients": None},
    "by_source": {"clients": "", "alpha": ""},
}
PARTITIONS = Registry("partition", {name: f"flray.scenario.partitioners:{name}" for name in _READS})
OF_CLIENTS = ("natural", "csv")  # who holds what is in the data
OF_SOURCES = ("by_source",)  # their group ids are the samples' sources: sets of a union, or domains
# default min_size of each variant, as in MMorafah/FedZoo-Bench, FedML (Lee-Gihun/FedSOL), Xtra-Computing/NIID-Bench,
# hojinchangucsd/TAKFL, seohyeon-cha/FedProTIP (drawn as FedZoo-Bench draws), and the formula as printed
MIN_SIZE = {"fedzoo": 15, "fedml": 10, "niidbench": 10, "takfl": 3, "fedprotip": 1, "plain": 0}
VARIANTS = {"iid": ("fedzoo", "fedsol"), "dirichlet": tuple(MIN_SIZE)}
_OPTIONS = tuple(dict.fromkeys(option for reads in _READS.values() for option in reads))


class PartitionConfig(Section, frozen=True):
    """A partition and its options, with defaults filled in. An option of another partition is an error."""

    shorthand: ClassVar[Mapping[type, str]] = {str: "name"}
    name: str
    clients: int | None = Field(default=None, description="number of clients N; natural, table: default from the data")
    alpha: float | None = Field(default=None, description="Dirichlet concentration (the papers also say beta), > 0")
    variant: str | None = Field(
        default=None, description="dirichlet: fedzoo fedml niidbench takfl fedprotip plain; iid: fedzoo fedsol"
    )
    min_size: int | None = Field(
        default=None,
        ge=0,
        description="dirichlet: least samples of a client, else it draws again; in each of T tasks min_size / T, "
        "rounded up",
    )
    min_per_class: int | None = Field(
        default=None,
        ge=0,
        description="dirichlet: least samples of each class for each client, taken from the client with most",
    )
    max_retries: int | None = Field(default=None, gt=0, description="dirichlet, label_skew: draws before giving up")
    shards_per_client: int | None = Field(default=None, description="shards: s")
    classes_per_client: int | None = Field(default=None, description="label_skew: q")
    table: tuple[tuple[int, ...], ...] | None = Field(
        default=None, description="table: numbers of samples, a row for each client, a column for each class"
    )
    file: str | None = Field(
        default=None,
        description="csv: file with a column client and a row for each training sample in their order, or with a "
        "column sample (its number from 0), whose missing samples are nobody's",
    )
    empty: Literal["left_out", "previous"] = Field(
        default="left_out",
        description="clients without samples take no part, or get those of the client before (FedSOL's code)",
    )
    options: dict[str, Any] = Field(default={}, description="for a partition of your own")
    seed: int | None = Field(default=None, description="default: the run's seed")
    seed_mode: Literal["addressed", "numpy_legacy"] = Field(
        default="addressed", description="numpy_legacy: RandomState(seed), as the authors' code (FedSOL: seed 19940817)"
    )
    slow_classes: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        default=None,
        description="class numbers; the clients' shares are dealt out anew, those with the largest part of these "
        "classes to the slowest devices (devices); default: devices know nothing of classes",
    )
    task_draws: Literal["own", "same"] = Field(
        default="own", description="over tasks: own draws for each, or the first task's in all (FedProTIP's code)"
    )

    @field_validator("options")
    @classmethod
    def _numbers(cls, value: dict[str, Any]) -> dict[str, Any]:
        return dict(numbers(value))

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        """Fills in the defaults of the named partition, so that the saved configuration is complete."""
        if not isinstance(data, dict) or not isinstance(data.get("name"), str) or data["name"] not in _READS:
            return data
        name = data["name"]
        reads = _READS[name]
        for option in _OPTIONS:
            if data.get(option) is not None and option not in reads:
                readers = [n for n, r in _READS.items() if option in r]
                raise ConfigError(
                    f"partition.{option}: {name} does not read it (read by {', '.join(readers)}); leave it out"
                )
        if data.get("options"):
            raise ConfigError(f"partition.options: {name} has none (it reads {', '.join(reads)}); leave it out")
        filled = {k: v for k, v in reads.items() if v not in ("", None)} | {
            k: v for k, v in data.items() if v is not None
        }
        for option, default in reads.items():
            if default == "" and option not in filled:
                raise ConfigError(f"partition.{option}: {name} needs it; set partition.{option}")
        if name == "dirichlet":
            filled.setdefault("min_size", MIN_SIZE.get(str(filled["variant"]), 0))
        return filled

    @model_validator(mode="after")
    def _check(self) -> PartitionConfig:
        if self.name not in _READS:
            PARTITIONS.get(self.name)  # a user's own; raises with the nearest name
        if self.alpha is not None and not 0 < self.alpha < float("inf"):
            raise ConfigError(
                f"partition.alpha: {self.alpha} must be above 0; set 0.1 for a strong skew, 100 for almost none"
            )
        for option in ("clients", "shards_per_client", "classes_per_client"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise ConfigError(f"partition.{option}: {value} is below 1; set 1 or more")
        valid = VARIANTS.get(self.name)
        if valid and self.variant not in valid:
            raise ConfigError(
                f"partition.variant: {self.name} has no {self.variant!r}{nearest(str(self.variant), valid)}"
            )
        if self.slow_classes is not None and self.name in OF_CLIENTS:
            raise ConfigError(f"partition.slow_classes: the clients of {self.name} are those of the data; leave it out")
        if self.table is not None:
            widths = {len(row) for row in self.table}
            if len(widths) != 1 or widths == {0} or min(map(min, self.table)) < 0:
                raise ConfigError("partition.table: write a row for each client, with a number >= 0 for each class")
            if self.clients not in (None, len(self.table)):
                raise ConfigError(
                    f"partition.clients: {self.clients}, but the table has {len(self.table)} rows; leave it out"
                )
        if self.seed_mode == "numpy_legacy":
            check_legacy(self.seed or 0)
        return self


def check_legacy(seed: int) -> None:
    """Raises `ConfigError` for a seed that NumPy's legacy generator does not take."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"partition.seed: numpy_legacy needs one in 0..2^32-1, not {seed}; default: the run's seed")
