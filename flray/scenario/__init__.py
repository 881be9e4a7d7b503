"""Who holds what, when, and what is tested: partitions, held-out parts, test shares. Importing it reads no file."""

from flray.scenario.local_test import local_test
from flray.scenario.partition import PARTITIONS, Partition, PartitionConfig, PartitionWarning, load_partition, make_partition
from flray.scenario.partition import figure as partition_figure
from flray.scenario.partition import table as partition_table

__all__ = [
    "PARTITIONS",
    "Partition",
    "PartitionConfig",
    "PartitionWarning",
    "load_partition",
    "local_test",
    "make_partition",
    "partition_figure",
    "partition_table",
]
