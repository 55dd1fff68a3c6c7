"""One of the two endpoints: prompts in, greedy answers and log-probabilities out, over HTTP.

Raises CannotMeasure with the endpoint's name and its own words for every other response. Knows no right answer.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import httpx

from engines.accuracy.divergence import ScoredToken
from engines.accuracy.errors import CannotMeasure
from engines.accuracy.items import FreeText, Messages
from engines.accuracy.wire import (
    CHAT,
    COMPLETIONS,
    Abilities,
    Generated,
    Json,
    cut_end,
    make_chat_request,
    make_completion_request,
    make_probe,
    make_score_request,
    read_generated,
    read_probe,
    read_scores,
)

TIMEOUT_S = 600.0  # of one answer, which may wait behind others
TRIES = 5
PAUSE_S = 0.5  # before the second try; doubled before each further one
MAX_PAUSE_S = 30.0
BUSY = frozenset({429, 502, 503, 504})
# From everything to text alone: an endpoint is used by the first that it takes.
LADDER = (
    Abilities(scores=True, names_ids=True, ids=True),
    Abilities(scores=True, ids=True),
    Abilities(scores=True),
    Abilities(ids=True),
    Abilities(),
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where to ask: `pin` names a backend of the gateway at `url`."""

    name: str
    url: str
    model: str | None = None
    pin: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        return f"{self.url}, backend {self.pin}" if self.pin else self.url

    def headers(self, run: str) -> Mapping[str, str]:
        """Returns the headers; the run's name keeps these requests out of a gateway's figures of its users."""
        headers = {"x-crossover-run": run}
        headers |= {"x-crossover-pin": self.pin} if self.pin else {}
        return headers | ({"authorization": f"Bearer {self.key}"} if self.key else {})


class Refused(CannotMeasure):
    """The endpoint answered that the request is wrong: it lacks a feature, or the item asks for something else."""


class Endpoint:
    """Requests to one model at one address, within its abilities. Call `probe` first."""

    def __init__(self, client: httpx.AsyncClient, address: Address, run: str, top: int) -> None:
        self.address = address
        self.model = address.model or ""
        self.abilities = Abilities()
        self.top = top
        self._client = client
        self._headers = dict(address.headers(run))

    async def probe(self) -> None:
        """Finds the endpoint's model, if none was named, and its abilities."""
        if not self.model:
            self.model = _first_model(await self._send("GET", "/v1/models"), self.address)
        refusal = ""
        for wanted in LADDER:
            try:
                page = await self._send("POST", COMPLETIONS, make_probe(self.model, self.top, wanted))
            except Refused as exc:
                if wanted == LADDER[-1]:
                    raise
                # Its last refusal of a request for scores is about scores; further down something else is refused.
                refusal = str(exc) if wanted.scores else refusal
                continue
            self.abilities = read_probe(page, refusal)
            return

    def limit(self, names_ids: bool) -> None:
        """Names tokens by id only if `names_ids`: tokens are compared by name, so both endpoints must use the same."""
        self.abilities = replace(self.abilities, names_ids=self.abilities.names_ids and names_ids)

    async def generate(self, prompt: str | Messages, wanted: FreeText) -> Generated:
        if isinstance(prompt, str):
            body = make_completion_request(self.model, prompt, wanted, self.top, self.abilities)
            return read_generated(await self._send("POST", COMPLETIONS, body))
        body = make_chat_request(self.model, prompt, wanted, self.abilities)
        return read_generated(await self._send("POST", CHAT, body))

    async def score(self, prompt: str, continuation: str) -> tuple[ScoredToken, ...]:
        """Returns the scored tokens that hold the continuation's characters."""
        by_text = replace(self.abilities, names_ids=False)
        body = make_score_request(self.model, prompt + continuation, 1, by_text)
        tokens = read_scores(await self._send("POST", COMPLETIONS, body))
        return cut_end(tokens[:-1], continuation)

    async def predict(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> tuple[ScoredToken, ...]:
        """The likeliest tokens at each place of an answer, given the answer up to there.

        The answer's last token is not sent: the one generated in its place shows what was likely there.
        """
        known = [*prompt_ids, *token_ids[:-1]]
        body = make_score_request(self.model, known, self.top, self.abilities)
        tokens = read_scores(await self._send("POST", COMPLETIONS, body))
        if len(tokens) != len(known) + 1:
            raise CannotMeasure(f"{self.address.name}: {len(tokens)} log-probabilities for {len(known)} + 1 tokens")
        return tokens[len(prompt_ids) :]

    async def _send(self, method: str, path: str, body: Json | None = None) -> Json:
        """Tries again while the endpoint is busy or away: greedy answers stay the same."""
        pause_s = PAUSE_S
        for number in range(1, TRIES + 1):
            try:
                response = await self._client.request(
                    method, self.address.url + path, json=body, headers=self._headers, timeout=TIMEOUT_S
                )
            except httpx.HTTPError as exc:
                if number == TRIES:
                    raise CannotMeasure(f"{self._name(path)}: {str(exc) or type(exc).__name__}") from exc
            else:
                if response.status_code not in BUSY or number == TRIES:
                    return self._read(path, response)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
        raise AssertionError("the last try returns or raises")

    def _read(self, path: str, response: httpx.Response) -> Json:
        if not response.is_success:
            kind = Refused if response.status_code in {400, 404, 422} else CannotMeasure
            raise kind(f"{self._name(path)}: HTTP {response.status_code}: {_read_error(response)}")
        backend, pin = response.headers.get("x-crossover-backend"), self.address.pin
        if pin and path != "/v1/models" and backend != pin:
            reason = f"{backend} answered" if backend else "this is no Crossover gateway"
            raise CannotMeasure(f"{self._name(path)}: pinned to {pin}, but {reason}")
        try:
            page = response.json()
        except ValueError as exc:
            raise CannotMeasure(f"{self._name(path)}: the answer is not JSON") from exc
        if not isinstance(page, dict):
            raise CannotMeasure(f"{self._name(path)}: the answer is no JSON object")
        return page

    def _name(self, path: str) -> str:
        return f"{self.address.name} ({self.address}{path if not self.address.pin else ''})"


def _read_error(response: httpx.Response) -> str:
    """The message of an error in OpenAI's form; else the start of the body."""
    try:
        error = response.json()["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return response.text[:300]


def _first_model(page: Json, address: Address) -> str:
    models = page.get("data")
    if not isinstance(models, list) or not models or not isinstance(models[0], dict) or "id" not in models[0]:
        raise CannotMeasure(f"{address.name} ({address}) names no model: choose one with --model")
    return str(models[0]["id"])
