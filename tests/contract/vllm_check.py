"""Run by vLLM's own Python: its parser on command lines, its request models on bodies.

In, as JSON on stdin: `commands`, each a list of words after `vllm serve`, and `bodies`, each a route and a JSON
document. Out, on stdout: vLLM's version, and for each command and each body a list of complaints, empty where vLLM
takes all of it.
"""

import io
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

from pydantic import BaseModel, TypeAdapter
from vllm import __version__
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest
from vllm.entrypoints.serve.tokenize.protocol import TokenizeRequest
from vllm.exceptions import VLLMValidationError
from vllm.utils.argparse_utils import FlexibleArgumentParser

MODELS = {
    "/inference/v1/generate": TypeAdapter(GenerateRequest),
    "/v1/completions": TypeAdapter(CompletionRequest),
    "/v1/chat/completions": TypeAdapter(ChatCompletionRequest),
    "/tokenize": TypeAdapter(TokenizeRequest),
}


try:
    cli_args = import_module("vllm.entrypoints.common.cli_args")
except ModuleNotFoundError:  # up to 0.32
    cli_args = import_module("vllm.entrypoints.launchers.cli_args")
# vLLM takes abbreviations of flags; with its next flag one may stand for two.
PARSER = cli_args.make_arg_parser(FlexibleArgumentParser(allow_abbrev=False))


def check_command(words: list[str]) -> list[str]:
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            options = PARSER.parse_args(words)
            cli_args.validate_parsed_serve_args(options)
            AsyncEngineArgs.from_cli_args(options)
    except SystemExit:
        return said.getvalue().splitlines()[-1:]
    except (TypeError, ValueError) as exc:
        return [str(exc)]
    return []


def check_body(route: str, document: dict[str, Any]) -> list[str]:
    """Unknown fields are among the complaints, though vLLM ignores them."""
    try:
        parsed = MODELS[route].validate_python(document)
    except (ValueError, VLLMValidationError) as exc:
        return [str(exc)]
    return [f"unknown field {path}" for path in find_unknown(document, parsed)]


def find_unknown(sent: Any, taken: Any, path: str = "") -> Iterator[str]:  # JSON, and what vLLM made of it
    if isinstance(sent, list) and isinstance(taken, list):
        for entry, of_it in zip(sent, taken, strict=True):
            yield from find_unknown(entry, of_it, f"{path}[]")
    elif isinstance(sent, dict):
        known = read_fields(taken)
        for name, value in sent.items():
            if name in known:
                yield from find_unknown(value, known[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}"


def read_fields(taken: Any) -> dict[str, Any]:  # of any of the kinds that vLLM's models are made of
    """Each declared field and its value. Of a mapping: what validation left in it."""
    if isinstance(taken, Mapping):
        return {str(name): value for name, value in taken.items()}
    if isinstance(taken, BaseModel):
        names = dict.fromkeys(type(taken).model_fields)
    elif is_dataclass(taken):
        names = dict.fromkeys(field.name for field in fields(taken) if field.init)
    else:
        names = dict.fromkeys(getattr(taken, "__struct_fields__", ()))  # msgspec's
    return {name: getattr(taken, name) for name in names}


def main() -> None:
    asked = json.load(sys.stdin)
    answer = {
        "version": __version__,
        "commands": [check_command(words) for words in asked["commands"]],
        "bodies": [check_body(route, document) for route, document in asked["bodies"]],
    }
    print(json.dumps(answer))  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
