"""Where the gateway's answers are not those of vLLM's own server, and why. docs/api.md repeats the tables.

Plain data; `explain` finds the row that covers a difference. Measured against vLLM 0.32.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tests.parity.cases import BY_NAME
from tests.parity.compare import ABSENT, Found

Allows: TypeAlias = Callable[[object, object], bool]


def _any(ours: object, theirs: object) -> bool:
    return True


def _only_theirs(ours: object, theirs: object) -> bool:
    return ours is ABSENT


def _only_ours(ours: object, theirs: object) -> bool:
    return theirs is ABSENT


def _ours_null(ours: object, theirs: object) -> bool:
    return ours is None


def _null_left_out(ours: object, theirs: object) -> bool:
    return ours is ABSENT and theirs is None


def _ends_in_half(ours: object, theirs: object) -> bool:
    return isinstance(ours, str) and ours == f"{theirs}\ufffd"


NOWHERE = "(?!)"


@dataclass(frozen=True, slots=True)
class Difference:
    """`field`: as docs/api.md names it; `paths`: where it lies. `allows`: which values it is about.

    `chunks`: paths of fields that only one side's chunks have. `seen_in`: a case whose answer shows all of it;
    `also_in`: others whose answer may, where not every one may.
    """

    field: str
    paths: str
    reason: str
    seen_in: str
    also_in: frozenset[str] | None = None
    allows: Allows = _any
    chunks: str = NOWHERE

    def covers(self, case: str, found: Found, *, in_chunks: bool) -> bool:
        if not (self.also_in is None or case == self.seen_in or case in self.also_in):
            return False
        if in_chunks:
            return re.fullmatch(self.chunks, found.path) is not None
        return re.fullmatch(self.paths, found.path) is not None and self.allows(found.ours, found.theirs)


ALONE: frozenset[str] = frozenset()
CHOICE, CHUNK = r"choices\.\*\.", r"\*\.choices\.\*\."
TEXT = rf"{CHOICE}(text|message\.content)"
ECHOES = frozenset(name for name, case in BY_NAME.items() if case.body.get("echo"))
HALVES = frozenset({
    "logprobs and 5 beside",
    "logprobs and 20 beside",
    "logprobs of an emoji",
    "logprobs of Unicode",
    "logprobs with the prompt's",
    "logprobs with the prompts of n",
})

DIFFERENCES: tuple[Difference, ...] = (
    Difference("`id`, `created`", "id|created", "Each answer has its own.", "capital"),
    Difference(
        "`system_fingerprint`",
        "system_fingerprint",
        "null: vLLM's holds its version and configuration, which would reveal the engine.",
        "capital",
        allows=_ours_null,
    ),
    Difference(
        "fields that are null",
        rf"service_tier|metrics|(kv|ec)_transfer_params|prompt_(logprobs|text|token_ids)"
        rf"|{CHOICE}(stop_reason|token_ids|prompt_token_ids|prompt_logprobs|routed_experts)"
        rf"|{CHOICE}message\.(annotations|audio|function_call|reasoning)|usage\.(prompt|completion)_tokens_details",
        "Left out, where vLLM sends null for a value that was not requested or does not apply.",
        "capital",
        allows=_null_left_out,
        chunks=rf"{CHUNK}(stop_reason|token_ids|prompt_token_ids)|\*\.prompt_(text|token_ids)|\*\.usage\.\w+_details",
    ),
    Difference(
        "`refusal`",
        rf"{CHOICE}(message|logprobs)\.refusal",
        "null, as OpenAI sends it; vLLM's streams and its `logprobs` lack it.",
        "logprobs",
        allows=_only_ours,
        chunks=rf"{CHUNK}(delta|logprobs)\.refusal",
    ),
    Difference(
        "`stop_reason`",
        rf"{CHOICE}stop_reason",
        "Left out: not OpenAI's. vLLM's names the stop string or id.",
        "stop: one word",
        allows=_only_theirs,
    ),
    Difference(
        "ids of tool calls",
        rf"{CHOICE}message\.tool_calls\.\*\.id",
        "`call_` and 24 characters, as OpenAI's are (nine for a Mistral model, as in vLLM); vLLM's would reveal it.",
        "tool call",
    ),
    Difference(
        "a form beside tools",
        rf"{CHOICE}(finish_reason|message\.(content|tool_calls.*))|usage\..*",
        "A call, or an answer in that form, as in OpenAI's API; vLLM holds calls to the form too, so that there are "
        "none.",
        "a form beside tools, a call",
        also_in=ALONE,
        chunks=rf"{CHUNK}delta\..*",
    ),
    Difference(
        "`role`",
        rf"{CHOICE}message\.role",
        "Always `assistant`; vLLM repeats the last message's role when no generation prompt was added.",
        "no generation prompt",
        also_in=frozenset({"continued message of a user"}),
    ),
    Difference(
        "`max_tokens`, left out in a completion",
        rf"{TEXT}|{CHOICE}finish_reason|usage\..*",
        "The answer may fill the context, as in a chat; vLLM ends it after OpenAI's historical 16 tokens.",
        "max_tokens null",
        also_in=ALONE,
    ),
    Difference(
        "`min_tokens` with `ignore_eos`",
        TEXT,
        "Nothing can end the answer early, so `min_tokens` is not sent; vLLM would keep the end token from being "
        "picked all the same, TensorRT-LLM would not, and the text would reveal the engine.",
        "min_tokens, max_tokens and ignore_eos",
        also_in=ALONE,
    ),
    Difference(
        "a character cut in half at the end",
        TEXT,
        "U+FFFD, so that no token is invisible; vLLM shows nothing.",
        "within an emoji",
        also_in=frozenset({"within a character", "list of prompts in many tongues"}),
        allows=_ends_in_half,
    ),
    Difference(
        "log-probabilities of parts of a character",
        rf"{CHOICE}logprobs\.(content\.\*\.(bytes|top_logprobs\.\*\.(token|bytes))|top_logprobs\.\*\..*)",
        "The last part shows the whole character, as in vLLM. `bytes` are each token's own, and an alternative that is "
        "such a part is U+FFFD; in vLLM both hold the character that the part completes, or nothing.",
        "logprobs 5 of a completion",
        also_in=HALVES,
        chunks=rf"{CHUNK}logprobs\.top_logprobs\.\*\..*",
    ),
    Difference(
        "log-probabilities of a prompt",
        rf"{CHOICE}prompt_logprobs",
        "In `logprobs`, as OpenAI has them; vLLM repeats them in `prompt_logprobs`.",
        "logprobs with the prompt's",
        also_in=ECHOES,
        allows=_only_theirs,
    ),
    Difference(
        "`prompt_token_ids` of an echo",
        rf"{CHOICE}prompt_token_ids",
        "Only with `return_token_ids`; vLLM's streams have them with every echo.",
        "echo",
        also_in=ECHOES,
        allows=_only_theirs,
    ),
    Difference(
        '`tool_choice: "none"`',
        rf"{TEXT}|{CHOICE}finish_reason|usage\..*",
        "The prompt leaves the tools out, or the model would call them in its text; vLLM shows them.",
        "tools forbidden",
        also_in=ALONE,
    ),
    Difference(
        "a tool call that is cut off",
        rf"{CHOICE}message\.(tool_calls|content)|{CHOICE}finish_reason",
        "The same streamed or not; vLLM shows a call begun in a stream and its text in a whole answer.",
        "tool call cut off",
        also_in=frozenset({"tool call at a stop string"}),
        chunks=rf"{CHUNK}delta\.tool_calls.*",
    ),
    Difference(
        "`refusal` of an earlier message",
        r"usage\..*",
        "Shown to the model as the assistant's text; vLLM drops it.",
        "refusal of an assistant",
        also_in=ALONE,
    ),
    Difference(
        "an empty text part",
        r"usage\..*",
        "A line of its own, as every part; vLLM drops it.",
        "empty text part",
        also_in=ALONE,
    ),
    Difference(
        "errors",
        r"error\.(message|type|param|code)",
        "OpenAI's words: `type` and `code` are strings and `param` is the client's path.",
        "refused: temperature, too high",
    ),
)

# Refused by the gateway, and answered by vLLM, which drops what it does not know and takes what it can make sense of.
ANSWERED_BY_VLLM = frozenset({
    "refused: frequency, unknown",
    "refused: temperature, a string",
    "refused: n, a boolean",
    "refused: ignore_eos, a string",
    "refused: logit_bias, too great",
    "refused: a guide, a token of the model's own",
    "refused: bad_words",
    "refused completion: best_of, more than n",
    "refused completion: logprobs, too many",
    "echo alone",
})


def explain(case: str, found: Found, *, in_chunks: bool) -> Difference | None:
    """The row that covers it."""
    return next((row for row in DIFFERENCES if row.covers(case, found, in_chunks=in_chunks)), None)
