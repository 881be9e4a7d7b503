"""An algorithm of your own: FedAvg whose local steps are pulled back to the global model, as FedProx's are.

    flray run quickstart.yaml algorithm=my_algorithm --import my_algorithm
    flray run quickstart.yaml --import my_algorithm algorithm=fedavg,my_algorithm algorithms.my_algorithm.mu=0.1

It changes one of FedAvg's methods (`begin`, `gradient`, `step`, `end` on the client, `broadcast`, `aggregate` on the
server). The others, and what each is given, stand in `flray.core.protocol.algorithm`;
`flray list algorithms` has algorithms to start from.
"""

from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
from flray.core.schema.hp import hp


class MyAlgorithm(FedAvg, frozen=True):
    mu: float = hp(0.01, log=(1e-3, 1.0), ge=0, doc="pull to the global model")

    def gradient(self, ctx, broadcast, client, local, batch):
        """(loss, gradient [P]) at the client's model `local.w` [P]; `broadcast.w` [P] is the global model."""
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        return loss, g + self.mu * (local.w - broadcast.w)


ALGORITHMS.add("my_algorithm", MyAlgorithm)
