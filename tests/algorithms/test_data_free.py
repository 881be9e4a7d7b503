"""TARGET, LANDER and MFCL: the clients' gradients in plain PyTorch, what the server keeps and sends, and when."""

from dataclasses import replace
from math import log2, sqrt

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import flray
from flray.algorithms.data_free import PoolDown
from flray.algorithms.lander import Lander, LanderDown
from flray.algorithms.mfcl import MFCL, MFCLDown
from flray.algorithms.target import Target, pool_indices
from flray.core.messages import Batch, Broadcast
from flray.core.network.objective import Objective
from flray.core.protocol.classes import Classes
from flray.core.protocol.clock import Clock
from flray.core.protocol.inputs import Inputs
from flray.core.schema.errors import ConfigError, DataError
from flray.data.augment import boxes
from flray.engine.replay import Replay
from flray.models.label_embeddings import label_embeddings
from flray.ops.synthesis import Student, Teacher
from flray.rundir import checkpoint
from tests.contracts.networks import Pictured
from tests.contracts.table import PICTURES, experiment
from tests.support.small_cases import context, normal

SHAPE = (1, 8, 8)
OLD, NEW, SEEN = [0, 2], [1, 4], [0, 1, 2, 4]


def net(seed, width=None):
    torch.manual_seed(seed)
    made = Pictured(SHAPE, 5)
    if width is not None:
        made.add_module("att", nn.Linear(24, width))
    return made


def world(algorithm, width=None):
    """A client's context in the second task, its local state, the model as a module, the old one, and a real batch."""
    model, old = net(1, width), net(2, width)
    objective = Objective(net(0, width))
    points = [
        objective.from_state_dict({n: t for n, t in m.state_dict().items() if t.is_floating_point()})
        for m in (model, old)
    ]
    ctx = context(
        objective,
        clock=Clock(task=1, done=3),
        classes=Classes([OLD, NEW], 5),
        inputs=Inputs(SHAPE, (0.4,), (0.3,), tuple("abcde")),
        client=2,
        num_examples=7,
        num_steps=4,
    )
    batch = Batch(normal(7, *SHAPE), torch.tensor([1, 4, 4, 1, 1, 4, 1]))
    return ctx, algorithm.begin(ctx, Broadcast(*points[0]), (), None), model.train(), old.eval(), points, batch


def flat(ctx, model, value):
    grads = torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
    named = {
        n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(model.named_parameters(), grads, strict=True)
    }
    return ctx.objective.layout.flatten(named, torch.device("cpu"))


def kd(t, s, temperature=2.0):
    """As the code of TARGET and LANDER writes it."""
    return -(F.softmax(t / temperature, 1) * F.log_softmax(s / temperature, 1)).sum() / len(s)


def pool_of(ctx, pool, step, size, an_epoch):
    """The batch of the pool that belongs to a step, by hand: an order an epoch, 8 bits to 0..1, normalised."""
    order = ctx.rng("pool", step // an_epoch).permutation(len(pool))
    place = step % an_epoch
    index = order[place * size : (place + 1) * size]
    return (pool[torch.from_numpy(index)].float() / 255 - 0.4) / 0.3


def test_the_pool_is_read_through_parts_stretched_to_the_side():
    """torchvision's own `resized_crop` of the boxes that the same generator draws; then mirrored or not, normalised. A
    level of 255 between two roundings is the only difference."""
    from torchvision.transforms.v2.functional import resized_crop

    ctx, *_ = world(Target())
    pool = (255 * torch.rand(6, *SHAPE)).to(torch.uint8)
    index = np.array([4, 0, 5])
    found = Target(pool_crop="resized").pool_inputs(ctx, pool, index, np.random.default_rng(7))
    drawn = boxes(np.random.default_rng(7), 3, 8, 8, (0.08, 1.0))
    assert len(np.unique(drawn, axis=0)) == 3 and (drawn[:, 2:] < 8).any()
    mirrored = []
    for x, image, box in zip(found, pool[index], drawn.tolist(), strict=True):
        part = (resized_crop(image, *box, [8, 8], antialias=False).float() / 255 - 0.4) / 0.3
        off = [float((x - way).abs().max()) for way in (part, part.flip(-1))]
        assert min(off) <= 1.01 / 255 / 0.3
        mirrored.append(off[1] < off[0])
    assert set(mirrored) == {True, False}


def test_made_images_are_padded_by_an_eighth_or_as_configured():
    """White images of 32 pixels: a crop shows how much of the black border it has, at most 4 unless configured."""
    ctx = context(Objective(net(0)), inputs=Inputs((1, 32, 32), (0.5,), (0.5,), ("a",)))
    for options, most in (({}, 4), ({"crop_padding": 8}, 8), ({"crop_padding": 0}, 0)):
        made = Target(**options).augmented(ctx, torch.ones(200, 1, 32, 32), np.random.default_rng(0))
        assert int(32 - made[:, 0].amax(2).sum(1).min()) == most
    with pytest.raises(ConfigError, match=r"algorithm\.crop_padding is 33 .* 32 x 32; .* at most 32"):
        Target(crop_padding=33).augmented(ctx, torch.ones(2, 1, 32, 32), np.random.default_rng(0))


@pytest.mark.parametrize("lode", [0.0, 0.01])
def test_targets_client(lode):
    """CE over the new logits + lambda_kd KD over the old ones, LODE's term with C |new| / |old|; two steps, the second
    of which is in the pool's next order."""
    algorithm = Target(
        lambda_kd=25.0, syn_bs=6, crop_padding=0, flip=False, lode=lode, batch_size=7, momentum=0.0, weight_decay=0.0
    )
    ctx, local, model, old, (_, (old_w, old_b)), batch = world(algorithm)
    pool = (255 * torch.rand(9, *SHAPE)).to(torch.uint8)
    broadcast = PoolDown(local.w.clone(), local.b.clone(), old_w, old_b, pool)
    for step in range(2):
        x = pool_of(ctx, pool, step, 6, 1)  # an epoch is one batch: that is all the client has
        logits, made = model(batch.x), model(x)
        value = F.cross_entropy(logits[:, NEW], (batch.y == 4).long())
        if lode:
            a, b = logits[:, OLD].logsumexp(1), logits[:, NEW].logsumexp(1)
            value = value + lode * 2 / 2 * -torch.log(b.exp() / (a.exp() + b.exp())).mean()
        value = value + 25 * kd(old(x)[:, OLD].detach(), made[:, OLD])
        loss, found = algorithm.gradient(ctx, broadcast, (), local, batch)
        torch.testing.assert_close(loss, value.detach(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found, flat(ctx, model, value), rtol=1e-4, atol=1e-6)
        local = local.replace(moments=local.moments.replace(steps=1))


def test_an_epoch_ends_with_the_shorter_of_samples_and_pool():
    """Seven samples in batches of 2 are 4 steps an epoch; a pool of 5 in batches of 3 is 2: the others are left out."""
    ctx, local, *_ = world(Target())
    algorithm = Target(batch_size=2, syn_bs=3, local_epochs=2)
    broadcast = PoolDown(local.w, local.b, local.w, local.b, torch.zeros(5, *SHAPE, dtype=torch.uint8))

    class Data:
        def batches(self, size, steps):
            return [Batch(torch.tensor([float(i)]), torch.tensor([i])) for i in range(8)]

    assert [int(b.y) for b in algorithm.batches(ctx, broadcast, (), local, Data())] == [0, 1, 4, 5]


def test_which_made_inputs_are_the_pool():
    """By name as text: 0-0, 0-1, 1-0, 1-1, 10-0, 10-1, 2-0, ...; else the first ones."""
    assert pool_indices(3, 2, 5, False).tolist() == [0, 1, 2, 3, 4]
    names = sorted(f"{i}-{j}.png" for i in range(12) for j in range(2))
    expected = [2 * int(n.split("-")[0]) + int(n.split("-")[1][0]) for n in names]
    assert pool_indices(12, 2, 9, True).tolist() == expected[:9] and expected[4:6] == [20, 21]


def test_landers_client_in_its_first_task():
    """CE + lambda_ltc max(0, MSE(att, e_y) - r)."""
    algorithm = Lander(lte="random", lte_dim=6, lambda_ltc=3.0, radius=0.2)
    ctx, local, model, _, (start, _), _ = world(algorithm, 6)
    batch, lte = Batch(normal(5, *SHAPE), torch.tensor([0, 2, 2, 0, 0])), normal(5, 6)
    none = local.w[:0]
    broadcast = LanderDown(*start, none, none, none, lte)
    first = replace(ctx, classes=Classes([OLD], 5))
    z = model.features(batch.x)
    value = F.cross_entropy(model.head(z)[:, OLD], (batch.y == 2).long())
    value = value + 3 * torch.relu(F.mse_loss(model.att(z), lte[batch.y]) - 0.2)
    loss, found = algorithm.gradient(first, broadcast, (), local, batch)
    torch.testing.assert_close(loss, value.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found, flat(ctx, model, value), rtol=1e-4, atol=1e-6)


LATER = {"lte": "random", "lte_dim": 6, "a_cur": 0.3, "a_pre": 0.4, "batch_size": 4, "crop_padding": 0, "flip": False}


def test_landers_client_in_a_later_task():
    """cur = a_cur (1 + 1/alpha) / beta, pre = a_pre alpha beta, with C_t = 4 and C_{t-1} = 2: alpha = log2 3, beta =
    sqrt(1/2)."""
    algorithm = Lander(**LATER, lambda_ltc=0.5, radius=0.0)
    ctx, local, model, old, (start, before), batch = world(algorithm, 6)
    pool, lte = (255 * torch.rand(9, *SHAPE)).to(torch.uint8), normal(5, 6)
    local = local.replace(moments=local.moments.replace(steps=4))  # the second batch of the pool's second order
    x = pool_of(ctx, pool, 4, 4, 3)
    alpha, beta = log2(3), sqrt(0.5)
    z = model.features(batch.x)
    new = F.cross_entropy(model.head(z)[:, NEW], (batch.y == 4).long()) + 0.5 * F.mse_loss(model.att(z), lte[batch.y])
    z, t = model.features(x), old.features(x)
    past = kd(old.head(t)[:, OLD].detach(), model.head(z)[:, OLD]) + F.mse_loss(model.att(z), old.att(t).detach())
    value = 0.3 * (1 + 1 / alpha) / beta * new + 0.4 * alpha * beta * past
    loss, found = algorithm.gradient(ctx, LanderDown(*start, *before, pool, lte), (), local, batch)
    torch.testing.assert_close(loss, value.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found, flat(ctx, model, value), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("task", [1, 2, 5])
def test_lander_counts_the_classes_of_a_shared_head_in_every_domain(task):
    """FedProTIP's `client_lander.py` on DomainNet: `_total_classes` grows by 345 a domain, here by 5, and
    `_known_classes` is the domain's before: in the second one alpha = log2(10 / 2 + 1), beta = sqrt(5 / 10)."""
    algorithm = Lander(**LATER, lambda_ltc=0.0)
    ctx, local, model, old, (start, before), batch = world(algorithm, 6)
    ctx = replace(ctx, clock=Clock(task=task, done=9), classes=Classes([range(5)] * (task + 1), 5))
    pool = (255 * torch.rand(4, *SHAPE)).to(torch.uint8)
    x = pool_of(ctx, pool, 0, 4, 1)
    alpha, beta = log2(5 * (task + 1) / 2 + 1), sqrt(task / (task + 1))
    z, t = model.features(x), old.features(x)
    past = kd(old.head(t).detach(), model.head(z)) + F.mse_loss(model.att(z), old.att(t).detach())
    new = F.cross_entropy(model(batch.x), batch.y)
    value = 0.3 * (1 + 1 / alpha) / beta * new + 0.4 * alpha * beta * past
    loss, _ = algorithm.gradient(ctx, LanderDown(*start, *before, pool, normal(5, 6)), (), local, batch)
    torch.testing.assert_close(loss, value.detach(), rtol=1e-5, atol=1e-6)


class Zeros(nn.Module):
    """A generator that gives its noise back as an image."""

    noise = 64

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, z):
        return self.scale * z.view(-1, *SHAPE)


@pytest.mark.parametrize("double_forward", [False, True])
@pytest.mark.parametrize("scheduled", [False, True])
def test_mfcls_client(scheduled, double_forward):
    """Real and made samples in one batch; made ones are labelled by the old model's largest logit among those that it
    has learned. Scheduled: it has learned all that are seen, and the first term reads the classes available."""
    options = {"from_round": 2, "available": (1,)} if scheduled else {}
    algorithm = MFCL(w_ft=0.7, w_kd=3.0, syn_size=11, noise_dim=64, double_forward=double_forward, **options)
    ctx, local, model, old, (start, before), batch = world(algorithm)
    generator = Objective(Zeros())
    ctx = replace(ctx, net={"generator": generator})
    z = ctx.rng("made", 0).standard_normal((11, 64), dtype=np.float32)
    x = torch.cat([batch.x, torch.from_numpy(z).view(11, *SHAPE)])
    learned = SEEN if scheduled else OLD
    with torch.no_grad():
        said = old(x)[:, learned]
    y = torch.cat([batch.y, torch.tensor(learned)[said[7:].argmax(1)]])
    h = model.features(x)
    still = model.features(x).detach() if double_forward else h.detach()
    value = 0.7 * F.cross_entropy(model.head(still)[:, SEEN], torch.tensor([SEEN.index(int(c)) for c in y]))
    first = [1] if scheduled else NEW
    rows = [i for i in range(7) if int(batch.y[i]) in first]
    value = value + F.cross_entropy(model.head(h[rows])[:, first], torch.tensor([first.index(int(y[i])) for i in rows]))
    value = value + 3 * ((old.head(h)[:, learned] - said) ** 2).sum(1).mean() / len(learned)
    loss, found = algorithm.gradient(ctx, MFCLDown(*start, *before, *generator.initial()), (), local, batch)
    torch.testing.assert_close(loss, value.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found, flat(ctx, model, value), rtol=1e-4, atol=1e-6)
    statistics = ctx.objective.buffer_layout.views(local.b)
    torch.testing.assert_close(statistics["norm.running_mean"], model.norm.running_mean)


def test_the_students_accuracy_is_by_the_labels_that_images_were_made_for():
    """By plain PyTorch: the module in eval mode on normalised images, its largest logit among the old classes 0 and 2.
    Labels are places among them; three blocks, the last shorter."""
    ctx, _, module, *_ = world(Target())
    pool, labels = (255 * torch.rand(11, *SHAPE)).to(torch.uint8), torch.arange(11) % 2
    tensors = {n: t for n, t in module.state_dict().items() if t.is_floating_point()}
    student = Student.of(*ctx.objective.from_state_dict(tensors))
    old = Teacher(ctx.objective, student.w, student.b, ctx.classes.old)
    found = Target(kd_batch=4).student_accuracy(ctx, old, student, pool, labels)
    with torch.no_grad():
        chosen = module.eval()((pool.float() / 255 - 0.4) / 0.3)[:, OLD].argmax(1)
    assert float(found) == pytest.approx(np.mean(chosen.numpy() == labels.numpy()))
    assert 0 < float(found) < 1


# whole runs ---------------------------------------------------------------------------------------
def run(name, folder, options=None, **sections):
    resources = {"executor": "local", "server": {"threads": 1}}
    return flray.run(experiment(name, options, resources=resources, **sections), out=folder, progress=False)


SIX_CLASSES = {"shape": [8, 8, 1], "num_classes": 6, "num_train": 180, "num_test": 60}
THREE_TASKS = {
    **PICTURES,
    "tasks": {"num_tasks": 3},
    "data": {"source": "synthetic", "options": SIX_CLASSES},
    "checkpoint": {"every": 1, "keep": 0},
}


@pytest.mark.parametrize("name", ["target", "lander"])
def test_the_pool_is_sent_once_a_client_and_task(name, tmp_path):
    """Down: the model (and alike in every message) and, once a client and task, the old model and the pool of 20 (40)
    images of 64 bytes; LANDER's embeddings once a client."""
    found = run(name, tmp_path / "run", **THREE_TASKS)
    state = checkpoint.latest(found.folder).server.message()
    count = 20 if name == "target" else 40
    assert state.pool.shape == (count, *SHAPE) and state.pool.dtype == np.uint8
    model, pool = state.w.nbytes + state.b.nbytes, state.pool.nbytes
    once = state.lte.nbytes if name == "lander" else 0
    clients = found.clients[found.clients["phase"] == "round"]
    holders, embedded = {0: set(), 1: set(), 2: set()}, set()
    for row in found.rounds.itertuples():
        now = set(clients[clients["done"] == row.done]["client"])
        new = now - holders[row.task]
        holders[row.task] |= now
        expected = len(now) * model + (len(new) * (pool + model) if row.task else 0) + len(now - embedded) * once
        embedded |= now
        assert found.rounds["comm/down_bytes"][row.Index] == expected
    begins = found.tasks[found.tasks["phase"] == "task_begin"]
    assert begins["task"].tolist() == [1, 2] and (begins["generate/inputs"] == count).all()
    right = begins["generate/student_acc"] * count
    assert np.allclose(right, right.round()) and right.between(0, count).all()
    assert begins["comm/down_bytes"].sum() == 0 and (begins["time/server_s"] > 0).all()


def test_mfcl_trains_one_generator_on_from_task_to_task(tmp_path):
    found = run("mfcl", tmp_path / "run", **THREE_TASKS)
    states = {
        done: checkpoint.read(path).server.message()
        for done, path in enumerate(sorted((found.folder / "checkpoints").glob("round-*[0-9]")))
    }
    generators = [state.generator_w.tobytes() for state in states.values()]
    assert len(set(generators)) == 3, "as it was initialised, and after each of the two tasks that others follow"


def test_mfcl_with_a_known_schedule_needs_no_tasks(tmp_path):
    """From round 2 to before round 4 the generator and the old model go down; else FedAvg's traffic."""
    sections = {**THREE_TASKS, "rounds": 5}
    del sections["tasks"]
    found = run("mfcl", tmp_path / "run", {"from_round": 2, "to_round": 4}, **sections)
    exchanges = found.rounds["exchanges"].tolist()
    assert exchanges == [1, 2, 1, 1, 1]
    plain = found.rounds["comm/down_bytes"][0]
    down_bytes = found.rounds["comm/down_bytes"].tolist()
    assert down_bytes[1] > plain and down_bytes[3] == down_bytes[4] == plain
    state = checkpoint.read(found.folder / "checkpoints" / "round-000005").server.message()
    first = checkpoint.read(found.folder / "checkpoints" / "round-000001").server.message()
    assert np.array_equal(state.old_w, first.w), "the old model is that with which round 2 began"


@pytest.mark.parametrize("seed", range(6))
def test_mfcl_makes_its_generator_whichever_clients_a_drift_empties(seed, tmp_path):
    """One class a client; from round 2 on half of them hold nothing. The server needs no client: no bytes, no row."""
    found = flray.run(
        {
            "seed": seed,
            "rounds": 2,
            "data": "digits",
            "model": "mlp",
            "partition": {"name": "label_skew", "classes_per_client": 1, "clients": 10},
            "drift": {"name": "remove_classes", "classes": [0, 1, 2, 3, 4], "from_round": 2},
            "algorithm": {"name": "mfcl", "from_round": 2, "pi": 1, "syn_size": 4, "local_epochs": 1},
            "resources": {"executor": "local", "server": {"threads": 1}},
            "checkpoint": {"every": 1, "keep": 0},
        },
        out=tmp_path / "run",
        progress=False,
    )
    first, second = (checkpoint.read(found.folder / "checkpoints" / f"round-00000{n}").server.message() for n in (1, 2))
    assert not len(first.old_w) and np.array_equal(second.old_w, first.w)
    assert not np.array_equal(second.generator_w, first.generator_w)
    clients = found.clients[found.clients["done"] == 2]
    assert clients["exchange"].unique().tolist() == [1] and len(clients) == 5
    sent = sum(array.nbytes for name, array in vars(second).items() if name not in ("w", "b", "rule"))
    model = first.w.nbytes + first.b.nbytes
    assert found.rounds["comm/down_bytes"].tolist() == [10 * model, 5 * (sent + model)]
    assert "exchanges_skipped" not in found.rounds


def test_a_round_whose_generator_is_made_first_is_replayed_by_client(tmp_path):
    """The clients of its first exchange that has some."""
    sections = {**THREE_TASKS, "rounds": 3}
    del sections["tasks"]
    found = run("mfcl", tmp_path / "run", {"from_round": 2}, **sections)
    updates = [(client, row["num_steps"]) for client, _, row in Replay(found.folder).goto(1).clients()]
    rows = found.clients[found.clients["done"] == 2]
    assert updates == list(zip(rows["client"], rows["num_steps"], strict=True)) and len(updates) == 2


# label embeddings ---------------------------------------------------------------------------------
def embeddings(source, classes=("cat", "dog"), width=3):
    return label_embeddings(source, classes, width, np.random.default_rng(0))


def test_embeddings_come_from_files(tmp_path):
    from safetensors.numpy import save_file

    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "a.npy", rows)
    save_file({"embeddings": rows}, tmp_path / "b.safetensors")
    save_file({"dog": rows[1], "cat": rows[0]}, tmp_path / "c.safetensors")
    for name in ("a.npy", "b.safetensors", "c.safetensors"):
        assert torch.equal(embeddings(str(tmp_path / name)), torch.from_numpy(rows))
    assert torch.equal(embeddings("random"), embeddings("random")) and embeddings("random").shape == (2, 3)
    with pytest.raises(DataError, match=r"embeddings of shape \[2, 3\].*need \[2, 4\]"):
        embeddings(str(tmp_path / "a.npy"), width=4)
    with pytest.raises(DataError, match="neither a tensor 'embeddings' nor one named 'bird'"):
        embeddings(str(tmp_path / "c.safetensors"), ("bird", "dog"))
    (tmp_path / "d.npy").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"d\.npy cannot be read"):
        embeddings(str(tmp_path / "d.npy"))


def test_without_embeddings_it_says_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match=r"algorithm\.lte: lander needs label embeddings; set it to a \.safetensors"):
        embeddings(None)
    with pytest.raises(ConfigError, match=r"algorithm\.lte: /nowhere does not exist"):
        embeddings("/nowhere")
    (tmp_path / "e.pt").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"e\.pt has another suffix"):
        embeddings(str(tmp_path / "e.pt"))
    with pytest.raises(DataError, match="holds no text model that transformers can load"):
        embeddings(str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "clip"])
def test_a_text_model_in_a_folder_reads_the_names(kind, tmp_path):
    """A tiny one of random weights: BERT's embedding is the mean of its last states over the words, without padding;
    CLIP's its projected text. Underscores in names are spaces."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "a", "photo", "of", "the", "polar", "bear"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    fast.save_pretrained(tmp_path)
    sizes = {"vocab_size": 8, "hidden_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2}
    if kind == "bert":
        model = transformers.BertModel(transformers.BertConfig(**sizes, max_position_embeddings=16))
    else:
        config = transformers.CLIPTextConfig(**sizes, projection_dim=6, max_position_embeddings=16, eos_token_id=7)
        model = transformers.CLIPTextModelWithProjection(config)
    model.eval().save_pretrained(tmp_path)
    found = embeddings(str(tmp_path), ("bear", "polar_bear"), 6)
    with torch.no_grad():
        said = [model(torch.tensor([[2, 3, 4, 2, *name]])) for name in ([7], [6, 7])]
    for row, one in zip(found, said, strict=True):
        expected = one.last_hidden_state[0].mean(0) if kind == "bert" else one.text_embeds[0]
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-5)
