"""What tokens cost: GPUs and their price in; tokens per GPU-hour and money per million tokens out. Pure.

Nothing is assumed: without a number of GPUs there is no figure per GPU, without a price there is none in money.
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

EVERY = "*"  # a number of GPUs that holds for every backend
HOUR_S = 3600
PRICE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([^\d\s.,;=|<>&]{0,8})")


@dataclass(frozen=True, slots=True)
class Price:
    """Money for one GPU for one hour. `currency` is shown as it was given, and may be empty."""

    amount: float
    currency: str = ""

    @classmethod
    def parse(cls, text: str) -> "Price":
        """Parses "2.50", "2.50 EUR" or "2.5$". Raises ValueError."""
        found = PRICE.fullmatch(text.strip())
        if found is None or not 0 < float(found[1]) < math.inf:
            raise ValueError(f"{text}: an amount above 0, with a currency behind it or none, like 2.50 or '2.50 EUR'")
        return cls(float(found[1]), found[2])

    def __str__(self) -> str:
        return f"{self.amount!r} {self.currency}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What an operator pays for: GPUs by backend (or EVERY), and the price of one, if it is known."""

    gpus: Mapping[str, int] = field(default_factory=dict)
    price: Price | None = None

    def find_gpus(self, backend: str) -> int | None:
        return self.gpus.get(backend, self.gpus.get(EVERY))

    def find_tokens_per_gpu_hour(self, backend: str, tokens_per_s: float) -> float | None:
        """Returns tokens per GPU-hour; None where the backend's GPUs are not known."""
        gpus = self.find_gpus(backend)
        return tokens_per_s * HOUR_S / gpus if gpus else None

    def find_per_million(self, backend: str, tokens_per_s: float) -> float | None:
        """Returns the money for a million tokens; None without a price, without GPUs, or without tokens."""
        tokens = self.find_tokens_per_gpu_hour(backend, tokens_per_s)
        return self.price.amount * 1e6 / tokens if self.price and tokens else None

    def with_declared(self, gpus: Mapping[str, int]) -> "Cost":
        """Adds GPUs that were declared with the hardware, for backends whose GPUs are not known otherwise."""
        missing = {backend: count for backend, count in gpus.items() if self.find_gpus(backend) is None}
        return Cost(gpus={**self.gpus, **missing}, price=self.price)

    def check(self) -> None:
        """Raises ValueError for a price without a number of GPUs."""
        if self.price and not self.gpus:
            raise ValueError("--gpu-price needs the number of GPUs: --gpu-count, or gpus in the file of --hardware")

    def find_contradiction(self, declared: Mapping[str, int], backends: Collection[str]) -> str | None:
        """Names GPUs of a backend that does not exist, or of another number than declared with the hardware; None if
        neither.
        """
        for backend in self.gpus:
            if backend not in {EVERY, *backends}:
                return f"{backend} was given, and the backends are {' and '.join(backends)}"
        for backend, count in declared.items():
            given = self.find_gpus(backend)
            if given not in (None, count):
                return f"{backend} has {given}, and --hardware declares {count}"
        return None


NO_COST = Cost()


def parse_gpus(text: str) -> Mapping[str, int]:
    """Parses "2", for every backend, or "triton=2,vllm=4". Raises ValueError."""
    gpus: dict[str, int] = {}
    for part in text.split(","):
        name, _, count = part.rpartition("=")
        if not count.strip().isdecimal() or int(count) < 1 or (name.strip() or EVERY) in gpus:
            raise ValueError(f"{text}: whole numbers above 0, for all backends or each: 2, or triton=2,vllm=4")
        gpus[name.strip() or EVERY] = int(count)
    return gpus


def show_gpus(gpus: Mapping[str, int]) -> str:
    """Returns the text that parse_gpus reads."""
    return ",".join(str(count) if name == EVERY else f"{name}={count}" for name, count in gpus.items())
