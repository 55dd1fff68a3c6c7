"""What an answer has to keep to count as good. Pure."""

from dataclasses import dataclass

from loadtest import stats
from loadtest.answer import Answer


@dataclass(frozen=True, slots=True)
class Slo:
    """The most seconds that each may take; None where there is no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        for name, most in self.limits.items():
            if most is not None and not most > 0:
                raise ValueError(f"{name}: a limit is longer than nothing")

    @property
    def limits(self) -> dict[str, float | None]:
        return {"ttft": self.ttft_s, "tpot": self.tpot_s, "e2e": self.e2e_s}

    @classmethod
    def parse(cls, text: str) -> "Slo":
        """From "ttft=0.5,tpot=0.03", in seconds. ValueError names what is wrong."""
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

    def is_kept(self, answer: Answer) -> bool:
        """By an answer that is whole; one that has no such time has not kept it."""
        taken = {"ttft": stats.ttft_s(answer), "tpot": stats.tpot_s(answer), "e2e": stats.e2e_s(answer)}
        return all(
            most is None or ((seconds := taken[name]) is not None and seconds <= most)
            for name, most in self.limits.items()
        )

    def __str__(self) -> str:
        return ", ".join(f"{name} {most:g} s" for name, most in self.limits.items() if most is not None)
