"""Data: sources, cache, proxy sets, partitions and batches. Importing it reads no file and no heavy package."""

from flray.data.batching import Batch, Batches, Normalizer, eval_batches
from flray.data.checks import LabelWarning, check_classes
from flray.data.config import Augment, Constants, DataConfig, ProxyConfig
from flray.data.dataset import Dataset, LeakWarning, load_dataset
from flray.data.local_test import local_test
from flray.data.partition import PARTITIONS, Partition, PartitionConfig, PartitionWarning, load_partition, make_partition
from flray.data.partition import figure as partition_figure
from flray.data.partition import table as partition_table
from flray.data.proxy import Proxy, load_proxy
from flray.data.sources import SOURCES, Split, Splits, Vocabulary

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "Augment",
    "Batch",
    "Batches",
    "Constants",
    "DataConfig",
    "Dataset",
    "LabelWarning",
    "LeakWarning",
    "Normalizer",
    "Partition",
    "PartitionConfig",
    "PartitionWarning",
    "Proxy",
    "ProxyConfig",
    "Split",
    "Splits",
    "Vocabulary",
    "check_classes",
    "eval_batches",
    "load_dataset",
    "load_partition",
    "load_proxy",
    "local_test",
    "make_partition",
    "partition_figure",
    "partition_table",
]
