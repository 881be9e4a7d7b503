"""flray in somebody else's process, one scene a call: `python -m tests.faults.guests SCENE OUT`.

Prints one JSON object. A foreign Ray is started by `ray.init`.
"""

import asyncio
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

OUT = Path(sys.argv[2] if len(sys.argv) > 2 else ".").absolute()
SCENES: dict[str, Callable[[], dict[str, Any]]] = {}


def scene(act: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    SCENES[act.__name__] = act
    return act


def values(**changes: Any) -> dict[str, Any]:
    resources = {"executor": "calls", "client_actors": 1, "server": {"threads": 1}, **changes.pop("resources", {})}
    return {
        "seed": 3, "rounds": 2, "partition": {"name": "iid", "clients": 4}, "cohort": {"size": 4},
        "data": {"source": "synthetic", "options": {"shape": 4, "num_classes": 3, "num_train": 120, "num_test": 40}},
        "model": {"name": "mlp", "hidden": [8]}, "algorithm": {"name": "fedavg", "batch_size": 10},
        "resources": resources, **changes,
    }  # fmt: skip


def train(name: str, **changes: Any) -> str:
    """The model's bytes as a checksum, or the error's line."""
    import flray
    from flray.files import file_checksum

    try:
        run = flray.run(values(**changes), out=OUT / name, progress=False)
    except flray.FlrayError as error:
        return f"{type(error).__name__}: {error}"
    return f"{run.status} {file_checksum(run.folder / 'model.safetensors')}"


def local(name: str, **changes: Any) -> str:
    return train(name, **changes, resources={"executor": "local", "client_actors": "auto"})


def rows(name: str, **changes: Any) -> Any:
    from flray.config.loader import load_config
    from flray.running import play

    return play(load_config(values(**changes))[0], OUT / name)


def foreign(cpus: float, **options: Any) -> Any:
    """A Ray that flray did not start, without the processes of Ray that no run needs."""
    import ray

    from flray.engine.ray.private.start import few_processes, loopback

    for left in (2, 1, 0):
        try:
            with loopback(), few_processes(0):
                ray.init(
                    address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False,
                    logging_level="ERROR", object_store_memory=150 * 2**20, **options,
                )  # fmt: skip
            return ray
        except Exception:  # "timed out during startup", on a machine under load
            ray.shutdown()
            if not left:
                raise
    raise AssertionError


def free_cpus(ray: Any, wanted: float) -> float:
    """The free CPUs, as soon as they are `wanted`, or after 20 s."""
    until = time.monotonic() + 20
    while (free := ray.available_resources().get("CPU", 0.0)) != wanted and time.monotonic() < until:
        time.sleep(0.1)
    return float(free)


def flray_threads() -> list[str]:
    """Of those that outlast a run; a folder's lock may need a moment to end."""
    names = sorted(thread.name for thread in threading.enumerate())
    return [name for name in names if name.startswith("flray") and name != "flray-lock"]


def starts(ray: Any, cpus: float) -> str:
    """What a task of the user's own that needs so many CPUs says."""
    return str(ray.get(ray.remote(num_cpus=cpus)(lambda: "started").remote(), timeout=240))


# several runs at once -----------------------------------------------------------------------------


@scene
def own_ray_threads() -> dict[str, Any]:
    """Two threads in a Ray that flray starts, each with all of it; then one run after the other, and the end."""
    import flray

    auto = {"client_actors": "auto"}
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda seed: train(f"thread{seed}", seed=seed, resources=auto), (3, 4)))
    running = flray_threads()
    again = train("again", seed=3, resources=auto)
    flray.close()
    time.sleep(3)  # the watch looks every two seconds
    closed = flray_threads()
    once_more = train("once_more", seed=3)
    return {"alone": [local("a", seed=3), local("b", seed=4)], "together": together, "again": again, "running": running,
            "closed": closed, "once_more": once_more, "threads": flray_threads()}  # fmt: skip


# a Ray of somebody else ---------------------------------------------------------------------------
@scene
def gives_back() -> dict[str, Any]:
    """After every kind of end the user's own task has all CPUs."""
    ray = foreign(2)
    own = signal.getsignal(signal.SIGTERM)  # of `ray.init`
    both = {"client_actors": 2}
    found: dict[str, Any] = {"run": train("run", resources=both), "after": {"run": starts(ray, 2)}}
    time.sleep(3)  # the watch looks every two seconds
    found["threads"] = flray_threads()
    iterator = rows("closed", rounds=4, resources=both)
    next(iterator)
    iterator.close()
    found["after"]["closed"] = starts(ray, 2)
    try:
        for _ in rows("raised", rounds=4, resources=both):
            raise KeyError("the user's own")
    except KeyError:
        found["after"]["raised"] = starts(ray, 2)
    iterator = rows("dropped", rounds=4, resources=both)
    next(iterator)
    del iterator
    found["after"]["dropped"] = starts(ray, 2)
    found["diverged"] = train("diverged", resources=both, algorithm={"name": "fedavg", "batch_size": 10, "lr": 1e30})
    found["after"]["diverged"] = starts(ray, 2)
    found["failed"] = train("failed", resources=both, model={"name": "mlp", "hidden": [2**40]})
    found["after"]["failed"] = starts(ray, 2)
    threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        for _ in rows("interrupted", rounds=100_000, resources=both):
            pass
    except KeyboardInterrupt:
        found["after"]["interrupted"] = starts(ray, 2)
    found["sigterm"] = signal.getsignal(signal.SIGTERM) is own
    return found


@scene
def shutdown_between() -> dict[str, Any]:
    """The user ends Ray while an iterator waits."""
    import flray

    ray = foreign(2)
    iterator = rows("run", rounds=4)
    next(iterator)
    ray.shutdown()
    try:
        next(iterator)
        said = "went on"
    except flray.FlrayError as error:
        said = str(error)
    return {"said": said, "initialized": ray.is_initialized()}


# inside of tasks, actors and trials ----------------------------------------------------------------
def _in_ray(path: list[str], out: str, name: str) -> str:
    sys.path[:] = path
    from tests.faults import guests

    guests.OUT = Path(out)
    return guests.train(name)


@scene
def tasks_and_actors() -> dict[str, Any]:
    ray = foreign(2)

    @ray.remote(num_cpus=1)
    class Plain:
        def train(self, name: str) -> str:
            return _in_ray(path, out, name)

    @ray.remote(num_cpus=1, max_concurrency=2)
    class Threaded(Plain.__ray_metadata__.modified_class):  # type: ignore[misc, name-defined]
        pass

    @ray.remote(num_cpus=1)
    class Async:
        async def train(self, name: str) -> str:
            return _in_ray(path, out, name)

        async def aside(self, name: str) -> str:
            return await asyncio.to_thread(_in_ray, path, out, name)

    path, out = sys.path, str(OUT)
    found = {"alone": local("alone"), "task": ray.get(ray.remote(num_cpus=1)(_in_ray).remote(path, out, "task"))}
    for kind, actor in (("plain", Plain), ("threaded", Threaded), ("async", Async)):
        one = actor.remote()
        found[kind] = ray.get(one.train.remote(kind))
        if kind == "threaded":
            found["two"] = sorted(ray.get([one.train.remote("two0"), one.train.remote("two1")]))
        if kind == "async":
            found["aside"] = ray.get(one.aside.remote("aside"))
        ray.kill(one)
    full = ray.remote(num_cpus=2)(Plain.__ray_metadata__.modified_class).remote()
    found["full"] = ray.get(full.train.remote("full"), timeout=240)
    return found


@scene
def user_trials() -> dict[str, Any]:
    """flray.run in trials of a user's own Ray Tune: with 1 CPU, and with a placement group that has room."""
    ray = foreign(3)
    from ray import tune

    path, out = sys.path, str(OUT)

    def trial(config: dict[str, Any]) -> None:
        tune.report({"said": _in_ray(path, out, config["name"])})

    def said(resources: Any, name: str) -> str:
        tuner = tune.Tuner(
            tune.with_resources(trial, resources), param_space={"name": name},
            run_config=tune.RunConfig(storage_path=out, name=f"tune-{name}", verbose=0),
        )  # fmt: skip
        return str(tuner.fit()[0].metrics["said"])

    one = said({"cpu": 1}, "one")
    bundles = said(tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}, {"CPU": 1}]), "bundles")
    full = said({"cpu": 3}, "full")
    return {"alone": local("alone"), "one": one, "bundles": bundles, "full": full, "free": free_cpus(ray, 3)}


# forks --------------------------------------------------------------------------------------------
def _forked(work: Callable[[], str]) -> str:
    """What a forked child says, within a minute; `hang` where it does not end."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            said = work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writer, said.encode()[:4000])
            if "exits" in said:
                sys.exit(0)  # Python's own end, with its exit functions
            os._exit(0)
    os.close(writer)
    until = time.monotonic() + 240
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "hang"
        time.sleep(0.05)
    return os.read(reader, 4000).decode()


def _next_in_child(iterator: Any) -> str:
    next(iterator)
    return "went on"


@scene
def forks_after_local() -> dict[str, Any]:
    """After a local run with several threads the child's run has the same bits; so has the parent's next one."""
    several = {"executor": "local", "client_actors": "auto", "server": {"threads": 2}, "client": {"num_cpus": 2}}
    wide = {"name": "mlp", "hidden": [400, 400]}
    before = train("before", resources=several, model=wide)
    child = _forked(lambda: train("child", resources=several, model=wide))
    pool = multiprocessing.get_context("fork").Pool(1)
    pooled = pool.apply_async(train, ("pooled",), {"resources": several, "model": wide}).get(240)
    pool.terminate()
    return {"before": before, "child": child, "pooled": pooled, "after": train("after", resources=several, model=wide)}


@scene
def forks_after_ray() -> dict[str, Any]:
    before = train("before")
    child = _forked(lambda: train("child"))
    in_local = _forked(lambda: local("child_local"))
    exited = _forked(lambda: "exits")
    after = train("after")
    iterator = rows("waits", rounds=3)
    next(iterator)
    continued = _forked(lambda: _next_in_child(iterator))
    _forked(lambda: "exits")  # the iterator ends in the child
    rest = [row["done"] for row in iterator]
    status = (OUT / "waits" / "STATUS").read_text().strip()
    return {"before": before, "child": child, "local": in_local, "exited": exited, "after": after,
            "continued": continued, "rest": rest, "status": status}  # fmt: skip


@scene
def other_starts() -> dict[str, Any]:
    """spawn, forkserver and a process pool: processes that inherit nothing."""
    found = {"here": train("here"), "alone": local("alone")}
    for method in ("spawn", "forkserver"):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
            found[method] = pool.submit(train, method).result(180)
    return found


# the process's own state ---------------------------------------------------------------------------
@scene
def state_of_the_process() -> dict[str, Any]:
    """A local run inside of other defaults has the same bits, and leaves generators, threads and modes as they were."""
    import random

    import numpy as np
    import torch

    plain = local("plain")
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    hook = torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, output: 2 * output)
    with torch.no_grad(), np.errstate(all="raise"):
        other = local("other")
        grad = torch.is_grad_enabled()
    doubled = torch.nn.Identity()(torch.ones(1)).item()
    hook.remove()
    drawn = [torch.rand(1).item(), float(np.random.rand()), random.random()]
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    expected = [torch.rand(1).item(), float(np.random.rand()), random.random()]
    return {"plain": plain, "other": other, "grad": grad, "drawn": drawn, "expected": expected, "doubled": doubled,
            "dtype": str(torch.get_default_dtype()), "threads": torch.get_num_threads()}  # fmt: skip


def by_random(labels: Any, num_classes: int, config: Any, draws: Any, group: Any) -> Any:
    """A split that draws for so long that a Ray starts meanwhile."""
    import random

    import numpy as np

    drawn = []
    for _ in labels:
        drawn.append(random.random()), time.sleep(4 / len(labels))
    return np.array_split(np.argsort(drawn), config.clients)


@scene
def split_while_ray_starts() -> dict[str, Any]:
    """Ray draws names for its connections from Python's generator."""
    import random

    split = {"partition": {"name": by_random, "clients": 4}}
    alone = local("alone", **split)
    random.seed(5)
    beside = train("beside", **split)
    drawn, _ = random.random(), random.seed(5)
    return {"alone": alone, "beside": beside, "drawn": drawn, "expected": random.random()}


@scene
def gpu_auto_twice() -> dict[str, Any]:
    """The second run measures a GPU that the first run's actors have held; the card is Ray's word alone."""
    import flray
    from flray.engine.ray.leases import actors_stay

    foreign(2, num_gpus=1)
    card = {"imports": ["tests.faults.fake_gpu"], "resources": {"client": {"num_gpus": "auto"}}}
    with actors_stay():  # as in a Ray of flray's own
        said = [train("first", **card), train("second", **card)]
        waits = rows("waits", **card)
        next(waits)
        third = train("third", **card)
        waits.close()
    share = flray.load(OUT / "first").environment["actors"]["client_resources"]["num_gpus"]
    return {"said": said, "share": share, "third": third, "alone": local("alone")}


if __name__ == "__main__":
    print(json.dumps(SCENES[sys.argv[1]]()), flush=True)
