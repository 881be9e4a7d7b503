"""BERT: sizes, the published forward pass, pretrained folders, and what reaches it from the data."""

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizerFast, GPT2Config

from flray.core.network.objective import Objective
from flray.core.schema.errors import ConfigError
from flray.data.dataset import TextShape
from flray.data.splits import Vocabulary
from flray.engine.flops import CountFlops
from flray.models import Classifier, ModelConfig, build_model, count_parameters
from flray.models.hugging_face import padded, unpadded

WORDS = Vocabulary(size=40, pad=0, separator=3)
SMALL = {"hidden": 8, "heads": 2, "intermediate": 12}


def make(vocabulary=WORDS, length=12, classes=3, seed=0, **options):
    return build_model(ModelConfig(name="bert", **options), TextShape(length, vocabulary), classes, seed)


def pairs():
    """Two pairs `[CLS] a [SEP] b [SEP]` of 9 and 6 tokens, padded to 12."""
    return torch.tensor([[2, 7, 8, 9, 3, 10, 11, 12, 3, 0, 0, 0], [2, 20, 3, 21, 22, 3, 0, 0, 0, 0, 0, 0]])


@pytest.fixture
def folder(tmp_path):
    """A pretrained BERT of 40 tokens, weights larger than the initialisation's, saved by transformers itself."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=40,
        hidden_size=8,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=12,
        initializer_range=0.3,
    )
    BertModel(config).save_pretrained(tmp_path / "own")
    return tmp_path / "own"


@pytest.mark.parametrize(("tokens", "parameters"), [(30_522, 4_385_920), (1000, 4_385_920 - 29_522 * 128)])
def test_it_is_bert_tiny(tokens, parameters):
    """4.4 M is what its page says of prajjwal1/bert-tiny; by hand 128 (30522 + 512 + 2) + 256 + 2 * 198272 + 16512."""
    model = make(Vocabulary(tokens, 0, 102), 128)
    assert count_parameters(model.bert) == parameters
    assert count_parameters(model.head) == 129 * 3


def test_forward_is_that_of_bert_for_sequence_classification(folder):
    """Transformers' own classifier, told mask and segments outright; padding to 12 or not at all."""
    ours = make(pretrained=str(folder), seed=5).eval()
    theirs = BertForSequenceClassification.from_pretrained(folder, num_labels=3).eval()
    theirs.classifier.load_state_dict(ours.head.state_dict())
    x = pairs()
    mask = torch.tensor([[1] * 9 + [0] * 3, [1] * 6 + [0] * 6])
    segments = torch.tensor([[0] * 5 + [1] * 4 + [0] * 3, [0] * 3 + [1] * 3 + [0] * 6])
    with torch.no_grad():
        expected = theirs(x, attention_mask=mask, token_type_ids=segments, output_hidden_states=True)
        logits = ours(x)
        torch.testing.assert_close(logits, expected.logits)
        torch.testing.assert_close(ours(x[1:, :6])[0], logits[1])
        assert not torch.allclose(logits, theirs(x, attention_mask=mask).logits, atol=1e-4)
        levels, again = ours.levels(x)
    assert torch.equal(again, logits)
    for level, states in zip(levels[:3], expected.hidden_states[1:], strict=True):
        torch.testing.assert_close(level, states[:, 0])
    torch.testing.assert_close(ours.head(torch.tanh(levels[3])), logits)


def test_a_table_longer_than_its_own_tokenizer_keeps_its_rows(folder):
    """40 rows for 37 tokens, as DeBERTa-v3 and ModernBERT have more rows than tokens. Another tokenizer of 36 is
    refused, and so is one of 37 while no tokenizer beside the weights says that it is theirs."""
    fewer = {"pretrained": str(folder), "vocabulary": Vocabulary(37, 0, 3)}
    with pytest.raises(ConfigError, match=r"has 40 tokens and the data's tokenizer 37; set data.tokenizer"):
        make(**fewer)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(32))]
    BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}).save_pretrained(folder)
    theirs = BertModel.from_pretrained(folder).state_dict()["embeddings.word_embeddings.weight"]
    assert len(theirs) == 40 and torch.equal(make(**fewer).bert.embeddings.word_embeddings.weight, theirs)
    by_name = build_model(ModelConfig(name=f"hf:{folder}"), TextShape(12, Vocabulary(37, 0, 3)), 3, 0)
    assert torch.equal(by_name.state_dict()["body.network.bert.embeddings.word_embeddings.weight"], theirs)
    for size in (36, 41):
        vocabulary = Vocabulary(size, 0, 3)
        with pytest.raises(ConfigError, match=f"the data's tokenizer {size}; set data.tokenizer to the network's own"):
            make(**fewer | {"vocabulary": vocabulary})
        with pytest.raises(ConfigError, match=f"for vocab_size 40, the data have {size}; set data.tokenizer"):
            build_model(ModelConfig(name=f"hf:{folder}"), TextShape(12, vocabulary), 3, 0)


def test_head_of_features_with_the_head_last():
    model = make(**SMALL)
    assert isinstance(model, Classifier) and next(reversed(model._modules)) == "head" and model.training
    model.eval()
    assert model.features(pairs()).shape == (2, 8)
    assert torch.equal(model.head(model.features(pairs())), model(pairs()))


def test_initialisation():
    """Normal with deviation 0.02, biases 0, as BERT's; from the seed alone."""
    model = make(classes=500)
    for weight in (model.head.weight, model.bert.embeddings.word_embeddings.weight[1:], model.bert.pooler.dense.weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not model.head.bias.any() and not model.bert.pooler.dense.bias.any()
    torch.manual_seed(1)
    assert torch.equal(model.head.weight, make(classes=500).head.weight)
    assert not torch.equal(model.head.weight, make(classes=500, seed=1).head.weight)


def test_objective_has_every_parameter_and_no_statistics():
    """Position indices are nobody's state."""
    objective = Objective(make(**SMALL))
    assert objective.initial()[1].numel() == 0 and objective.layout.count == count_parameters(objective.module)
    assert objective.mask("head").sum() == 9 * 3


def test_dropout_is_the_option(folder):
    torch.manual_seed(0)
    for options in ({"pretrained": str(folder)}, SMALL):
        noisy, still = make(**options, dropout=0.5), make(**options, dropout=0.0)
        assert not torch.equal(noisy(pairs()), noisy(pairs()))
        assert torch.equal(still(pairs()), still(pairs()))
        assert torch.equal(noisy.eval()(pairs()), still(pairs()))
    rates = {module.p for module in make(**SMALL).modules() if isinstance(module, torch.nn.Dropout)}
    assert rates == {0.1}


def test_a_network_of_the_users_own_gets_what_the_ids_count_in():
    config = ModelConfig(name="tests.models.own_networks:Words", width=5)
    assert config.options == {"width": 5}
    model = build_model(config, TextShape(12, WORDS), 3, 0)
    assert model.embedding.num_embeddings == 40 and model.embedding.padding_idx == 0
    assert model(pairs()).shape == (2, 3)


def test_pretrained_errors(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    GPT2Config().save_pretrained(tmp_path / "gpt2")
    for options, says in [
        (
            {"pretrained": str(tmp_path / "empty")},
            r"pretrained '.*empty' cannot be loaded .*give a folder that holds it",
        ),
        (
            {"pretrained": "nobody/no-such-bert"},
            r"'nobody/no-such-bert' cannot be loaded .*fetch it: hf download nobody/no-such-bert",
        ),
        ({"pretrained": str(tmp_path / "gpt2")}, r"is a gpt2 network; choose a BERT"),
        ({"pretrained": str(folder), "layers": 4}, r"layers is the pretrained network's own; leave it out"),
        ({"hidden": 9, "heads": 2}, r"hidden 9 is not a multiple of heads 2"),
        ({**SMALL, "length": 513}, r"has 512 positions, samples have 513 tokens; lower data.max_length"),
        (
            {"pretrained": str(folder), "vocabulary": Vocabulary(41, 0, 3)},
            r"has 40 tokens and the data's tokenizer 41",
        ),
    ]:
        with pytest.raises(ConfigError, match=says):
            make(**options)


def test_text_and_networks_that_do_not_read_it():
    with pytest.raises(ConfigError, match=r"model 'bert' reads text, the data have samples of shape \[3, 8, 8\]"):
        build_model(ModelConfig(name="bert"), (3, 8, 8), 3, 0)
    with pytest.raises(ConfigError, match=r"model 'mlp' does not read text: it has no argument num_tokens; use 'bert'"):
        build_model(ModelConfig(name="mlp"), TextShape(12, WORDS), 3, 0)
    with pytest.raises(ConfigError, match=r"model 'bert': num_tokens comes from the data; leave it out"):
        ModelConfig(name="bert", num_tokens=40)


def test_padding_stays_where_a_run_on_a_gpu_is_counted():
    """9 of 12 tokens: 12 are computed. The logits do not depend on the padding."""
    model, x = make().eval(), pairs()
    assert unpadded(x, 0)[0].shape == (2, 9)
    with CountFlops() as fewer, torch.no_grad():
        short = model(x[:1, :9])
    with padded(), CountFlops() as more, torch.no_grad():
        assert unpadded(x, 0)[0].shape == (2, 12)
        long = model(x[:1])
    torch.testing.assert_close(long, short)
    assert more.total > 1.2 * fewer.total
    assert unpadded(x, 0)[0].shape == (2, 9)
