"""Parts of a configuration that do not go together: one line that names the keys, before anything runs."""

import shlex
from typing import Any

import pytest

from flray.config.loader import load_config
from flray.core.schema.errors import ConfigError
from tests.support.messages import assert_says, mistakes

BASE = {
    "rounds": 2,
    "data": "digits",
    "proxy": {"source": "holdout", "size": 20},
    "partition": {"name": "iid", "clients": 4},
    "model": "mlp",
    "algorithm": "fedavg",
}
REFUSED = """
algorithm=fedprotip algorithm.batch_size=full | full is no number, and the inference mode tip_batch without
algorithm=fedproj algorithm.batch_size=full   | memory_batch: minibatch without memory_batch_size reads one
algorithm=fedpec algorithm.batch_size=full    | algorithm.batch_size: | valid integer | 'full'
algorithm.batch_size=all                      | algorithm.batch_size: | valid integer | 'all'
algorithm.batch_size=0                        | algorithm.batch_size
cohort.from=c.csv cohort.size=2               | cohort.size: cohort.from names the clients of every round
cohort.from=c.csv cohort.sampling=numpy_round_seed | cohort.sampling: cohort.from names
data.batch_order=b.csv data.shuffle=false     | data.shuffle: data.batch_order gives the order
data.batch_order=b.csv algorithm=centralized  | a centralized run has no clients
cohort.from=c.csv algorithm=centralized       | a centralized run has no clients
model.dtype=float64 algorithm=fedprotip       | does not fit algorithm fedprotip (its bases)
model.dtype=float64 algorithm=target          | does not fit algorithm target (its generator)
model.dtype=float64 uplink=quantize           | does not fit quantize
model.dtype=float64 precision=bf16            | does not fit precision: bf16
model.dtype=float16                           | unknown value 'float16' in model.dtype
proxy.shuffle=false                           | proxy.shuffle: it is for the clients' samples
profile.rounds=[1,5]                          | profile.rounds: 5 is after the last round, 2
profile.rounds=[1] algorithm=centralized      | profile: a centralized run
'schedule=[{from_round: 2, algorithm: {lr: 0.1}}]' algorithm=centralized | schedule: | write algorithm.lr_decay
cohort.form=c.csv                             | cohort.form: unknown key | did you mean 'from'
algorithm.freeze=early                        | algorithm.freeze: unknown key; the engine freezes: write tasks.freeze
algorithm.old_heads=true                      | unreached (the default; was trained) or old_heads (was frozen)
until.virtual_s=1                             | until: virtual_s needs devices; add
aggregation=fedasync                          | buffered | size: 1
aggregation=fedasync coordination=buffered coordination.size=1 | coordination: buffered needs devices; add
"""
BUFFERED = """
devices=null                             | coordination | devices
cohort.dropout=0.1                       | cohort.dropout
cohort.sampling=poisson cohort.fraction=0.5 | cohort.sampling
algorithm=fednova                        | fednova
algorithm=fedcurv                        | fedcurv
aggregation=fedmemo                      | fedmemo
aggregation=fedasync                     | coordination.size=1
coordination=deadline coordination.seconds=1 coordination.size=2 | size | buffered
coordination.staleness.name=hinge coordination.staleness.a=1     | hinge | b
coordination.staleness.name=constant coordination.staleness.a=1  | constant | a
'uplink=[{name: clip, norm: 1.0, adaptive: 0.5}]' | clip | adaptive
"""
SYNCHRONOUS = """
aggregation=fedasync                             | buffered | size: 1
aggregation=fedasync tasks.num_tasks=2           | devices: the virtual clock has no tasks
coordination=buffered                            | size
"""
AVAILABILITY = """
cohort.sampling=poisson cohort.fraction=0.3      | cohort.sampling=poisson
cohort.sampling=numpy_round_seed cohort.size=3   | cohort.sampling=numpy_round_seed
"""
MARKOV = {"name": "markov", "on": 3e-6, "off": 6e-6}
TABLES = [
    (REFUSED, {}),
    (BUFFERED, {"devices": {"speed": "equal"}, "coordination": {"name": "buffered", "size": 2}}),
    (SYNCHRONOUS, {"devices": {"speed": "equal"}}),
    (AVAILABILITY, {"devices": {"speed": "equal", "availability": MARKOV}}),
]
ROWS = [
    pytest.param(more, shlex.split(words), told, id=words) for table, more in TABLES for words, told in mistakes(table)
]


@pytest.mark.parametrize(("more", "words", "told"), ROWS)
def test_what_does_not_go_together_is_refused_in_one_line(
    more: dict[str, Any], words: list[str], told: list[str]
) -> None:
    load_config({**BASE, **more})
    with pytest.raises(ConfigError) as error:
        load_config({**BASE, **more}, words)
    assert_says(error.value, *told)
