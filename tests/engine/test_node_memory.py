"""Frozen tensors lie in memory that the processes of a node share, and are what they were."""

import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from flray.engine import node_memory
from flray.engine.node_memory import share_frozen
from tests.support.processes import python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is mapped is read from /proc")


class Net(nn.Module):
    """A frozen table under two names, a frozen half-precision vector, a trained layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(7, 5)
        self.again = nn.Embedding(7, 5)
        self.again.weight = self.table.weight
        self.small = nn.Parameter(torch.randn(3).half())
        self.requires_grad_(False)
        self.head = nn.Linear(5, 2)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FLRAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data"


def files(cache):
    return sorted(cache.glob("*/tensors.npy"))


def is_mapped(tensor):
    return node_memory._inside(tensor, node_memory._mapped_files())


def test_frozen_tensors_are_mapped_from_one_file(cache, monkeypatch):
    monkeypatch.setattr(node_memory, "MIN_BYTES", 1)
    plain, one, other = Net(), Net(), Net()
    assert share_frozen([one]) == share_frozen([other]) == 4 * 64  # 140 and 6 bytes, in lines of 64
    assert len(files(cache)) == 1
    for net in (one, other):
        for name, tensor in plain.state_dict().items():
            assert torch.equal(net.state_dict()[name], tensor), name
        assert net.again.weight is net.table.weight
        assert is_mapped(net.table.weight) and is_mapped(net.small) and not is_mapped(net.head.weight)
        assert all(p.data_ptr() % 64 == 0 for p in (net.table.weight, net.small)), "as torch's own: the same kernels"
    assert share_frozen([one]) == 0, "mapped already"


def test_what_is_written_to_after_all_is_this_processs_own(cache, monkeypatch):
    monkeypatch.setattr(node_memory, "MIN_BYTES", 1)
    one, other = Net(), Net()
    share_frozen([one, other])
    before = np.load(files(cache)[0])
    one.table.weight[0] = 9.0
    assert one.table.weight[0, 0] == 9.0 and other.table.weight[0, 0] != 9.0
    assert np.array_equal(np.load(files(cache)[0]), before)


def test_little_is_not_worth_a_file(cache):
    assert share_frozen([Net()]) == 0 and not cache.exists()


def test_what_a_checkpoint_is_mapped_from_stays_where_it_is(cache, tmp_path, monkeypatch):
    """As transformers loads a float32 `.safetensors` file."""
    monkeypatch.setattr(node_memory, "MIN_BYTES", 1)
    net = Net()
    save_file({"table": net.table.weight.data}, tmp_path / "model.safetensors")
    net.table.weight.data = load_file(tmp_path / "model.safetensors")["table"]
    place = net.table.weight.data_ptr()
    assert share_frozen([net]) == 64 and net.table.weight.data_ptr() == place and is_mapped(net.small)


@pytest.mark.slow
def test_a_second_process_takes_no_memory_for_it(tmp_path):
    """64 MiB of frozen parameters: proportional set size of two processes that both read them."""
    code = (
        "import sys, torch; from torch import nn; from flray.engine.node_memory import share_frozen\n"
        "def anon(): return int(open('/proc/self/smaps_rollup').read().split('Pss_Anon:')[1].split()[0]) // 1024\n"
        "before = anon(); net = nn.Linear(4096, 4096, bias=False); nn.init.constant_(net.weight, 0.5)\n"
        "net.requires_grad_(False); full = anon() - before; share_frozen([net]); float(net.weight.sum())\n"
        "print(full, anon() - before)"
    )
    for _ in range(2):
        held, shared = map(int, python("-c", code).stdout.split())
        assert held >= 60 and shared < 16
