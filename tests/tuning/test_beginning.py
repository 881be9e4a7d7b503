"""What a sweep began with, and what refuses to go on as another one: the folder, its study, a database that is shared.

Nothing is trained. The right answer is always the same: a change of a key that decides a trial is refused with the key
and both values, and any other resume goes on.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import optuna
import pandas
import pytest
import yaml

from flray.core.schema.errors import CheckpointError, ConfigError, DataError
from flray.engine.prepare import build_data, build_scenario
from flray.rundir.lock import FolderLock
from flray.tuning import beginning
from flray.tuning.beginning import ATTRIBUTE, NAME, read_beginning
from flray.tuning.config import Sweep
from flray.tuning.report import write_table
from flray.tuning.studies import JOURNAL, Studies
from flray.tuning.sweep import _begin, _fingerprints
from flray.tuning.sweep_file import load_sweep
from flray.tuning.sweep_folder import CONFIG, take_folder
from flray.tuning.trials import trials_table
from tests.support.iris_sweep import EXPERIMENT, SPACE, ended, iris_sweep
from tests.support.messages import facts

PRINTS = {"data": "aa", "partition": "bb", "proxy": None, "weights": None, "modules.mine": "cc"}


def start(sweep: Sweep, folder: Path, prints: dict[str, Any] = PRINTS, resume: bool = False) -> Studies:
    """What `run_sweep` does before its first trial."""
    lock: FolderLock = take_folder(folder, sweep, resume)
    try:
        studies = _begin(sweep, folder, lock, resume, prints)
    finally:
        lock.release()
    studies._check = lambda: None  # which would miss the lock
    return studies


def resumed(folder: Path, *overrides: str, prints: dict[str, Any] = PRINTS) -> Studies:
    return start(load_sweep(folder / CONFIG, overrides), folder, prints, resume=True)


def one_trial(studies: Studies) -> None:
    """A trial that ends, with its run's folder."""
    key, _, home = studies.next()
    home.mkdir(parents=True)
    studies.tell(key, ended(0.5))


@pytest.fixture(params=["journal", "database"])
def begun(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A sweep that has ended one trial, in a journal and in a database."""
    url = None if request.param == "journal" else f"sqlite:///{tmp_path}/studies.db"
    studies = start(iris_sweep(trials=4, study=url), tmp_path / "s")
    one_trial(studies)
    return tmp_path / "s"


def edit(folder: Path, *path: str, value: Any) -> None:
    """As with an editor, in `sweep.yaml`."""
    content = yaml.safe_load((folder / CONFIG).read_text())
    section = content
    for name in path[:-1]:
        section = section.setdefault(name, {})
    section[path[-1]] = value
    (folder / CONFIG).write_text(yaml.safe_dump(content, sort_keys=False))


# an edited sweep.yaml ----------------------------------------------------------------------------
DECIDING = [
    (("experiment", "rounds"), 9, "experiment.rounds is 6 there, 9 here"),
    (("experiment", "seed"), 5, "experiment.seed is 0 there, 5 here"),
    (("experiment", "data", "standardize"), False, "experiment.data.standardize is True there, False here"),
    (("experiment", "partition", "clients"), 5, "experiment.partition.clients is 4 there, 5 here"),
    (
        ("experiment", "evaluate", "validation", "fraction"),
        0.5,
        "experiment.evaluate.validation.fraction is 0.25 there",
    ),
    (("experiment", "resources", "store"), "files", "experiment.resources.store is memory there, files here"),
    (("space", "algorithm.lr", "log"), [0.01, 0.5], "space.algorithm.lr.log is [0.001, 0.5] there, [0.01, 0.5] here"),
    (
        ("space", "algorithm.perturb", "choice"),
        ["all", "head"],
        "space.algorithm.perturb.choice is ['head', 'all'] there",
    ),
    (("objective",), {"val/acc": "min"}, "objective.val/acc is max there, min here"),
    (("objective",), {"val/loss": "min"}, "objective.val/loss is missing there, min here"),
    (("scheduler",), {"name": "asha", "grace": 2}, "scheduler.name is none there, asha here"),
    (("seed",), 5, "seed is 0 there, 5 here"),
    (("sampler",), "random", "sampler is tpe there, random here"),
    (("name",), "other", "name is tiny there, other here"),
]


@pytest.mark.parametrize(("path", "value", "said"), DECIDING)
def test_an_edited_sweep_is_refused_with_the_key_and_both_values(
    tmp_path: Path, path: tuple[str, ...], value: Any, said: str
) -> None:
    folder = tmp_path / "s"
    one_trial(start(iris_sweep(trials=4), folder))
    edit(folder, *path, value=value)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    with pytest.raises(CheckpointError, match=facts("holds another sweep: ", said, "a resume may change trials")):
        resumed(folder)
    assert before == {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}, "nothing was written"


@pytest.mark.parametrize(
    ("space", "tables", "change", "said"),
    [
        (
            {"partition": ["iid", "dirichlet"]},
            {"partition": {"name": "dirichlet", "clients": 4, "alpha": 0.5}},
            "partition.alpha=5",
            "experiment.partition=dirichlet.alpha is 0.5 there, 5.0 here",
        ),
        (
            {"model": ["small_cnn", "mlp"]},
            {"data": "digits", "models": {"mlp": {"hidden": [8]}}},
            "models.mlp.hidden=[64]",
            "experiment.model=mlp.hidden is [8] there, [64] here",
        ),
    ],
)
def test_an_option_that_the_first_value_of_a_list_hides_is_compared(
    tmp_path: Path, space: dict[str, Any], tables: dict[str, Any], change: str, said: str
) -> None:
    """The first trial's section has no such option. Later trials and the final runs mixed both values."""
    folder = tmp_path / "s"
    one_trial(start(iris_sweep(experiment={**EXPERIMENT, **tables}, space={**SPACE, **space}), folder))
    with pytest.raises(CheckpointError, match=facts("holds another sweep: ", said)):
        resumed(folder, change)
    assert len(resumed(folder).ended()) == 1


def test_what_does_not_decide_a_trial_may_change(begun: Path) -> None:
    edit(begun, "experiment", "resources", "client_actors", value=2)
    edit(begun, "experiment", "address", value="auto")
    edit(begun, "experiment", "checkpoint", "every", value=3)
    studies = resumed(begun, "trials=9", "hours=2", "client_steps=1000", "concurrency=2", "final.top=0")
    assert studies.sweep.trials == 9 and len(studies.ended()) == 1
    stored = yaml.safe_load((begun / CONFIG).read_text())
    assert (stored["trials"], stored["experiment"]["checkpoint"]["every"]) == (9, 3)
    assert resumed(begun).next()[0] == "0001", "and again"
    with pytest.raises(CheckpointError, match=facts("already holds a sweep", f"flray sweep {begun} --resume")):
        start(load_sweep(begun / CONFIG), begun)


def test_the_record_is_in_the_folder_and_in_the_study(begun: Path) -> None:
    sweep = yaml.safe_load((begun / CONFIG).read_text())
    record = read_beginning(begun)
    assert record is not None and record.sweep == sweep and record.fingerprints == PRINTS
    (study,) = resumed(begun).groups.values()
    assert study.user_attrs[ATTRIBUTE] == record._asdict()


# what is outside of sweep.yaml -----------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "kind"),
    [("data", DataError), ("partition", DataError), ("weights", ConfigError), ("modules.mine", ConfigError)],
)
def test_data_and_modules_that_changed_are_refused(begun: Path, name: str, kind: type[Exception]) -> None:
    words = name.replace("modules.", "source of module ")
    with pytest.raises(kind, match=facts(words, "changed since the sweep began", "dd", "restore it")):
        resumed(begun, prints={**PRINTS, name: "dd"})
    assert len(resumed(begun).ended()) == 1


def test_an_edit_of_a_module_or_of_a_table_changes_its_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, rows = (
        tmp_path / "mine_of_test.py",
        pandas.DataFrame({"a": [n % 7 for n in range(60)], "label": [0, 1] * 30}),
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("mine_of_test", None)  # of an earlier test's folder
    (tmp_path / "rows").mkdir()
    module.write_text("import flray\n")
    data = {"source": "rows", "root": str(tmp_path)}
    sweep = iris_sweep(experiment={**EXPERIMENT, "data": data, "imports": ["mine_of_test"]})

    def prints(source: str, table: pandas.DataFrame) -> dict[str, Any]:
        module.write_text(source)
        table.to_parquet(tmp_path / "rows" / "train.parquet", index=False)
        first = sweep.experiment(sweep.search_space.example())
        read = build_data(first)
        return _fingerprints(sweep, read, build_scenario(first, read))

    whole = prints("import flray\n", rows)
    for now, name in (
        (prints("import flray  # edited\n", rows), "modules.mine_of_test"),
        (prints("import flray\n", rows.assign(a=rows["a"] + 1)), "data"),
    ):
        assert {key for key in whole if whole[key] != now[key]} == {name}


@pytest.mark.filterwarnings("ignore:.*given whole")
def test_fingerprints_are_those_of_every_value_of_a_list(tmp_path: Path) -> None:
    """The second data, and the second partition; and modules. A record of before has none of a list's."""
    root = tmp_path / "rows"
    root.mkdir()
    pandas.DataFrame({"a": [n % 7 for n in range(60)], "label": [0, 1] * 30}).to_parquet(root / "train.parquet")
    space = {
        **SPACE,
        "data": ["iris", {"source": "rows", "root": str(tmp_path)}],
        "partition": ["iid", {"name": "iid", "clients": 3}],
    }
    sweep = iris_sweep(space=space, experiment={**EXPERIMENT, "imports": ["tests.contracts.networks"]})
    first = sweep.experiment(sweep.search_space.example())

    def prints() -> dict[str, Any]:
        data = build_data(first)
        return _fingerprints(sweep, data, build_scenario(first, data))

    whole = prints()
    (of_rows,) = [name for name in whole if name.startswith("data of data=")]
    (of_three,) = [name for name in whole if name.startswith("partition of partition=")]
    assert whole[of_rows] != whole["data"] and whole[of_three] != whole["partition"]
    assert "modules.tests.contracts.networks" in whole
    pandas.DataFrame({"a": [n % 7 for n in range(60)], "label": [1, 0] * 30}).to_parquet(root / "train.parquet")
    now = prints()
    assert now[of_rows] != whole[of_rows] and now["data"] == whole["data"] and now[of_three] == whole[of_three]
    folder = tmp_path / "s"
    start(sweep, folder, whole)
    with pytest.raises(DataError, match=facts("data of data=", "changed since the sweep began")):
        resumed(folder, prints=now)
    before = {name: value for name, value in whole.items() if " of " not in name}
    start(sweep, tmp_path / "old", before)
    assert resumed(tmp_path / "old", prints=now).ended() == []


def test_the_file_that_extends_names_is_read_once(tmp_path: Path) -> None:
    """Edited later it changes no resume, since `sweep.yaml` is complete; the same command again is another sweep."""
    base = {"extends": "base.yaml"}
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"name": "tiny", "experiment": base, "space": SPACE}))
    one_trial(start(load_sweep(tmp_path / "sweep.yaml"), tmp_path / "s"))
    (tmp_path / "base.yaml").write_text(yaml.safe_dump({**EXPERIMENT, "rounds": 9}))
    assert resumed(tmp_path / "s").sweep.experiment({}).rounds == 6
    with pytest.raises(CheckpointError, match=facts("experiment.rounds is 6 there, 9 here")):
        start(load_sweep(tmp_path / "sweep.yaml"), tmp_path / "s")


# lost, damaged, earlier, moved, copied ---------------------------------------------------------
@pytest.mark.parametrize("content", [None, b"", b"{", b"junk\xff", b'{"id": 5}'])
def test_the_folders_record_comes_back_from_the_study(begun: Path, content: bytes | None) -> None:
    record = read_beginning(begun)
    (begun / NAME).unlink() if content is None else (begun / NAME).write_bytes(content)
    edit(begun, "experiment", "rounds", value=9)
    with pytest.raises(CheckpointError, match=facts("experiment.rounds is 6 there, 9 here")):
        resumed(begun)
    edit(begun, "experiment", "rounds", value=6)
    with pytest.raises(DataError, match="the data changed"):
        resumed(begun, prints={**PRINTS, "data": "dd"})
    resumed(begun)
    assert read_beginning(begun) == record


def test_trials_without_a_record_are_refused(begun: Path) -> None:
    """Neither the folder nor the study has one, so nothing says that the seed was another one."""
    (study,) = resumed(begun).groups.values()
    study.set_user_attr(ATTRIBUTE, None)
    (begun / NAME).unlink()
    with pytest.raises(CheckpointError, match="has trials, and neither it nor the folder has a record"):
        resumed(begun, "seed=5")
    with pytest.raises(CheckpointError, match="already holds a sweep"):
        start(iris_sweep(name="other"), begun)


def test_a_study_of_another_sweep_is_refused(tmp_path: Path) -> None:
    """The journal of a sweep with five instead of six rounds lies in the folder, or one of the same configuration."""
    one_trial(start(iris_sweep(trials=4), tmp_path / "s"))
    one_trial(start(iris_sweep(trials=4, experiment={**EXPERIMENT, "rounds": 5}), tmp_path / "other"))
    one_trial(start(iris_sweep(trials=4), tmp_path / "twin"))
    for name, said in (("other", "experiment.rounds is 5 there, 6 here"), ("twin", "it began apart")):
        shutil.copy(tmp_path / name / JOURNAL, tmp_path / "s" / JOURNAL)
        with pytest.raises(CheckpointError, match=facts("holds another sweep under the name tiny", said)):
            resumed(tmp_path / "s")


def test_another_version_of_flray_has_another_default(begun: Path) -> None:
    """Of a key that the sweep's file does not have: the trials before and after would differ."""
    record = read_beginning(begun)
    (study,) = resumed(begun).groups.values()
    experiment = {**record.experiment, "cohort": {**record.experiment["cohort"], "dropout": 0.125}}
    old = record._replace(flray="0.0.9", experiment=experiment)
    study.set_user_attr(ATTRIBUTE, old._asdict())
    beginning.write_beginning(begun, old)
    with pytest.raises(CheckpointError, match=facts("experiment.cohort.dropout is 0.125 there, 0.0 here; set it")):
        resumed(begun)
    del experiment["cohort"]["dropout"]  # which came later
    beginning.write_beginning(begun, old)
    with pytest.raises(CheckpointError, match=facts("dropout is missing there, 0.0 here; take it out, or, if another")):
        resumed(begun)


def test_a_folder_that_was_moved_goes_on(begun: Path) -> None:
    begun.rename(begun.with_name("elsewhere"))
    studies = resumed(begun.with_name("elsewhere"))
    key, _, home = studies.next()
    assert key == "0001" and home == begun.with_name("elsewhere") / "trials" / "0001"


def test_a_relative_database_is_the_same_from_every_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sqlite:///s.db`: a table written from another directory had no rows, and left an empty database there."""
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    one_trial(start(iris_sweep(trials=4, study="sqlite:///./s.db"), tmp_path / "s"))
    assert yaml.safe_load((tmp_path / "s" / CONFIG).read_text())["study"] == f"sqlite:///{tmp_path}/s.db"
    monkeypatch.chdir(other)
    assert len(trials_table(tmp_path / "s")) == len(resumed(tmp_path / "s").ended()) == 1
    assert list(other.iterdir()) == []


def test_a_sweep_of_before_with_a_relative_database_opens_where_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere nothing is written."""
    other, folder = tmp_path / "other", tmp_path / "s"
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    one_trial(start(iris_sweep(trials=4, study="sqlite:///s.db"), folder))
    edit(folder, "study", value="sqlite:///s.db")
    assert len(trials_table(folder)) == 1
    write_table(folder)
    table = (folder / "sweep.parquet").read_bytes()
    monkeypatch.chdir(other)
    for opened in (trials_table, write_table, resumed):
        with pytest.raises(CheckpointError, match=facts(f"{other}/s.db", "is not there", "where the sweep began")):
            opened(folder)
    (other / "s.db").touch()
    with pytest.raises(CheckpointError, match=facts("its study is not in sqlite:///s.db", "where the sweep began")):
        write_table(folder)
    assert (folder / "sweep.parquet").read_bytes() == table
    monkeypatch.chdir(tmp_path)
    assert len(resumed(folder).ended()) == 1


def test_a_copy_goes_on_apart_in_a_journal_and_not_at_all_in_a_shared_database(begun: Path) -> None:
    copy = begun.with_name("copy")
    shutil.copytree(begun, copy)
    if (begun / JOURNAL).exists():
        one_trial(resumed(copy))
        assert (len(trials_table(copy)), len(trials_table(begun))) == (2, 1)
        return
    with pytest.raises(CheckpointError, match=facts("belongs to the sweep in", "of which", "is a copy")):
        resumed(copy)
    shutil.rmtree(begun)
    assert len(resumed(copy).ended()) == 1


def test_who_lost_the_study_in_a_database_writes_nothing_more_to_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/studies.db"
    first = start(iris_sweep(trials=4, study=url), tmp_path / "s")
    (tmp_path / "s").rename(tmp_path / "moved")
    second = resumed(tmp_path / "moved")
    with pytest.raises(CheckpointError, match=facts("was taken over by", "moved", "this process stops")):
        first.next()
    assert second.next()[0] == "0000" and len(second.groups[None].get_trials()) == 1


def test_a_second_sweep_of_a_database_is_told_what_differs(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/studies.db"
    start(iris_sweep(study=url), tmp_path / "a")
    with pytest.raises(CheckpointError, match=facts("already holds tiny; give this sweep another name", "same config")):
        start(iris_sweep(study=url), tmp_path / "b")
    with pytest.raises(CheckpointError, match=facts("already holds tiny", "seed is 0 there, 5 here")):
        start(iris_sweep(study=url, seed=5), tmp_path / "c")
    for folder in ("b", "c"):
        assert not list((tmp_path / folder).glob("[!.]*")), "nothing is left of it"
    assert len(optuna.get_all_study_names(url)) == 1


def test_studies_of_another_sweep_are_not_in_the_table(tmp_path: Path) -> None:
    """`tiny` and, with a budget for each algorithm, `tiny/fedprox` and `tiny/fedsol` in one database."""
    url = f"sqlite:///{tmp_path}/studies.db"
    space = {"algorithm": {"choice": ["fedprox", "fedsol"]}}
    for name, changes in (("a", {}), ("b", {"space": space, "budget_per": "algorithm"})):
        studies = start(iris_sweep(study=url, **changes), tmp_path / name)
        one_trial(studies)
    assert len(trials_table(tmp_path / "a")) == len(trials_table(tmp_path / "b")) == 1


def test_a_password_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as error:
        Studies(iris_sweep(study="nosuch://me:secret@host/db"), tmp_path)
    assert "secret" not in str(error.value) and "nosuch://me:***@host/db" in str(error.value)
