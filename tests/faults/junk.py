"""What users, editors and other programs write into a configuration: hypothesis strategies for the fuzz tests of this
folder."""

import copy
import datetime
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import yaml
from hypothesis import strategies as st

from flray.config.experiment import Experiment

# small enough to be built in milliseconds, and with every kind of section
BASE: dict[str, Any] = {
    "name": "fuzz",
    "seed": 0,
    "rounds": 2,
    "data": {"source": "iris", "standardize": True},
    "proxy": {"source": "holdout", "size": 20, "labelled": False},
    "partition": {"name": "dirichlet", "clients": 4, "alpha": 0.5, "min_size": 1},
    "cohort": {"size": 2},
    "model": {"name": "mlp", "hidden": [4]},
    "algorithm": {"name": "fedproj", "lr": 0.05, "local_epochs": 1},
    "evaluate": {"finetune_epochs": [0, 1]},
    "resources": {"client": {"num_cpus": 1}},
    "presets": {"small": {"rounds": 1}},
    "algorithms": {"feddf": {"temperature": 2.0}},
}


def _nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside `value`."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from _nodes(inner, (*path, key))


def _keys() -> dict[str, Any]:
    """Dotted keys of a complete experiment with their values, and what a file may have besides."""
    complete = Experiment.model_validate(
        {key: value for key, value in BASE.items() if key not in ("presets", "algorithms")}
    ).dump()
    found: dict[str, Any] = dict.fromkeys(_OPTIONS, 1)
    found |= dict.fromkeys(
        ("preset", "presets", "algorithms", "models", "partitions", "imports", "extends", "evaluate.validation")
    )
    for path in _nodes(complete):
        if all(isinstance(part, str) for part in path):
            value: Any = complete
            for part in path:
                value = value[part]
            found[".".join(path)] = value
    # a network, or another Ray, is no part of this
    return {key: value for key, value in sorted(found.items()) if key not in _OUTSIDE}


_OPTIONS = [
    f"data.options.{name}"
    for name in ("num_train", "num_test", "shape", "num_classes", "noise", "train", "include_valid")
]
_OUTSIDE = {"storage", "address", "data.download", "proxy.download"}
KEYS = _keys()

# fmt: off
TEXTS = [
    "", "~", "null", "true", "yes", "off", "0", "-1", "1", "3", "1.5", "1e-3", "1e400", ".inf", "-.inf", ".nan",
    "nan", "inf", "010",
    "0x1F", "1:30", "9" * 20, "1" * 5000, "abc", "ä", "²", "²..3", "0..3", "3..0", "0..99999999", "a,b", ",", "1,,2",
    "[]", "[1, 2]", "[a",
    "[[1], [2, 3]]",
    "{}", "{a: 1}", "{a: {b: [1]}}", "{name: 3}", "{name: [a]}", "{name: fedavg, name: feddf}", "{source: holdout}",
    "{? [a] : b}",
    "[" * 200, "- " * 100, "2001-99-99", "2001-01-01", "!!timestamp x", "!!bool x", "!!int x", "!!float x",
    "!!binary x",
    "!!python/object:os.system x", "!x y", "&a [*a]", "*a", "&a {b: *a}", "a: 1", "a: 1\na: 2", "'",
    '"', '"\\0"', '"\\ud800"', "\x00",
    "\x1b[31m", "\udcff", "a\nb", "%", "@", "`", "#", "|", ">", "---", "...", "iris", "digits", "synthetic",
    "holdout", "uniform_box",
    "../x", "/etc", "cifar10", "fedavg", "scaffold", "local", "centralized", "mlp", "fedavg_cnn", "bert", "iid",
    "shards", "label_skew", "natural", "table", "dirichlet", "os:system", "json:nope", ":", "a:", "torch.nn:Linear",
    "small", "train",
    "auto", "files", "bf16", "numpy_legacy", "fedzoo", "unit", "x" * 300, "../..", "/abs",
]
# fmt: on

PLAIN = [
    "0",
    "1",
    "2",
    "5",
    "0.1",
    "0.9",
    "true",
    "false",
    "~",
    "iris",
    "mlp",
    "iid",
    "fedavg",
    "feddf",
    "holdout",
    "[0.5, 0.5]",
]

# values that fit where one of this type stands
USUAL: dict[type, list[str]] = {
    int: ["0", "1", "2", "3", "7", "50", "1000", "-1"],
    float: ["0", "0.001", "0.5", "1", "30", "1e6", "-1"],
    type(None): ["1", "2", "9", "40", "0.3", "~", "label", "x"],
    bool: ["true", "false"],
    str: [
        "train",
        "all",
        "fedsol",
        "plain",
        "fedml",
        "uniform",
        "keep",
        "adam",
        "server",
        "classes",
        "half",
        "tanh",
        "shards",
        "a b",
    ],
    list: ["[]", "[1]", "[3, 2]", "[0.5]", "2", "[1, 1, 1, 1, 1, 1]"],
}
# what the keys are tried on
STARTS: list[list[str]] = [
    [],
    ["partition={name: shards, clients: 3, shards_per_client: 2}"],
    ["partition=label_skew"],
    ["partition={name: dirichlet_client, clients: 3, alpha: 1}"],
    ["partition={name: table, table: [[9, 9, 9], [9, 9, 9]]}"],
    ["proxy=uniform_box", "algorithm=feddf"],
    ["algorithm=scaffold", "evaluate.validation=0.2", "evaluate.finetune_epochs=[]"],
    ["algorithm=centralized", "evaluate.finetune_epochs=[]"],
    ["data={source: digits}", "model=fedavg_cnn"],
    ["data={source: digits, augment: {flip: true}}", "model=resnet8"],
    ["data={source: synthetic, options: {num_train: 60, num_test: 20, shape: 3}}"],
]

SCALARS = st.one_of(
    st.sampled_from(
        [
            None,
            True,
            False,
            0,
            -1,
            1,
            3,
            2**31,
            2**63,
            10**30,
            0.5,
            -0.5,
            1e-300,
            1e308,
            float("inf"),
            float("-inf"),
            float("nan"),
        ]
    ),
    st.sampled_from(TEXTS),
    st.text(max_size=8),
    st.builds(lambda: 16**6000),  # more digits than Python prints
    st.sampled_from([b"x", Path("x"), datetime.date(2001, 1, 1), object, {1}, 3j, len]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "source", "size", "a", 1, None, True]), inner, max_size=3)
    ),
    max_leaves=4,
)


@st.composite
def overrides(draw: st.DrawFn) -> list[str]:
    """Another section in `BASE`, or none, and one to three of `key=value`, most of them for keys that exist.

    Chosen by a seed that hypothesis draws: its own variations of one case would be mostly wrong in the same place.
    """
    random = Random(draw(st.integers(0, 2**64)))

    def one() -> str:
        key = random.choice(list(KEYS))
        pool = random.choice([USUAL.get(type(KEYS[key]), PLAIN)] * 3 + [PLAIN, TEXTS])
        if random.random() < 0.05:
            cut = random.randrange(len(key))
            key = (
                key[:cut]
                + random.choice(["", ".", "..", "x", " ", "\n", "=", ".x", "\udcff"])
                + key[cut + random.randrange(2) :]
            )
        return f"{key}={random.choice(pool)}"

    return [*random.choice(STARTS), *(one() for _ in range(random.choice([1, 1, 1, 2, 3])))]


@st.composite
def mappings(draw: st.DrawFn) -> dict[str, Any]:
    """`BASE` with one to three of its nodes replaced, renamed or left out."""
    values = copy.deepcopy(BASE)
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(list(_nodes(values))))
        home: Any = values
        for step in way:
            home = home[step]
        action = draw(st.sampled_from(["replace", "replace", "replace", "drop", "rename", "itself"]))
        if action == "replace":
            home[last] = draw(VALUES)
        elif action == "itself":
            home[last] = values
            break
        elif isinstance(home, dict):
            value = home.pop(last)
            if action == "rename":
                home[draw(st.sampled_from([None, 1, True, "name", "", "a.b", "\n", *KEYS]))] = value
        else:
            del home[last]
        if not values:
            break
    return values


@st.composite
def documents(draw: st.DrawFn) -> str:
    """The text of a file of `BASE` in which lines were changed, doubled, indented or cut."""
    lines = yaml.safe_dump(BASE, sort_keys=False, default_flow_style=draw(st.sampled_from([False, None]))).splitlines()
    for _ in range(draw(st.integers(1, 3))):
        i = draw(st.integers(0, len(lines) - 1))
        action = draw(st.sampled_from(["value", "double", "indent", "cut", "insert", "drop"]))
        if action == "value":
            lines[i] = f"{lines[i].partition(':')[0]}: {draw(st.sampled_from(TEXTS))}"
        elif action == "double":
            lines.insert(draw(st.integers(0, len(lines))), lines[i])
        elif action == "indent":
            lines[i] = draw(st.sampled_from([" ", "   ", "\t", "- ", "? "])) + lines[i]
        elif action == "cut":
            lines[i] = lines[i][: draw(st.integers(0, len(lines[i])))]
        elif action == "insert":
            lines.insert(i, draw(st.sampled_from(TEXTS)))
        elif len(lines) > 1:
            del lines[i]
    return "\n".join(lines)
