"""FedOpt (Reddi et al., ICLR 2021, Algorithm 2; FedAvgM: Hsu et al. 2019): a server optimiser uses the mean update as
its negative gradient.

Client: FedAvg. Server, element by element, with Delta = sum_k p_k (w_k - w_g) and m_0 = 0:

    fedavgm      m <- beta m + Delta;   w_g <- w_g + eta m   (`nesterov`: eta (Delta + beta m))
    adaptive     m <- beta_1 m + (1 - beta_1) Delta;   w_g <- w_g + eta m / (sqrt(v) + tau), with v updated first:
    fedadagrad   v <- v + Delta^2
    fedadam      v <- beta_2 v + (1 - beta_2) Delta^2
    fedyogi      v <- v - (1 - beta_2) Delta^2 sign(v - Delta^2)

The server halves are rules of aggregation (`flray/aggregations/`), which other algorithms can have as well.
"""

from __future__ import annotations

from typing import ClassVar

from flray.aggregations import fedadagrad, fedadam, fedavgm, fedyogi
from flray.algorithms.fedavg import FedAvg

BY_NAME = "it is fedavg with the rule of that name"


class FedAvgM(fedavgm.FedAvgM, FedAvg, frozen=True):
    server_reason: ClassVar[str] = BY_NAME


class FedAdagrad(fedadagrad.FedAdagrad, FedAvg, frozen=True):
    server_reason: ClassVar[str] = BY_NAME


class FedAdam(fedadam.FedAdam, FedAvg, frozen=True):
    server_reason: ClassVar[str] = BY_NAME


class FedYogi(fedyogi.FedYogi, FedAvg, frozen=True):
    server_reason: ClassVar[str] = BY_NAME
