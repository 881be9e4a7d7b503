"""Networks that people bring: each trains as in plain PyTorch, with its buffers right, or is refused in one line."""

import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import flray
from flray.core.network.attributes import content
from flray.core.network.objective import Objective
from flray.core.schema.errors import AlgorithmError, ConfigError
from flray.doctor import buffer_kinds
from flray.engine.runtime import check_equal_tensors
from flray.engine.trial import try_network
from flray.models import ModelConfig, build_model
from tests.models import brought

Y = np.arange(120) % 3
X = (np.random.default_rng(0).normal(size=(120, 8)) + 2.0 * np.eye(3, 8)[Y]).astype(np.float32)


def go(folder, name, buffers=None, rounds=2, **resources):
    """A run of FedAvg with 4 unequal clients on 80 samples, tested on 40."""
    model = {"name": f"tests.models.brought:{name}", **({"buffers": buffers} if buffers else {})}
    data = flray.data.from_arrays((X[:80], Y[:80]), (X[80:], Y[80:]))
    config = {
        "name": "brought", "seed": 0, "rounds": rounds, "data": data,
        "partition": {"name": "dirichlet", "alpha": 0.5, "clients": 4}, "cohort": {"size": 4}, "model": model,
        "algorithm": {"name": "fedavg", "lr": 0.1, "local_epochs": 2, "batch_size": 16, "last_batch": "merge"},
        "resources": resources or {"executor": "local"},
    }  # fmt: skip
    return flray.run(config, out=folder, progress=False)


def plain(run, name):
    """(the network in plain PyTorch with the run's weights, loaded strictly; its accuracy on the test samples)."""
    module = getattr(brought, name)((8,), 3)
    module.load_state_dict(load_file(run.folder / "model.safetensors"), strict=True)
    module.eval()
    with torch.no_grad():
        right = module(torch.tensor(X[80:])).argmax(1).numpy() == Y[80:]
    return module, float(right.mean())


@pytest.mark.parametrize(
    ("name", "buffers"),
    [
        ("Constants", None),
        ("OwnNorm", None),
        ("FixedNorm", None),
        ("TwoNames", None),
        ("Timed", None),
        ("CopiedNorm", None),
        ("Spectral", None),
        ("Cache", None),
        ("FrozenNaN", None),
        ("CompiledPart", None),
        ("Silent", None),
        ("StoredUnread", None),
        ("KeyedCache", None),
        ("Average", {"ema": "average"}),
        ("Average", {"e*": "local"}),
        ("Average", {"ema": "keep"}),
        ("Counter", {"steps": "keep"}),
        ("Attribute", {"steps": "keep"}),
    ],
)
def test_the_saved_model_has_the_tested_accuracy_in_plain_pytorch(tmp_path, name, buffers):
    run = go(tmp_path / "run", name, buffers)
    assert float(run.rounds["test/acc"].iloc[-1]) == pytest.approx(plain(run, name)[1], abs=1e-6)


def test_a_network_whose_double_returns_nothing_is_built_in_float64():
    module = build_model(ModelConfig(name="tests.models.brought:Silent", dtype="float64"), (8,), 3, 0)
    assert {p.dtype for p in module.parameters()} == {torch.float64}


def test_what_is_not_trained_keeps_its_type_and_its_bits(tmp_path):
    """Complex phases lost their imaginary part, a grid near 1e8 its steps, and a body in bfloat16 met other inputs.
    The loss is that of the network in plain PyTorch, with the constants as its constructor makes them."""
    run = go(tmp_path / "run", "Typed")
    saved = load_file(run.folder / "model.safetensors")
    module = brought.Typed((8,), 3)
    constants = {n: t for n, t in module.state_dict().items() if not n.startswith(("a.", "head.", "body."))}
    assert all(saved[n].dtype == t.dtype and torch.equal(saved[n], t) for n, t in constants.items())
    assert saved["body.weight"].dtype == torch.bfloat16
    module.load_state_dict({n: t for n, t in saved.items() if n not in constants}, strict=False)
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(module.eval()(torch.tensor(X[80:])), torch.tensor(Y[80:]))
    assert float(run.rounds["test/loss"].iloc[-1]) == pytest.approx(float(loss), abs=1e-6)
    again = build_model(ModelConfig(name="tests.models.brought:Typed", weights=str(run.folder)), (8,), 3, 9)
    assert all(torch.equal(saved[n], t) for n, t in again.state_dict().items())


@pytest.mark.parametrize(("name", "kept"), [("Constants", 5), ("FixedNorm", 2)])
def test_constants_keep_their_bits(tmp_path, name, kept):
    """Those that the constructor gives under the run's seed, with NaN and infinity, whatever is averaged."""
    saved = load_file(go(tmp_path / "few", name, rounds=1).folder / "model.safetensors")
    later = load_file(go(tmp_path / "more", name, rounds=4).folder / "model.safetensors")
    names = [n for n, _ in getattr(brought, name)((8,), 3).named_buffers()]
    assert len(names) == kept
    for n in names:
        assert saved[n].numpy().tobytes() == later[n].numpy().tobytes()
    assert not torch.equal(saved["a.weight"], later["a.weight"])


def test_directions_have_length_1_and_the_layer_the_singular_value_1(tmp_path):
    """NumPy's singular values of the layer in plain PyTorch; vectors that are averaged alone gave 5."""
    module, _ = plain(go(tmp_path / "run", "Spectral", rounds=3), "Spectral")
    vectors = dict(module.s.parametrizations.weight[0].named_buffers())
    assert all(float(v.norm()) == pytest.approx(1.0, abs=1e-6) for v in vectors.values())
    assert np.linalg.svd(module.s.weight.detach().numpy(), compute_uv=False)[0] == pytest.approx(1.0, abs=1e-3)


REFUSED = {
    "Average": "training changes ema.*model.buffers: {ema: average}",
    "Counter": "training changes steps.*model.buffers: {steps: keep}",
    "Attribute": "training changes steps.*model.buffers: {steps: keep}",
    "Global": "training changes Global: global CALLS",
    "Hook": "training changes a._forward_hooks",
    "CachedNoise": "training changes noise",
    "FirstBatch": "training changes scale",
    "OwnGenerator": "forward draws from draws, a generator of its own",
    "Teacher": "training changes the frozen parameter t.weight",
    "DataTeacher": "training changes the frozen parameter t.weight",
    "TrainTeacher": "training changes the frozen parameter t.weight",
    "Merged": "its logits in eval mode are those of parameters that it had before.*merge_weights=False",
    "EvalCache": "its logits in eval mode are those of parameters that it had before",
    "Toggled": "replaces parameter a.weight or sets its requires_grad",
    "Late": "registers parameter gain",
    "Listed": "reads parameter p.weight past its module",
    "StoredData": "reads p.weight in train mode past its module",
    "StoredArray": "reads p.weight in train mode past its module",
    "StoredInAClosure": "reads p.weight in train mode past its module",
    "StoredForTests": "reads p.weight in eval mode past its module",
    "StoredMean": "reads n.running_mean in train mode past its module",
    "WantsParameter": "`weight` is not an nn.Parameter with plain tensors as parameters.*get_parameter",
    "AssertsParameter": "no parameter with plain tensors as parameters.*isinstance",
    "InnerGradient": "does not require grad.* in eval mode with plain tensors as parameters",
    "MaxNorm": "e has max_norm",
    "SharedMemory": "p.weight and q.weight share memory",
    "ExtraState": "its state_dict has _extra_state",
    "Pair": "gives a tuple in train mode",
    "Wider": r"gives a tensor \[2, 6\] in train mode",
    "Nothing": "gives None in train mode.*a return is missing",
    "ClassCounter": "training changes ClassCounter: state of Schedule.step",
    "FunctionCounter": "training changes FunctionCounter: state of tick.n",
    "ModuleCounter": "training changes ModuleCounter: state of tests.models.helper.calls",
    "CountingNorm": "training changes n.num_batches_tracked",
    "ParameterHook": r"the gradient of a.weight is not that of its backward\(\).*hooks",
    "AccumulatedHook": r"the gradient of a.weight is not that of its backward\(\).*hooks",
    "ParameterAttribute": "its logits are not those of.*attributes of parameters",
    "OnlyParameters": "its logits are not those of.*isinstance",
    "DataWrite": "a forward pass writes into parameter a.weight",
    "Resized": r"changes the shape of least from \[1\] to \[16\]",
    "Retyped": "changes the shape of least .* or its type; register it",
    "NotANumber": "parameter gain has NaN or infinity before training",
    "Reentrant": "use_reentrant=False",
    "ViewedKernel": r"view size is not compatible.*write \.reshape\(\.\.\.\) or \.flatten\(1\)",
    "ViewedMaps": r"view size is not compatible.*write \.reshape\(\.\.\.\) or \.flatten\(1\)",
    "scripted": "is TorchScript",
    "parallel": "is wrapped in DataParallel",
    "meta": "1.weight is on the meta device",
}


@pytest.mark.parametrize(
    ("name", "buffers", "words"),
    [
        *((name, None, words) for name, words in REFUSED.items()),
        ("Average", {"emma": "keep"}, "no such buffer"),
        ("Average", {"ema": "mean"}, "unknown value 'mean'"),
        ("Average", "average", "is no mapping"),
        ("Counter", {"steps": "average"}, r"steps is torch\.int64.*cannot be averaged"),
    ],
)
def test_what_would_differ_between_processes_or_fits_nothing_is_refused_in_one_line(tmp_path, name, buffers, words):
    with pytest.raises((ConfigError, AlgorithmError), match=words) as error:
        go(tmp_path / "run", name, buffers)
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore:.*depend on the other samples")
@pytest.mark.parametrize("name", ["KeyedCache", "Particular", "Unseeded", "Constants", "Typed", "Spectral"])
def test_the_trial_leaves_a_network_that_it_accepts_as_it_was_built(name):
    """Also after passes with other parameters: one that knows whose weight it keeps, one that cannot have others, one
    whose logits differ by themselves."""

    def build():
        torch.manual_seed(0)
        return getattr(brought, name)((8,), 3)

    drawn = torch.get_rng_state()
    found, first = try_network(name, build, torch.tensor(X[:2]), 3, seed=0)[0], build()
    torch.set_rng_state(drawn)
    assert found.training and [type(p) for p in found.parameters()] == [nn.Parameter] * len(list(first.parameters()))
    for one, other in zip(found.state_dict().values(), first.state_dict().values(), strict=True):
        assert torch.equal(content(one), content(other))


def test_draws_of_numpy_and_python_have_the_same_bits_in_two_runs(tmp_path):
    """Whatever was drawn in the process before; and the process's own generators go on as if nothing had run."""
    np.random.seed(1)
    before = np.random.get_state()[1].tolist()
    one = go(tmp_path / "one", "Noise")
    assert np.random.get_state()[1].tolist() == before
    np.random.random(7)
    two = go(tmp_path / "two", "Noise")
    first, second = (load_file(run.folder / "model.safetensors") for run in (one, two))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    assert one.rounds["test/acc"].tolist() == two.rounds["test/acc"].tolist()


def test_one_process_and_two_actors_draw_and_keep_the_same(tmp_path, ray_cluster):
    """NumPy's draws in both modes, and buffers of a client's own: the same bits from both executors."""
    for name, buffers in (("Noise", None), ("Average", {"ema": "local"})):
        one = go(tmp_path / name, name, buffers)
        two = go(tmp_path / f"{name}-actors", name, buffers, executor="calls", client_actors=2)
        first, second = (load_file(run.folder / "model.safetensors") for run in (one, two))
        assert all(torch.equal(tensor, second[key]) for key, tensor in first.items()), name
        assert one.rounds["test/acc"].tolist() == two.rounds["test/acc"].tolist()


@pytest.mark.parametrize("tracks", [True, False])
def test_logits_that_depend_on_the_batch_are_said(tracks):
    """Without running statistics a test's accuracy depends on evaluate.batch_size."""

    def network():
        return torch.nn.Sequential(
            torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4, track_running_stats=tracks), torch.nn.Linear(4, 3)
        )

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try_network("mine", network, torch.tensor(X[:2]), 3, 0)
    assert [str(each.message).startswith("model 'mine': its logits of a sample") for each in said] == [True] * (
        not tracks
    )


def test_a_view_of_images_as_flray_has_them_is_refused_in_one_line():
    """Samples lie channels-last, so what a convolution of them gives does; by reshape it is read."""

    class Viewed(torch.nn.Module):
        def __init__(self, reads):
            super().__init__()
            self.c, self.reads, self.head = torch.nn.Conv2d(2, 2, 3, padding=1), reads, torch.nn.Linear(32, 3)

        def forward(self, x):
            return self.head(getattr(self.c(x), self.reads)(len(x), -1))

    x = torch.randn(2, 4, 4, 2).permute(0, 3, 1, 2)
    try_network("mine", lambda: Viewed("reshape"), x, 3, 0)
    with pytest.raises(ConfigError, match=r"model Viewed: .*flray computes channels-last: write \.reshape") as error:
        try_network("mine", lambda: Viewed("view"), x, 3, 0)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("Split", {}),
        ("Between", {}),
        ("Activated", {"eval": "is not forward", "train": "is not forward"}),
        ("Blocks", {"eval": "is not forward", "train": "is not forward"}),
        ("Pyramid", {"eval": "fails", "train": "fails"}),
        ("Mapped", {"eval": "fails", "train": "fails"}),
        ("Dropped", {"train": "is not forward"}),
        ("Masked", {"train": "is not forward"}),
        ("Shifted", {}),
    ],
)
def test_features_whose_head_is_another_network_are_refused_where_they_are_read(name, refused):
    """In the mode in which they are; `head` may be the last layer of another name, `features` a part."""
    config, x = ModelConfig(name=f"tests.models.own_networks:{name}"), torch.randn(4, 2)
    objective = Objective(try_network(name, lambda: build_model(config, (2,), 3, 0), x, 3, 0)[0])
    w, b = objective.initial()
    for mode in ("eval", "train"):
        model = objective.at(w, b, mode)
        assert model(x).shape == (4, 3)
        line = rf"head\(features\(x\)\) {refused.get(mode)}.*this algorithm reads features; return self.head"
        with pytest.raises(ConfigError, match=line) if mode in refused else nullcontext():
            model.features(x)


def test_tensors_that_no_seed_decides_are_named():
    with pytest.raises(ConfigError, match=r"z is not trained.*client-1"):
        check_equal_tensors({"z": "1", "y": "2"}, {"z": "3", "y": "2"}, "client-1")
    check_equal_tensors({"z": "1"}, {"z": "1"}, "client-1")


def test_doctor_names_the_kind_of_each_buffer():
    objective = Objective(brought.TwoNames((8,), 3))
    text = buffer_kinds(objective)
    assert "average: norm.running_mean = again.0.running_mean" in text and "counter: norm.num_batches_tracked" in text
