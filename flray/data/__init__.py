"""Data: sources, cache, proxy sets and batches. Importing it reads no file and no heavy package."""

from typing import TYPE_CHECKING

from flray.core.schema.lazy import lazy

if TYPE_CHECKING:
    from flray.core.messages import Batch as Batch
    from flray.data.batching import Batches as Batches
    from flray.data.batching import Normalizer as Normalizer
    from flray.data.batching import eval_batches as eval_batches
    from flray.data.checks import CutWarning as CutWarning
    from flray.data.checks import LabelWarning as LabelWarning
    from flray.data.checks import check_classes as check_classes
    from flray.data.data_config import Augment as Augment
    from flray.data.data_config import Constants as Constants
    from flray.data.data_config import DataConfig as DataConfig
    from flray.data.data_config import ProxyConfig as ProxyConfig
    from flray.data.dataset import Dataset as Dataset
    from flray.data.dataset import LeakWarning as LeakWarning
    from flray.data.dataset import load_dataset as load_dataset
    from flray.data.proxy import ProxyData as ProxyData
    from flray.data.proxy import load_proxy as load_proxy
    from flray.data.sources import SOURCES as SOURCES
    from flray.data.sources.arrays import from_arrays as from_arrays
    from flray.data.sources.objects import from_flwr as from_flwr
    from flray.data.sources.objects import from_hf as from_hf
    from flray.data.sources.objects import from_torch as from_torch
    from flray.data.splits import Split as Split
    from flray.data.splits import Splits as Splits
    from flray.data.splits import Vocabulary as Vocabulary

_HOME = {
    "Augment": "flray.data.data_config",
    "Batch": "flray.core.messages",
    "Batches": "flray.data.batching",
    "Constants": "flray.data.data_config",
    "CutWarning": "flray.data.checks",
    "DataConfig": "flray.data.data_config",
    "Dataset": "flray.data.dataset",
    "LabelWarning": "flray.data.checks",
    "LeakWarning": "flray.data.dataset",
    "Normalizer": "flray.data.batching",
    "ProxyData": "flray.data.proxy",
    "ProxyConfig": "flray.data.data_config",
    "SOURCES": "flray.data.sources",
    "Split": "flray.data.splits",
    "Splits": "flray.data.splits",
    "Vocabulary": "flray.data.splits",
    "check_classes": "flray.data.checks",
    "eval_batches": "flray.data.batching",
    "from_arrays": "flray.data.sources.arrays",
    "from_flwr": "flray.data.sources.objects",
    "from_hf": "flray.data.sources.objects",
    "from_torch": "flray.data.sources.objects",
    "load_dataset": "flray.data.dataset",
    "load_proxy": "flray.data.proxy",
}
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
    "ProxyConfig",
    "ProxyData",
    "Split",
    "Splits",
    "Vocabulary",
    "check_classes",
    "eval_batches",
    "from_arrays",
    "from_flwr",
    "from_hf",
    "from_torch",
    "load_dataset",
    "load_proxy",
]

__getattr__ = lazy(__name__, _HOME)
