"""Who holds what, when, and what is tested: stages, partitions, held-out parts.

Importing it reads no file.
"""

from flray.scenario.build import build
from flray.scenario.drift import DRIFTS, Drift
from flray.scenario.drifting import Drifting, DriftWarning, drift_table
from flray.scenario.held_out import ValidationConfig
from flray.scenario.local_test import local_test
from flray.scenario.partition import (
    Partition,
    PartitionWarning,
    load_partition,
    make_partition,
    partition_csv,
    partition_table,
)
from flray.scenario.partition_config import PARTITIONS, PartitionConfig
from flray.scenario.scenario import Scenario, Shares, clients_at
from flray.scenario.stage import Stage, TestSet, meanings, num_outputs, relabelled
from flray.scenario.tasks import TasksConfig

__all__ = [
    "DRIFTS",
    "PARTITIONS",
    "Drift",
    "DriftWarning",
    "Drifting",
    "Partition",
    "PartitionConfig",
    "PartitionWarning",
    "Scenario",
    "Shares",
    "Stage",
    "TasksConfig",
    "TestSet",
    "ValidationConfig",
    "build",
    "clients_at",
    "drift_table",
    "load_partition",
    "local_test",
    "make_partition",
    "meanings",
    "num_outputs",
    "partition_csv",
    "partition_table",
    "relabelled",
]
