"""What a command says about wrong words: one line, before anything is read, trained or imported."""

import shlex
from pathlib import Path

import pytest

from tests.support.commands import invoke
from tests.support.messages import mistakes

QUICK = str(Path(__file__).parents[2] / "configs" / "quickstart.yaml")
# the command, with QUICK for the quickstart, and what it says, which goes on behind the | of the next line
MESSAGES = mistakes("""
compare /nowhere --format xml | unknown --format 'xml' (valid: csv, json, latex, markdown, table)
figure forgetting /nowhere | unknown figure 'forgetting': take tasks (after each task) or local_forgetting (in a round)
figure curvse /nowhere | unknown figure 'curvse' (did you mean 'curves'?)
figure regions /nowhere --rounds abc | --rounds abc: give numbers from 1, with commas, e.g. 1,5,20
figure regions /nowhere --rounds 0,1 | --rounds 0,1: give numbers from 1, with commas, e.g. 1,5,20
figure regions /nowhere --out film.gif --style paper | --style writes a PDF, an SVG and a PNG, and film.gif is a film;
    | leave --style out
figure landscape /nowhere --rounds 3 | --rounds changes nothing in flray figure landscape; leave it out
    | (flray figure --help)
figure memory /nowhere --metric test/loss | --metric changes nothing in flray figure memory; leave it out
    | (flray figure --help)
report /nowhere --out page.pdf | unknown report format 'pdf' (valid: html, json, md)
bench --format xml | unknown --format 'xml' (valid: json, markdown, table)
bench --only W9 | unknown benchmark 'W9' (did you mean 'W2'?)
run rounds=2 QUICK | rounds=2 is in the place of the configuration file: write the file first, then key=value
doctor QUICK --nodes 0 | --nodes 0: give numbers from 1, with commas, e.g. 1,8,100
doctor QUICK --nodes 1, | --nodes 1,: give numbers from 1, with commas, e.g. 1,8,100
doctor QUICK --nodes two | --nodes two: give numbers from 1, with commas, e.g. 1,8,100
doctor QUICK --nodes ² | --nodes ²: give numbers from 1, with commas, e.g. 1,8,100
plan QUICK --nodes 1,3 --gpu h100 --measure m.json rounds=2 | flray plan is a table of flray doctor now: flray doctor
    | CONFIG --nodes 1,100
ablate QUICK seed=0,1 --concurrency 0 | --concurrency 0: auto, or a number of at least 1
pretrain QUICK algorithm=fedprox | pretrain trains in one place, algorithm fedprox does not; leave algorithm out
pretrain QUICK seed=0,1 | pretrain trains one model, these overrides make 2; give one value for each key
papers reproduce fedsol/tabel2 | unknown table 'fedsol/tabel2' (did you mean 'fedsol/table2'?)
papers reproduce fedsol/table2 --cells "CIFAR-11, LDA 0.1" | fedsol/table2 has no cell 'CIFAR-11, LDA 0.1' (did you mean
    | 'CIFAR-10, LDA 0.1'?); all of them: flray papers reproduce fedsol
papers reproduce fedsol/table2 --methods FedSOLL | unknown method 'FedSOLL' in fedsol/table2, MNIST, sharding (did you
    | mean 'FedSOL'?)
papers reproduce fedsol/table2 --scale medium | unknown scale 'medium' (valid: full, small)
papers reproduce fedproj/table5 | fedproj/table5 cannot be run: the paper computes it and prints no accuracy
papers reproduce fedsol --cells MNIST | name one table, such as fedsol/table2; flray papers reproduce lists them
papers reproduce fedsol/table2 --cells "MNIST, LDA" rounds=3,4 | fedsol/table2, MNIST, LDA: 48 experiments for 8 rows
    | and 3 seeds; give one value for each key
papers reproduce fedsol/table2 --cells "MNIST, LDA" --margin 1 | --margin: these are not the paper's runs, so only the
    | order is judged; leave --margin out
papers reproduce rounds=3 | rounds=3 stands where a table belongs: the table comes first, then key=value
papers reproduce fedsol/table2 --configs nowhere | the papers' configurations are not in nowhere; name the folder that
    | holds them with --configs DIR, or write them: flray init --paper fedsol
papers reproduce fedsol/table2 --concurrency ² | --concurrency ²: auto, or a number of at least 1
papers reproduce fedsol/table2 data.root=nowhere --cells SVHN | no run of fedsol/table2 is possible here: the data set
    | svhn is not below nowhere
""")


@pytest.mark.parametrize(("words", "message"), MESSAGES, ids=[words for words, _ in MESSAGES])
def test_a_wrong_command_says_in_one_line_what_to_write(words: str, message: list[str]) -> None:
    error = invoke(*([QUICK if word == "QUICK" else word for word in shlex.split(words)])).exception
    assert str(error) == " ".join(message)
