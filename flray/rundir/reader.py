"""A run folder as an object: configuration, rounds, clients, tests, tasks."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from flray.core.schema.errors import CheckpointError, ConfigError, message_of, nearest, printable, warn
from flray.files import SMALL, quoted, read_checksummed, regular
from flray.rundir import checkpoint
from flray.rundir.lock import lock_status
from flray.rundir.swap import interrupted, is_replaced
from flray.rundir.uri import is_uri, split

if TYPE_CHECKING:
    import pandas

    from flray.config.experiment import Experiment
    from flray.rundir.by_task import TaskTests

MAX_FOLDERS = 20_000  # folders that are looked into for runs
ARTIFACTS = ("mlartifacts", "mlruns")  # MLflow's copies of a run's files, config.yaml among them
# by which a run or a sweep is known in a folder that cannot be listed
RUN, SWEEP = ("STATUS", "config.yaml", "environment.json"), ("beginning.json", "study.journal", "sweep.yaml")
FINAL = re.compile(r".+-\d{4,}-seed\d+")  # a sweep's name of a final run
# the file or folder of a value that has another name
FILES = {"experiment": "config.yaml", "environment": "environment.json", "partition_table": "partition"}
T = TypeVar("T")
Stamp = tuple[int, int]  # of a file or folder: its inode, and when it was last written
# the command as `quoted` writes it, in a STATUS that may have been written for a folder of another name
RESUMED = re.compile(r"""\bflray resume (?!-)(?:'[^']*'|"'"|[^\s'";])+(?<![,:.)])""")
STATUS = re.compile(r"starting|running|finished|(diverged|interrupted|paused|failed)\b.*", re.DOTALL)


class ConfigChangedWarning(UserWarning):
    """A config.yaml differs from the configuration of its run."""


class Stored(Generic[T]):
    """A value that a run folder stores: it is read at its first use, and again when its files have changed since. A
    table or a mapping is handed out as a copy, which its reader may change."""

    def __init__(self, read: Callable[[Any], T]) -> None:
        self._read, self._name, self.__doc__ = read, read.__name__, read.__doc__

    def __get__(self, run: Run | None, kind: type) -> T:
        if run is None:
            return self  # type: ignore[return-value]
        value: T = own_copy(run.stored(self._name, self._read))
        return value


def own_copy(value: Any) -> Any:
    """A table, or plain values with tables among them, as a copy that its reader may change; any other value is
    itself."""
    if type(value) is dict:
        return {name: own_copy(part) for name, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(own_copy, value))
    pandas: Any = sys.modules.get("pandas")  # who has a table has imported it
    if pandas is not None and isinstance(value, pandas.DataFrame):
        return value.copy(deep=int(pandas.__version__.partition(".")[0]) < 3)  # from 3 on it is copied at a change
    return value


class Run:
    """The results in a run folder, also while the run continues. A table is read at its first use, and again when the
    run has gone on since. Of the URI of a run in a storage `folder` is a copy in flray's cache, without checkpoints.
    """

    def __init__(self, folder: str | Path) -> None:
        self.place = str(folder) if is_uri(folder) else str(Path(folder))
        if is_uri(folder):
            from flray.rundir.download import fetch

            folder = fetch(str(folder))
        self.folder = Path(folder)
        self._values: dict[str, tuple[list[Stamp | None], Any]] = {}  # of `Stored`: (`_look` before it was read, value)
        self._at = _stamp(self.folder)

    def _look(self, name: str) -> list[Stamp | None]:
        """Other than before once the files of the value `name` are: a file is replaced whole, which its folder shows.
        STATUS is of every value: what a table has lost is known when the run has ended."""
        places = [self.folder / "STATUS", self.folder / FILES.get(name, name)]
        if name == "diagnostics":  # a folder of tables
            places += sorted(places[1].glob("*"))
        return list(map(_stamp, places))

    def stored(self, name: str, read: Callable[[Any], Any]) -> Any:
        """The value `name` of :class:`Stored`, as the folder has it now. That of a folder that was removed stays."""
        now = self._look(name)
        before = self._values[name][0] if name in self._values else None
        if before is None or (now != before and any(now)):
            at = _stamp(self.folder)
            if at and self._at and at[0] != self._at[0]:
                warn(f"{self.place}: another run has taken the place of the one that was loaded, and is read instead")
            self._at = at
            self._values[name] = now, read(self)
        return self._values[name][1]

    def __fspath__(self) -> str:
        """The run stands where a folder does: `flray.resume(run, rounds=20)`."""
        return str(self.folder)

    @Stored
    def experiment(self) -> Experiment:
        """The configuration. Warns (`ConfigChangedWarning`) if config.yaml has changed since the run."""
        from flray.config.loader import load_config

        loaded = load_config(self.folder / "config.yaml")[0]
        if self.changed:
            warn(f"{self.folder}: {self.changed}", ConfigChangedWarning)
        return loaded

    @property
    def changed(self) -> str:
        """The first key of config.yaml that has changed since the run, in words; "": none, or the record is lost."""
        from flray.config.grid import config_changes
        from flray.config.read import read_yaml

        try:
            changes = config_changes(self._record["experiment"], read_yaml(self.folder / "config.yaml"))
        except (OSError, ValueError, KeyError, ConfigError):  # the reader of the damaged file raises
            return ""
        return next(
            (f"{key} is {now!r} in config.yaml and was {was!r} when it ran" for key, (was, now) in changes.items()), ""
        )

    @property
    def accepted(self) -> dict[str, tuple[Any, Any]]:
        """The changes that a resume accepted after the first round: name -> (what it was, what it is); {}: none, or the
        record is lost. A name is a key of the configuration or that of a fingerprint."""
        entries = self._record.get("accepted", [])
        return {entry["what"]: (entry["was"], entry["is"]) for entry in entries if entry.get("done", 1)}

    @property
    def _record(self) -> dict[str, Any]:
        """environment.json, or nothing if it is lost."""
        try:
            return read_checksummed(self.folder / "environment.json")
        except (OSError, ValueError):
            return {}

    @property
    def status(self) -> str:
        """The line of STATUS: `starting`, `running`, `finished`, `diverged ...`, `interrupted after ...`,
        `failed: reason`; `unknown: why` for a missing or damaged file. A command that resumes the run names it as it is
        named here: the folder may have been moved or copied since."""
        try:
            text = printable(regular(self.folder / "STATUS", SMALL).read_text(encoding="utf-8").strip())
        except FileNotFoundError:
            return "unknown: no STATUS file"
        except OSError as error:
            return f"unknown: STATUS cannot be read ({error.strerror or error})"
        except ValueError:
            return "unknown: STATUS is damaged"
        if not STATUS.fullmatch(text):
            return "unknown: STATUS is damaged"
        return RESUMED.sub(lambda _: f"flray resume {quoted(self.place)}", text)

    @property
    def standing(self) -> str:
        """:attr:`status`; `stopped (its process is gone); resume with ...` if STATUS is `running` and its process dead.

        The lock tells nothing about a process on another machine, or about a run in a storage.
        """
        status = self.status
        if status not in ("starting", "running") or is_uri(self.place):
            return status
        lock = lock_status(self.folder)
        if (lock is not None and lock.alive is not False) or self.status != status:  # it ended meanwhile
            return self.status
        who = "its process is gone" if lock is None else f"{lock.owner} is gone"
        return f"stopped ({who}); resume with: flray resume {quoted(self.place)}"

    @Stored
    def environment(self) -> dict[str, Any]:
        """Versions, hardware, actors, fingerprints. Raises `CheckpointError` when the file is missing or damaged."""
        path = self.folder / "environment.json"
        try:
            return read_checksummed(path)
        except FileNotFoundError:
            problem = "missing"
        except (OSError, ValueError) as error:
            problem = f"damaged ({message_of(error)})"
        raise CheckpointError(
            f"{path} is {problem}: the run's data and versions are unknown; restore it from a copy, or continue "
            f"without it: flray resume {quoted(self.folder)} --accept environment"
        )

    @property
    def task_rounds(self) -> int:
        """The rounds of each task; of a run that `until` ends, those that end in time."""
        rounds: int = self.experiment.rounds
        return rounds if self.experiment.until is None else self.environment.get("rounds", rounds)

    @Stored
    def rounds(self) -> pandas.DataFrame:
        """One row a round."""
        return self._table("rounds")

    @Stored
    def clients(self) -> pandas.DataFrame:
        """One row a client and round in which it took part."""
        return self._table("clients")

    @Stored
    def tests(self) -> pandas.DataFrame:
        """One row a test, test set and inference mode: counts, also by class, and accuracies.

        The initial model's row has `round` 0. `flray/rundir/tested.py` describes the columns.
        """
        from flray.rundir.tested import with_accuracies

        return with_accuracies(self._table("tests"))

    def task_tests(self, mode: str | None = None) -> TaskTests:
        """The tests of single tasks at the ends of tasks in an inference mode, by default the first one.

        Their `matrix` is the accuracy matrix R. Raises `ConfigError` if there are none, or no such mode.
        """
        from flray.rundir.by_task import task_tests

        tests = task_tests(self.tests)
        if not tests:
            raise ConfigError(
                f"{self.place} has no test of single tasks at the end of a task: it has no tasks (run it with "
                "tasks.name=class_incremental), or its first one has not ended"
            )
        if mode is not None and mode not in tests:
            raise ConfigError(f"{self.place} has no inference mode {mode!r}; choose one of {', '.join(tests)}")
        return tests[next(iter(tests)) if mode is None else mode]

    @Stored
    def diagnostics(self) -> dict[str, pandas.DataFrame]:
        """The tables of the probes (`diagnostics:` of the configuration), by name."""
        names = sorted(path.name for path in (self.folder / "diagnostics").glob("*") if path.is_dir())
        return {name: self._table(f"diagnostics/{name}") for name in names}

    def initial(self, metric: str) -> float | None:
        """`test/acc`, `test/loss` (or `val/...`) of the initial model in the first mode; None: it was not tested."""
        tested, _, name = metric.partition("/")
        tests = self.tests
        if name not in ("acc", "loss") or not len(tests):
            return None
        rows = tests[(tests["done"] == 0) & (tests["set"] == tested)]
        return float(rows[name].iloc[0]) if len(rows) else None

    @Stored
    def tasks(self) -> pandas.DataFrame:
        """One row a task."""
        return self._table("tasks")

    @Stored
    def personal(self) -> pandas.DataFrame:
        """The personalised test (`evaluate.finetune_epochs`): one row a client and number of fine-tuning epochs."""
        return self._table("personal")

    @property
    def last_personal(self) -> pandas.DataFrame:
        """The rows of the last personalised test."""
        rows = self.personal
        return rows[rows["done"] == rows["done"].max()] if len(rows) else rows

    @Stored
    def partition_table(self) -> pandas.DataFrame:
        """Samples by client (index) and class (columns) in the partition, over all tasks.

        Empty if the run has not begun or has more than 10,000 clients.
        """
        import pandas

        counts = pandas.DataFrame()
        for path in sorted((self.folder / "partition").glob("**/table.csv")):
            try:
                table = pandas.read_csv(regular(path), index_col="client")
            except (OSError, ValueError, TypeError) as error:  # pandas raises the last one where no column is `client`
                raise CheckpointError(f"{path} is damaged: {message_of(error)}") from error
            counts = table if counts.empty else counts.add(table, fill_value=0)
        return counts.astype(int)

    def missing(self, name: str) -> str:
        """The lost rows of a table ("rounds 1-100"), as far as the folder shows; "": none."""
        return self._rows(name)[1]

    def _table(self, name: str) -> pandas.DataFrame:
        frame, lost = self._rows(name)
        if lost:
            from flray.rundir.parts import RowsMissingWarning

            warn(f"{self.folder / name} has lost rows: {lost}", RowsMissingWarning)
        return frame

    def _rows(self, name: str) -> tuple[pandas.DataFrame, str]:
        """(a table, which of its rows are missing)."""
        import pandas

        from flray.rundir.parts import lost_rounds, table_problem

        # the expected rows first, then the rows: a running run adds to both
        saved = max(map(checkpoint.rounds_done, checkpoint.checkpoints(self.folder)), default=0)
        noted = self._record
        try:
            tables = self._parts(name)
        except ValueError as error:
            raise CheckpointError(f"{error}; continue without its rows: flray resume {quoted(self.place)}") from error
        frame = pandas.concat(tables, ignore_index=True) if tables else pandas.DataFrame()
        if len(frame) and (why := table_problem(name.rpartition("/")[2], frame)):
            raise CheckpointError(
                f"{self.folder / name} {why}: another program wrote it, or another version of flray; leave the run out"
            )
        lost, least = noted.get("missing_rows", {}).get(name, ""), noted.get("rows", {}).get(name, 0)
        if not lost and (name == "rounds" or (name in ("clients", "tests") and len(frame))):
            done = set(frame["done"]) if "done" in frame else set()
            last = max(0, saved * (name == "rounds"), *done)
            lost = lost_rounds(name, done, last, self.folder / "rounds")
        if lost:
            return frame, f"{'tasks' if name in ('tasks', 'personal') else 'rounds'} {lost}"
        return frame, f"{least - len(frame)} of {least}" if len(frame) < least else ""

    def _parts(self, name: str) -> list[pandas.DataFrame]:
        """The files of a table. Raises `ValueError` for a damaged one; a damaged copy is downloaded again first."""
        from flray.rundir.download import fetch
        from flray.rundir.parts import read_part

        def read() -> list[pandas.DataFrame]:
            # each with its own columns: a running run may be adding a column to the earlier files
            return [read_part(part).to_pandas() for part in sorted((self.folder / name).glob("part-*.parquet"))]

        try:
            return read()
        except ValueError:
            if not is_uri(self.place):
                raise
        shutil.rmtree(self.folder)  # a copy
        fetch(self.place)
        self._at = _stamp(self.folder)  # the same run
        return read()

    def __repr__(self) -> str:
        """The folder, the status, the rounds done and the last accuracy at present."""
        try:
            rounds, lost = self._rows("rounds")
        except CheckpointError:
            return f"Run({self.place!r}, {self.status.split(';')[0]}, damaged)"
        facts = [
            repr(self.place),
            self.status.split(";")[0],
            f"{len(rounds)} rounds" + (f" (lost: {lost})" if lost else ""),
        ]
        for name in ("test/acc", "val/acc"):
            tested = rounds[name].dropna() if name in rounds else rounds.iloc[:0, 0:0]
            if len(tested):
                facts.append(f"{name} {tested.iloc[-1]:.4f}")
        return f"Run({', '.join(facts)})"


def _stamp(path: Path) -> Stamp | None:
    try:
        facts = path.stat()
    except OSError:  # it is not there, or on a disk that is away
        return None
    return facts.st_ino, facts.st_mtime_ns


def runs_below(folder: str | Path) -> list[str | Path]:
    """The run folders below a folder or a URI, at any depth, sorted by name; the folder itself if it is one.

    Of a sweep its final runs, or its trials while there are none: trials are tested on held-out data and final runs on
    the test set, so the two are never mixed. A storage has no file of a sweep itself: there it is two folders `final`
    and `trials`, with the names that a sweep gives to final runs. A folder with a `config.yaml` alone is a run that
    lost its other files, unless there are runs in it. A link to a run is no second one. Skips folders of this machine
    that cannot be read and MLflow's artifacts. Raises `CheckpointError` for a storage that cannot be read and for more
    than `MAX_FOLDERS`.
    """
    from flray.rundir.download import listing
    from flray.rundir.folder import has_run, has_sweep

    top: Any = folder if is_uri(folder) else Path(folder)
    entries: Callable[[Any], tuple[object, set[str], dict[str, Any]]] = listing(top) if is_uri(top) else _entries
    runs, found = dict[object, str | Path](), dict[object, list[str | Path]]()  # a link may lead back up

    def look(place: Any) -> list[str | Path]:
        key, files, folders = entries(place)
        if has_run(files.__contains__):
            return [runs.setdefault(key, place)]
        if key not in found:
            found[key] = []
            if len(found) > MAX_FOLDERS:
                raise CheckpointError(
                    f"{top} holds more than {MAX_FOLDERS:,} folders; name the folder that holds the runs"
                )
            found[key] = inside(place, files, {name: folders[name] for name in folders if name not in ARTIFACTS})
        return found[key]

    def inside(place: Any, files: set[str], folders: dict[str, Any]) -> list[str | Path]:
        final = look(folders["final"]) if "final" in folders else []
        mirror = (
            is_uri(top)
            and [*folders] == ["final", "trials"]
            and all(FINAL.fullmatch(split(str(run))[1]) for run in final)
        )
        if has_sweep(files.__contains__) or mirror:
            if final and is_uri(top):
                warn(f"{place} is a sweep: the runs of final/ are read, and not those of trials/")
            return final or (look(folders["trials"]) if "trials" in folders else [])
        below = [] if "STATUS" in files else [run for each in folders.values() for run in look(each)]
        return below or [place] * bool(files & {"STATUS", "config.yaml"})

    return list(dict.fromkeys(look(top)))


def _entries(folder: Path) -> tuple[object, set[str], dict[str, Path]]:
    """(what a folder is known by, the names of its files, its folders by name, but for a run that another replaced)."""
    try:
        content = sorted(folder.iterdir())
    except OSError:  # another user's folder, or one that is being removed
        content = [folder / name for name in (*RUN, *SWEEP, "final", "trials")]
    folders = {path.name: path for path in content if os.path.isdir(path) and not is_replaced(path)}
    return os.path.realpath(folder), {path.name for path in content if os.path.isfile(path)}, folders


def load_federated(folder: str | Path) -> Run:
    """The run of :func:`load`, which has clients to repeat. Raises `ConfigError` for centralized training."""
    run = load(folder)
    if run.experiment.algorithm.centralized:
        raise ConfigError(
            f"{folder}: centralized training has no clients to repeat; repeat the run with: flray run "
            f"{quoted(run.folder / 'config.yaml')}"
        )
    return run


def load(folder: str | Path) -> Run:
    """The run in a folder, or at the URI of a storage. Raises `CheckpointError` if there is none, and names runs inside
    or beside that place."""
    run = Run(folder)
    home = run.folder
    if places := [] if is_uri(folder) else interrupted(home):
        raise CheckpointError(
            f"{home} does not exist: a kill interrupted its replacement, and its runs are in "
            f"{' and '.join(map(str, places))}; restore the previous run with: flray resume {quoted(home)}"
        )
    if not (home / "config.yaml").exists():
        inside = [path for path in runs_below(home) if path != home]  # with STATUS alone
        beside = [path.parent.name for path in home.parent.glob("*/config.yaml")] if home.parent.is_dir() else []
        hint = f"; it holds {len(inside)} runs, for example {inside[0]}" if inside else nearest(home.name, beside)
        raise CheckpointError(f"{home} is not a run folder: it has no config.yaml{hint}")
    return run
