"""ModelLanguage: everything textual about one model, from its tokenizer's directory.

Messages, text or ids in, prompts out; for each answer a TextDecoder. No I/O after `load`. Safe to call from any thread:
a long prompt is best encoded off the event loop (1 MB of text takes about 0.6 s), and its draft says how long it is.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from jinja2 import TemplateSyntaxError
from tokenizers import Tokenizer

from gateway.core import GenerateRequest, Prompt
from gateway.errors import ContextLengthExceeded, InvalidRequest
from gateway.language.decoder import TextDecoder
from gateway.language.directory import Limits, UnusableTokenizer, load_tokenizer, read_limits
from gateway.language.encoder import CACHE_BYTES, Draft, Encoder
from gateway.language.separator import find_separator
from gateway.language.template import ChatTemplate, Message
from gateway.language.vocabulary import Vocabulary


class ModelLanguage:
    """`context_length`: prompt and answer together, in tokens. `eos_token_ids`: never empty, the principal one first.

    `vocab_size`: one more than the highest id that the model takes.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, limits: Limits, cache_bytes: int = CACHE_BYTES
    ) -> None:
        """`cache_bytes` bounds what is kept of chats, so that their next turns are not encoded from the start."""
        self.context_length = limits.context_length
        self.eos_token_ids = limits.eos_token_ids
        self._tokenizer = tokenizer
        self._template = template
        self._encoder = Encoder(tokenizer, find_separator(tokenizer, template.sample()), cache_bytes)
        self._vocabulary = Vocabulary(tokenizer)
        self.vocab_size = max(self._vocabulary.size, limits.vocab_size)

    @classmethod
    def load(cls, directory: Path, cache_bytes: int = CACHE_BYTES) -> Self:
        """Raises `UnusableTokenizer`; a missing chat template is no error until a chat is rendered."""
        tokenizer = load_tokenizer(directory)
        try:
            template = ChatTemplate(tokenizer)
        except TemplateSyntaxError as exc:
            raise UnusableTokenizer(f"{directory}: the chat template does not compile: {exc}") from exc
        return cls(tokenizer.backend_tokenizer, template, read_limits(directory, tokenizer), cache_bytes)

    def render_chat(self, messages: Sequence[Message]) -> Prompt:
        """The prompt that asks for the next assistant message. Raises `InvalidRequest(param="messages")`.

        Text that spells a special token becomes that token, as in vLLM and transformers.
        """
        return self.draft_chat(messages).encode()

    def draft_chat(self, messages: Sequence[Message]) -> Draft:
        """`render_chat` up to its costly part: `draft.encode()` gives the prompt, here or on any thread."""
        # The template writes the BOS itself, so adding special tokens would double it.
        return self._encoder.draft(self._check_length(self._template.render(messages), "messages"), "messages")

    def encode_text(self, text: str) -> Prompt:
        """A completion's prompt, with the tokenizer's special tokens. Raises `InvalidRequest(param="prompt")`."""
        return self.draft_text(text).encode()

    def draft_text(self, text: str) -> Draft:
        """`encode_text` up to its costly part."""
        return self._encoder.draft_framed(self._check_length(text, "prompt"), "prompt")

    def prompt_from_ids(self, token_ids: Sequence[int]) -> Prompt:
        """A completion's prompt as it is. Raises `InvalidRequest(param="prompt")`."""
        if not token_ids:
            raise InvalidRequest("prompt: at least one token is needed.", param="prompt")
        # The least and the greatest tell in half the time that a look at every one takes, which matters at 100,000.
        unknown = next((end for end in (min(token_ids), max(token_ids)) if not 0 <= end < self.vocab_size), None)
        if unknown is not None:
            reason = f"prompt: token id {unknown} is outside the vocabulary of {self.vocab_size} tokens."
            raise InvalidRequest(reason, param="prompt")
        return Prompt(tuple(token_ids))

    def fit(
        self, prompt: Prompt, max_tokens: int | None, *, prompt_param: str, max_tokens_param: str = "max_tokens"
    ) -> int:
        """How many tokens to generate: `max_tokens`, or all that the context leaves. Raises `ContextLengthExceeded`.

        The params are the client's names for its prompt ("messages" or "prompt") and its limit.
        """
        used = len(prompt)
        room = self.context_length - used
        limit = f"This model's maximum context length is {self.context_length} tokens. However,"
        if room < 1:
            reason = f"{limit} your {prompt_param} resulted in {used} tokens, which leaves no room for an answer."
            raise ContextLengthExceeded(reason, param=prompt_param)
        if max_tokens is not None and max_tokens > room:
            parts = f"{used} in the {prompt_param}, {max_tokens} in the completion"
            reason = f"{limit} you requested {used + max_tokens} tokens ({parts}). Please reduce either."
            raise ContextLengthExceeded(reason, param=max_tokens_param)
        return room if max_tokens is None else max_tokens

    def decoder(self, request: GenerateRequest, stop: Sequence[str]) -> TextDecoder:
        """For one answer to `request`. Raises `InvalidRequest(param="stop")`."""
        if not all(stop):
            raise InvalidRequest("stop: a stop string cannot be empty.", param="stop")
        return TextDecoder(request, stop, self._vocabulary.detokenizer(request.prompt.token_ids))

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids on their own, without special tokens and ids outside the vocabulary."""
        return self._tokenizer.decode([token_id for token_id in token_ids if 0 <= token_id < self.vocab_size])

    def token_count(self, text: str) -> int:
        """Tokens of a text on its own, without the special tokens that would frame it."""
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def _check_length(self, text: str, param: str) -> str:
        """Refuse unread, as vLLM does, what cannot fit however it is encoded: encoding costs 0.5 us a character."""
        if len(text) > self.context_length * self._vocabulary.longest_token:
            reason = f"{param}: {len(text)} characters cannot fit into a context of {self.context_length} tokens."
            raise ContextLengthExceeded(reason, param=param)
        return text
