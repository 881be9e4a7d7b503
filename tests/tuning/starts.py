"""A process that begins a sweep's studies at the moment of its fellows: `python -m tests.tuning.starts URL ROOT NUMBER
COUNT ROUNDS`.

It prints `ready`, waits for a line on its input, begins `ROUNDS` sweeps one after another, and prints for each `won` or
the error's line.
"""

import sys
import time
from pathlib import Path

from flray.core.schema.errors import FlrayError
from flray.tuning.sweep import _begin
from flray.tuning.sweep_folder import take_folder
from tests.support.iris_sweep import iris_sweep


def main(url: str, root: Path, number: int, count: int, rounds: int) -> None:
    sweeps = [
        iris_sweep(name=f"s{each}", seed=number, study=url.format(each) if url != "journal" else None)
        for each in range(rounds)
    ]
    print("ready", flush=True)
    sys.stdin.readline()
    for each, sweep in enumerate(sweeps):
        # a journal lies in the sweep's folder, which all share then
        folder = root / (f"shared-{each}" if url == "journal" else f"{each}-{number}")
        (root / f"at-{each}-{number}").touch()
        while not all((root / f"at-{each}-{other}").exists() for other in range(count)):
            time.sleep(0.0005)
        try:
            lock = take_folder(folder, sweep, resume=False)
            try:
                _begin(sweep, folder, lock, False, {"data": "aa"})
            finally:
                lock.release()
            print("won", flush=True)
        except FlrayError as error:
            print(f"refused: {str(error)!r}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
