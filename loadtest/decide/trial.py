"""What a pair of cells says about one level. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trial:
    """`gain`: natural logarithm of the low-load backend's figure over the other's, positive where it is better."""

    level: int
    gain: float
    low_first: bool

    @property
    def order(self) -> int:
        return 1 if self.low_first else -1
