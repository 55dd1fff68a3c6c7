"""Scores in vLLM's forms: beside ids, beside the texts of tokens, and of a prompt.

In: Scores. Out: JSON values. Pure; a Spelling remembers the tokens before.
"""

from collections.abc import Sequence
from typing import Any

from engines.reference.scores import Score
from engines.reference.vllm_http.served import ServedModel

Json = dict[str, Any]  # any JSON object
Row = tuple[str, float | None, dict[str, float] | None]  # a token's text, its log-probability, and those beside it
FLOOR = -9999.0  # in place of minus infinity, which JSON does not have
CONTEXT = 4  # tokens; no character takes more bytes
UNFINISHED = "\N{REPLACEMENT CHARACTER}"


def candidates(score: Score) -> dict[int, tuple[float, int]]:
    """Log-probability and rank by id: the token itself, then the likeliest. A token that is both stays first."""
    entries = {score.token_id: (max(score.logprob, FLOOR), score.rank)}
    for rank, (token_id, logprob) in enumerate(score.top, 1):
        entries[token_id] = (max(logprob, FLOOR), rank)
    return entries


def of_ids(scores: Sequence[Score], count: int) -> Json:
    """Encodes scores for the generate endpoint: `count` entries for each token, always with the token itself."""
    content = []
    for score in scores:
        entries = [
            {"token_id": token_id, "logprob": logprob, "rank": rank}
            for token_id, (logprob, rank) in candidates(score).items()
        ]
        content.append(entries[0] | {"top_logprobs": entries[: max(count, 1)]})
    return {"content": content}


class Spelling:
    """Texts of tokens in order: the token that completes a character has its whole text."""

    def __init__(self, model: ServedModel, *, names_ids: bool) -> None:
        """`names_ids`: ids instead of texts, because two tokens may have the same text."""
        self._model = model
        self._names_ids = names_ids
        self._before: list[int] = []

    def spell(self, score: Score) -> dict[int, str]:
        """The texts of all candidates for the next token."""
        texts = {token_id: self._text(token_id) for token_id in candidates(score)}
        self._before = [*self._before, score.token_id][-CONTEXT:]
        return texts

    def name(self, token_id: int) -> str:
        """The token's text without its neighbours."""
        return f"token_id:{token_id}" if self._names_ids else self._model.decode([token_id])

    def _text(self, token_id: int) -> str:
        text = self.name(token_id)
        return self._finished(token_id) if text.endswith(UNFINISHED) else text

    def _finished(self, token_id: int) -> str:
        """The text that the token completes, with the bytes before it; empty if it completes none."""
        for count in range(1, len(self._before) + 1):
            before = self._before[-count:]
            whole = self._model.decode([*before, token_id])
            if not whole.endswith(UNFINISHED):
                # Text of earlier tokens is not counted again, except the first bytes of this character.
                while before and self._model.decode(before[-1:]).endswith(UNFINISHED):
                    before.pop()
                return whole.removeprefix(self._model.decode(before))
        return ""


class CompletionLogprobs:
    """Scores for the completions endpoint, piece by piece: each token's text with up to `count` alternatives."""

    def __init__(self, model: ServedModel, count: int, *, names_ids: bool) -> None:
        self._count = count
        self._prompt, self._answer = (Spelling(model, names_ids=names_ids) for _ in range(2))
        self._offset = 0

    def echo(self, first: int, scores: Sequence[Score | None]) -> Json:
        """Returns the log-probabilities of the prompt, whose `first` token has no score."""
        rows: list[Row] = [(self._prompt.name(first), None, None)]
        return self._columns(rows + [self._row(self._prompt, score) for score in scores if score is not None])

    def feed(self, scores: Sequence[Score]) -> Json:
        return self._columns([self._row(self._answer, score) for score in scores])

    def _row(self, spelling: Spelling, score: Score) -> Row:
        texts, entries = spelling.spell(score), candidates(score)
        top = {texts[token_id]: logprob for token_id, (logprob, _) in [*entries.items()][: self._count + 1]}
        return texts[score.token_id], entries[score.token_id][0], top

    def _columns(self, rows: Sequence[Row]) -> Json:
        offsets = []
        for text, _, _ in rows:
            offsets.append(self._offset)
            self._offset += len(text)
        tokens, logprobs, tops = ([row[column] for row in rows] for column in range(3))
        return {"text_offset": offsets, "token_logprobs": logprobs, "tokens": tokens, "top_logprobs": tops}


def of_prompt(scores: Sequence[Score | None] | None, spelling: Spelling | None) -> list[Json | None] | None:
    """Lists a prompt's scores, alike on both endpoints; without a spelling texts are null, as with `detokenize` off."""
    if scores is None:
        return None
    entries: list[Json | None] = []
    for score in scores:
        if score is None:
            entries.append(None)
            continue
        texts: dict[int, str] = spelling.spell(score) if spelling else {}
        entries.append({
            str(token_id): {"logprob": logprob, "rank": rank, "decoded_token": texts.get(token_id)}
            for token_id, (logprob, rank) in candidates(score).items()
        })
    return entries
