"""Data sets as they arrive: Parquet folders of numbers, images or text with one thing wrong in them."""

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from PIL import Image

ROWS = 24
KINDS = ("numbers", "images", "text")


def sample(kind: str, split: str) -> dict[str, list[Any]]:
    """Columns of a data set that can be trained on."""
    n, shift = (ROWS, 0) if split == "train" else (8, 100)
    label = [i % 2 for i in range(n)]
    if kind == "images":
        return {"image": [{"bytes": _png(i + shift), "path": None} for i in range(n)], "label": label}
    if kind == "text":
        return {"text": [f"word{i % 5} and {i + shift}" for i in range(n)], "label": label}
    return {
        "x": [float(i + shift) for i in range(n)],
        "v": [[i + shift, i / 7] for i in range(n)],
        "user": [i % 3 for i in range(n)],
        "label": label,
    }


def _png(seed: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (6, 6), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def _bomb() -> bytes:
    """The header of a PNG of 60,000 x 60,000 pixels."""
    good = _png(0)
    return good[:16] + struct.pack(">II", 60_000, 60_000) + good[24:]


def write(folder: Path, split: str, columns: Any, note: Any = None) -> None:
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    if note is not None:
        table = table.replace_schema_metadata({"huggingface": note if isinstance(note, str) else json.dumps(note)})
    pq.write_table(table, folder / f"{split}.parquet")


# fmt: off
CELLS: list[Any] = [
    None, -1, 0, 7, 2**62, 2**64 - 1, 0.5, float("nan"), float("inf"), 1e300, "", "a", "nan", "-1", b"x", True,
    [], [1], [[1]], [1, 2, 3], {"a": 1}, {},
    *({"bytes": None, "path": path} for path in (None, "/etc/passwd", "../../x.png", "a\0b", "x" * 5000)),
    *({"bytes": content, "path": None} for content in (b"", b"no image", _png(1)[:40], _bomb())),
]
NAMES = (None, 3, [], ["a"], [1, 2], "ab", {"a": 1}, ["a", "b"])
NOTES: list[Any] = [
    "{", "[]", "3", '{"info": 3}', '{"info": {"features": []}}', '{"info": {"features": {"label": 3}}}', "[" * 5000,
    *({"info": {"features": {"label": {"_type": "ClassLabel", "names": names}}}} for names in NAMES),
]
COLUMN_TYPES = [
    pa.int8(), pa.uint64(), pa.float32(), pa.bool_(), pa.string(), pa.binary(), pa.timestamp("us"), pa.null(),
    pa.dictionary(pa.int32(), pa.string()),
]
# fmt: on


@st.composite
def damage(draw: st.DrawFn) -> Callable[[Path], dict[str, Any]]:
    """A function that writes one damaged data set into a folder and gives the options of `data` to read it with."""
    kind = draw(st.sampled_from(KINDS))
    what = draw(
        st.sampled_from(
            ["cell", "column", "bytes", "cut", "file", "note", "rows", "rename", "type", "options", "double"]
        )
    )
    split = draw(st.sampled_from(["train", "test"]))
    name = draw(st.sampled_from(list(sample(kind, split))))
    row, place = draw(st.integers(0, 7)), draw(st.floats(0, 1, exclude_max=True))
    cell, note, column_type = (
        draw(st.sampled_from(CELLS)),
        draw(st.sampled_from(NOTES)),
        draw(st.sampled_from(COLUMN_TYPES)),
    )
    noise = draw(st.binary(min_size=1, max_size=8))
    file = draw(st.sampled_from(["empty", "folder", "link", "absent", "shard", "text"]))
    column = draw(st.sampled_from([*sample(kind, split), "nope", "", "a\nb"]))
    option = draw(
        st.sampled_from(
            ["label", "input", "group", "text", "tokenizer", "pca", "resize", "train_size", "standardize", "channels"]
        )
    )

    def make(folder: Path) -> dict[str, Any]:
        data: dict[str, Any] = {"tokenizer": "train"} if kind == "text" else {"input": None}
        for part in ("train", "test"):
            columns: Any = sample(kind, part)
            if part == split:
                if what == "cell":
                    columns[name][row] = cell
                elif what == "column":
                    columns[name] = [cell] * len(columns[name])
                elif what == "rows":
                    columns = {key: values[: row // 4] for key, values in columns.items()}
                elif what == "rename":
                    columns[column or "x y"] = columns.pop(name)
            here = part == split
            try:
                table = pa.table(columns)
                if here and what == "type":
                    table = table.set_column(
                        table.column_names.index(name), name, table[name].cast(column_type, safe=False)
                    )
                if here and what == "double":
                    table = table.append_column(name, table[name])
                write(folder, part, table, note if here and what == "note" else None)
            except (pa.ArrowException, OverflowError):  # no such file can be written
                write(folder, part, sample(kind, part))
        path = folder / f"{split}.parquet"
        content = path.read_bytes()
        at = int(place * len(content))
        if what == "bytes":
            path.write_bytes(content[:at] + noise + content[at + len(noise) :])
        elif what == "cut":
            path.write_bytes(content[:at])
        elif what == "file":
            path.unlink()
            if file == "folder":
                path.mkdir()
            elif file == "link":
                path.symlink_to(folder / "nowhere")
            elif file == "shard":
                (folder / f"{split}-00000-of-00002.parquet").write_bytes(content)
            elif file != "absent":
                path.write_bytes(b"" if file == "empty" else b"x,y\n1,2\n")
        if what == "options":
            value = {"pca": row, "resize": row, "train_size": row, "standardize": True, "channels": 3}.get(
                option, column
            )
            data[option] = value
        return data

    return make
