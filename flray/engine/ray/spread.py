"""Independent items of work, spread over the actors of a cluster by Ray Data."""

from __future__ import annotations

import logging
import math
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from flray.core.schema.errors import FlrayError, ResourceError
from flray.engine.ray import leases
from flray.engine.ray.capacity import count_fitting, node_resources
from flray.engine.ray.cluster import connect, ray
from flray.engine.threads import cores
from flray.log import quieter

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Actor:
    """One actor: calls the function that `make` returns on every item. A `FlrayError` is returned as a result."""

    def __init__(self, make: Callable[[], Callable[[Any], Any]]) -> None:
        self._make = make
        self._work: Callable[[Any], Any] | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        try:
            if self._work is None:
                self._work = self._make()
            result: Any = self._work(pickle.loads(row["item"]))
        except FlrayError as error:
            result = error
        return {"index": row["index"], "result": pickle.dumps(result)}


def spread(
    make: Callable[[], Callable[[Item], Result]],
    items: Sequence[Item],
    actors: int | Literal["auto"],
    num_cpus: float,
    num_gpus: float,
    address: str | None,
    insecure: bool = False,
) -> Iterator[tuple[Item, Result]]:
    """Yields (item, result) in the order in which they end. Each actor calls `make()` once, and its result on items.

    Another actor repeats the item of a dead one. Raises the `FlrayError`s of `make` and its function, and
    `ResourceError` if so many actors do not fit the cluster.
    """
    from ray.data import ActorPoolStrategy

    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # it warns of how Ray Data makes its actors
    wanted = 1 if actors == "auto" else actors
    connect(address, max(cores(), math.ceil(wanted * num_cpus)), insecure=insecure)
    leases.alone("spreading work over the cluster")  # idle actors of a run before would hold CPUs that it waits for
    most = count_fitting(node_resources(), {"num_cpus": num_cpus, "num_gpus": num_gpus})
    if most < wanted:
        raise ResourceError(
            f"resources: {wanted} actors of {num_cpus:g} CPUs and {num_gpus:g} GPUs do not fit the cluster, which "
            f"holds {most} of them; set resources.actors, num_cpus or num_gpus lower"
        )
    size = min(most if actors == "auto" else actors, len(items))
    rows = [{"index": number, "item": pickle.dumps(item)} for number, item in enumerate(items)]
    # a block an item, so each result returns at once
    results = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
        _Actor,
        fn_constructor_args=(make,),
        compute=ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=2),
        num_cpus=num_cpus,
        num_gpus=num_gpus,
    )
    results.context.enable_progress_bars = False  # the caller has one
    with quieter({"ray.data": logging.ERROR}):
        for row in results.iter_rows():
            result = pickle.loads(row["result"])
            if isinstance(result, FlrayError):
                raise result
            yield items[row["index"]], result
