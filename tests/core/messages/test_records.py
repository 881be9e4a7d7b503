"""Messages as values: inherited, sent to another process, measured, compared."""

import dataclasses
import enum
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from flray.contracts.played import flatten
from flray.core.messages import (
    Record,
    ServerState,
    Update,
    as_tensors,
    equal,
    map_tensors,
    nbytes,
    sendable,
    tensors,
    to_numpy,
    to_torch,
)
from flray.core.schema.errors import AlgorithmError


class Inner(Record):
    c: torch.Tensor
    count: int


class Outer(Record):
    w: torch.Tensor
    inner: Inner
    rate: float
    nothing: Any = None
    empty: Any = ()


def message() -> Outer:
    return Outer(torch.arange(6.0).view(2, 3), Inner(torch.tensor([1, 2], dtype=torch.int64), 7), 0.1)


class Control(ServerState):
    c: torch.Tensor
    blocks: dict[str, torch.Tensor]


def control() -> Control:
    return Control(torch.ones(2), torch.zeros(1), torch.ones(2), {"body.0": torch.ones(1), "head": torch.zeros(3)})


# records ----------------------------------------------------------------------------------------
def test_a_class_that_inherits_has_the_fields_of_its_base_first_and_is_frozen():
    assert [field.name for field in dataclasses.fields(Control)] == ["w", "b", "rule", "c", "blocks"]
    state = Control.of(ServerState(torch.ones(2), torch.zeros(1)), c=torch.ones(2), blocks={})
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.w = state.c
    other = state.replace(c=None)
    assert other.c is None and other.w is state.w and type(other) is Control and state.c is not None
    assert repr(other) == "Control(w=float32[2], b=float32[1], c=None, blocks={})"


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Control(torch.ones(2), torch.zeros(1), c=None), "missing a required argument: 'blocks'"),
        (lambda: control().replace(d=1), "got an unexpected keyword argument 'd'"),
        (
            lambda: Control.of(Inner(torch.ones(1), 1), w=1, b=1, blocks={}),
            "got an unexpected keyword argument 'count'",
        ),
        (lambda: ServerState(1, 2, 3), "too many positional arguments"),
    ],
)
def test_a_missing_or_unknown_field_is_one_line_with_the_class_and_the_place(make, what):
    with pytest.raises(AlgorithmError) as caught:
        make()
    line = str(caught.value)
    assert what in line and "\n" not in line
    kind = line.partition(" ")[0]
    assert line.startswith(f"{kind} (test_records.py, line {make.__code__.co_firstlineno})")
    assert line.endswith("its fields: w, b" + ", c, blocks" * (kind == "Control"))


def test_a_type_error_of_the_users_own_is_not_taken_for_a_wrong_field():
    class Strict(Record):
        w: Any

        def __post_init__(self) -> None:
            len(self.w)

    with pytest.raises(TypeError, match="has no len"):
        Strict(1)


def test_a_record_is_pickled_with_its_class_by_name():
    assert equal(pickle.loads(pickle.dumps(control())), control())


# what is in them --------------------------------------------------------------------------------
def test_bytes_are_those_of_the_tensors_and_8_for_a_number():
    # 6 float32 + 2 int64 + one int + one float
    assert nbytes(message()) == 6 * 4 + 2 * 8 + 8 + 8
    assert nbytes(to_numpy(message())) == nbytes(message())
    assert nbytes(()) == 0 and nbytes(None) == 0
    assert nbytes(control()) == 4 * (2 + 1 + 2 + 1 + 3)
    assert nbytes((True, "ä", {"head": 1.5})) == 1 + 2 + 8


def test_flat_arrays_hold_the_numbers_as_well():
    flat = flatten(message())
    assert set(flat) == {"w", "inner.c", "inner.count", "rate"}
    assert all(isinstance(array, np.ndarray) for array in flat.values()) and flat["rate"] == 0.1


@pytest.mark.parametrize("read", [as_tensors, to_torch])
def test_an_array_that_runs_backwards_is_a_tensor_of_its_numbers(read):
    table = np.arange(6.0).reshape(2, 3)
    assert read({"n": table[::-1, ::-1]})["n"].tolist() == [[5, 4, 3], [2, 1, 0]]
    assert read({"n": table.T})["n"].stride() == (1, 3)  # others keep their order in memory


def test_to_torch_copies_so_that_shared_memory_is_never_written():
    array = np.zeros(3, dtype=np.float32)
    array.flags.writeable = False
    tensor = to_torch(Update(array, array)).w
    tensor.add_(1)
    assert not array.any()
    source = torch.zeros(3)
    to_torch(source).add_(1)
    assert not source.any()


def test_a_list_in_a_message_is_refused():
    with pytest.raises(AlgorithmError, match=r"Update\.w: a message holds .*, not list"):
        map_tensors(torch.clone, Update([torch.zeros(1)], torch.zeros(1)))


def test_tensors_are_named_by_field_layer_and_place():
    assert list(tensors(message())) == ["w", "inner.c"]
    assert list(tensors((control(), torch.ones(1)))) == [
        "[0].w",
        "[0].b",
        "[0].c",
        "[0].blocks[body.0]",
        "[0].blocks[head]",
        "[1]",
    ]


NAN = float("nan")


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (torch.tensor([1.0]), torch.tensor([1.0]), True),
        (torch.tensor([1.0]), torch.tensor([1.0 + 2**-23]), False),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64), False),
        (torch.tensor([1.0]), torch.tensor([[1.0]]), False),
        (torch.tensor([NAN]), torch.tensor([NAN]), True),
        (torch.tensor([NAN]), torch.tensor([0.0]), False),
        (torch.tensor([float("inf")]), torch.tensor([torch.finfo(torch.float32).max]), False),
        (Update(torch.ones(2), torch.ones(1)), Update(torch.ones(2), torch.ones(1)), True),
        (Update(torch.ones(2), torch.ones(1)), Update(torch.ones(2), torch.zeros(1)), False),
        (Inner(torch.ones(1), 1), Inner(torch.ones(1), 2), False),
        (Inner(torch.ones(2), 1), Update(torch.ones(2), torch.ones(1)), False),
        (control(), control(), True),
        (control(), control().replace(blocks={"head": torch.zeros(3)}), False),
        (control(), control().replace(c=None), False),
        ((), (), True),
        ((1,), (), False),
        (1, 1.0, False),
    ],
)
def test_equal(left, right, same):
    assert equal(left, right) is same


def test_equal_on_arrays():
    assert equal(np.arange(3.0), np.arange(3.0))
    assert not equal(np.arange(3.0), np.arange(1.0, 4.0))


@pytest.mark.parametrize(
    "array", [np.array(["a", "b"]), np.array([None, 1]), np.array(["2020-01-01"], "datetime64[D]")]
)
def test_an_array_that_torch_does_not_have_is_refused_with_its_method_and_field(array):
    """It died later, without a name, where the state came back as a tensor."""

    def end():
        pass

    says = r"end \(test_records.py, line \d+\): its client state's w is an array of .*, which torch does not have"
    with pytest.raises(AlgorithmError, match=says):
        sendable(Update(array, np.zeros(2)), end, "client state")
    kept = Update(np.arange(3), np.ones(2, bool))
    assert sendable(kept, end, "client state") is kept


class Phase(enum.IntEnum):
    TRAIN = 2


class Word(enum.StrEnum):
    TRAIN = "train"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (Phase.TRAIN, "is a Phase, which a resume would give back as a plain int; return b.value"),
        (Word.TRAIN, "is a Word, which a resume would give back as a plain str; return b.value"),
        (np.float64(0.5), r"is a float64.*, which a resume would give back as a plain float; return float\(b\)"),
        (np.str_("a"), r"is a str_.* plain str; return str\(b\)"),
    ],
)
def test_a_number_of_another_class_is_no_state_and_may_be_sent(value, says):
    """A checkpoint has plain numbers and texts, and `state.phase is Phase.TRAIN` was false after a resume."""
    with pytest.raises(AlgorithmError, match=f"its server state's b {says}"):
        sendable(Update(1, value), print, "server state", stored=True)
    sent = Update(1, value)
    assert sendable(sent, print, "update") is sent
    plain = Update((True, 1, 0.5, "a", None), {"n": 2**70})
    assert sendable(plain, print, "server state", stored=True) is plain


def test_a_conjugated_or_negated_view_is_sent_as_its_numbers():
    """NumPy has no such views: (1 + 2i)* is 1 - 2i, whose imaginary part is -2."""
    z = torch.tensor([1 + 2j])
    sent = to_numpy(sendable(Update(z.conj(), z.conj().imag), print, "update"))
    assert sent.w.tolist() == [1 - 2j] and sent.b.tolist() == [-2.0]
