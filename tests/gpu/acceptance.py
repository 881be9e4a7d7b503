"""flray on one GPU in some minutes, without Ray: a line of JSON a fact.

    python -m tests.gpu.acceptance gpu.jsonl      # from the repository's root; --device cpu tries the script itself

Each part runs by itself: the machine; where the host waits for the GPU; the same bits twice, with graphs and without,
and with little memory; gradients beside double precision; milliseconds of a local step, by itself and in whole rounds
beside pfl-research (where `pfl` is installed); memory.
"""

import argparse
import contextlib
import copy
import json
import os
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from flray.contracts.played import Local
from flray.core.messages import to_numpy
from flray.core.protocol.clock import Clock
from flray.engine import cohort as cohorts, devices
from flray.engine.client import Client
from tests.contracts.table import experiment

MODELS = {"mlp": {"hidden": [200]}, "fedavg_cnn": {}, "resnet8": {}, "resnet18": {"pool_out": [2, 2]}}
METHODS = ("fedavg", "fedprox", "scaffold", "fedsol", "fedproj", "moon")
CLIENTS, BATCH, SAMPLES = 4, 50, 500  # so 10 local steps a client


class Acceptance:
    def __init__(self, device: str, out: Path, quick: bool) -> None:
        self.device, self.out = device, out
        self.models = {"mlp": {"hidden": [16]}} if quick else MODELS
        self.methods = METHODS[:3:2] if quick else METHODS
        self.gpu = device == "cuda"

    def say(self, part: str, **facts: object) -> None:
        line = json.dumps({"part": part, **facts})
        print(line, flush=True)
        with self.out.open("a") as file:
            file.write(line + "\n")

    def wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()

    def shape(self, model: str) -> list[int]:
        return [28, 28, 1] if model == "mlp" else [32, 32, 3]

    def local(self, name: str, model: str, graphs: bool = True, precision: str = "fp32") -> Local:
        images = {"shape": self.shape(model), "num_classes": 10, "num_train": 2 * CLIENTS * SAMPLES, "num_test": 500}
        config = experiment(
            name,
            {"batch_size": BATCH, "local_epochs": 1, "momentum": 0.9},
            data={"source": "synthetic", "options": images},
            model={"name": model, **self.models[model]},
            partition={"name": "iid", "clients": 2 * CLIENTS},
            cohort={"size": CLIENTS},
            evaluate={"clients": False},  # the bare loop tests nothing
            resources={"client": {"graphs": graphs}},
            precision=precision,
        )
        devices.set_up(self.device, precision)
        return Local(config, Path(tempfile.mkdtemp()) / "run", device=self.device)

    def chunk(self, local: Local, clients: int = CLIENTS):
        """Clients' work as an actor does it, to be called again and again."""
        algorithm, runtime = local.experiment.algorithm, local.server.runtime
        cohort = np.arange(clients)
        local.play(1)
        clock = Clock(0, 1, done=1)  # FedProj has an ensemble from its second round on
        chunk = cohorts.turns(local.scenario, algorithm, cohort, clock, algorithm.training)[0][0].chunks[0]
        sent = to_numpy(algorithm.broadcast(runtime.context(clock), local.server.state))
        client = Client(runtime)
        return lambda: client.work_neighbours([chunk], algorithm.training, [sent], [None])

    # parts ------------------------------------------------------------------------------------
    def machine(self) -> None:
        card = torch.cuda.get_device_name() if self.gpu else "cpu"
        self.say("machine", card=card, torch=torch.__version__, cuda=torch.version.cuda, cores=os.cpu_count())

    def waits(self) -> None:
        """Places where the host waits for the GPU in the work of four clients, by PyTorch's own detector."""
        for name in self.methods:
            work, places = self.chunk(self.local(name, "mlp")), Counter[str]()
            for _ in range(3):
                work()

            def note(message, category, filename, lineno, *rest, places=places):
                frames = [f for f in traceback.extract_stack() if "/flray/" in f.filename]
                places[f"{frames[-1].filename.rpartition('flray/')[2]}:{frames[-1].lineno}" if frames else "?"] += 1

            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.showwarning = note
                if self.gpu:
                    torch.cuda.set_sync_debug_mode("warn")
                try:
                    work()
                finally:
                    if self.gpu:
                        torch.cuda.set_sync_debug_mode("default")
            self.say("waits", method=name, waits=places.total(), places=dict(places))

    def bits(self) -> None:
        """The global model after two rounds: twice, without graphs, and with 1 GiB of free memory."""
        for model in self.models:
            one, other, plain = (self.trained(model, graphs) for graphs in (True, True, False))
            held = None
            if self.gpu:
                held = torch.empty(max(torch.cuda.mem_get_info()[0] - 2**30, 0), dtype=torch.uint8, device="cuda")
            little = self.trained(model, True)
            del held
            if self.gpu:
                torch.cuda.empty_cache()
            self.say("bits", model=model, twice=equal(one, other), graphs=equal(one, plain), memory=equal(one, little))

    def trained(self, model: str, graphs: bool) -> np.ndarray:
        local = self.local("fedavg", model, graphs)
        local.play(2)
        return local.server.state.w.detach().cpu().numpy().copy()

    def numbers(self) -> None:
        """The relative error of a gradient: of double precision on the CPU, by precision."""
        for model in self.models:
            for precision in ("fp32", "tf32", "bf16"):
                local = self.local("fedavg", model, precision=precision)
                objective = local.server.runtime.objective
                (w, b), generator = objective.initial(), torch.Generator().manual_seed(0)
                height, width, channels = self.shape(model)
                x, y = torch.randn(BATCH, channels, height, width, generator=generator), torch.arange(BATCH) % 10
                exact = copy.deepcopy(objective.module).cpu().double().train()
                F.cross_entropy(exact(x.double()), y).backward()
                true = torch.cat([p.grad.flatten() for p in exact.parameters() if p.requires_grad])
                near, labels = x.to(self.device), y.to(self.device)
                _, g = objective.value_and_grad(lambda f, x=near, y=labels: F.cross_entropy(f(x), y), w, b)
                found = torch.cat([view.flatten() for view in objective.views(g).values()]).cpu().double()
                error = float((found - true).norm() / true.norm())
                self.say("numbers", model=model, precision=precision, relative_error=error)

    def steps(self) -> None:
        """Milliseconds of a local step in clients' whole work, with graphs and without, and of a bare loop."""
        for model in self.models:
            found = {}
            for name in self.methods:
                for graphs in (False, True):
                    found[name, graphs] = self.clock(self.chunk(self.local(name, model, graphs)))
            bare = self.clock(self.bare(model))
            for name in self.methods:
                plain, repeated = found[name, False], found[name, True]
                self.say("steps", model=model, method=name, plain_ms=plain, graphs_ms=repeated, bare_ms=bare)

    def clock(self, work, seconds: float = 0.3) -> float:
        for _ in range(2):  # the second time, its steps are recorded
            work()
        self.wait()
        times: list[float] = []
        while sum(times) < seconds or len(times) < 2:
            began = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - began)
        return min(times) / (CLIENTS * SAMPLES / BATCH) * 1e3

    def bare(self, model: str):
        """A loop of PyTorch on data that lie on the device, with its fused optimiser."""
        net = copy.deepcopy(self.local("fedavg", model).server.runtime.objective.module).train()
        height, width, channels = self.shape(model)
        xs = torch.randn(SAMPLES, channels, height, width, device=self.device)
        if model != "mlp":
            net, xs = net.to(memory_format=torch.channels_last), xs.contiguous(memory_format=torch.channels_last)
        ys = torch.arange(SAMPLES, device=self.device) % 10
        parameters = list(net.parameters())
        start = [p.detach().clone() for p in parameters]

        def work() -> None:
            for _ in range(CLIENTS):
                with torch.no_grad():
                    torch._foreach_copy_(parameters, start)
                optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9, fused=True)
                for i in range(0, SAMPLES, BATCH):
                    optimizer.zero_grad()
                    F.cross_entropy(net(xs[i : i + BATCH]), ys[i : i + BATCH]).backward()
                    optimizer.step()

        return work

    def rounds(self) -> None:
        """Milliseconds of a local step in whole rounds of FedAvg, tests apart: flray's, which end in a commit, and
        pfl-research's of the same network and cohort, with its data on the device."""
        for model in self.models:
            local = self.local("fedavg", model)
            flray = self.clock(lambda local=local: local.play(1))
            self.say("rounds", model=model, flray_ms=flray, pfl_ms=self.pfl(local))

    def pfl(self, local: Local) -> float | None:
        try:
            from pfl.aggregate.simulate import SimulatedBackend
            from pfl.algorithm.base import NNAlgorithmParams
            from pfl.algorithm.federated_averaging import FederatedAveraging
            from pfl.callback.base import TrainingProcessCallback
            from pfl.data.dataset import Dataset
            from pfl.data.federated_dataset import FederatedDataset
            from pfl.data.sampling import get_user_sampler
            from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
            from pfl.metrics import Metrics
            from pfl.model.pytorch import PyTorchModel
        except ImportError:
            return None
        images, times = local.experiment.data.options["shape"], []
        height, width, channels = images
        xs = torch.randn(2 * CLIENTS, SAMPLES, channels, height, width, device=self.device)
        ys = torch.arange(SAMPLES, device=self.device) % 10

        class Network(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.network = copy.deepcopy(local.server.runtime.objective.module).train()

            def loss(self, x, y, eval=False):
                return F.cross_entropy(self.network(x), y)

            def metrics(self, x, y, eval=False):
                return {}

        class Clocked(TrainingProcessCallback):
            def after_central_iteration(callback, metrics, model, *, central_iteration):
                self.wait()
                times.append(time.perf_counter())
                return False, Metrics()

        users = FederatedDataset(
            lambda user: Dataset(raw_data=[xs[user], ys]), get_user_sampler("random", list(range(2 * CLIENTS)))
        )
        network = Network().to(self.device)
        FederatedAveraging().run(
            backend=SimulatedBackend(training_data=users, val_data=users),
            model=PyTorchModel(
                network,
                lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9, fused=self.gpu),
                torch.optim.SGD(network.parameters(), lr=1.0),
            ),
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=12, evaluation_frequency=10**9, train_cohort_size=CLIENTS, val_cohort_size=0
            ),
            model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.01, local_batch_size=BATCH),
            model_eval_params=NNEvalHyperParams(local_batch_size=SAMPLES),
            callbacks=[Clocked()],
        )
        return float(np.diff(times)[2:].min()) / (CLIENTS * SAMPLES / BATCH) * 1e3

    def memory(self) -> None:
        """What `num_gpus: auto` takes a process for, and what this process has."""
        if not self.gpu:
            return
        from flray.engine.ray.actors import ClientActor

        for model in self.models:
            torch.cuda.empty_cache()
            local, actor = self.local("fedavg", model), ClientActor()
            algorithm = local.experiment.algorithm
            turn = cohorts.turns(local.scenario, algorithm, np.arange(1), Clock(), algorithm.training)[0][0]
            actor._client = Client(local.server.runtime)
            said, total = actor.peak_gpu_memory(turn.chunks[0])
            free, _ = torch.cuda.mem_get_info()
            tensors = torch.cuda.max_memory_allocated()
            self.say(
                "memory", model=model, auto_mib=said / 2**20, mib=(total - free) / 2**20, tensors_mib=tensors / 2**20
            )


def equal(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.array_equal(one, other, equal_nan=True))


PARTS = ("machine", "memory", "numbers", "waits", "bits", "steps", "rounds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="one small model, two methods")
    parser.add_argument("--parts", default=",".join(PARTS))
    options = parser.parse_args()
    options.out.unlink(missing_ok=True)
    acceptance = Acceptance(options.device, options.out, options.quick)
    for part in options.parts.split(","):
        began = time.time()
        try:
            getattr(acceptance, part)()
        except Exception:
            acceptance.say(part, error=traceback.format_exc()[-1500:])
        with contextlib.suppress(Exception):
            acceptance.wait()
        acceptance.say("time", of=part, seconds=round(time.time() - began, 1))


if __name__ == "__main__":
    main()
