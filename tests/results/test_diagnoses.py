"""What the diagnostics say round by round: tables written by hand, summed up by NumPy and scipy; every figure drawn."""

import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

import flray
from flray.core.schema.errors import ConfigError
from flray.figure_kinds import DIAGNOSED
from flray.metrics.probes import PROBES
from flray.results import diagnoses
from flray.results.diagnosis_figures import FIGURES
from flray.results.essentials import essentials
from flray.rundir.reader import Run
from tests.support.tables import config, folder, put

DATA = {"source": "synthetic", "options": {"shape": 4, "num_classes": 4, "num_train": 120, "num_test": 40}}
CLIENTS, SERVER = {"place": "end"}, {"place": "finish", "client": -1}


def wrote(path: Path, accuracies: list[float], **tables: list[dict]) -> Run:
    """A run with these test accuracies whose probes wrote these rows."""
    home = folder(path, config(), accuracies)
    for name, rows in tables.items():
        put(home, f"diagnostics/{name}", rows)
    return Run(home)


def test_what_aggregation_wins_back_by_hand(tmp_path: Path) -> None:
    """Two clients, each with one of two classes: each forgets the other's, and their mean knows both again."""
    before, rows = {"acc_before": 0.8, "in_before": 0.8, "out_before": 0.8}, []
    for client, held, classes in ((0, [4, 0], [1.0, 0.2]), (1, [0, 6], [0.0, 0.8])):
        inside, outside = classes[client], classes[1 - client]
        after = {"acc_after": np.mean(classes), "in_after": inside, "out_after": outside, "class_after": classes}
        rows.append({"done": 1, "client": client, **CLIENTS, **before, **after, "held": held})
    server = {"acc_average": 0.75, "class_average": [0.9, 0.6], "acc_global": 0.7, "class_global": [0.5, 0.9]}
    run = wrote(tmp_path / "run", [0.75], local_forgetting=[*rows, {"done": 1, **SERVER, **server}])
    row = diagnoses.recovery(run).iloc[0]
    known = {
        "acc_before": 0.8, "acc_after": 0.5, "acc_average": 0.75, "acc_global": 0.7, "in_after": 0.9, "out_after": 0.1,
        "in_average": 0.75, "out_average": 0.75, "in_global": 0.7, "forgotten": 0.3, "won_back": 0.25,
    }  # fmt: skip
    assert {name: row[name] for name in known} == pytest.approx(known)
    words = "local training loses 30.0 points (80.0 to 50.0 %), aggregation wins back 25.0"
    assert essentials(run)["local forgetting"] == words


def test_a_client_without_tested_classes_is_in_no_mean_of_its_round(tmp_path: Path) -> None:
    """Class 2 has no test sample, and client 1 holds nothing else: `in` is that of client 0 in every model, and out of
    their classes is class 1 for client 0, and classes 0 and 1 for client 1."""
    ins = [(0.5, 1.0), (math.nan, math.nan)]
    rows = [
        {"done": 1, "client": k, **CLIENTS, "acc_before": 0.5, "acc_after": 0.5, "in_before": before, "in_after": after,
         "out_before": 0.5, "out_after": 0.5, "held": held}
        for k, ((before, after), held) in enumerate(zip(ins, ([4, 0, 0], [0, 0, 6]), strict=True))
    ]  # fmt: skip
    of_server = {f"acc_{stage}": 0.5 for stage in ("average", "global")}
    classes = {"class_average": [0.8, 0.4, math.nan], "class_global": [0.6, 0.2, math.nan]}
    server = {"done": 1, **SERVER, **of_server, **classes}
    row = diagnoses.recovery(wrote(tmp_path / "run", [0.5], local_forgetting=[*rows, server])).iloc[0]
    known = {"in_before": 0.5, "in_after": 1.0, "in_average": 0.8, "in_global": 0.6}
    assert {name: row[name] for name in known} == pytest.approx(known)
    assert row["out_average"] == pytest.approx((0.4 + 0.6) / 2) and row["out_global"] == pytest.approx((0.2 + 0.4) / 2)
    untested = wrote(tmp_path / "none", [0.5], local_forgetting=[rows[1], server])
    assert math.isnan(diagnoses.recovery(untested)["in_global"].iloc[0])


def test_memory_drift_and_its_correlation_by_scipy(tmp_path: Path) -> None:
    after, accuracies = np.array([[1.0, 3.0], [0.5, 0.7], [0.2, 0.2], [0.9, 0.1]]), [0.2, 0.5, 0.4, 0.6]
    rows = [
        {"done": done, "client": k, **CLIENTS, "loss_after": value, "drift": value / 2, "flips_safe": 0, "tight": 4 + k,
         **dict.fromkeys(("loss_before", "flips", "gap", "safe", "safe_exact", "gap_least", "drift_most"), 0.1)}
        for done, values in enumerate(after, 1) for k, value in enumerate(values)
    ]  # fmt: skip
    server = [
        {"done": done, **SERVER, "global_drift": 1.0, "global_flips": 0.5, "ensemble_drift": math.nan}
        for done in (1, 2, 3, 4)
    ]
    run = wrote(tmp_path / "run", accuracies, memory=[*rows, *server])
    found, known = diagnoses.correlations(run), stats.pearsonr(after.mean(axis=1), accuracies)
    assert found["loss_after"] == pytest.approx(
        (known.statistic, known.pvalue, 4, np.corrcoef(np.diff(after.mean(axis=1)), np.diff(accuracies))[0, 1])
    )
    assert found["drift"].r == pytest.approx(known.statistic), "r does not change with the scale"
    assert math.isnan(found["global_drift"].r) and found["global_drift"].rounds == 4, "nothing varies"
    assert "ensemble_drift" not in found
    table = diagnoses.memory(run)
    assert table["tight"].tolist() == [4.0] * 4 and table["flips_safe"].tolist() == [0] * 4
    assert f"loss_after: r {known.statistic:.2f} with test/acc" in essentials(run)["memory"]
    _, beside = FIGURES["memory"].figure([run]).axes
    assert beside.get_title(loc="left").startswith(f"a point a round\nFedAvg: r {known.statistic:.2f} (p ")
    assert beside.get_legend() is None  # below the panel it would lie on the label of the axis


def test_constants_of_a_round_are_sums_over_its_clients(tmp_path: Path) -> None:
    rows = [
        {"done": 1, "client": 0, "place": "start", "zeta": 3.0, "descent": 1.0, "cosine": 0.5, "weight": 0.25},
        {"done": 1, "client": 1, "place": "start", "zeta": 1.0, "descent": -0.2, "cosine": 0.1, "weight": 0.75},
    ]
    row = diagnoses.heterogeneity(wrote(tmp_path / "run", [0.5], heterogeneity=rows)).iloc[0]
    assert row["zeta"] == pytest.approx(math.sqrt(0.25 * 9 + 0.75)) and row["descent"] == pytest.approx(0.1)
    assert row["cosine"] == pytest.approx(0.25 * 0.5 + 0.75 * 0.1)
    rows[1]["cosine"] = math.nan  # its gradient is 0: the others' mean is not lowered
    row = diagnoses.heterogeneity(wrote(tmp_path / "zero", [0.5], heterogeneity=rows)).iloc[0]
    assert row["cosine"] == pytest.approx(0.5) and row["descent"] == pytest.approx(0.1)
    rows[1] |= {"zeta": math.inf, "descent": -math.inf}
    row = diagnoses.heterogeneity(wrote(tmp_path / "inf", [0.5], heterogeneity=rows)).iloc[0]
    assert row[["zeta", "descent"]].tolist() == pytest.approx([3.0, 1.0])


def test_a_run_without_the_diagnostic_is_one_line(tmp_path: Path) -> None:
    run = wrote(tmp_path / "run", [0.5])
    for name, (draw, *_) in FIGURES.items():
        with pytest.raises(ConfigError, match=rf"no rows of the diagnostic {name}; run it with diagnostics=\[{name}\]"):
            draw([run])


@pytest.mark.parametrize("skipped", [math.nan, math.inf])
def test_a_skipped_client_is_not_among_those_that_lie_apart(tmp_path: Path, skipped: float) -> None:
    """Two clients at 3 and at -1 on a line, and a third whose update is not finite: their mean is 1, and they lie 4
    apart."""
    rows = [{"done": 1, "client": k, **CLIENTS, "distance": d, "relative": d, "weight": 1 / 3}
            for k, d in enumerate((3.0, 1.0, skipped))]  # fmt: skip
    run = wrote(tmp_path / "run", [0.5], divergence=[*rows, {"done": 1, **SERVER, "moved": 1.0}])
    assert diagnoses.divergence(run)[["distance", "between"]].to_numpy().tolist() == [[2.0, pytest.approx(4.0)]]


def test_no_mean_of_a_round_has_an_update_that_was_skipped(tmp_path: Path) -> None:
    """Client 2 was skipped in round 1: of a model with NaN some answers are right, and some of its layers finite."""
    kinds = ("loss_before", "loss_after", "drift", "gap", "safe", "safe_exact", "tight", "gap_least", "drift_most")
    tables: dict[str, list[dict]] = {"local_forgetting": [], "memory": [], "layers": []}
    for done, client, number in ((1, 0, 0.9), (1, 1, 0.5), (1, 2, 0.1), (2, 2, 0.4)):
        row = {"done": done, "client": client, **CLIENTS}
        known = dict.fromkeys(("in_before", "in_after", "out_before", "out_after", "acc_after"), number)
        tables["local_forgetting"].append({**row, **known, "acc_before": 0.4, "held": [[4, 0], [0, 4]][client // 2]})
        tables["memory"].append({**row, **dict.fromkeys(kinds, 0.1), "flips": number, "flips_safe": 0})
        far = math.inf if (done, client) == (1, 2) else number
        for layer, distance in (("body", far), ("head", number)):
            tables["layers"].append({**row, "layer": layer, "distance": distance, "relative": 0.1, "lambda_mean": 0.1})
    of_server = {"acc_average": 0.7, "acc_global": 0.7, "class_average": [0.8, 0.6], "class_global": [0.8, 0.6]}
    tables["local_forgetting"] += [{"done": done, **SERVER, **of_server} for done in (1, 2)]
    run = wrote(tmp_path / "run", [0.7, 0.7], **tables)
    assert diagnoses.layers(run)["distance"].tolist() == pytest.approx([(0.9 + 0.5 + 0.4) / 3, (1.8 + 0.1) / 4])
    put(run.folder, "clients", [
        {"done": done, "client": client, "skipped": done == 1 and client == 2}
        for done, client in ((1, 0), (1, 1), (1, 2), (2, 2))
    ])  # fmt: skip
    run = Run(run.folder)
    recovery = diagnoses.recovery(run)
    assert recovery["acc_after"].tolist() == pytest.approx([0.7, 0.4])
    assert recovery["forgotten"].tolist() == pytest.approx([-0.3, 0.0])
    assert recovery["in_average"].tolist() == pytest.approx([0.8, 0.6])
    assert diagnoses.memory(run)["flips"].tolist() == pytest.approx([0.7, 0.4])
    assert diagnoses.layers(run)["distance"].tolist() == pytest.approx([0.6, 0.6])
    put(run.folder, "clients", [{"done": d, "client": k, "skipped": True} for d in (1, 2) for k in range(3)])
    assert essentials(Run(run.folder))["local forgetting"] == "unknown: no update was delivered that has an accuracy"


@pytest.mark.parametrize("uplink", [[], [{"name": "clip", "norm": 1.0}]], ids=["buffered", "clip"])
def test_how_far_clients_lie_apart_is_known_from_the_mean_of_their_models_alone(tmp_path: Path, uplink: list) -> None:
    """Clients at 3 and -1 on a line, whose mean is 1, lie 4 apart. A server that gets clipped updates, or adds one of
    them to a newer model, moves by something else."""
    rows = [{"done": done, "client": k, **CLIENTS, "distance": d, "relative": d, "weight": 1 / 2}
            for done in (1, 2) for k, d in enumerate((3.0, 1.0))]  # fmt: skip
    home = folder(tmp_path / "run", config(uplink=uplink), [0.5, 0.5], staleness_max=[0, 1])
    put(home, "diagnostics/divergence", [*rows, *({"done": done, **SERVER, "moved": 1.0} for done in (1, 2))])
    first, second = diagnoses.divergence(Run(home))["between"]
    assert math.isnan(second) and (math.isnan(first) if uplink else first == pytest.approx(4.0))
    said = "between clients unknown (the server has no mean" if uplink else "4 between clients"
    assert said in essentials(Run(home))["divergence"]


def test_the_last_steps_of_a_single_client_are_not_drawn(tmp_path: Path) -> None:
    """Ten clients take two local steps, two of them a third one, a fifth of the clients: its mean is not theirs."""
    rows = [
        {"done": 1, "client": k, "place": "step", "step": step, "cos_global": -0.5 if step < 3 else 0.9}
        for k in range(10)
        for step in (1, 2, 3)
        if step < 3 or k < 2
    ]
    run = wrote(tmp_path / "run", [0.5], conflict=rows)
    table = diagnoses.conflict(run, "step")
    assert table["looks"].tolist() == [10, 10, 2] and table["cos_global"].tolist() == pytest.approx([-0.5, -0.5, 0.9])
    (axis,) = FIGURES["conflict"].figure([run]).axes
    assert max(float(np.max(line.get_xdata())) for line in axis.get_lines()[1:]) == 2
    assert axis.get_xlabel() == "local step (of 25 % of the clients or more)"


def test_steps_without_kappa_are_no_looks(tmp_path: Path) -> None:
    """Kappa is above 0 at one of two looks; in round 2 the memory gradient is 0, and kappa is not defined."""
    steps = ((1, 0.5), (1, -0.25), (1, math.nan), (2, math.nan))
    rows = [{"done": done, "client": 0, "place": "step", "step": 2, "kappa": kappa} for done, kappa in steps]
    assert essentials(wrote(tmp_path / "run", [0.5, 0.5], conflict=rows))["conflict"] == (
        "kappa -0.25 at least, not above 0 in 50.0 % of the looks"
    )
    assert "conflict" in essentials(wrote(tmp_path / "none", [0.5, 0.5], conflict=rows[2:]))["diagnostics"]


@pytest.mark.parametrize("unknown", [math.nan, math.inf])
def test_steps_whose_changes_are_not_known_are_in_no_share(tmp_path: Path, unknown: float) -> None:
    """The proximal loss rises less by FedSOL's step at one of two steps; the third one is of a model that diverged."""
    rows = [
        {"done": 1, "client": 0, "place": "step", "step": step, "prop1_curvature": curvature, "prop1_predicted": 1.0,
         **dict.fromkeys(("prop1_avg_real", "prop1_avg"), avg), **dict.fromkeys(("prop1_sol_real", "prop1_sol"), 1.0),
         **dict.fromkeys(("prop2_sol", "prop2_shifted", "prop2_sol_real", "prop2_shifted_real"), 1.0)}
        for step, curvature, avg in ((1, 0.5, 2.0), (2, -0.5, 0.5), (3, unknown, unknown))
    ]  # fmt: skip
    row = diagnoses.propositions(wrote(tmp_path / "run", [0.5], propositions=rows)).iloc[0]
    assert row[["curved", "protects", "steps"]].tolist() == [0.5, 0.5, 3.0]


def test_a_diagnostic_that_saw_nothing_is_one_line(tmp_path: Path) -> None:
    home = folder(tmp_path / "run", config(diagnostics=["divergence", {"name": "conflict", "every": 3}]), [0.5])
    told = essentials(Run(home))["no rows of"]
    assert told == "divergence, conflict: not due yet, or the algorithm's messages carry no model"


def test_a_figure_of_every_diagnostic(tmp_path: Path) -> None:
    """Of a run over tasks with all of them; and a line of each in what `flray show` prints."""
    every = [name for name in PROBES.names() if name not in ("landscape", "toy_movement")]
    run = flray.run(
        {
            "rounds": 2, "data": DATA, "proxy": {"source": "holdout", "size": 20}, "tasks": {"num_tasks": 2},
            "partition": {"name": "iid", "clients": 2}, "model": {"name": "mlp", "hidden": [4]},
            "algorithm": {"name": "fedavg", "lr": 0.1, "local_epochs": 2, "batch_size": 8},
            "resources": {"executor": "local"}, "diagnostics": every,
        },
        out=tmp_path / "run",
        progress=False,
    )  # fmt: skip
    assert set(FIGURES) == set(DIAGNOSED) and set(run.diagnostics) == set(every)
    for name, (draw, *_) in FIGURES.items():
        axes = Figure().subplots(1, 1 if name in ("divergence", "latent_forgetting") else 2, squeeze=False)[0].tolist()
        assert draw([run], axes) is axes[0].figure and all(axis.has_data() for axis in axes), name
    told = essentials(run)
    spoken = {name.replace("_", " ") for name in FIGURES if name not in ("layers", "latent_forgetting")}
    assert spoken <= set(told) and "no rows of" not in told
    assert len(diagnoses.divergence(run)) == 4 and diagnoses.conflict(run, "step")["step"].iloc[0] == 2
