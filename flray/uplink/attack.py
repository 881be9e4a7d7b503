"""Attacks: a drawn share of the clients sends another update than the one that it trained, so that a defence can be
judged. The draw is the same in all rounds. An attacker ignores the clipping listed before the attack."""

from __future__ import annotations

import functools
from abc import abstractmethod
from typing import Any

from flray.core.protocol.seeding import rng
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.core.schema.shares import floor_share
from flray.uplink.transform import Sender, Sent, Transform


class Attack(Transform, frozen=True):
    """The base of attacks that multiply an update's differences to the broadcast, those of `w` and of `b`."""

    clients: float = hp(0.2, choice=(0.1, 0.2, 0.3, 0.4), gt=0, le=1, doc="share of the clients that attack")

    @property
    @abstractmethod
    def multiplier(self) -> float:
        """The factor of both differences."""

    def is_attacker(self, sender: Sender) -> bool:
        """Whether this client attacks."""
        return sender.ctx.client in attackers(sender.ctx.seed, sender.address, self.clients, sender.population)

    def client(self, sender: Sender, sent: Sent) -> Sent:
        if not self.is_attacker(sender):
            return sent
        b = None if sent.b is None else sent.b * self.multiplier
        return sent._replace(w=sent.w * self.multiplier, b=b, bounded=False)

    def check_population(self, address: str, population: int) -> None:
        """Raises `ConfigError` if the share of so many clients is none."""
        if not floor_share(self.clients, population):
            raise ConfigError(f"uplink.{address}.clients: {self.clients:g} of {population} clients is none; raise it")


class SignFlip(Attack, frozen=True):
    """Attackers send the opposite of their update (the sign-flipping attack of Li et al., AAAI 2019, RSA).

    It is w - (w_k - w) and b - (b_k - b): the broadcast minus their own differences to it.
    """

    @property
    def multiplier(self) -> float:
        return -1.0


class Scaled(Attack, frozen=True):
    """Attackers scale their update up, so that it outweighs the others in a mean (model replacement, Bagdasaryan et
    al., AISTATS 2020).

    It is w + f (w_k - w) and b + f (b_k - b).
    """

    factor: float = hp(10.0, linear=(-20.0, 20.0), doc="factor of the differences (f); negative: also their opposite")

    @property
    def multiplier(self) -> float:
        return self.factor


@functools.lru_cache(maxsize=16)
def attackers(seed: int, address: str, share: float, population: int) -> frozenset[int]:
    """The ids of floor(share N) of the clients 0 ... N - 1, drawn for the whole run."""
    count = floor_share(share, population)
    drawn: Any = rng(seed, "uplink", address, "clients").choice(population, count, replace=False)
    return frozenset(drawn.tolist())
