"""What a server answered, and what of it another answer to the same request must have in common with it."""

from dataclasses import dataclass

from tests.openai.streams import Json

# What differs from answer to answer by nature.
VOLATILE = frozenset({"id", "created", "object"})
# What chance decides where an answer is sampled.
DRAWN = frozenset({"content", "text", "arguments", "logprobs", "token_ids"})


@dataclass(frozen=True, slots=True)
class Answer:
    """`document`: the answer, a stream folded into one, or the error. `fields`: paths of the fields in a stream."""

    status: int
    backend: str | None
    reason: str
    document: Json
    fields: frozenset[str] = frozenset()

    @property
    def lasting(self) -> object:
        """What another answer to the same request must have in common with this one."""
        return _without(self.document, VOLATILE)

    @property
    def outline(self) -> object:
        """`lasting`, without what chance decides."""
        return _hollow(self.lasting)


def _without(value: object, names: frozenset[str]) -> object:
    match value:
        case dict():
            return {key: _without(inner, names) for key, inner in value.items() if key not in names}
        case list():
            return [_without(inner, names) for inner in value]
        case _:
            return value


def _hollow(value: object) -> object:
    match value:
        case dict():
            return {
                key: type(inner).__name__ if key in DRAWN and isinstance(inner, str | list) else _hollow(inner)
                for key, inner in value.items()
            }
        case list():
            return [_hollow(inner) for inner in value]
        case _:
            return value
