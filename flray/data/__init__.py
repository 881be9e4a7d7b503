"""Data: sources, cache, proxy sets and batches. Importing it reads no file and no heavy package."""

from typing import TYPE_CHECKING

from flray.core.schema.lazy import lazy

if TYPE_CHECKING:
    from flray.core.messages import Batch as Batch
    from flray.data.batching import Batches as Batches, Normalizer as Normalizer
    from flray.data.checks import (
        CutWarning as CutWarning,
        LabelWarning as LabelWarning,
        ScaleWarning as ScaleWarning,
        note_scales as note_scales,
    )
    from flray.data.data_config import (
        Augment as Augment,
        Constants as Constants,
        DataConfig as DataConfig,
        ProxyConfig as ProxyConfig,
    )
    from flray.data.dataset import (
        Dataset as Dataset,
        LeakWarning as LeakWarning,
        check_classes as check_classes,
        load_dataset as load_dataset,
    )
    from flray.data.proxy import ProxyData as ProxyData, load_proxy as load_proxy
    from flray.data.sources import SOURCES as SOURCES
    from flray.data.sources.arrays import from_arrays as from_arrays
    from flray.data.sources.objects import from_flwr as from_flwr, from_hf as from_hf, from_torch as from_torch
    from flray.data.splits import Split as Split, Splits as Splits, Vocabulary as Vocabulary

_NAMES = {
    "flray.core.messages": ("Batch",),
    "flray.data.batching": ("Batches", "Normalizer"),
    "flray.data.checks": ("CutWarning", "LabelWarning", "ScaleWarning", "note_scales"),
    "flray.data.data_config": ("Augment", "Constants", "DataConfig", "ProxyConfig"),
    "flray.data.dataset": ("Dataset", "LeakWarning", "check_classes", "load_dataset"),
    "flray.data.proxy": ("ProxyData", "load_proxy"),
    "flray.data.sources": ("SOURCES",),
    "flray.data.sources.arrays": ("from_arrays",),
    "flray.data.sources.objects": ("from_flwr", "from_hf", "from_torch"),
    "flray.data.splits": ("Split", "Splits", "Vocabulary"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
__all__ = list(_HOME)

__getattr__ = lazy(__name__, _HOME)
