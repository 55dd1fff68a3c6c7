"""The latencies that an answer has to keep to count towards goodput. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slo:
    """The longest time that each latency may take, in seconds; None where there is no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        for name, limit in self.limits.items():
            if limit is not None and not limit > 0:
                raise ValueError(f"{name}: a limit is longer than nothing")

    @property
    def limits(self) -> dict[str, float | None]:
        return {"ttft": self.ttft_s, "tpot": self.tpot_s, "e2e": self.e2e_s}

    @classmethod
    def parse(cls, text: str) -> "Slo":
        """Parses "ttft=0.5,tpot=0.03", in seconds. Raises ValueError that names what is wrong."""
        values: dict[str, float] = {}
        for part in text.split(","):
            name, _, value = part.partition("=")
            if name.strip() not in {"ttft", "tpot", "e2e"}:
                raise ValueError(f"{part!r}: limits are ttft, tpot and e2e, as in ttft=0.5,tpot=0.03")
            try:
                values[f"{name.strip()}_s"] = float(value)
            except ValueError as exc:
                raise ValueError(f"{part!r}: a limit is a number of seconds, as in ttft=0.5") from exc
        return cls(**values)

    def is_kept(self, ttft_s: float | None, tpot_s: float | None, e2e_s: float | None) -> bool:
        """Whether a complete answer kept every limit. An answer that lacks a latency has not kept its limit."""
        pairs = ((ttft_s, self.ttft_s), (tpot_s, self.tpot_s), (e2e_s, self.e2e_s))
        return all(limit is None or (seconds is not None and seconds <= limit) for seconds, limit in pairs)

    def __str__(self) -> str:
        return ", ".join(f"{name} {limit:g} s" for name, limit in self.limits.items() if limit is not None)
