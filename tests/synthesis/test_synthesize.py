"""A whole synthesis by a stand-in of two layers that learns a small grammar here, in a few steps."""

import errno
import itertools
from pathlib import Path

import datasets
import pandas as pd
import pytest
import yaml

from flray.core.schema.errors import ConfigError, DataError, FlrayError, ResourceError
from flray.synthesis import chunks as chunk_files, synthesize as synthesis
from flray.synthesis.settings import load_synthesis
from flray.synthesis.synthesize import synthesize
from tests.support.commands import succeeded

HOME = Path(__file__).parents[2]
CONFIG = HOME / "configs" / "fedmemo" / "synthesize.yaml"


LEADS = (
    "Wikipedia",
    "In other words,",
    "Furthermore,",
    "However, the truth is:",
    "Reviews Rating:",
    "There is a rumor that",
)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A corpus of 288 sentences and as many questions, and a file of settings whose stand-in has learned them."""
    folder = tmp_path_factory.mktemp("synthesis")
    whole = list(itertools.product(
        ("The", "A", "This", "That"), ("old", "new", "red"), ("cat", "dog", "car", "tree"), ("is", "was"),
        ("good here", "bad there", "seen often"),
    ))  # fmt: skip
    for name, mark in (("plain", "."), ("asked", "?")):
        (folder / name).mkdir()
        texts = [" ".join(words) + mark for words in whole]
        texts = [" ".join(pair) for pair in zip(itertools.cycle(LEADS), texts, strict=False)]
        blocks = [" ".join(texts[at : at + 4]) for at in range(0, len(texts), 4)]
        pd.DataFrame({"text": blocks}).to_parquet(folder / name / "train.parquet")
    # Of a small grammar's words all have been used already. Whether a greedy text of a model that learned for a second
    # ends at all hangs on how a CPU rounds; of drawn ones a fifth or more of each label is usable, with seeds 1 to 8.
    plain = {"reward": 1.0, "penalty": 1.0}
    pairs = {"prompts": dict.fromkeys(("entailment", "neutral", "contradiction"), plain), "temperature": [0.5]}
    single = {label: {"penalty": 1.0} for label in ("negative", "positive")}
    settings = {
        "seed": 1,
        "generator": {"train": {"hidden": 32, "heads": 2, "tokens": 400, "steps": 60, "length": 32, "lr": 0.01}},
        "tasks": [
            {"name": "sst2", "prompts": single},
            {"name": "mnli", **pairs},
            {"name": "cola", "prompts": {"both": {"penalty": 1.0}}},
        ],
        "sentences": {"source": "plain", "root": str(folder)},
        "questions": {"source": "asked", "root": str(folder)},
        "per_label": 20,
        "quota": 12,
        "max_new_tokens": 30,
        "batch_size": 2,
        "resources": {"executor": "local"},
    }
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@pytest.fixture(scope="module")
def done(world):
    """(the settings, the folder of a synthesis, what became of its texts)."""
    config, folder = load_synthesis(world), world.parent / "done"
    return config, folder, synthesize(config, folder)


def with_stand_in(done: Path, folder: Path) -> Path:
    """`folder`, with the language model that was made for another synthesis."""
    folder.mkdir(exist_ok=True)
    (stand_in,) = done.glob("generator-*")
    (folder / stand_in.name).symlink_to(stand_in)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """All that a synthesis writes, without what is a folder's own."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.parquet")}


def test_what_it_writes_is_read_as_the_real_task(done):
    config, folder, accounts = done
    for task, columns, names in (
        ("sst2", ["sentence"], ["negative", "positive"]),
        ("mnli", ["premise", "hypothesis"], ["entailment", "neutral", "contradiction"]),
        ("cola", ["sentence"], ["unacceptable", "acceptable"]),
    ):
        found = datasets.Dataset.from_parquet(str(folder / task / "train.parquet"))
        assert found.column_names == [*columns, "label", "idx"] and found.features["label"].names == names
        own = [a for a in accounts if a.task == task]
        assert [a.label for a in own] == names and len({a.chosen for a in own}) == 1
        assert sorted(found["label"]) == sorted(n for n, a in enumerate(own) for _ in range(a.chosen))
        assert all(a.generated == a.usable + a.duplicates + sum(a.dropped.values()) for a in own if task != "cola")
    card = (folder / "README.md").read_text()
    assert "config_name: mnli" in card and f"| sst2 | negative | {accounts[0].generated} |" in card
    assert load_synthesis(folder / "config.yaml") == config


@pytest.mark.slow
def test_an_interrupted_one_goes_on_to_the_same_bytes(done, monkeypatch, tmp_path):
    config, folder, _ = done
    with_stand_in(folder, tmp_path)
    saved = 0

    def interrupted(*given):
        nonlocal saved
        saved += 1
        if saved == 4:
            raise KeyboardInterrupt
        chunk_files.save(*given)

    monkeypatch.setattr(synthesis, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        synthesize(config, tmp_path)
    assert len(list((tmp_path / "chunks").glob("*.parquet"))) == 3 and not (tmp_path / "sst2").exists()
    damaged = next((tmp_path / "chunks").glob("*.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:100])
    monkeypatch.undo()
    written: list[str] = []
    monkeypatch.setattr(synthesis, "save", lambda *given: (written.append(given[1].file), chunk_files.save(*given)))
    synthesize(config, tmp_path)
    assert contents(tmp_path) == contents(folder)
    assert len(written) == len(set(written)) == len(list((folder / "chunks").glob("*.parquet"))) - 2
    synthesize(config, tmp_path)
    assert len(written) == len(set(written))  # nothing was generated again


def test_a_setting_that_changes_texts_makes_others_and_a_quota_none(done, monkeypatch):
    config, folder, _ = done
    before = contents(folder)
    written: list[str] = []
    monkeypatch.setattr(synthesis, "save", lambda *given: written.append(given[1].file))
    assert {a.chosen for a in synthesize(config.model_copy(update={"quota": 6}), folder) if a.task == "mnli"} == {2}
    assert not written
    monkeypatch.setattr(synthesis, "_generate", lambda _, plan, *rest: written.extend(chunk.file for chunk in plan))
    with pytest.raises(DataError, match="none of 0"):
        synthesize(config.model_copy(update={"batch_size": 3}), folder)
    monkeypatch.undo()
    assert written and not {f"chunks/{name}" for name in written} & set(before)
    synthesize(config, folder)
    assert contents(folder) == before


@pytest.mark.slow
def test_a_text_does_not_depend_on_how_many_there_are(done, world):
    """The first 16 of 20 a label, in whole batches."""
    _, folder, _ = done
    synthesize(load_synthesis(world, ["per_label=16"]), again := with_stand_in(folder, world.parent / "fewer"))
    for name in ("mnli-neutral", "sst2-positive"):
        a, b = (pd.read_parquet(next((home / "chunks").glob(f"{name}-000000-*"))) for home in (folder, again))
        pd.testing.assert_frame_equal(a, b)


def test_a_full_disk_is_one_line(done, monkeypatch, tmp_path):
    import pyarrow.parquet as pq

    with_stand_in(done[1], tmp_path)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(ResourceError, match=r"the disk is full .*; what is done stays"):
        synthesize(done[0], tmp_path)


def test_another_revision_in_the_hub_cache_is_another_generator(world, monkeypatch, tmp_path):
    """As `hf download` lays it out: what is there under a name is a revision's folder, and a chunk is named by it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    config, home, found = load_synthesis(world, ["generator=some/lm"]), tmp_path / "models--some--lm", []
    for revision in ("a" * 40, "b" * 40):
        (home / "snapshots" / revision).mkdir(parents=True)
        (home / "snapshots" / revision / "config.json").write_text("{}")
        (home / "refs").mkdir(exist_ok=True)
        (home / "refs" / "main").write_text(revision)
        found.append(synthesis._generator(config, {}, tmp_path, False))
    assert [place for place, _ in found] == ["some/lm", "some/lm"] and found[0][1] != found[1][1]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["tasks=[sst3]"], r"unknown task 'sst3' \(did you mean 'sst2'\?\)"),
        (["tasks=[{name: mnli, prompts: {neutal: {}}}]"], "unknown label 'neutal' in prompts .*neutral"),
        (["tasks=[{name: mnli, topk: 3}]"], "tasks.mnli.topk: unknown key .*top_k"),
        (["generator=gpt2", "generator.train={}"], "generator: give either name or train"),
        (["preset=smal"], "unknown preset 'smal'"),
        (["sentences=null", "tasks=rte"], "rte begins with sentences of a corpus"),
        (["per_label=0"], "per_label"),
    ],
)
def test_a_wrong_setting_is_one_line(world, overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_synthesis(world, overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["generator=no/such-model"], "generator: 'no/such-model' cannot be loaded"),
        (["sentences.source=nowhere"], "sentences.source: no Parquet files in .*nowhere"),
        (["sentences.column=txt"], r"has no column 'txt' \(did you mean 'text'\?\)"),
        (["per_label=2000"], "288 different sentences of 5 to 30 words, and mnli asks for 2000"),
        (["max_new_tokens=200"], "256 positions and sst2 needs 500"),
    ],
)
def test_what_is_not_there_is_one_line(world, done, tmp_path, overrides, message):
    with_stand_in(done[1], tmp_path)
    with pytest.raises(FlrayError, match=message) as error:
        synthesize(load_synthesis(world, overrides), tmp_path)
    assert "\n" not in str(error.value)


def test_a_folder_with_another_network_is_one_line(world, done, tmp_path):
    from transformers import BertConfig, BertForMaskedLM

    BertForMaskedLM(
        BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=9)
    ).save_pretrained(tmp_path / "bert")
    config = load_synthesis(world, [f"generator={tmp_path / 'bert'}"])
    with pytest.raises(ConfigError, match="is a BertForMaskedLM, no causal language model"):
        synthesize(config, tmp_path / "out")


def test_the_file_in_configs_is_the_papers(flray_data):
    full, small = load_synthesis(CONFIG), load_synthesis(CONFIG, ["preset=small"])
    assert full.generator.name == "Salesforce/ctrl" and full.quota == 6_000 and len(full.templates()) == 7
    assert {t.per_label for t in full.templates().values()} == {20_000, 25_000, 30_000}
    assert small.generator.train is not None and small.resources.executor == "local"
    other = load_synthesis(CONFIG, ["preset=small", "generator=gpt2", "tasks=sst2,cola", "resources.actors=3"])
    assert (other.generator.name, other.generator.train) == ("gpt2", None) and list(other.templates()) == [
        "sst2",
        "cola",
    ]
    assert (other.resources.actors, other.templates()["sst2"].per_label) == (3, 320)


def test_the_command_says_what_came_out(done, world, monkeypatch):
    """Everything is there already."""

    monkeypatch.chdir(HOME)
    found = succeeded("synthesize", world, "quota=2", "tasks=sst2", "--out", done[1])
    assert "2 samples" in found.output and "root: " in found.output
    synthesize(done[0], done[1])


@pytest.mark.slow
def test_actors_of_ray_write_the_same_bytes(done, world, ray_cluster):
    _, folder, _ = done
    for actors in (1, 2):
        again = world.parent / f"ray-{actors}"
        synthesize(load_synthesis(world, ["resources.executor=ray", f"resources.actors={actors}"]), again)
        assert contents(again) == contents(folder)


@pytest.mark.slow
def test_fedmemos_server_trains_on_it(done, flray_data):
    import flray

    _, folder, accounts = done
    config = {
        "data": {"source": "sst2", "tokenizer": "train", "max_length": 16, "train_size": 400, "test_size": 100},
        "proxy": {"source": "sst2", "root": str(folder), "test_fraction": 0, "labelled": True, "same_labels": True},
        "model": {"name": "bert", "layers": 1, "hidden": 16, "heads": 2, "intermediate": 32},
        "algorithm": {"name": "fedmemo", "mode": "server", "proxy": {"data": "real"}, "trigger": "scheduled"},
        "partition": {"name": "iid", "clients": 4},
        "cohort": 2,
        "rounds": 2,
        "resources": {"executor": "local"},
    }
    result = flray.run(config, out=folder.parent / "run")
    proxies = sum(a.chosen for a in accounts if a.task == "sst2")
    assert (result.rounds["memo/proxy"] == proxies).any()
