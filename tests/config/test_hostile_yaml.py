"""Files that are made to hurt who reads them as a configuration: one line, in bounded time and memory."""

import resource
import time
from pathlib import Path

import pytest
import yaml

import flray
from flray.config.loader import load_config
from flray.core.schema.errors import CheckpointError, ConfigError, FlrayError
from flray.results import compare

BASE = "rounds: 1\ndata: {source: iris}\npartition: {name: iid, clients: 3}\nalgorithm: fedavg\nmodel: mlp\n"
LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 30))
MERGES = "b0: &b0 {x: 1}\n" + "".join(f"b{i}: &b{i} {{<<: [*b{i - 1}, *b{i - 1}]}}\n" for i in range(1, 40))
HOSTILE: dict[str, bytes] = {
    "aliases that multiply": LAUGHS.encode(),
    "aliases that multiply by merging": f"{MERGES}{BASE}".encode(),
    "an alias of itself": b"a: &a [*a]\n",
    "a tag of Python": b"rounds: !!python/object/apply:os.system ['touch owned']\n",
    "a tag of its own": b"rounds: !evil 3\n",
    "a binary tag": b"name: !!binary aGVsbG8=\n",
    "a key twice": BASE.encode() + b"rounds: 2\n",
    "a key twice in a mapping in a line": b"data: {source: iris, source: digits}\n",
    "not a number": BASE.replace("rounds: 1", "rounds: .nan").encode(),
    "infinity": BASE.replace("rounds: 1", "rounds: .inf").encode(),
    "an integer of 10,000 digits": BASE.replace("rounds: 1", f"rounds: {'9' * 10_000}").encode(),
    "tabs": b"data:\n\tsource: iris\n",
    "UTF-16": BASE.encode("utf-16"),
    "Latin-1": "name: Zürich\n".encode("latin-1"),
    "a NUL": b"name: a\0b\n",
    "10 MB of text": b"name: " + b"x" * 10_000_000,
    "10 MB of lists": b"a: [" + b"1, " * 3_300_000 + b"1]",
    "deep lists": b"a: " + b"[" * 100_000,
    "deep mappings": b"a: " + b"{a: " * 100_000,
    "deep by indentation": b"".join(b" " * i + b"a:\n" for i in range(1000)),
    "two documents": BASE.encode() + b"---\n" + BASE.encode(),
    "a list": b"- rounds: 1\n",
    "nothing": b"",
    "keys that are lists": b"? [a, b]\n: 1\n",
    "an unknown anchor": b"rounds: *nobody\n",
    "a directive": b"%YAML 9.9\n---\nrounds: 1\n",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_line_in_a_second_and_little_memory(tmp_path: Path, name: str) -> None:
    """Read as a configuration, and as that of a run folder, which `compare` looks at."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "STATUS").write_text("finished\n")
    (tmp_path / "run" / "config.yaml").write_bytes(HOSTILE[name])
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ConfigError) as error:
        load_config(tmp_path / "run" / "config.yaml")
    message = str(error.value)
    assert (message.isprintable() and len(message) < 1000 and "config.yaml" in message) or "rounds" in message
    try:
        compare([tmp_path / "run"])
    except FlrayError as other:
        assert isinstance(other, CheckpointError | ConfigError) and str(other).isprintable()
    assert time.process_time() - began < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB
    assert not Path("owned").exists()


def test_a_byte_order_mark_and_a_merge_are_read(tmp_path: Path) -> None:
    """What editors write, and what YAML 1.1 defines: the key of the mapping itself wins."""
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbf" + BASE.encode())
    assert load_config(tmp_path / "bom.yaml")[0].rounds == 1
    merged = "x: &x {source: digits, train_size: 50}\n"
    text = BASE.replace("data: {source: iris}", "data: {<<: *x, source: iris}")
    assert yaml.safe_load(merged + text)["data"] == {"source": "iris", "train_size": 50}
    with pytest.raises(ConfigError, match="x: unknown key"):
        load_config(flray.config.read.read_yaml(_written(tmp_path / "m.yaml", merged + text)))


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
