"""ModelLanguage: everything textual about one model, from its tokenizer's directory.

Messages, text or ids in, prompts out; for each answer a TextDecoder. No I/O after `load`. Safe to call from any thread:
encode a long prompt off the event loop (1 MB of text takes about 0.6 s); its draft holds its length.
"""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Self

from jinja2 import TemplateSyntaxError
from tokenizers import Tokenizer

from gateway.core import GenerateRequest, Guide, Prompt
from gateway.errors import ContextLengthExceeded, InvalidRequest
from gateway.language.answer_format import AUTO, AnswerFormat, find_answer_format
from gateway.language.decoder import TextDecoder
from gateway.language.encoder import CACHE_BYTES, MAX_TOKENS, Draft, Encoder
from gateway.language.guide_text import find_own_token
from gateway.language.model_directory import Limits, UnusableTokenizer, load_tokenizer, read_limits
from gateway.language.reasoning import REASONING_END, REASONING_MARKERS, REASONING_START
from gateway.language.separator import find_separator
from gateway.language.template import DEFAULT_RENDERING, ChatTemplate, Message, Rendering
from gateway.language.vocabulary import NO_IDS, Vocabulary


class ModelLanguage:
    """The text side of one model. `eos_token_ids`: never empty, the principal first.

    `context_length`: of prompt and answer together, in tokens. `vocab_size`: one more than the highest id that the
    model takes. `takes_tools`: whether its template renders tools. `takes_late_system`: whether it takes a system's
    message in the middle of a chat.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        limits: Limits,
        answer_format: AnswerFormat,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """`cache_bytes`: bounds the cache of encoded chats, whose next turns need not be encoded from the start."""
        self.context_length = limits.context_length
        self.eos_token_ids = limits.eos_token_ids
        self.tool_format = answer_format.tool_format
        self.reasons = answer_format.reasons
        self.takes_tools = template.takes_tools
        self.takes_late_system = template.takes_late_system
        self._tokenizer = tokenizer
        self._template = template
        separator = find_separator(tokenizer, template.sample())
        self._encoder = Encoder(tokenizer, separator, cache_bytes, max(MAX_TOKENS, limits.context_length))
        self._vocabulary = Vocabulary(tokenizer)
        self.vocab_size = max(self._vocabulary.size, limits.vocab_size)
        markers = () if answer_format.tool_format is None else answer_format.tool_format.markers
        self._markers = self._vocabulary.find_special((*markers, *REASONING_MARKERS))
        self._special = frozenset(self._vocabulary.special)

    @classmethod
    def load(
        cls,
        directory: Path,
        cache_bytes: int = CACHE_BYTES,
        *,
        tool_parser: str = AUTO,
        reasoning_parser: str = AUTO,
    ) -> Self:
        """Reads a directory. Raises `UnusableTokenizer`. A missing chat template is no error until a chat is rendered.

        `tool_parser`, `reasoning_parser`: as in the settings; AUTO looks into the template.
        """
        tokenizer = load_tokenizer(directory)
        try:
            template = ChatTemplate(tokenizer)
        except TemplateSyntaxError as exc:
            raise UnusableTokenizer(f"{directory}: the chat template does not compile: {exc}") from exc
        answer_format = find_answer_format(template.source, tool_parser, reasoning_parser)
        return cls(tokenizer.backend_tokenizer, template, read_limits(directory, tokenizer), answer_format, cache_bytes)

    def render_chat(
        self, messages: Sequence[Message], rendering: Rendering = DEFAULT_RENDERING, *, add_special_tokens: bool = False
    ) -> Prompt:
        """Returns the prompt that asks for the next assistant message. Raises `InvalidRequest(param="messages")`.

        Text that spells a special token becomes that token, as in vLLM and transformers.
        """
        return self.draft_chat(messages, rendering, add_special_tokens=add_special_tokens).encode()

    def draft_chat(
        self, messages: Sequence[Message], rendering: Rendering = DEFAULT_RENDERING, *, add_special_tokens: bool = False
    ) -> Draft:
        """Does `render_chat` without its costly part: `draft.encode()` returns the prompt, on any thread."""
        text = self._template.render(messages, rendering)
        if rendering.ends_reasoning:
            text = self._close_reasoning(text) + rendering.opening
        text = self._check_length(text, "messages")
        return self._draft(text, "messages", is_framed=add_special_tokens)

    def encode_text(self, text: str, *, add_special_tokens: bool = True) -> Prompt:
        """Returns a completion's prompt, with special tokens around it. Raises `InvalidRequest(param="prompt")`."""
        return self.draft_text(text, add_special_tokens=add_special_tokens).encode()

    def draft_text(self, text: str, *, add_special_tokens: bool = True) -> Draft:
        """Does `encode_text` without its costly part, as `draft_chat`."""
        return self._draft(self._check_length(text, "prompt"), "prompt", is_framed=add_special_tokens)

    def tokenize_chat(
        self, messages: Sequence[Message], rendering: Rendering, *, add_special_tokens: bool = False
    ) -> Sequence[int]:
        """Returns the ids of `render_chat` for a chat of any length. Raises `InvalidRequest(param="messages")`."""
        return self._tokenize(self._template.render(messages, rendering), "messages", is_framed=add_special_tokens)

    def tokenize_text(self, text: str, *, add_special_tokens: bool = True) -> Sequence[int]:
        """Returns the ids of a text of any length, even an empty one. Raises `InvalidRequest(param="prompt")`."""
        return self._tokenize(text, "prompt", is_framed=add_special_tokens)

    def prompt_from_ids(self, token_ids: Sequence[int]) -> Prompt:
        """Checks the ids of a completion's prompt. Raises `InvalidRequest(param="prompt")`."""
        if not token_ids:
            raise InvalidRequest("prompt: at least one token is needed.", param="prompt")
        # min and max together take half the time of a check of every id, which matters at 100,000 ids.
        unknown = next((end for end in (min(token_ids), max(token_ids)) if not 0 <= end < self.vocab_size), None)
        if unknown is not None:
            reason = f"prompt: token id {unknown} is outside the vocabulary of {self.vocab_size} tokens."
            raise InvalidRequest(reason, param="prompt")
        return Prompt(tuple(token_ids))

    def fit(self, prompt: Prompt, max_tokens: int | None, *, prompt_param: str) -> int:
        """Returns how many tokens to generate: `max_tokens`, but no more than fit. Raises `ContextLengthExceeded`.

        Agents ask for tens of thousands of tokens, whatever a model's context is, so only a prompt can be too long.
        `prompt_param`: the client's name for its prompt ("messages" or "prompt").
        """
        room = self.context_length - len(prompt)
        if room < 1:
            # The last sentence is OpenAI's newer wording: LangChain recognises the error by it.
            reason = (
                f"This model's maximum context length is {self.context_length} tokens. However, your {prompt_param} "
                f"resulted in {len(prompt)} tokens, which leaves no room for an answer. "
                f"Input tokens exceed the configured limit of {self.context_length} tokens."
            )
            raise ContextLengthExceeded(reason, param=prompt_param)
        return room if max_tokens is None else min(max_tokens, room)

    def decoder(
        self,
        request: GenerateRequest,
        stop: Sequence[str],
        *,
        include_stop: bool = False,
        shows_special: bool = False,
        shows_markers: bool = False,
    ) -> TextDecoder:
        """Returns the decoder of one answer to `request`. Raises `InvalidRequest(param="stop")`.

        The answer's text includes, with `include_stop`, the token or string that ends it; with `shows_special`, all
        special tokens; with `shows_markers`, the special tokens that a ReplyParser needs.
        """
        if not all(stop):
            raise InvalidRequest("stop: a stop string cannot be empty.", param="stop")
        also_shown = self._special if shows_special else self._markers if shows_markers else NO_IDS
        detokenizer = self._vocabulary.detokenizer(request.prompt.token_ids, also_shown)
        return TextDecoder(request, stop, detokenizer, include_stop=include_stop)

    def decode(self, token_ids: Sequence[int], *, shows_special: bool = False) -> str:
        """Returns the text of ids on their own. Ids outside the vocabulary are dropped."""
        known = [token_id for token_id in token_ids if 0 <= token_id < self.vocab_size]
        # Of tokenizers' calls only the batch call lets other threads run.
        texts: list[str] = self._tokenizer.decode_batch([known], skip_special_tokens=not shows_special)
        return texts[0]

    def spell(self, token_id: int) -> bytes:
        """Returns the bytes of one token of an answer, even a special one; b"" for an id outside the vocabulary."""
        return self._vocabulary.spell(token_id)

    def token(self, token_id: int) -> str:
        """Returns the vocabulary's spelling of the token; a byte-level vocabulary has a character for each byte."""
        return self._tokenizer.id_to_token(token_id) or ""

    def starts_in_reasoning(self, prompt: Prompt) -> bool:
        """Returns whether the prompt ends inside reasoning, so that its answer's first tokens continue the reasoning.

        Only the text after the last special token counts, such as a message's header: users may write `<think>` too.
        """
        if not self.reasons:
            return False
        borders = self._special - self._markers
        last = [*takewhile(lambda token_id: token_id not in borders, reversed(prompt.token_ids))]
        text = self.decode(last[::-1], shows_special=True)
        return text.rfind(REASONING_START) > text.rfind(REASONING_END)

    def _close_reasoning(self, text: str) -> str:
        """Ends the reasoning that a template has begun, as Qwen's ends it for a model that is not to think."""
        is_open = self.reasons and text.rstrip().endswith(REASONING_START)
        return f"{text.rstrip()}\n\n{REASONING_END}\n\n" if is_open else text

    def find_own_token(self, guide: Guide) -> str | None:
        """Returns a token of the model's own whose text the guide dictates, to which no answer can be held."""
        return find_own_token(guide, self._vocabulary.own)

    def token_count(self, text: str) -> int:
        """Returns how many tokens a text has on its own, without the special tokens around it."""
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def _draft(self, text: str, param: str, *, is_framed: bool) -> Draft:
        """Drafts a prompt. `is_framed`: add special tokens; usually not for a chat: its template wrote the BOS."""
        return self._encoder.draft_framed(text, param) if is_framed else self._encoder.draft(text, param)

    def _tokenize(self, text: str, param: str, *, is_framed: bool) -> Sequence[int]:
        return self._draft(text, param, is_framed=is_framed).find_ids()

    def _check_length(self, text: str, param: str) -> str:
        """Refuses, as vLLM does, text that cannot fit however it is encoded: encoding costs 0.5 us a character."""
        if len(text) > self.context_length * self._vocabulary.longest_token:
            reason = f"{param}: {len(text)} characters cannot fit into a context of {self.context_length} tokens."
            raise ContextLengthExceeded(reason, param=param)
        return text
