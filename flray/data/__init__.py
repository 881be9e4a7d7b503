"""Data: sources, cache, proxy sets and batches. Importing it reads no file and no heavy package."""

from flray.core.messages import Batch
from flray.data.batching import Batches, Normalizer, eval_batches
from flray.data.checks import CutWarning, LabelWarning, check_classes
from flray.data.data_config import Augment, Constants, DataConfig, ProxyConfig
from flray.data.dataset import Dataset, LeakWarning, load_dataset
from flray.data.proxy import Proxy, load_proxy
from flray.data.sources import SOURCES
from flray.data.splits import Split, Splits, Vocabulary

__all__ = [
    "SOURCES",
    "Augment",
    "Batch",
    "Batches",
    "Constants",
    "CutWarning",
    "DataConfig",
    "Dataset",
    "LabelWarning",
    "LeakWarning",
    "Normalizer",
    "Proxy",
    "ProxyConfig",
    "Split",
    "Splits",
    "Vocabulary",
    "check_classes",
    "eval_batches",
    "load_dataset",
    "load_proxy",
]
