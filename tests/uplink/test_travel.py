"""Encoded updates through the engine's rounds: the mean, the residuals and the bytes against NumPy; stops, actors."""

from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import flray
from flray.algorithms.fedavg import FedAvg
from flray.config.loader import load_config
from flray.contracts.played import Local, bits
from flray.core.messages import Broadcast, ServerState, Update
from flray.core.messages.fields import mean
from flray.core.schema.errors import AlgorithmError, ConfigError
from flray.doctor import examine
from flray.uplink import TopK, Uplink
from flray.uplink.attack import SignFlip, attackers
from flray.uplink.clip import Clip
from flray.uplink.gaussian import Gaussian
from flray.uplink.travel import EncodedState, new_state, own_state, travelled
from tests.contracts.table import experiment
from tests.support.outcome import contents

TOPK = {"name": "topk", "fraction": 0.1}
CODES = {"name": "quantize", "bits": 4, "bucket": 16, "rounding": "stochastic"}


def residuals(local: Local) -> dict[int, np.ndarray]:
    return {k: state.residual["w"].numpy() for k, state in local.client_states().items()}


class Seen:
    """By round what each client trained from and to, its weight, and the pooled update."""

    def __init__(self) -> None:
        self.rounds: list[dict[int, tuple[np.ndarray, np.ndarray, float]]] = [{}]
        self.pooled: list[np.ndarray] = []

    def __call__(self, half, function, *arguments):
        result = function(*arguments)
        if half == "client":
            ctx, _, broadcast = arguments[:3]
            trained = result.update.w.numpy().copy()
            self.rounds[-1][ctx.client] = broadcast.w.numpy().copy(), trained, ctx.weight
        else:
            self.pooled.append(arguments[2].w.numpy().copy())
            self.rounds.append({})
        return result


@pytest.mark.parametrize("feedback", [True, False])
def test_the_mean_and_the_residuals_are_those_of_numpy(tmp_path, feedback):
    """x = w_k - w + e; the largest tenth of |x| stays; e' = x - what stays; the mean of w + what stays."""
    seen = Seen()
    local = Local(experiment("fedavg", uplink={**TOPK, "feedback": feedback}), tmp_path, seen)
    stored: dict[int, np.ndarray] = {}
    for round in range(3):
        local.play(1)
        pooled = 0.0
        for client, (before, after, weight) in seen.rounds[round].items():
            x = after - before + (stored.get(client, np.float32(0)) if feedback else 0)
            kept = np.argsort(-np.abs(x), kind="stable")[: len(x) // 10]
            sent = np.zeros_like(x)
            sent[kept] = x[kept]
            stored[client] = x - sent
            pooled = pooled + weight * (before + sent).astype(np.float64)
        np.testing.assert_allclose(seen.pooled[round], pooled, atol=1e-6)
        found = residuals(local) if feedback else local.client_states()
        assert found.keys() == (stored.keys() if feedback else set())
        for client in found:
            assert found[client].tobytes() == stored[client].tobytes()
    assert max(len(r) for r in seen.rounds) == 3 and (not feedback or any(e.any() for e in stored.values()))


@pytest.mark.parametrize("encoding", [TOPK, CODES])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddf", "fedscr"])
def test_bytes_counted_are_those_of_the_encoded_arrays(tmp_path, name, encoding):
    local = Local(experiment(name, uplink=encoding), tmp_path)
    dense = Local(experiment(name), tmp_path / "dense")
    local.play(2), dense.play(2)
    w = local.state.w
    one = 8 * (len(w) // 10) if encoding is TOPK else -(-len(w) * 4 // 8) + 4 * -(-len(w) // 16)
    for row, plain in zip(local.rows, dense.rows, strict=True):
        assert plain["up"] - row["up"] == 3 * (w.nbytes - one)
        assert row["down"] == plain["down"]


class Halves(Update):
    """The model as its difference in half precision, by two functions."""

    w: Tensor = mean(
        encode=(lambda x, draws: {"half": x.half()}, lambda sent, size: sent["half"].float()), relative_to="w"
    )


class Declared(FedAvg[ServerState, Broadcast, Halves], frozen=True):
    error_feedback: ClassVar[bool] = True

    def end(self, ctx, broadcast, client, local, data):
        update, after = super().end(ctx, broadcast, client, local, data)
        return Halves.of(update), after


class Undeclared(Declared, frozen=True):
    error_feedback: ClassVar[bool] = False


class Statistics(Update):
    w: Tensor = mean(encode=(lambda x, draws: x, lambda sent, size: sent), relative_to="b")


class Elsewhere(Declared, frozen=True):
    def end(self, ctx, broadcast, client, local, data):
        return Statistics(local.w, local.b), client


def declared(kind):
    return experiment("fedavg").model_copy(update={"algorithm": kind(lr=0.05, batch_size=5)})


def test_a_field_says_how_it_travels(tmp_path):
    seen = Seen()
    local = Local(declared(Declared), tmp_path, seen)
    state = local.play(1)
    expected = sum(
        weight * (before + (after - before).astype(np.float16).astype(np.float32)).astype(np.float64)
        for before, after, weight in seen.rounds[0].values()
    )
    np.testing.assert_allclose(state.w.numpy(), expected, atol=1e-6)
    for client, (before, after, _) in seen.rounds[0].items():
        x = after - before
        assert residuals(local)[client].tobytes() == (x - x.astype(np.float16).astype(np.float32)).tobytes()
    assert local.rows[0]["up"] == 3 * (2 * len(state.w) + state.b.nbytes)


def test_what_a_declaration_lacks_is_one_line(tmp_path):
    with pytest.raises(AlgorithmError, match=r"Halves\.w .* write error_feedback: .* in Undeclared, or feedback=False"):
        Local(declared(Undeclared), tmp_path).play(1)
    with pytest.raises(AlgorithmError, match=r"Statistics\.w is encoded relative to Broadcast\.b, which is no tensor"):
        Local(declared(Elsewhere), tmp_path).play(1)


def test_an_algorithm_s_own_state_stays_beside_the_residual(tmp_path):
    """And what asks for clients with a state asks for the algorithm's own."""
    local = Local(experiment("scaffold", uplink=TOPK), tmp_path)
    local.play(1)
    stored = local.client_states()
    plain = Local(experiment("scaffold"), tmp_path / "plain")
    plain.play(1)
    own = plain.client_states()
    assert stored.keys() == own.keys() and len(own) == 3
    for client, state in stored.items():
        assert type(state) is EncodedState and type(own_state(state)) is type(own[client])
        assert bits(own_state(state)) == bits(own[client])  # of the first round: trained from the same model
    stateless = Local(experiment("fedavg", uplink=TOPK), tmp_path / "stateless")
    stateless.play(1)
    assert stateless.server.facts()["stateful"] and stateless.server.stateful() == []
    assert local.server.stateful() == sorted(stored)


def test_a_skipped_client_keeps_its_residual(tmp_path):
    local = Local(experiment("fedavg", uplink=TOPK, on_nonfinite="skip", cohort={"size": 5}), tmp_path)
    local.play(1)
    before, work = residuals(local), local.executor.client.exchange

    def exchange(train, ctx, *arguments):
        done = work(train, ctx, *arguments)
        return done._replace(update=done.update.replace(w=done.update.w * float("nan"))) if ctx.client == 2 else done

    local.executor.client.exchange = exchange
    state = local.play(1)
    after = residuals(local)
    assert bool(torch.isfinite(state.w).all()) and local.rows[1]["clients_skipped"] == 1
    assert [k for k in before if before[k].tobytes() == after[k].tobytes()] == [2]


@pytest.mark.parametrize("encoding", [TOPK, CODES])
@pytest.mark.parametrize("store", ["memory", pytest.param("files", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["fedavg", "fedscr"])
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(tmp_path, store, encoding, name):
    config = experiment(name, uplink=encoding, resources={"store": store, "server": {"threads": 1}})
    local = Local(config, tmp_path)
    local.play(2)
    local.executor.store.save(1)
    again = Local(config, tmp_path)
    again.position = again.executor.store.load()
    assert bits(local.play(2)) == bits(again.play(2)) and bits(local.task_end()) == bits(again.task_end())
    ours, theirs = ({k: bits(s) for k, s in one.client_states().items()} for one in (local, again))
    assert ours == theirs and ours


@pytest.mark.usefixtures("ray_cluster")
def test_actors_give_the_same_bits(tmp_path):
    def config(executor, actors=1):
        resources = {"executor": executor, "client_actors": actors, "client": {"num_cpus": 1}}
        return experiment("fedavg", uplink=CODES, resources={**resources, "server": {"threads": 1}})

    local = flray.run(config("local"), out=tmp_path / "local")
    assert contents(flray.run(config("calls", 3), out=tmp_path / "three")) == contents(local)
    sent = local.rounds
    assert (sent["comm/up_bytes"] == sent["comm/up_bytes/w"] + sent["comm/up_bytes/b"]).all()


def test_the_doctor_counts_the_encoded_bytes(tmp_path):
    def traffic(**sections):
        return next(
            row["result"] for row in examine(experiment("fedavg", **sections), None).checks if row["check"] == "traffic"
        )

    local = Local(experiment("fedavg", uplink=TOPK), tmp_path)
    local.play(1)
    assert traffic().split(",")[0] == traffic(uplink=TOPK).split(",")[0]
    assert traffic() != traffic(uplink=TOPK)
    assert str(local.rows[0]["up"]) in traffic(uplink=TOPK).replace(",", "")


def test_what_cannot_be_encoded_is_refused_in_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"uplink: a centralized run has no clients"):
        experiment("fedavg", uplink=TOPK).model_validate(
            {**experiment("fedavg").dump(), "uplink": TOPK, "algorithm": {"name": "centralized"}}
        )
    noisy = [{"name": "clip"}, {"name": "gaussian", "where": "client", "noise": 1.0}]
    with pytest.raises(ConfigError, match=r"uplink: with gaussian\.where: client the noise"):
        experiment("fedmemo", uplink=[TOPK, *noisy])
    with pytest.raises(ConfigError, match="did you mean 'topk'"):
        experiment("fedavg", uplink="tokp")
    with pytest.raises(ConfigError, match=r"uplink\.quantize\.fraction: unknown key"):
        experiment("fedavg", uplink={"name": "quantize", "fraction": 0.1})
    with pytest.raises(ConfigError, match=r"uplink: Local sends no model w"):
        Local(experiment("local", uplink=TOPK), tmp_path).play(1)


def test_noise_for_privacy_is_not_encoded_by_a_field_either():
    class Sparse(Update):
        w: Tensor = mean(encode=TopK(), relative_to="w")

    update = Sparse(w=torch.ones(4), b=torch.ones(1))
    uplink = Uplink((Clip(), Gaussian(noise=1.0)))
    with pytest.raises(ConfigError, match=r"uplink\.gaussian: FedAvg sends more than the mean of w"):
        travelled(None, FedAvg(), uplink, update, update, None, {}, 1)


def test_a_run_s_file_repeats_its_encoding():
    config = experiment("fedavg", uplink="topk")
    assert config.dump()["uplink"] == [{"name": "topk", "feedback": True, "fraction": 0.01}]
    assert type(config).model_validate(config.dump()) == config
    assert experiment("fedavg").dump()["uplink"] == []


def test_an_own_state_that_end_leaves_unchanged_stays_beside_the_first_residual() -> None:
    """The state was stored by an exchange that is not encoded, so it has no residual yet."""
    own, residual = {"m": torch.ones(2)}, {"w": torch.zeros(3)}
    for unchanged in ((), None):
        after = new_state(own, unchanged, residual)
        assert after.own is own and after.residual == residual
        assert new_state(after, unchanged, residual).own is own
    assert new_state(None, None, residual).own is None and new_state(own, (), {}) == ()


def test_an_empty_uplink_and_clipping_that_does_not_clip_have_the_bits_of_none(tmp_path):
    ends = [
        bits(Local(experiment("fedavg", **sections), tmp_path / str(place)).play(2))
        for place, sections in enumerate(({}, {"uplink": []}, {"uplink": {"name": "clip", "norm": 1e9}}))
    ]
    assert ends[0] == ends[1] == ends[2]


def test_attackers_change_w_and_b_of_their_own_updates_alone(tmp_path):
    """2 of 5 clients send w - f (w_k - w); the others keep their bits."""
    seen, attack = Seen(), {"name": "scaled", "clients": 0.4, "factor": -3.0}
    local = Local(
        experiment("fedavg", uplink=[{"name": "clip", "norm": 1e-3}, attack], cohort={"size": 5}), tmp_path, seen
    )
    local.play(2)
    drawn = attackers(local.experiment.seed, "scaled", 0.4, 5)
    for round in range(2):
        expected = 0.0
        for client, (before, after, weight) in seen.rounds[round].items():
            x = after - before
            x = -3 * x if client in drawn else x * min(1.0, 1e-3 / np.linalg.norm(x))
            expected = expected + weight * (before + x).astype(np.float64)
        np.testing.assert_allclose(seen.pooled[round], expected, atol=2e-6)
    assert len(drawn) == 2


def test_an_attack_turns_the_statistics_around_as_well():
    start = Broadcast(torch.tensor([1.0, 2.0]), torch.tensor([4.0]))
    trained = Update(torch.tensor([2.0, 0.0]), torch.tensor([5.0]))
    ctx = SimpleNamespace(seed=0, client=0)
    sent = travelled(ctx, FedAvg(), Uplink((SignFlip(clients=1.0),)), start, trained, None, {}, 3).update
    assert sent.w.tolist() == [0.0, 4.0] and sent.b.tolist() == [3.0]


def test_keys_of_before_are_refused_with_the_new_key():
    assert experiment("fedavg", encoding=None) == experiment("fedavg"), "it says nothing"
    for section in ({"encoding": "topk"}, {"encoding": {"name": "topk", "fraction": 0.01}}):
        with pytest.raises(ConfigError, match=r"^.*encoding: this key has a new name; write uplink$"):
            experiment("fedavg", **section)
    with pytest.raises(ConfigError, match=r"algorithm\.privacy: unknown key; write uplink: .*where: client"):
        experiment("fedmemo", {"privacy": {"clip": 0.5, "epsilon": 8.0}})
    for key in ("encoding=topk", "encoding.name=topk"):
        with pytest.raises(ConfigError, match=r"^encoding: this key has a new name; write uplink$"):
            load_config("configs/quickstart.yaml", [key])


def test_an_option_of_an_entry_is_named_by_name_and_occurrence():
    def uplink(*overrides):
        return load_config("configs/quickstart.yaml", list(overrides))[0].uplink

    two = "uplink=[{name: clip, norm: 1.0}, topk, {name: clip, norm: 2.0}]"
    assert [t.norm for t in uplink(two, "uplink.clip.2.norm=3", "uplink.clip.norm=4")[::2]] == [4.0, 3.0]
    assert uplink("uplink=topk", "uplink.topk.fraction=0.1")[0].fraction == 0.1
    assert uplink("uplink=none") == uplink("uplink=[]") == ()
    with pytest.raises(ConfigError, match=r"override uplink\.clip\.norm: uplink has no such entry"):
        uplink("uplink=topk", "uplink.clip.norm=1")
    with pytest.raises(ConfigError, match=r"override uplink\.topk\.²\.fraction: uplink has no such entry"):
        uplink("uplink=topk", "uplink.topk.².fraction=0.1")


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("fedavg", {}),
        ("scaffold", {}),
        ("feddf", {}),
        ("fedsol", {"aggregation": "fedadam"}),
        ("moon", {"aggregation": "median"}),
    ],
)
def test_other_clients_and_other_servers_have_the_same_bits_in_one_and_three_chunks(tmp_path, name, sections):
    uplink = [{"name": "clip", "norm": 0.5}, {**TOPK, "fraction": 0.3}, {"name": "sign_flip", "clients": 0.4}]
    ends = []
    for chunks in (1, 3):
        local = Local(experiment(name, uplink=uplink, **sections), tmp_path / str(chunks))
        local.chunks = chunks
        local.play(2)
        ends.append((bits(local.state), {k: bits(s) for k, s in local.client_states().items()}, local.rows[-1]["up"]))
    assert ends[0] == ends[1]
    assert ends[0][0] != bits(Local(experiment(name, **sections), tmp_path / "plain").play(2))
