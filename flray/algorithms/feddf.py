"""FedDF (Lin et al., NeurIPS 2020, section 3, Algorithm 1): fuse the client models by ensemble distillation on public
data.

Client: FedAvg. Server: from the average of the client models, minimise with Adam over the public data x
T^2 KL( sigma(mean_k f_k(x) / T) || sigma(f(x) / T) ).

The server half is a rule of aggregation (`flray/aggregations/feddf.py`), which other algorithms can have as well.
"""

from __future__ import annotations

from typing import ClassVar

from flray.aggregations import feddf
from flray.algorithms.fedavg import FedAvg


class FedDF(feddf.FedDF, FedAvg, frozen=True):
    server_reason: ClassVar[str] = "it is fedavg with the rule of that name"
