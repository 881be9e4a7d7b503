"""Small image files and Parquet files as users have them."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from torch.utils.data import Dataset

from flray.data import DataConfig, load_dataset


def names(*classes, label="label"):
    """The description of a column of labels that Hugging Face writes into a Parquet file."""
    return {label: {"_type": "ClassLabel", "names": list(classes)}}


LABEL = names("cat", "dog")


class Wrapper(Dataset):
    """A data set around another one, as users write it."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, number):
        return self.inner[number]


def described(folder, split, classes, ids, seed=0):
    """A Parquet file of one feature whose labels are the numbers `ids` of these classes; gives their names."""
    x = np.random.default_rng(seed).normal(size=len(ids))
    write(folder, split, {"f": pa.array(x), "label": pa.array(ids)}, names(*classes))
    return [classes[label] for label in ids]


def load(source, **options):
    return load_dataset(DataConfig(source=source, **options))


def png(array, kind="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(array.squeeze()).save(buffer, kind, lossless=True)
    return buffer.getvalue()


def write(folder, split, columns, features=None):
    folder.mkdir(exist_ok=True, parents=True)
    table = pa.table(columns)
    if features:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, folder / f"{split}.parquet")


def images(n, shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def image_column(x):
    return pa.array(
        [{"bytes": png(i), "path": None} for i in x], pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    )


def write_mnist(root, sizes):
    """MNIST in torchvision's raw layout, `train` and `t10k`: idx files with big-endian headers."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, n in sizes.items():
        x, y = images(n, (28, 28), n), np.arange(n, dtype=np.uint8) % 10
        (raw / f"{name}-images-idx3-ubyte").write_bytes(np.array([2051, n, 28, 28], ">i4").tobytes() + x.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(np.array([2049, n], ">i4").tobytes() + y.tobytes())
    return raw


def tokens(vocabulary, ids):
    """The tokens of a row of ids, without padding, with spaces between them."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(vocabulary.tokenizer.tobytes().decode())
    return " ".join(tokenizer.id_to_token(int(i)) for i in ids if i != vocabulary.pad)


def in_words(dataset, split):
    """The class of every sample of a split by its name."""
    return [dataset.classes[number] for number in split.y]
