"""T5 that answers in words: the published forward pass, prefixes, what is trained, pretrained folders."""

import sys

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F
from transformers import BertConfig, T5Config, T5ForConditionalGeneration

from flray.core.messages import nbytes
from flray.core.network.objective import Objective
from flray.core.schema.errors import ConfigError
from flray.data.dataset import TextShape
from flray.data.splits import Vocabulary
from flray.models import Classifier, ModelConfig, build_model, count_parameters
from flray.models.t5 import PrefixedAttention
from flray.models.weights import read_weights, save_weights

ONE = Vocabulary(size=40, pad=0, separator=1, labels=(5, 6, 9), task_of=(0, 0, 0))
TWO = Vocabulary(size=40, pad=0, separator=1, labels=(5, 6, 7, 8, 6), task_of=(0, 0, 1, 1, 1), tasks=(20, 21))
SHAPE = {"layers": 2, "hidden": 16, "heads": 2, "intermediate": 12}
PUBLISHED = {"num_layers": 3, "num_decoder_layers": 2, "d_model": 16, "num_heads": 2, "d_kv": 6, "d_ff": 12}
LARGE = {"layers": 24, "hidden": 1024, "heads": 16, "intermediate": 4096}


def make(vocabulary=ONE, seed=0, classes=None, **options):
    shape = {} if "pretrained" in options else SHAPE
    config = ModelConfig(name="t5", **{**shape, **options})
    return build_model(config, TextShape(12, vocabulary), classes or len(vocabulary.labels), seed)


def texts():
    """Two texts of 5 and 7 tokens, the first of task 0, the second of task 1, padded to 9."""
    return torch.tensor([[20, 7, 8, 9, 1, 0, 0, 0, 0], [21, 3, 4, 5, 6, 7, 1, 0, 0]])


def save(folder, **options):
    """A pretrained T5 with weights of a usual size, as transformers saves it; the LM head is tied or its own."""
    torch.manual_seed(0)
    network = T5ForConditionalGeneration(
        T5Config(vocab_size=40, pad_token_id=0, decoder_start_token_id=0, **{**PUBLISHED, **options})
    )
    if options.get("tie_word_embeddings") is False:
        network.lm_head.weight = torch.nn.Parameter(torch.randn(40, 16))
    network.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path):
    return save(tmp_path / "t5")


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_the_language_models_scores_of_the_words(tmp_path, tied, gated):
    """Transformers' own network, told mask and decoder input outright; padding makes no difference."""
    kind = {"feed_forward_proj": "gated-gelu" if gated else "relu"}
    source = save(tmp_path / "own", tie_word_embeddings=tied, **kind)
    theirs = T5ForConditionalGeneration.from_pretrained(source).eval()
    assert torch.equal(theirs.lm_head.weight, theirs.shared.weight) == tied
    ours = make(pretrained=str(source), tune="full", seed=5).eval()
    x = texts()
    mask = torch.tensor([[1] * 5 + [0] * 4, [1] * 7 + [0] * 2])
    with torch.no_grad():
        expected = theirs(input_ids=x, attention_mask=mask, decoder_input_ids=torch.zeros(2, 1, dtype=torch.long))
        torch.testing.assert_close(ours(x), expected.logits[:, 0, [5, 6, 9]])
        torch.testing.assert_close(ours(x[:1, :5])[0], ours(x)[0])
        assert torch.equal(ours.head(ours.features(x)), ours(x)) and ours.features(x).shape == (2, 16)
        assert not torch.allclose(theirs(input_ids=x, decoder_input_ids=x[:, -1:]).logits, expected.logits, atol=1e-3)
        assert torch.equal(make(pretrained=str(source), tune="lora").eval()(x), ours(x)), "low-rank updates begin at 0"


@torch.no_grad()
def test_prefixed_attention_is_its_formula():
    """Written out query by query and head by head: no bias for prefix positions, none of the padding is seen."""
    attention = make(prefix_layers="all", prefix_length=4).encoder.block[0].layer[0].SelfAttention.eval()
    for prefix in (attention.keys, attention.values):
        torch.nn.init.normal_(prefix)
    of, x, real = attention.attention, torch.randn(2, 5, 16), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    bias = of.compute_bias(5, 5)
    assert bias.abs().max() > 0.1
    found, shared, _ = attention(x, real[:, None, None].expand(2, 1, 5, 5))
    again, _, _ = attention(x, torch.where(real, 0.0, -1e30)[:, None, None], shared)
    for text, states, mask in zip(found, x, real, strict=True):
        for i in range(5):
            heads = []
            for h in range(2):
                own = slice(8 * h, 8 * h + 8)
                q, k, v = (layer(states)[:, own] for layer in (of.q, of.k, of.v))
                scores = [q[i] @ key for key in attention.keys[:, own]]
                scores += [q[i] @ k[j] + bias[0, h, i, j] for j in range(5) if mask[j]]
                values = torch.cat([attention.values[:, own], v[mask]])
                heads.append(torch.stack(scores).softmax(0) @ values)
            torch.testing.assert_close(text[i], of.o(torch.cat(heads)))
    torch.testing.assert_close(again, found)
    assert torch.equal(shared, bias), "the next layer gets the text's own"


def prefixed(model):
    """Of each layer of the encoder, then of the decoder, whether it has a prefix."""
    blocks = (*model.encoder.block, *model.decoder.block)
    return [isinstance(block.layer[0].SelfAttention, PrefixedAttention) for block in blocks]


def test_what_is_trained():
    assert prefixed(make()) == [False, True] * 2 and prefixed(make(prefix_layers="all")) == [True] * 4
    assert prefixed(make(tune="full")) == [False] * 4
    for options, count in [
        ({}, 2 * 2 * 20 * 16),
        ({"prefix_layers": "all", "prefix_length": 3}, 4 * 2 * 3 * 16),
        ({"tune": "lora", "lora_rank": 4}, 6 * 2 * 2 * 4 * 16),  # three attentions in two layers, q and v
        ({"tune": "lora", "lora_rank": 1, "lora_targets": ["wi"]}, 4 * (16 + 12)),
    ]:
        model = make(**options)
        assert count_parameters(model) == count
        assert not any(p.requires_grad for name, p in model.named_parameters() if "lora" not in name and not _new(name))
        assert count_parameters(make(TWO, **options)) - count == (0 if "tune" in options else 2 * 16)
    assert count_parameters(make(TWO, task_token=False)) == 2 * 2 * 20 * 16
    full = make(tune="full")
    assert all(p.requires_grad for p in full.parameters())


def _new(name):
    return name.endswith((".keys", ".values")) or name == "task_embedding"


@pytest.mark.parametrize(
    ("options", "count"), [({}, 2 * 2 * 20 * 1024), ({"prefix_layers": "all"}, 48 * 2 * 20 * 1024)]
)
def test_the_count_for_t5_large(options, count):
    """FedMemo on GLUE: 2 x 20 x 1024 a layer. Nothing is allocated."""
    with torch.device("meta"):
        vocabulary = Vocabulary(size=32_128, pad=0, separator=1, labels=(5, 6), task_of=(0, 0))
        model = make(vocabulary, **LARGE, **options)
    assert count_parameters(model) == count
    frozen = [p for name, p in model.named_parameters() if not p.requires_grad and not name.startswith("head.")]
    assert sum(p.numel() for p in frozen) == 737_668_096


def test_classes_of_other_tasks_are_out_of_reach():
    """Softmax is among the words of a text's own task; no row is infinite; a text of no task is among all."""
    model = make(TWO, tune="full").eval()
    alone = make(TWO._replace(task_of=(0,) * 5, tasks=()), tune="full").eval()
    x = torch.cat([texts(), texts()[:1].clone()])
    x[2, 0] = 30
    with torch.no_grad():
        logits, plain = model(x), alone(x)
        assert model.features(x).shape == (3, 18) and torch.equal(model.head(model.features(x)), logits)
    own = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
    torch.testing.assert_close(logits[own], plain[own])
    assert torch.equal(logits.softmax(1)[~own], torch.zeros(5)) and logits.isfinite().all()
    divergence = F.kl_div(
        logits.log_softmax(1), (logits + torch.randn(3, 5)).log_softmax(1), reduction="batchmean", log_target=True
    )
    assert divergence.isfinite()
    assert alone.head.in_features == 16 and model.head.in_features == 18


def test_a_task_token_begins_as_the_tasks_own_token():
    model, plain = make(TWO).eval(), make(TWO, task_token=False).eval()
    x = torch.cat([texts(), texts()[:1]])
    x[2, 0] = 30
    with torch.no_grad():
        assert torch.equal(model(x), plain(x))
        model.task_embedding[1] += 1.0
        torch.testing.assert_close(model(x)[[0, 2]], plain(x)[[0, 2]])
        assert not torch.allclose(model(x)[1], plain(x)[1])


@pytest.mark.parametrize("tune", ["prefix", "lora", "full"])
def test_objective_has_what_is_trained(tune):
    """Value and gradient through the flat vector are those of a plain backward pass; the early part is the encoder."""
    y = torch.tensor([0, 2])
    plain, objective = make(TWO, tune=tune, dropout=0.0), Objective(make(TWO, tune=tune, dropout=0.0))
    assert isinstance(plain, Classifier) and next(reversed(plain._modules)) == "head" and plain.training
    w, b = objective.initial()
    assert b.numel() == 0 and objective.layout.count == count_parameters(plain)
    loss = F.cross_entropy(plain(texts()), y)
    loss.backward()
    value, gradient = objective.value_and_grad(lambda model: F.cross_entropy(model(texts()), y), w, b)
    assert value == loss and gradient.abs().max() > 0
    for name, found in objective.views(gradient).items():
        torch.testing.assert_close(found, plain.get_parameter(name).grad)
    early = objective.views(objective.mask("early"))
    assert {name for name, t in early.items() if t.any()} == {n for n in early if not n.startswith(("dec", "head"))}
    if tune == "full":
        assert objective.mask("head").sum() == 16 * 5
    else:
        with pytest.raises(ConfigError, match="no trainable part 'head'"):
            objective.mask("head")


@pytest.mark.parametrize("tune", ["prefix", "lora"])
def test_only_what_is_trained_is_written(folder, tmp_path, tune):
    """Message, `model.safetensors` and back: what the pretrained folder has is named, not held."""
    objective = Objective(make(TWO, pretrained=str(folder), tune=tune))
    w, b = objective.initial()
    w = torch.randn_like(w)
    assert nbytes((w, b)) <= 4 * (count_parameters(objective.module) + 16 * len(objective.layout.entries))
    save_weights(objective.state_dict(w, b), tmp_path / "model.safetensors", objective.frozen, [str(folder)])
    trained = {entry.name for entry in objective.layout.entries}
    assert load_file(tmp_path / "model.safetensors").keys() == trained | {"head.weight"}  # some rows of a table
    found = read_weights(str(tmp_path))
    assert found.keys() == objective.module.state_dict().keys()
    for name, tensor in objective.state_dict(w, b).items():
        assert torch.equal(found[name], tensor), name
    again = make(TWO, pretrained=str(folder), tune=tune, weights=str(tmp_path), seed=7)
    assert torch.equal(Objective(again).initial()[0], w)


def test_initialisation():
    """From the seed alone; prefixes are small beside a T5's own keys, of size 1."""
    model = make(hidden=64, prefix_length=50)
    prefixes = [p for name, p in model.named_parameters() if name.endswith((".keys", ".values"))]
    assert len(prefixes) == 4 and all(p.std().item() == pytest.approx(0.02, rel=0.1) for p in prefixes)
    torch.manual_seed(1)
    for options in ({}, {"tune": "lora"}):
        one, same, other = (make(seed=seed, **options).state_dict() for seed in (0, 0, 1))
        assert all(torch.equal(one[name], same[name]) for name in one)
        assert not torch.equal(one["shared.weight"], other["shared.weight"])


def test_dropout_is_the_option(folder):
    for options in ({"pretrained": str(folder)}, {}):
        noisy, still = make(**options, dropout=0.5), make(**options, dropout=0.0)
        assert not torch.equal(noisy(texts()), noisy(texts())) and torch.equal(still(texts()), still(texts()))
        assert torch.equal(noisy.eval()(texts()), still(texts()))


def test_errors(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    BertConfig().save_pretrained(tmp_path / "bert")
    source = {"pretrained": str(folder)}
    for options, says in [
        (
            {"pretrained": str(tmp_path / "empty")},
            r"pretrained '.*empty' cannot be loaded .*give a folder that holds it",
        ),
        ({"pretrained": "nobody/no-such-t5"}, r"cannot be loaded .*fetch it: hf download nobody/no-such-t5"),
        ({"pretrained": str(tmp_path / "bert")}, r"is a bert network; choose a T5"),
        ({**source, "layers": 4}, r"layers is the pretrained network's own; leave it out"),
        ({**source, "vocabulary": ONE._replace(size=41)}, r"knows 40 tokens, padding being 0, .* has 41 and 0; set"),
        ({**source, "vocabulary": ONE._replace(pad=2)}, r"knows 40 tokens, padding being 0, .* has 40 and 2; set data"),
        ({"hidden": 9, "heads": 2}, r"hidden 9 is not a multiple of heads 2"),
        (
            {"tune": "lora", "prefix_length": 5},
            r"prefix_length belongs to tune: prefix, and this is lora; leave it out",
        ),
        ({"tune": "full", "task_token": False}, r"task_token belongs to tune: prefix, and this is full; leave it out"),
        ({"lora_targets": ["k"]}, r"lora_targets belongs to tune: lora, and this is prefix; leave it out"),
        ({"tune": "lora", "lora_targets": ["query"]}, r"unknown layer 'query' in model 't5', option 'lora_targets'"),
        ({"classes": 4}, r"have 3 words for 4 outputs; give each class a word in data.words"),
        ({"vocabulary": TWO._replace(tasks=())}, r"of 2 tasks, and the texts do not begin with their task's token"),
        (
            {"vocabulary": Vocabulary(40, 0, 1), "classes": 3},
            r"answers in words, and the classes of the data have none.*set data.words",
        ),
    ]:
        with pytest.raises(ConfigError, match=says):
            make(**options)


def test_without_peft_low_rank_updates_are_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    make()
    with pytest.raises(ConfigError, match=r"^model 't5', tune: lora needs peft; pip install 'flray\[text\]'$"):
        make(tune="lora")
