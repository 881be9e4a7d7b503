"""The partition `csv`: the client of each training sample, from a file of one's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flray.core.schema.errors import DataError
from flray.data.cache import Array


def clients_of_csv(file: str, samples: int) -> Array:
    """Codes int64 `[samples]` of the sorted values of the column `client` (as numbers, if all are integers without
    leading zeros; else as texts); a column `sample` numbers the rows from 0.

    Raises `DataError` for a file that cannot be read, and unless it has each sample once.
    """
    import pyarrow as pa
    from pyarrow import csv

    what = f"partition.file: {file}"
    try:
        kinds = csv.ConvertOptions(column_types={"client": pa.string()}, null_values=[""], strings_can_be_null=True)
        table = csv.read_csv(Path(file).expanduser(), convert_options=kinds)
    except (OSError, pa.ArrowException) as error:
        why = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise DataError(f"{what} cannot be read ({why}); write columns sample,client") from error
    columns = ", ".join(table.column_names)
    if "client" not in table.column_names:
        raise DataError(f"{what} has the columns {columns} and no column client; name it so")
    if len(set(table.column_names)) < len(table.column_names):
        raise DataError(f"{what} has the columns {columns}; give each a name of its own")
    clients = table.column("client")
    if clients.null_count:
        raise DataError(f"{what} has no client in {clients.null_count} rows; fill or remove them")
    numbers = np.arange(len(clients))
    if "sample" in table.column_names:
        numbers = table.column("sample").to_numpy()
        if numbers.dtype.kind not in "iu":
            raise DataError(f"{what}: column sample is {numbers.dtype}, not numbers of samples from 0; write integers")
    count = np.bincount(numbers[(numbers >= 0) & (numbers < samples)], minlength=samples)
    if len(numbers) != samples or (count != 1).any():
        wrong = np.flatnonzero(count != 1)
        first = f"; sample {wrong[0]} is there {count[wrong[0]]} times" if len(wrong) else ""
        raise DataError(f"{what} has {len(numbers)} rows for {samples} training samples{first}; write each sample once")
    codes = np.empty(samples, np.int64)
    names, places = np.unique(clients.to_numpy(zero_copy_only=False).astype(str), return_inverse=True)
    if all(name.lstrip("-").isdecimal() and str(int(name)) == name for name in names):
        places = np.argsort(np.argsort(names.astype(np.int64)))[places]
    codes[numbers] = places
    return codes
