"""The validation split: disjoint from what clients train on, and of the shares that were asked for."""

import itertools
import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, strategies as st

from flray.core.protocol.seeding import rng
from flray.core.schema.errors import DataError
from flray.scenario.held_out import of_clients, of_server
from flray.scenario.partition import Partition, from_lists, load_partition


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    fraction=st.floats(0.05, 0.95),
    seed=st.integers(0, 99),
)
def test_every_client_gives_its_floor_and_keeps_the_rest(sizes, fraction, seed):
    ends = np.cumsum([0, *sizes])
    whole = from_lists([np.arange(a, b) for a, b in itertools.pairwise(ends)])
    gives = [int(Decimal(repr(fraction)) * n) for n in sizes]
    if not sum(gives):
        with pytest.raises(DataError, match="validation"):
            of_clients(whole, fraction, seed)
        return
    left = of_clients(whole, fraction, seed)
    assert left.sizes.tolist() == [n - g for n, g in zip(sizes, gives, strict=True)]
    assert sorted([*left.indices, *left.held_out]) == list(range(sum(sizes)))
    for k in range(len(sizes)):
        assert set(left.client(k)) <= set(whole.client(k))
    again = of_clients(whole, fraction, seed)
    assert again.hash == left.hash


def test_a_decimal_share_gives_what_it_says():
    """0.29 of 100 is 29; as a floating-point product it is 28.999999999999996."""
    left = of_clients(from_lists([np.arange(100)]), 0.29, 0)
    assert (len(left.held_out), left.sizes.tolist()) == (29, [71])


def test_a_share_that_leaves_nothing_to_train_on_is_refused_with_the_numbers():
    """0.9999 of 144 and 100 samples gives all but one of each."""
    whole = from_lists([np.arange(144), np.arange(144, 244)])
    with pytest.raises(DataError, match=r"0\.9999 leaves 2 of 244 training samples to 2 clients, 1 to the small"):
        of_clients(whole, 0.9999, 0)
    assert of_clients(whole, 0.95, 0).sizes.tolist() == [8, 5]
    labels = np.arange(1000) % 4
    with pytest.raises(DataError, match=r"0\.97 leaves 30 of 1000 training samples to the clients together; lower it"):
        of_server(labels, None, 0.97, 0)
    assert len(of_server(labels, None, 0.95, 0)[1]) == 50


def test_a_clients_draw_does_not_depend_on_the_others():
    one = of_clients(from_lists([np.arange(20), np.arange(20, 50)]), 0.3, 1)
    other = of_clients(from_lists([np.arange(20), np.arange(20, 90)]), 0.3, 1)
    assert one.client(0).tolist() == other.client(0).tolist()


def test_a_sample_of_two_clients_is_held_from_both():
    """FedSOL's `empty: previous` gives two clients the same samples: what one gives up, the other must not train on."""
    left = of_clients(from_lists([np.arange(40), np.arange(40)]), 0.25, 0)
    assert not set(left.held_out) & set(left.indices)
    assert set(left.client(0)) | set(left.client(1)) | set(left.held_out) == set(range(40))


def test_the_servers_share_is_stratified_and_apart():
    labels = np.repeat([0, 1, 2], [100, 60, 40])
    held, private = of_server(labels, None, 0.1, 0)
    assert np.bincount(labels[held]).tolist() == [10, 6, 4]
    assert sorted([*held, *private]) == list(range(200))
    held, private = of_server(labels, np.arange(0, 200, 2), 0.1, 0)
    assert np.bincount(labels[held]).tolist() == [5, 3, 2]
    assert sorted([*held, *private]) == list(range(0, 200, 2))
    with pytest.raises(DataError, match="fraction"):
        of_server(labels[:3], None, 0.1, 0)


def test_the_held_samples_survive_the_disk_and_count_in_the_hash(tmp_path):
    whole = from_lists([np.arange(20), np.arange(20, 50)])
    left = of_clients(whole, 0.2, 0)
    left.save(tmp_path)
    again = load_partition(tmp_path)
    assert again.held_out.tolist() == left.held_out.tolist()
    assert left._replace(held_out=left.held_out[1:]).hash != left.hash


def test_copies_of_a_sample_are_on_one_side_of_a_validation_split():
    """60 pairs and 80 single samples. Without copies nothing changes."""
    first = np.concatenate([np.repeat(np.arange(0, 120, 2), 2), np.arange(120, 200)])
    labels = np.arange(200) // 100
    validation, private = of_server(labels, None, 0.2, 0, first)
    assert not {*first[validation]} & {*first[private]} and abs(len(validation) - 40) <= 2
    assert (of_server(labels, None, 0.2, 0)[0] == of_server(labels, None, 0.2, 0, np.arange(200))[0]).all()
    whole = from_lists([np.arange(0, 200, 2), np.arange(1, 200, 2)])  # a client has the copies of the other's samples
    left = of_clients(whole, 0.2, 0, first=first)
    assert not {*first[left.held_out]} & {*first[left.indices]} and 30 <= len(left.held_out) <= 50
    assert sorted([*left.indices, *left.held_out]) == list(range(200))
    same, plain = of_clients(whole, 0.2, 0, first=np.arange(200)), of_clients(whole, 0.2, 0)
    assert all((a == b).all() for a, b in zip(same, plain, strict=True))


def by_cells(copies: int, cells: int, clients: int) -> tuple[Partition, np.ndarray]:
    """(each client with equal shares of every cell, `first`): sample i is a copy of the first sample of its cell."""
    whole = from_lists([np.arange(k, copies * cells, clients) for k in range(clients)])
    return whole, np.repeat(np.arange(0, copies * cells, copies), copies)


@pytest.mark.parametrize(("copies", "cells", "fraction"), [(125, 8, 0.05), (125, 8, 0.1), (20, 3, 0.3), (60, 1, 0.9)])
@pytest.mark.parametrize("seed", range(6))
def test_clients_hold_out_no_few_rows_with_all_of_their_copies(copies, cells, fraction, seed):
    """Cells are drawn whole: none, all, twice as many as asked, or so few that one is far too large a part of them."""
    whole, first = by_cells(copies, cells, 2)
    asked = 2 * math.floor(fraction * copies * cells / 2)
    words = rf"{fraction} of the clients' {copies * cells} samples is {asked}, copies stay .* are no sample of all: "
    with pytest.raises(DataError, match=words + r"|leaves 0 of 60 training samples to 2 clients, 0 to the smallest"):
        of_clients(whole, fraction, seed, first=first)


@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_clients_hold_out_a_share_of_rows_with_a_few_copies(copies, seed):
    whole, first = by_cells(copies, 300, 5)
    left = of_clients(whole, 0.1, seed, first=first)
    assert not {*first[left.held_out]} & {*first[left.indices]} and 0 < len(left.held_out) < 2 * 30 * copies
    half = np.where(np.arange(len(first)) < len(first) // 2, first, np.arange(len(first)))
    assert len(of_clients(whole, 0.1, seed, first=half).held_out)


def test_a_validation_set_without_any_of_the_copies_is_refused():
    """Half of 1,000 samples are ten cells of 50. With this seed none of them is drawn, and 50 single samples are."""
    first = np.concatenate([np.repeat(np.arange(0, 500, 50), 50), np.arange(500, 1000)])
    whole = from_lists([np.arange(1000)])
    for seed in range(50):
        out = rng(seed, "validation", 0).permutation(1000)[:100]
        if not np.isin(np.arange(0, 500, 50), out).any():
            break
    with pytest.raises(DataError, match=rf"the {(out >= 500).sum()} held out are no sample of all.* 5% of all and 0%"):
        of_clients(whole, 0.1, seed, first=first)
