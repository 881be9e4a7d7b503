"""User-level privacy through the engine's rounds: the accountant, what the noise hides, cohorts, resume, refusals."""

import math
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import flray
from flray.algorithms.fedavg import FedAvg
from flray.config.experiment import CohortConfig
from flray.config.suited import cautions
from flray.contracts.played import Local, bits, executor_of
from flray.core.messages import Cohort
from flray.core.protocol.aggregation import Aggregated, Aggregation
from flray.core.protocol.clock import Clock
from flray.core.protocol.seeding import rng
from flray.core.schema.errors import ConfigError
from flray.doctor import examine
from flray.engine.cohort import sample_cohort
from flray.engine.prepare import build_data, build_scenario
from flray.uplink import Received, Receiver, accountant
from flray.uplink.fits import private_cohort
from flray.uplink.gaussian import Gaussian
from tests.contracts.table import experiment
from tests.support.outcome import contents

opacus = pytest.importorskip("opacus")
KEEP = {"buffers": "keep"}
PRIVATE = [{"name": "clip", "norm": 0.5}, {"name": "gaussian", "noise": 1.0}]
ADAPTIVE = [
    {"name": "clip", "norm": 0.5, "adaptive": 0.5, "adaptive_noise": 3.0},
    {"name": "quantize", "bits": 4, "bucket": 16},
    {"name": "gaussian", "noise": 1.0},
]
POISSON = {"size": 3, "sampling": "poisson"}


def private(uplink=PRIVATE, options=KEEP, name="fedavg", **sections):
    return experiment(name, options, uplink=uplink, **sections)


@pytest.mark.parametrize("rate", [0.01, 0.2, 1.0])
@pytest.mark.parametrize("noise", [0.6, 1.1, 4.0])
@pytest.mark.parametrize("rounds", [1, 100])
def test_epsilon_is_that_of_opacus(noise, rate, rounds):
    theirs = opacus.accountants.RDPAccountant()
    theirs.history = [(noise, rate, rounds)]
    alphas = list(accountant.ORDERS)
    assert accountant.spent_epsilon(noise, [(rate, rounds)], 1e-5) == pytest.approx(
        theirs.get_epsilon(1e-5, alphas=alphas), rel=1e-12
    )
    twice = accountant.spent_epsilon(noise, [(rate, rounds), (rate, 1)], 1e-5)
    assert twice == pytest.approx(accountant.spent_epsilon(noise, [(rate, rounds + 1)], 1e-5))


@pytest.mark.parametrize(
    ("epsilon", "rate", "rounds"),
    [(1.0, 0.1, 50), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(8.0, 0.3, 20), (0.2, 0.01, 3)])],
)
def test_the_noise_of_an_epsilon_is_the_smallest_that_keeps_to_it(epsilon, rate, rounds):
    noise = accountant.noise_for(epsilon, 1e-5, [(rate, rounds)])
    assert accountant.spent_epsilon(noise, [(rate, rounds)], 1e-5) <= epsilon
    assert accountant.spent_epsilon(noise * (1 - 1e-3), [(rate, rounds)], 1e-5) > epsilon
    from opacus.accountants.utils import get_noise_multiplier

    how = {"target_epsilon": epsilon, "target_delta": 1e-5, "sample_rate": rate, "steps": rounds, "accountant": "rdp"}
    assert noise == pytest.approx(get_noise_multiplier(**how, epsilon_tolerance=1e-3), rel=0.02)
    halves = accountant.noise_for(epsilon, 1e-5, [(rate, rounds), (rate, rounds)])
    assert halves == pytest.approx(accountant.noise_for(epsilon, 1e-5, [(rate, 2 * rounds)]), rel=1e-4)


def advantage(noise):
    """Of an adversary that knows all updates but one client's, and says "it took part" above a threshold: true minus
    false positives over 4,000 means of one coordinate, clipped to 1, q N = 4; and the bound that epsilon gives,
    (e^epsilon - 1 + 2 delta) / (e^epsilon + 1)."""
    gaussian, guesses = Gaussian(noise=noise), []
    state = {"noise": noise, "renyi": torch.zeros(len(accountant.ORDERS), dtype=torch.float64)}
    for there in (True, False):
        for draw in range(4000):
            ctx = SimpleNamespace(
                cohort_size=4,
                population=4,
                mask=lambda part: torch.ones(1),
                rng=lambda *purpose, address=(there, draw): rng(0, *map(int, address), *purpose),
            )
            mean = Received(torch.tensor([1.0 / 4 if there else 0.0]), 4, norm=1.0)
            after, _ = gaussian.pooled(Receiver(ctx, "gaussian", state, True, True, ((1.0, 1),)), mean)
            guesses.append(float(after.w) > 0.5 / 4)
    found = np.mean(guesses[:4000]) - np.mean(guesses[4000:])
    epsilon, delta = accountant.spent_epsilon(noise, [(1.0, 1)], 1e-5), 1e-5
    return found, math.tanh(epsilon / 2) + 2 * delta


@pytest.mark.slow
def test_a_membership_test_on_the_mean_stays_under_the_bound_of_epsilon_and_works_without_noise():
    found, bound = advantage(1.5)
    assert 0.1 < found < bound + 4 / math.sqrt(4000) and bound < 0.98
    exact = math.erf(0.5 / 1.5 / math.sqrt(2))  # of two Gaussians a distance of 1 apart
    assert found == pytest.approx(exact, abs=0.05)
    assert advantage(0.01)[0] == 1.0, "next to no noise hides nothing"


def test_poisson_cohorts_have_each_client_independently():
    config, sizes, together = CohortConfig(size=3, sampling="poisson"), [], np.zeros((10, 10))
    for round in range(3000):
        drawn = sample_cohort(config, 5, Clock(round=round), range(10))
        assert len(set(drawn.tolist())) == len(drawn)
        there = np.isin(np.arange(10), drawn)
        together += np.outer(there, there)
        sizes.append(len(drawn))
    assert np.mean(sizes) == pytest.approx(3, abs=0.1) and np.var(sizes) == pytest.approx(2.1, abs=0.2)
    frequencies = together / 3000
    assert np.allclose(np.diag(frequencies), 0.3, atol=0.04)
    assert np.allclose(frequencies[~np.eye(10, dtype=bool)], 0.09, atol=0.03), "P(both) = q^2"
    assert 0 in sizes
    again = sample_cohort(config, 5, Clock(round=7), range(10))
    assert again.tolist() == sample_cohort(config, 5, Clock(round=7), range(10)).tolist()


def empty_round(config):
    """The first round whose cohort is empty."""
    return next(
        r for r in range(200) if not len(sample_cohort(config.cohort, config.seed, Clock(round=r, done=r), range(5)))
    )


def test_an_empty_cohort_has_noise_in_a_private_run_and_is_skipped_and_said_in_another(tmp_path):
    cohort = {"size": 1, "sampling": "poisson"}
    rounds = empty_round(private(cohort=cohort)) + 1
    config = private(cohort=cohort, rounds=rounds, evaluate={"every": 0})
    local = Local(config, tmp_path / "private")
    before = local.play(rounds - 1).w.clone()
    moved = local.play(1).w - before
    assert local.rows[-1]["up"] == 0 and local.rows[-1]["dp/epsilon"] > local.rows[-2]["dp/epsilon"]
    mask = local.server.runtime.objective.mask("all") > 0
    assert float(moved[mask].std()) == pytest.approx(0.5, rel=0.2) and not moved[~mask].any()
    plain = experiment("fedavg", cohort=cohort, rounds=rounds, evaluate={"every": 0}, resources={"executor": "local"})
    with pytest.warns(UserWarning, match=r"is skipped, no client was drawn for it \(cohort\.sampling: poisson\)"):
        run = flray.run(plain, out=tmp_path / "plain")
    assert run.rounds["exchanges_skipped"].iloc[-1] == "train" and run.rounds["cohort_size"].iloc[-1] == 0


@pytest.mark.parametrize("per_cohort", [False, True])
def test_latent_forgetting_has_no_row_of_a_round_that_nobody_joins(tmp_path, per_cohort):
    """Its update is the server's noise, and sum_k p_k^2 is 0; the detector is that of the other rounds."""
    cohort = {"size": 1, "sampling": "poisson"}
    probe = {"name": "latent_forgetting", "per_cohort": per_cohort, "m": 2}
    rounds, few = (
        empty_round(private(cohort=cohort)) + 2,
        {"evaluate": {"every": 0}, "resources": {"executor": "local"}},
    )
    config = private(cohort=cohort, rounds=rounds, diagnostics=[probe], **few)
    run = flray.run(config, out=tmp_path / "run", progress=False)
    table, joined = run.diagnostics["latent_forgetting"], run.rounds["cohort_size"] > 0
    assert not joined.all() and table["round"].tolist() == run.rounds["round"][joined].tolist()
    judged = table["wv"] / table["concentration"] if per_cohort else table["wv"]
    expected = [np.mean(judged[max(0, n - 1) : n + 1]) for n in range(len(table))]
    np.testing.assert_allclose(table["smoothed"], expected, rtol=1e-12)


def test_every_client_counts_the_same_over_the_fixed_denominator(tmp_path):
    """Next to no noise: w + sum_k clip(w_k - w) / (q N), for a cohort that is larger or smaller than q N."""
    trained, sizes = [], []

    def watch(half, function, *arguments):
        result = function(*arguments)
        if half == "client":
            trained.append(result.update.w - arguments[2].w)
        return result

    noiseless = [{"name": "clip", "norm": 0.1}, {"name": "gaussian", "noise": 1e-6}]
    local = Local(private(noiseless, cohort=POISSON), tmp_path, watch)
    for _ in range(4):
        before = local.state.w.clone()
        trained.clear()
        after = local.play(1).w
        parts = [x * min(1.0, 0.1 / float(x.norm())) for x in trained]
        expected = before + sum(parts) / 3 if parts else before
        torch.testing.assert_close(after, expected, atol=2e-6, rtol=0)
        sizes.append(len(parts))
    assert set(sizes) - {3}, "cohorts of other sizes than q N"


@pytest.mark.parametrize("uplink", [PRIVATE, ADAPTIVE])
def test_the_same_bits_in_chunks_and_after_a_stop(tmp_path, uplink):
    config = private(uplink, cohort=POISSON, resources={"server": {"threads": 1}})
    local = Local(config, tmp_path / "one")
    in_chunks = Local(config, tmp_path / "three")
    in_chunks.chunks = 3
    local.play(2)
    in_chunks.play(2)
    local.executor.store.save(1)
    again = Local(config, tmp_path / "one")
    again.position = again.executor.store.load()
    ends = [bits(one.play(2)) for one in (local, in_chunks, again)]
    assert ends[0] == ends[1] == ends[2]
    last = [{k: v for k, v in one.rows[-1].items() if k[:3] in ("dp/", "cli")} for one in (local, in_chunks, again)]
    assert last[0] == last[1] == last[2] and ("clip/norm" in last[0]) == (uplink is ADAPTIVE)


def test_bits_and_norms_are_counted(tmp_path):
    local, plain = Local(private(ADAPTIVE), tmp_path / "a"), Local(private(ADAPTIVE[1:2]), tmp_path / "b")
    local.play(2), plain.play(2)
    for row, other in zip(local.rows, plain.rows, strict=True):
        assert row["up"] - other["up"] == 3 and row["down"] - other["down"] == 3 * 8  # a bit takes a byte


def test_epsilon_is_exact_only_for_poisson_cohorts(tmp_path):
    for sections, name in (({"cohort": POISSON}, "dp/epsilon"), ({}, "dp/epsilon_if_poisson")):
        row = Local(private(**sections), tmp_path / name)
        row.play(1)
        assert name in row.rows[0] and row.rows[0]["dp/noise"] == 1.0
    everyone = Local(private(cohort={"size": 5}), tmp_path / "all")
    everyone.play(1)
    assert everyone.rows[0]["dp/epsilon"] == pytest.approx(accountant.spent_epsilon(1.0, [(1.0, 1)], 1e-5))


# noise of each client -----------------------------------------------------------------------------
OWN = [PRIVATE[0], {"name": "gaussian", "where": "client", "noise": 2.0}]
OWN_EPSILON = [PRIVATE[0], {"name": "gaussian", "where": "client", "epsilon": 1.0}]
DEVICES = {"speed": {"name": "lognormal", "sigma": 1.0}}
LISTED = "round,client\n1,0\n1,1\n2,0\n2,3\n"


def of_opacus(*history, delta=1e-5):
    """Epsilon after (noise, rate, rounds), ..."""
    theirs = opacus.accountants.RDPAccountant()
    theirs.history = list(history)
    return theirs.get_epsilon(delta, alphas=list(accountant.ORDERS))


@pytest.fixture
def places(tmp_path):
    """Who takes part hangs on the devices, or on a file: by name the sections of a run of two rounds."""
    (tmp_path / "cohorts.csv").write_text(LISTED)
    away = {**DEVICES, "availability": {"name": "windows", "period": 1e-3, "share": 0.6}}
    return {
        "over_selected": {"devices": DEVICES, "coordination": {"name": "over_selected", "share": 0.5}},
        "buffered": {"devices": DEVICES, "coordination": {"name": "buffered", "size": 2, "concurrency": 4}},
        "from": {"cohort": {"from": str(tmp_path / "cohorts.csv")}},
        "availability": {"devices": away},
    }


@pytest.mark.parametrize("name", ["over_selected", "buffered", "from", "availability"])
def test_clients_that_are_not_drawn_among_all_may_be_in_every_round(tmp_path, places, name):
    """Their own noise is accounted for at the rate 1, whether its sigma is given or follows from the epsilon of one
    update. `availability` has the server's noise, too."""
    parts = {"rounds": 2, "evaluate": {"every": 0}, "resources": {"executor": "local"}, **places[name]}
    found = flray.run(private(OWN, **parts), out=tmp_path / name, progress=False)
    assert found.rounds["dp/epsilon"].tolist() == pytest.approx([of_opacus((2.0, 1.0, n)) for n in (1, 2)])
    assert not [said for said in cautions([private(OWN, **parts)]) if "epsilon" in said]
    if name == "availability":
        row = flray.run(private(**parts), out=tmp_path / "server", progress=False).rounds.iloc[-1]
        assert row["dp/epsilon"] == pytest.approx(of_opacus((1.0, 1.0, 2)))
        return
    found = flray.run(private(OWN_EPSILON, **parts), out=tmp_path / "own", progress=False)  # epsilon 1 is of one update
    sigma = math.sqrt(2 * math.log(1.25 / 1e-5))
    assert found.rounds["dp/epsilon"].iloc[-1] == pytest.approx(of_opacus((sigma, 1.0, 2)))


def test_a_fixed_cohort_is_said_of_the_clients_own_noise_too(tmp_path):
    local = Local(private(OWN), tmp_path)
    local.play(1)
    rate = 3 / 5
    assert local.rows[0]["dp/epsilon_if_poisson"] == pytest.approx(of_opacus((2.0, rate, 1)))
    assert [said for said in cautions([private(OWN)]) if "epsilon" in said]


def test_each_round_has_the_rate_of_its_task(tmp_path):
    """Two tasks of 2 rounds; a client takes part in a task only if it holds samples of its classes."""
    tasks = {"num_tasks": 2, "class_order": "natural", "partition": "once", "freeze": ["none"]}
    config = private(
        OWN,
        tasks=tasks,
        rounds=2,
        partition={"name": "label_skew", "clients": 8, "classes_per_client": 1},
        cohort={"size": 2},
        evaluate={"every": 0},
        resources={"executor": "local"},
    )
    found = flray.run(config, out=tmp_path / "run", progress=False)
    scenario = build_scenario(config, build_data(config))
    first, second = (2 / len(scenario.members(task)) for task in range(2))
    assert first != second
    spent = [((2.0, first, 1),), ((2.0, first, 2),), *(((2.0, first, 2), (2.0, second, n)) for n in (1, 2))]
    assert found.rounds["dp/epsilon_if_poisson"].tolist() == pytest.approx([of_opacus(*each) for each in spent])


def test_private_runs_weigh_clients_equally():
    assert private().algorithm.weighting == "uniform" and experiment("fedavg").algorithm.weighting == "examples"
    where = [PRIVATE[0], {"name": "gaussian", "noise": 1.0, "where": "client"}]
    assert private(where).algorithm.weighting == "examples"


TASKS = {"tasks": {"num_tasks": 2}, "rounds": 1}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"name": "scaffold"}, "Scaffold has a server half of its own"),
        ({"name": "fedprotip", **TASKS}, "server half of its own"),
        ({"name": "feddf"}, "FedDF reads more of clients than the mean of w"),
        ({"aggregation": "median"}, "Median reads more of clients than the mean of w"),
        ({"options": {**KEEP, "weighting": "examples"}}, "weighs clients by their samples; set algorithm.weighting"),
        ({"options": {}}, "batch-norm statistics are not made private; set algorithm.buffers: keep"),
        (TASKS, "tasks.freeze names tell which classes clients hold; set tasks.freeze: none"),
    ],
)
def test_what_is_not_private_is_refused_in_one_line(tmp_path, config, words):
    with pytest.raises(ConfigError, match=words):
        Local(private(**config), tmp_path)


def test_server_optimisers_and_other_local_steps_are_private_as_fedavg_is(tmp_path):
    for config in ({"name": "fedprox"}, {"name": "moon"}, {"aggregation": "fedadam"}, {"name": "fedadam"}):
        assert Local(private(**config), tmp_path / str(config)).play(1).w.isfinite().all()


def test_cohorts_of_a_file_have_no_epsilon(tmp_path):
    (tmp_path / "cohorts.csv").write_text("round,client\n1,0\n2,1\n3,2\n")
    with pytest.raises(ConfigError, match=r"uplink\.gaussian: epsilon holds for cohorts that are drawn"):
        private(cohort={"from": str(tmp_path / "cohorts.csv")})


class Unlike(FedAvg, frozen=True):
    """Clients with more than `few` samples count twice."""

    few: int = 5

    def weights(self, num_examples):
        w = 1 + (num_examples > self.few).double()
        return w / w.sum()


def test_weights_that_differ_at_any_size_are_refused(tmp_path):
    """Before round 1 at sizes of up to 5, else in the round whose clients count differently (30, 9, 28 samples)."""
    few, many, more = (Unlike(few=few, weighting="uniform", buffers="keep") for few in (4, 15, 60_000))
    with pytest.raises(ConfigError, match="Unlike weighs clients by their samples"):
        Local(private().model_copy(update={"algorithm": few}), tmp_path / "few")
    local = Local(private().model_copy(update={"algorithm": many}), tmp_path / "many")
    with pytest.raises(ConfigError, match=r"uplink\.gaussian: Unlike weighs clients by their samples"):
        local.play(1)
    Local(private().model_copy(update={"algorithm": more}), tmp_path / "more").play(1)
    cohort = Cohort(*torch.tensor([[0, 1], [60_000, 60_001], [1, 1]]), torch.tensor([1 / 3, 2 / 3]).double())
    with pytest.raises(ConfigError, match="Unlike weighs clients by their samples"):
        private_cohort(more, cohort)


class Floored(FedAvg, frozen=True):
    """No client counts as less than 1000 samples."""

    def weights(self, num_examples):
        w = num_examples.clamp(min=1000).double()
        return w / w.sum()


def test_weights_that_are_the_same_for_all_clients_of_a_run_are_private(tmp_path):
    """All clients are at or below 1000 samples, so the round is that of uniform weights."""
    uniform = private()
    floored = uniform.model_copy(update={"algorithm": Floored(**uniform.algorithm.model_dump())})
    w, expected = (Local(config, tmp_path / name).play(1).w for name, config in (("f", floored), ("u", uniform)))
    torch.testing.assert_close(w, expected)


class Steps(Aggregation, frozen=True):
    """Half a step of the mean, or one that reads `field` of the cohort."""

    field: str = "weights"

    def combine(self, ctx, own, before, updates, cohort, buffers):
        assert abs(float(getattr(cohort, self.field).sum()) - 1) < 1e-9
        return Aggregated(before.w + (updates.w - before.w) / 2, updates.b)


def test_a_rule_of_ones_own_reads_the_mean_and_nothing_of_single_clients(tmp_path):
    before = Local(private(aggregation=Steps()), tmp_path / "own")
    w, plain = before.state.w.clone(), Local(private(), tmp_path / "mean").play(1).w
    torch.testing.assert_close(before.play(1).w, w + (plain - w) / 2)
    for field in ("num_examples", "num_steps", "client_ids"):
        local = Local(private(aggregation=Steps(field=field)), tmp_path / field)
        with pytest.raises(ConfigError, match=rf"uplink\.gaussian: the server half reads cohort\.{field}, which is of"):
            local.play(1)


class More(FedAvg, frozen=True):
    """It sends what gaussian does not know of."""

    def next_exchange(self, ctx, state):
        return super().next_exchange(ctx, state)


def test_an_algorithm_that_changes_the_exchanges_is_refused(tmp_path):
    config = private().model_copy(update={"algorithm": More(weighting="uniform", buffers="keep")})
    with pytest.raises(ConfigError, match="More has other exchanges than local training"):
        Local(config, tmp_path)


@pytest.mark.slow
def test_a_resume_with_more_rounds_than_the_noise_is_for_is_refused_and_the_run_stays_finished(tmp_path):
    solved = [PRIVATE[0], {"name": "gaussian", "epsilon": 6.0}]
    parts = {"rounds": 2, "evaluate": {"every": 0}, "resources": {"executor": "local"}}
    found = flray.run(private(solved, cohort=POISSON, **parts), out=tmp_path / "run", progress=False)
    assert found.rounds["dp/epsilon"].iloc[-1] == pytest.approx(6.0, rel=1e-3)
    before = {name: (tmp_path / "run" / name).read_bytes() for name in ("config.yaml", "STATUS", "environment.json")}
    with pytest.raises(ConfigError, match=r"5 rounds would bring the run to .* start again"):
        flray.resume(tmp_path / "run", rounds=5, progress=False)
    assert before == {name: (tmp_path / "run" / name).read_bytes() for name in before}
    assert flray.resume(tmp_path / "run", progress=False).status == "finished"
    given = flray.run(private(cohort=POISSON, **parts), out=tmp_path / "given", progress=False)
    assert flray.resume(given.folder, rounds=3, progress=False).status == "finished", "noise itself has no last round"


def test_noise_that_the_bits_of_an_adaptive_clip_use_up_is_refused_before_round_1(tmp_path):
    """sigma_b = q N / 20 = 0.15 for a cohort of 3: z is to be below 2 sigma_b."""
    for noise, fits in ((0.29, True), (0.31, False)):
        config = private([{"name": "clip", "adaptive": 0.5}, {"name": "gaussian", "noise": noise}], cohort=POISSON)
        for build in (executor_of, lambda experiment, folder: examine(experiment)):
            with nullcontext() if fits else pytest.raises(ConfigError, match=r"adaptive_noise: .* set it above 0\.155"):
                build(config, tmp_path / str(noise))


def test_what_an_epsilon_assumes_is_said_before_the_run():
    (said,) = (sentence for sentence in cautions([private(), private(cohort=POISSON)]) if "epsilon" in sentence)
    assert said.endswith("set cohort.sampling: poisson")
    assert not [s for s in cautions([private(cohort=POISSON), private(cohort={"size": 5})]) if "epsilon" in s]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_actors_have_the_same_bits_also_in_a_round_that_nobody_joins(tmp_path):
    def config(executor):
        resources = {"executor": executor, "client_actors": 2, "client": {"num_cpus": 1}, "server": {"threads": 1}}
        cohort = {"size": 1, "sampling": "poisson"}
        return private(ADAPTIVE, cohort=cohort, rounds=rounds, evaluate={"every": 0}, resources=resources)

    rounds = 1
    rounds = empty_round(config("local")) + 2
    runs = [flray.run(config(name), out=tmp_path / name) for name in ("local", "calls")]
    assert contents(runs[0]) == contents(runs[1])
    assert 0 in runs[0].rounds["cohort_size"].tolist() and runs[0].rounds["dp/epsilon"].is_monotonic_increasing
