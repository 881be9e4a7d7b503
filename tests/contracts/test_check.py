"""`flray check`: it finds each planted mistake by the contract that is broken, and finds nothing in what is right."""

import json
import re
import subprocess
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from flray.algorithms import built_in
from flray.cli import app
from flray.contracts import checks
from flray.core.schema.errors import FlrayError
from flray.core.schema.hp import Hyperparameter
from tests.contracts.planted import PLANTED
from tests.support.processes import python

ROOT = Path(__file__).parents[2]


def checked(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return python("-m", "flray", "-q", "check", *words, status=None, cwd=folder)


def found(*names: str) -> dict[str, dict[str, str]]:
    """name -> contract -> verdict."""
    done = checked("tests.contracts.planted", *names, "--format", "json")
    assert done.returncode == (1 if any(PLANTED[name][1] for name in names) else 0), done.stderr
    verdicts: dict[str, dict[str, str]] = {name: {} for name in names}
    for row in json.loads(done.stdout):
        verdicts[row["of"]][row["contract"]] = row["verdict"]
    return verdicts


def all_found(verdicts: dict[str, dict[str, str]]) -> None:
    for name, contracts in verdicts.items():
        failed = [contract for contract, verdict in contracts.items() if verdict == "fails"]
        broken = PLANTED[name][1]
        assert (contracts.get("form of the state") == "look") == (name == "grows"), (name, contracts)
        assert (broken in failed) if broken else not failed, (name, contracts)
        if broken != "runs":
            assert {
                "runs",
                "bytes",
                "same bits again",
                "any number of actors",
                "resume",
                "two tasks",
            } <= contracts.keys()


class Mode(Enum):
    SOFT = "soft"
    HARD = "hard"


def test_the_other_value_of_an_enum_is_one_that_a_configuration_takes() -> None:
    experiment: Any = SimpleNamespace(algorithm=SimpleNamespace(mode=Mode.SOFT))
    subject: Any = SimpleNamespace(section="algorithm")
    parameter = Hyperparameter("mode", "choice", Mode.SOFT, "soft | hard", None, "")
    assert checks.other_value(parameter, checks._present(subject, experiment, "mode")) == "hard"


@pytest.mark.parametrize(
    ("name", "recorded"), [pytest.param("clips", "holds", marks=pytest.mark.slow), ("clips-on-the-host", "not tried")]
)
def test_a_step_that_a_gpu_can_repeat_is_told_from_one_that_reads_on_the_host(name: str, recorded: str) -> None:
    """Without a GPU."""
    verdicts = found(name)
    all_found(verdicts)
    assert verdicts[name]["recorded steps"] == recorded


def test_a_client_that_fails_is_not_sent_to_a_run_folder_that_is_not_there() -> None:
    done = checked("tests.contracts.planted", "not-a-number")
    assert done.returncode == 1 and "client" in done.stdout and "seed" in done.stdout
    assert "replay" not in done.stdout + done.stderr and "RUN_FOLDER" not in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_of_fifteen_planted_mistakes_is_found() -> None:
    assert sum(broken is not None for _, broken in PLANTED.values()) >= 15
    verdicts = found(*PLANTED)
    all_found(verdicts)
    assert verdicts["smuggled"]["recorded steps"] == "not tried"  # its class does not state it


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_examples_of_the_guide_hold_what_they_say(tmp_path: Path) -> None:
    """With what each reduces to."""
    guide = (ROOT / "flray" / "algorithms" / "README.md").read_text()
    page = (ROOT / "docs" / "pages" / "how-to" / "compress.md").read_text()
    for code in re.findall(r"```python\n(.*?)```", guide + page, re.S):
        if name := re.match(r"# (\w+)\.py\n", code):
            (tmp_path / f"{name[1]}.py").write_text(code)
    for module, words in {
        "confident": "fedavg beta=0", "nostalgia": "fedavg mu=0", "server_momentum": "fedavg beta=0", "signs": "",
    }.items():  # fmt: skip
        done = checked(module, *(["--reduces-to", words] if words else []), folder=tmp_path)
        assert done.returncode == 0 and "fails" not in done.stdout, done.stdout + done.stderr
    wrong = checked("nostalgia", "--reduces-to", "fedprox mu=0", folder=tmp_path)
    assert wrong.returncode == 1 and re.search("is fedprox +fails", wrong.stdout)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_it_says_nothing_of_what_keeps_the_contracts() -> None:
    """No contract fails of any algorithm of flray that reads tables; FedMemo's window fills: to be looked at."""
    names = built_in(federated=True)
    needy = {"glfc": "images", "lga": "images", "lander": "label embeddings"}
    done = checked("flray.algorithms", *(name for name in names if name not in needy), "--format", "json")
    wrong = [row for row in json.loads(done.stdout) if row["verdict"] != "holds" and row["verdict"] != "not tried"]
    assert done.returncode == 0 and [(row["of"], row["verdict"]) for row in wrong] == [("fedmemo", "look")], wrong
    refused = checked("flray.algorithms", *needy)
    assert refused.returncode == 1 and all(words in refused.stdout for words in needy.values())


@pytest.mark.slow
def test_a_package_registers_what_its_modules_define(tmp_path: Path) -> None:
    """And a name for a class of another place; a broken entry of another module is not touched."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "algos.py").write_text(
        "from flray.algorithms.fedavg import FedAvg\nclass Mine(FedAvg, frozen=True):\n    pass\n"
    )
    (tmp_path / "mine" / "__init__.py").write_text(
        "from flray.algorithms import ALGORITHMS\nfrom flray.algorithms.fedprox import FedProx\n"
        "from mine.algos import Mine\n"
        "ALGORITHMS.add('mine', Mine)\nALGORITHMS.add('theirs', FedProx)\nALGORITHMS.add('broken', 'nowhere:Else')\n"
    )
    wrong = checked("mine", "broken", folder=tmp_path)
    assert wrong.returncode == 2 and "cannot import 'nowhere'" in wrong.stderr
    named = checked("mine", "yours", folder=tmp_path)
    assert named.returncode == 2 and "registers no 'yours'; it has mine, theirs, broken" in named.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["nowhere"], "cannot import 'nowhere'"),
        (["my_algorithm.py"], "'my_algorithm.py' is a file; write the name of its module: my_algorithm"),
        (["json"], "registers no algorithm, aggregation or uplink"),
        (["tests.contracts.planted", "wrong"], "registers no 'wrong'"),
        (["tests.contracts.planted", "--reduces-to", "fedavg mu=0"], "name it"),
        (["tests.contracts.planted", "right", "--reduces-to", "fedavg"], "write a name and own options"),
        (["tests.contracts.planted", "right", "algorithm.lr=fast"], "algorithm.lr"),
    ],
)
def test_a_mistake_of_the_command_is_one_line(words: list[str], problem: str) -> None:
    refused = CliRunner().invoke(app, ["check", *words]).exception
    assert isinstance(refused, FlrayError) and problem in str(refused) and "\n" not in str(refused)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("first\nsecond", "PlainError: first"),
        ("\n  indented\nmore", "PlainError: indented"),
        ("", "PlainError: no message"),
        (7, "PlainError: (its __str__ raises TypeError)"),
    ],
)
def test_an_error_that_is_not_flrays_is_told_by_its_first_line(text, told):
    class PlainError(Exception):
        def __str__(self):
            return text

    def work():
        raise PlainError

    with pytest.raises(FlrayError) as caught:
        checks.forked(work)
    assert str(caught.value) == told
