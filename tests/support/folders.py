"""A run folder as a driver has it after some rounds, and the bytes in a folder."""

import pandas
import yaml


def record(folder, done):
    """What the driver has written after `done` rounds."""
    for name in ("rounds", "partition"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    pandas.DataFrame({"done": range(1, done + 1)}).to_parquet(folder / "rounds/part-0000.parquet")
    (folder / "config.yaml").write_text(
        yaml.safe_dump({"seed": 1, "rounds": 9, "algorithm": {"name": "fedavg", "lr": 0.1}})
    )
    (folder / "partition/indices.npy").write_bytes(b"fixed")
    (folder / "STATUS").write_text("running\n")


def content(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
