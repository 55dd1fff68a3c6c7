"""One of the two that are compared: questions in, greedy answers and log-probabilities out, over HTTP.

Raises CannotMeasure, with the endpoint's name and its own words, for whatever else it answers. Knows no items' scores.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import httpx

from engines.accuracy.errors import CannotMeasure
from engines.accuracy.items import Answer, Messages
from engines.accuracy.rows import Row
from engines.accuracy.wire import (
    CHAT,
    COMPLETIONS,
    Abilities,
    Json,
    Written,
    body_of_answer,
    body_of_chat,
    body_of_probe,
    body_of_scores,
    read_probe,
    read_scores,
    read_written,
    tail,
)

TIMEOUT_S = 600.0  # of one answer: greedy, and it may wait behind others
TRIES = 5
PAUSE_S = 0.5  # before the second try; doubled before each further one
MOST_PAUSE_S = 30.0
BUSY = frozenset({429, 502, 503, 504})
# From everything down to text alone: the first that an endpoint takes is what it is asked for.
LADDER = (
    Abilities(scores=True, names_ids=True, ids=True),
    Abilities(scores=True, ids=True),
    Abilities(scores=True),
    Abilities(ids=True),
    Abilities(),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where to ask: `pin` names a backend of the gateway at `url`."""

    name: str
    url: str
    model: str | None = None
    pin: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        return f"{self.url}, backend {self.pin}" if self.pin else self.url

    def headers(self, run: str) -> Mapping[str, str]:
        """The run's tag keeps these requests out of a gateway's figures of its users."""
        named = {"x-crossover-run": run}
        named |= {"x-crossover-pin": self.pin} if self.pin else {}
        return named | ({"authorization": f"Bearer {self.key}"} if self.key else {})


class Refused(CannotMeasure):
    """The endpoint took the request for a wrong one: what it lacks, or what the item has."""


class Endpoint:
    """`meet` it first."""

    def __init__(self, client: httpx.AsyncClient, place: Place, run: str, top: int) -> None:
        self.place = place
        self.model = place.model or ""
        self.abilities = Abilities()
        self.top = top
        self._client = client
        self._headers = dict(place.headers(run))

    def __repr__(self) -> str:
        return f"<Endpoint {self.place.name} {self.place} {self.abilities}>"

    async def meet(self) -> None:
        """Finds its model, if none was named, and what it can tell."""
        if not self.model:
            self.model = _first_model(await self._send("GET", "/v1/models"), self.place)
        refusal = ""
        for wanted in LADDER:
            try:
                page = await self._send("POST", COMPLETIONS, body_of_probe(self.model, self.top, wanted))
            except Refused as exc:
                if wanted == LADDER[-1]:
                    raise
                # Its last words on a request for scores are about them; further down something else is refused.
                refusal = str(exc) if wanted.scores else refusal
                continue
            self.abilities = read_probe(page, refusal)
            return

    def limit(self, names_ids: bool) -> None:
        """Tokens are compared by name: both endpoints have to use the same."""
        self.abilities = replace(self.abilities, names_ids=self.abilities.names_ids and names_ids)

    async def write(self, prompt: str | Messages, answer: Answer) -> Written:
        if isinstance(prompt, str):
            body = body_of_answer(self.model, prompt, answer, self.top, self.abilities)
            return read_written(await self._send("POST", COMPLETIONS, body))
        body = body_of_chat(self.model, prompt, answer, self.abilities)
        return read_written(await self._send("POST", CHAT, body))

    async def score(self, prompt: str, continuation: str) -> tuple[Row, ...]:
        """Of the tokens that hold the continuation's characters."""
        by_text = replace(self.abilities, names_ids=False)
        body = body_of_scores(self.model, prompt + continuation, 1, by_text)
        rows = read_scores(await self._send("POST", COMPLETIONS, body))
        return tail(rows[:-1], continuation)

    async def predict(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> tuple[Row, ...]:
        """What it finds likely at each place of an answer, given the answer up to there.

        The answer's last token is not sent: the one generated in its place tells what was likely there.
        """
        known = [*prompt_ids, *token_ids[:-1]]
        rows = read_scores(
            await self._send("POST", COMPLETIONS, body_of_scores(self.model, known, self.top, self.abilities))
        )
        if len(rows) != len(known) + 1:
            raise CannotMeasure(f"{self.place.name}: {len(rows)} log-probabilities for {len(known)} + 1 tokens")
        return rows[len(prompt_ids) :]

    async def _send(self, method: str, path: str, body: Json | None = None) -> Json:
        """Tried again while the endpoint is busy or away: greedy answers lose nothing by that."""
        pause_s = PAUSE_S
        for number in range(1, TRIES + 1):
            try:
                response = await self._client.request(
                    method, self.place.url + path, json=body, headers=self._headers, timeout=TIMEOUT_S
                )
            except httpx.HTTPError as exc:
                if number == TRIES:
                    raise CannotMeasure(f"{self._call(path)}: {str(exc) or type(exc).__name__}") from exc
            else:
                if response.status_code not in BUSY or number == TRIES:
                    return self._read(path, response)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_PAUSE_S)
        raise AssertionError("the last try returns or raises")

    def _read(self, path: str, response: httpx.Response) -> Json:
        if not response.is_success:
            kind = Refused if response.status_code in {400, 404, 422} else CannotMeasure
            raise kind(f"{self._call(path)}: HTTP {response.status_code}: {_words(response)}")
        answered = response.headers.get("x-crossover-backend")
        if self.place.pin and path != "/v1/models" and answered != self.place.pin:
            who = f"{answered} answered" if answered else "this is no Crossover gateway"
            raise CannotMeasure(f"{self._call(path)}: pinned to {self.place.pin}, but {who}")
        try:
            page = response.json()
        except ValueError as exc:
            raise CannotMeasure(f"{self._call(path)}: the answer is not JSON") from exc
        if not isinstance(page, dict):
            raise CannotMeasure(f"{self._call(path)}: the answer is no JSON object")
        return page

    def _call(self, path: str) -> str:
        return f"{self.place.name} ({self.place}{path if not self.place.pin else ''})"


def _words(response: httpx.Response) -> str:
    """The message in OpenAI's form of an error; else the start of what came."""
    try:
        error = response.json()["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return response.text[:300]


def _first_model(page: Json, place: Place) -> str:
    models = page.get("data")
    if not isinstance(models, list) or not models or not isinstance(models[0], dict) or "id" not in models[0]:
        raise CannotMeasure(f"{place.name} ({place}) names no model: choose one with --model")
    return str(models[0]["id"])
