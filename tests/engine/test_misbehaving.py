"""A user's own algorithm that breaks the interface: one line that names the method, and STATUS says so."""

import re
import signal
import sys

import numpy as np
import pytest
import torch

import flray
from flray.contracts.played import Local
from flray.core.protocol.clock import Clock
from flray.core.protocol.modes import Prediction
from flray.core.schema.errors import AlgorithmError, CheckpointError, ClientError, ResourceError, ServerLostError
from flray.doctor import examine
from flray.engine import simulation
from flray.engine.counts import check_prediction
from flray.engine.health import reported
from flray.engine.local_executor import LocalExecutor
from flray.engine.server import Server
from flray.metrics.names import METRICS, REPORTED, reserved
from flray.rundir import checkpoint
from flray.rundir.provenance import write_environment
from flray.running import resume, simulate
from tests.support import misbehaving
from tests.support.messages import assert_says, facts
from tests.support.misbehaving import experiment

FILE = "misbehaving.py"
CLOCK = Clock(phase="task_begin")


def failure(folder, *arguments, kind=AlgorithmError, **sections):
    """The error of the run, whose first line is that of STATUS."""
    with pytest.raises(kind) as error:
        simulate(experiment(*arguments, **sections), folder)
    text = str(error.value)
    assert (folder / "STATUS").read_text() == f"failed: {text.splitlines()[0]}\n"
    return text


def one_line(text, method, words):
    assert "\n" not in text
    assert re.search(rf"\b{re.escape(method)} \({FILE}, line \d+\)", text) and words in text, text


# logits ---------------------------------------------------------------------------------------
def test_logits_are_looked_at_where_the_modes_share_a_forward_pass(tmp_path):
    local = Local(experiment("logits", "narrow", tasks={"num_tasks": 3}), tmp_path)
    with pytest.raises(AlgorithmError, match=facts("Logits.predict", re.compile(r"\[\d+, 3\]"))):
        local.executor.test(CLOCK)


FORMS = {
    **{
        name: (torch.zeros(*shape), f"returned a Tensor {list(shape)}; it must return logits [5, 3]")
        for name, shape in {"narrow": (5, 2), "wide": (5, 6), "few": (4, 3), "flat": (15,)}.items()
    },
    "few logits": (Prediction(torch.zeros(4, 3)), "logits [4, 3]; give [5, H]"),
    "wide logits": (Prediction(torch.zeros(5, 4)), "logits [5, 4] of 3 classes"),
    "classes": (Prediction(torch.zeros(5, 3), torch.arange(2)), "classes [2] of int64 of logits [5, 3]; give [3]"),
    "few labels": (Prediction(label=torch.zeros(4, dtype=torch.int64)), "label [4] of int64; give integers [5]"),
    "labels of floats": (Prediction(label=torch.zeros(5)), "label [5]; give integers [5]"),
    "few tasks": (Prediction(torch.zeros(5, 3), task=torch.zeros(4, dtype=torch.int64)), "task [4] of int64"),
    "words": ("setosa", "returned a str; it must return logits [5, 3]"),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_prediction_of_another_form_is_refused(form):
    answer, words = FORMS[form]
    with pytest.raises(AlgorithmError) as error:
        check_prediction(answer, 5, 3, misbehaving.Plans(lr=0.1).odd)
    one_line(str(error.value), "Plans.odd", words)


@pytest.mark.parametrize(
    "answer",
    [
        torch.zeros(5, 3),
        Prediction(torch.zeros(5, 2)),  # the classes 0 and 1
        Prediction(torch.zeros(5, 2), torch.tensor([0, 2])),
        Prediction(torch.zeros(5, 2), torch.zeros(5, 2, dtype=torch.int64)),  # each sample's own head
        Prediction(label=torch.zeros(5, dtype=torch.int64)),
    ],
)
def test_a_prediction_of_any_form_that_is_documented_passes(answer):
    found = check_prediction(answer, 5, 3, misbehaving.Plans(lr=0.1).odd)
    assert found is answer or found.logits is answer


# metrics --------------------------------------------------------------------------------------
NAMES = [
    "round", "task", "done", "phase", "client_steps", "comm/up_bytes", "comm/up_bytes/w", "test/acc", "time/round_s",
    "diverged", "client", "skipped", "num_examples", "personal/ft1/acc_mean",
]  # fmt: skip


METRICS_REFUSED = [
    *(({"mine/x": 1.0, name: 1.0}, f"a metric {name!r}, and flray writes a column of that name") for name in NAMES),
    ({3: 1.0}, "a metric 3; a metric's name is printable text"),
    ({"": 1.0}, "a metric ''"),
    ({"a\x1b[31m": 1.0}, r"a metric 'a\x1b[31m'"),
    ({"x": "high"}, "a metric 'x' of 'high'; report a number, or a 1-dim tensor"),
    ({"x": torch.ones(2, 2)}, "a metric 'x' of tensor([[1., 1.], [1., 1.]])"),
]


@pytest.mark.parametrize(("metrics", "words"), METRICS_REFUSED, ids=[words for _, words in METRICS_REFUSED])
def test_a_metric_that_is_none_or_has_the_name_of_a_column_is_refused(metrics, words):
    with pytest.raises(AlgorithmError) as error:
        reported(metrics, misbehaving.Reports(lr=0.1).report)
    one_line(str(error.value), "Reports.report", f"reports {words}")


def test_every_column_that_the_engine_writes_is_reserved(tmp_path):
    """All that a run of FedAvg writes but FedAvg's own `train/loss`, with everything on that adds columns."""
    simulate(
        experiment(
            "logits",
            evaluate={"clients": True, "finetune_epochs": [1]},
            cohort={"size": 3, "dropout": 0.5},
            tasks={"num_tasks": 3},
            on_nonfinite="skip",
        ),
        tmp_path / "run",
    )
    run = flray.load(tmp_path / "run")
    columns = {*run.rounds, *run.clients, *run.tasks, *run.personal}
    assert {"comm/up_bytes/w", "client/acc_after", "clients_dropped", "exchanges"} <= columns
    assert {name for name in columns if not reserved(name)} == {"train/loss", "proxy_examples"}
    assert not any(map(reserved, REPORTED)) and REPORTED.keys() < METRICS.keys()


@pytest.mark.parametrize("server", [False, True])
@pytest.mark.parametrize("what", ["vector later", "number later"])
def test_a_metric_that_changes_its_kind_costs_nothing_that_is_there(tmp_path, server, what):
    """In round 3 of 3: the rows and the checkpoint of round 2 stay, and none of round 3 is written."""
    text = failure(tmp_path / "run", "reports", what, 2, 3, options={"server": server}, checkpoint={"every": 5})
    before, now = ("number", "vector") if what == "vector later" else ("vector", "number")
    table = "rounds" if server else "clients"
    assert_says(text, "'mine/x'", f"was a {before}", f"is a {now}", f"{table}/")
    run = flray.load(tmp_path / "run")
    assert run.rounds["done"].tolist() == [1, 2] and run.clients["done"].unique().tolist() == [1, 2]
    assert checkpoint.latest(tmp_path / "run").position.done == 2


def test_a_metric_that_changes_its_kind_in_a_resumed_run_is_found(tmp_path):
    with pytest.raises(AlgorithmError):
        simulate(experiment("reports", "vector later", 1), tmp_path / "run")
    with pytest.raises(AlgorithmError, match=facts("'mine/x'", "number", "vector", "clients/")):
        resume(tmp_path / "run", progress=False)
    assert flray.load(tmp_path / "run").rounds["done"].tolist() == [1]


# what methods return --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("algorithm", "what", "method", "words"),
    [
        ("messages", "bfloat16 state", "Messages.end", "its client state's v is a bfloat16 tensor, which no message"),
        ("messages", "sparse state", "Messages.end", "its client state's v is a sparse tensor, which no message holds"),
        ("messages", "bfloat16 broadcast", "Messages.broadcast", "its broadcast's w is a bfloat16 tensor"),
        ("messages", "bfloat16 server", "Messages.aggregate", "its server state's w is a bfloat16 tensor"),
        # an exchange of one's own
        ("own_work", "look gives two", "Work.look", "returned (Update, Kept); it must return (update, client state, "),
        ("own_work", "look gives no metrics", "Work.look", "returned (Update, Kept, None)"),
        ("own_work", "look gives no update", "Work.look", "returned (None, Kept, dict)"),
        ("own_work", "look reports round", "Work.look", "reports a metric 'round'"),
        ("own_work", "looked gives a state", "Work.looked", "returned a ServerState; it must return (state, metrics)"),
    ],
)
def test_messages_that_break_the_interface_name_their_method(tmp_path, algorithm, what, method, words):
    local = Local(experiment(algorithm, what), tmp_path)
    before = local.state.w.clone()
    with pytest.raises(AlgorithmError) as error:
        local.play(1)
    one_line(str(error.value), method, words)
    if algorithm == "messages":
        assert torch.equal(local.state.w, before)


@pytest.mark.parametrize(
    ("algorithm", "what", "words"),
    [
        ("messages", "begin writes", "Messages: a client of exchange 'train' wrote into `broadcast`"),
        ("messages", "step writes", "Messages: a client of exchange 'train' wrote into `broadcast`"),
        ("messages", "end writes", "Messages: a client of exchange 'train' wrote into `broadcast`"),
        ("own_work", "look writes", "Work: a client of exchange 'look' wrote into `broadcast`"),
    ],
)
def test_a_client_that_writes_into_the_broadcast_is_named_with_its_exchange(tmp_path, algorithm, what, words):
    local = Local(experiment(algorithm, what), tmp_path)
    with pytest.raises(AlgorithmError) as error:
        local.play(1)
    assert "\n" not in str(error.value) and str(error.value).startswith(words)


PERSONAL = {"rounds": 1, "evaluate": {"finetune_epochs": [0]}}
NO_MESSAGE = "tensor, which no message holds; return w."


@pytest.mark.parametrize(
    ("algorithm", "what", "method", "words", "sections"),
    [
        ("logits", "narrow", "Logits.predict", "[30, 3]", {}),  # it was `finished` before
        (
            "personal_logits",
            "narrow",
            "PersonalLogits.personalize",
            "returned a Tensor [30, 2]; it must return logits [30, 3]",
            PERSONAL,
        ),
        ("personal_logits", "few", "PersonalLogits.personalize", "returned a Tensor [29, 3]", PERSONAL),
        ("personal_logits", "none", "PersonalLogits.personalize", "returned None", PERSONAL),
        ("personal_logits", "no function", "PersonalLogits.personalize", "it must return a predictor", PERSONAL),
        ("reports", "client_steps", "Reports.report", "'client_steps'", {"options": {"server": False}}),
        ("reports", "client_steps", "Reports.aggregate", "'client_steps'", {"options": {"server": True}}),
        ("messages", "bfloat16 update", "Messages.end", f"its update's w is a bfloat16 {NO_MESSAGE}", {}),
        ("messages", "sparse update", "Messages.end", f"its update's w is a sparse {NO_MESSAGE}", {}),
    ],
)
def test_a_run_ends_at_once_and_names_the_method(tmp_path, algorithm, what, method, words, sections):
    one_line(failure(tmp_path / "run", algorithm, what, **sections), method, words)


def test_a_client_that_writes_later_is_found_by_what_torch_counts(tmp_path):
    local = Local(experiment("messages", "end writes", 1), tmp_path)
    local.play(1)
    with pytest.raises(AlgorithmError, match=facts("Messages: ", "'train'", "`broadcast`")):
        local.play(1)


def test_an_update_that_requires_a_gradient_is_its_values(tmp_path):
    """The same bits as without: cut off from the graph, and nothing else."""
    states = [Local(experiment("messages", what), tmp_path / what).play(2) for what in ("gradient", "")]
    assert torch.equal(states[0].w, states[1].w) and not states[0].w.requires_grad


@pytest.mark.parametrize("what", ["no state", "a record"])
def test_a_client_without_a_state_and_an_update_that_is_no_update_count_in_full(tmp_path, what):
    """Clients whose state was None were left out of the weights and not of the sum: the model grew by 1 / their share.
    In round 2 alone, so that the first one leaves a state."""
    states = [Local(experiment("messages", case, 1), tmp_path / case).play(2) for case in (what, "")]
    assert torch.equal(states[0].w, states[1].w)


def test_a_server_state_that_is_no_model_says_what_to_write(tmp_path):
    text = failure(tmp_path / "run", "messages", "init_server gives a record", rounds=1)
    assert text == (
        "Messages: its server state is a Plain, in which nothing says where the model is; let Plain inherit from "
        "ServerState, or override published"
    )


def test_counting_flops_leaves_the_servers_state_alone(tmp_path):
    """The server runs the client's first step, which writes into `broadcast`."""
    with pytest.raises(AlgorithmError):
        simulate(experiment("messages", "step writes"), tmp_path / "run")
    first = checkpoint.latest(tmp_path / "run", 0).server.message().w
    assert np.array_equal(first, Local(experiment("messages"), tmp_path / "local").state.w.numpy())


# what methods raise ---------------------------------------------------------------------------
CLIENT = r"client \d failed in task 0, round 1, exchange 0, seed 3: "
WORDLESS = r"Unspeakable: \(its __str__ raises RuntimeError\)"


@pytest.mark.parametrize(
    ("algorithm", "what", "kind", "first", "line"),
    [
        ("messages", "unspeakable", ClientError, CLIENT + WORDLESS, "in end"),
        ("messages", "aggregate is unspeakable", AlgorithmError, f"Messages.aggregate failed in .*: {WORDLESS}", ""),
        ("messages", "escapes", ClientError, CLIENT + r"ValueError: \\x1b\[31mred\\x1b\[0m \\x07 and over.*", "in end"),
        ("messages", "exits", ClientError, f"{CLIENT}SystemExit: 3", "sys.exit(3)"),
        ("first_step", "begin exits", ClientError, f"{CLIENT}SystemExit: 3", "sys.exit(3)"),
    ],
    ids=["no words of a client", "no words of the server", "escapes", "sys.exit", "sys.exit as FLOPs are counted"],
)
def test_what_a_method_raises_is_told_with_its_traceback(tmp_path, algorithm, what, kind, first, line):
    """By its kind where it has no words; no escape reaches a terminal."""
    text = failure(tmp_path / "run", algorithm, what, kind=kind)
    assert re.fullmatch(first, text.splitlines()[0]), text
    assert FILE in text and line in text and text.replace("\n", "").isprintable()


def test_a_signal_in_a_client_stops_the_run_as_everywhere(tmp_path, monkeypatch):
    """SIGTERM's handler raises SystemExit inside the client's method."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))

    def end(self, *arguments):
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("the signal's handler raises before this")

    monkeypatch.setattr(misbehaving.Messages, "end", end)
    try:
        with pytest.raises(SystemExit):
            simulate(experiment("messages"), tmp_path / "run")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert flray.load(tmp_path / "run").status.startswith("interrupted after round 0; continue with: flray resume")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("init_server raises", "ZeroDivisionError: made up by the test"),
        ("init_server is unspeakable", "Unspeakable: (its __str__ raises RuntimeError)"),
        ("init_server exits", "SystemExit: 3"),
    ],
)
def test_init_server_that_fails_is_named_and_the_run_can_go_on(tmp_path, monkeypatch, what, words):
    text = failure(tmp_path / "run", "messages", what)
    assert text.splitlines()[0] == f"Messages.init_server failed: {words}"
    assert FILE in text and "in init_server" in text
    monkeypatch.delattr(misbehaving.Messages, "init_server")  # the user mends it
    resume(tmp_path / "run", progress=False)
    assert flray.load(tmp_path / "run").status == "finished"


ASKED = [
    "weights",
    "local_steps",
    "init_client",
    "module",
    "networks",
    "modes",
    "odd",
    "predict",
    "published",
    "broadcast",
]


@pytest.mark.parametrize("method", ASKED)
def test_what_raises_as_it_is_asked_to_plan_build_or_test_is_named(tmp_path, method):
    text = failure(tmp_path / "run", "plans", method, rounds=1)
    assert re.match(rf"Plans\.{method} failed( in .*)?: ZeroDivisionError: made up by the test$", text.splitlines()[0])
    assert 'raise ZeroDivisionError("made up by the test")' in text


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("weights", "returned None .a return is missing.; it must return aggregation weights"),
        ("local_steps", r"returned an array \[\]; it must return steps \[2\]"),
        ("module", "it returned a NoneType; it must return a torch.nn.Module"),
        ("networks", "it returned a NoneType; it must return networks by name"),
        ("init_client", "returned None .a return is missing.; it must return the client's first state"),
    ],
)
def test_what_returns_something_else_as_it_is_asked_is_named(tmp_path, method, words):
    line = failure(tmp_path / "run", "plans", f"{method} returns", rounds=1).splitlines()[0]
    assert line.startswith(f"Plans.{method} ") and re.search(words, line), line


def test_a_server_that_dies_at_the_same_work_again_and_again_ends_the_run_in_one_line(tmp_path, monkeypatch):
    call = LocalExecutor.call

    def dying(self, method, *arguments):
        if method == Server.step_flops:
            raise ServerLostError("the server actor died (end of file)")
        return call(self, method, *arguments)

    monkeypatch.setattr(LocalExecutor, "call", dying)
    monkeypatch.setattr(LocalExecutor, "kill", lambda self: None)
    with pytest.raises(ResourceError, match=r"^the server actor died \(end of file\), 4 times; if memory ran out"):
        simulate(experiment("messages"), tmp_path / "run")
    assert (tmp_path / "run" / "STATUS").read_text() == "failed: the server actor died (end of file)\n"


def test_doctor_finds_a_method_that_writes_into_the_broadcast():
    with pytest.raises(AlgorithmError, match=r"^Messages: a client of exchange 'train' wrote into `broadcast`, which"):
        examine(experiment("messages", "end writes"))


def test_a_full_disk_at_the_last_environment_says_how_to_go_on(tmp_path, monkeypatch):
    written = []

    def full(folder, values):
        written.append(folder)
        if len(written) > 1:  # the first is written as the run begins
            raise CheckpointError("cannot write environment.json: No space left on device; free some space")
        return write_environment(folder, values)

    monkeypatch.setattr(simulation, "write_environment", full)
    text = failure(tmp_path / "run", "messages", kind=CheckpointError)
    assert text.endswith(f"free some space, and run: flray resume {tmp_path / 'run'}")
    monkeypatch.undo()
    resume(tmp_path / "run", progress=False)
    assert flray.load(tmp_path / "run").status == "finished"
