"""Request bytes in, a typed body out, or an InvalidRequest that names the field as the client wrote it.

Knows JSON and pydantic's errors; not what any field means.
"""

from typing import Literal, TypeAlias, TypeVar

import orjson
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.errors import InvalidRequest
from gateway.json_limits import UNCHECKED_BYTES, exceeds
from gateway.wire.fields import TAG_MARK, WireModel

MAX_NAME_LENGTH = 100
MAX_FIELDS = 256  # pydantic makes an error of every unknown one: 700,000 of them took a second
# A JSON parser holds the interpreter from the first byte to the last, on whichever thread: so many take it 10 to 20 ms,
# where 8 MB of "[]," took 250 ms. Commas stand for numbers, of which a prompt in token ids has one for each token.
MAX_PARTS = 200_000  # strings, arrays and objects
MAX_COMMAS = 262_144
Unknown: TypeAlias = Literal["refuse", "ignore"]
Model = TypeVar("Model", bound=WireModel)


def validate(model: type[Model], document: dict[str, object], unknown: Unknown = "refuse") -> Model:
    """Returns the typed body. Raises InvalidRequest; its message repeats nothing that was sent but a field's name.

    `unknown`: whether fields that it does not know, at any depth, are errors, or are dropped as vLLM drops them.
    """
    if len(document) > MAX_FIELDS:
        raise InvalidRequest(f"The body has {len(document)} fields; no request has more than {MAX_FIELDS}.")
    try:
        return model.model_validate(document, extra="forbid" if unknown == "refuse" else "ignore")
    except ValidationError as exc:
        raise _translate(exc.errors(include_url=False, include_input=False)[0]) from exc  # one at a time, as OpenAI


def parse_json(raw: bytes, max_commas: int = MAX_COMMAS) -> dict[str, object]:
    """Returns the object that a body is. Raises InvalidRequest.

    `max_commas`: more where a model's context takes more tokens.
    """
    if len(raw) > UNCHECKED_BYTES and exceeds(raw, MAX_PARTS, max_commas):
        raise InvalidRequest(
            f"The body holds more than {MAX_PARTS} strings, arrays and objects, or {max_commas} numbers."
        )
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as exc:
        where = f"line {exc.lineno} column {exc.colno}"
        raise InvalidRequest(f"The body is not valid JSON: {exc.msg.partition(':')[0]} at {where}.") from exc
    if not isinstance(document, dict):
        raise InvalidRequest("The body must be a JSON object.")
    return document


def read_model(document: dict[str, object]) -> str:
    """Returns the model that a body names. Raises InvalidRequest."""
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("Missing required parameter: 'model'.", param="model")
    return model


def _translate(problem: ErrorDetails) -> InvalidRequest:
    param = name_path(problem["loc"])
    match problem["type"]:
        case "missing":
            message = f"Missing required parameter: '{param}'."
        case "extra_forbidden":
            message = f"Unrecognized request argument: '{param}'."
        case "refused":
            message = f"'{param}' {problem['msg']}."
        case _:
            message = f"Invalid value for '{param}': {problem['msg'][:1].lower()}{problem['msg'][1:]}."
    return InvalidRequest(message, param=param)


def name_path(location: tuple[int | str, ...]) -> str:
    """Returns pydantic's location without union tags, `messages.0.content`. A client's own key may be of any length."""
    steps = [str(step) for step in location]
    return ".".join(step[:MAX_NAME_LENGTH] for step in steps if not step.endswith(TAG_MARK))
