"""Who is let in, on every route, by key, scope, host and page; over a real socket."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import orjson
import pytest
from anthropic import AsyncAnthropic
from anthropic import AuthenticationError as AnthropicAuthenticationError
from anthropic import PermissionDeniedError as AnthropicPermissionDenied
from openai import AuthenticationError, PermissionDeniedError

from gateway.access import KeyFile, KeyFileUnreadable, Scope
from gateway.client_http import AsgiExchange, ClientConnection, Intake
from gateway.language import ModelLanguage
from gateway.settings import LimitSettings
from tests.fakes.backend import Pause
from tests.serving.stack import HELLO, MODEL, Stack, Writer, connect, eventually, make_stack, raw_client, running

Secrets: TypeAlias = dict[Scope, str]

OPERATORS_OWN = "operator-secret"
WRONG = "sk-crossover-wrong"
BODY = orjson.dumps({"model": MODEL, "messages": HELLO, "max_tokens": 8})
POLICY = orjson.dumps({"kind": "threshold", "low": "low", "high": "high", "up": 9, "down": 3})
INFERENCE = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("GET", "/v1/models"),
    ("GET", "/v1/responses/resp_1"),
    ("GET", "/v1/nothing"),
    ("POST", "/tokenize"),
]
ADMIN = [
    ("GET", "/admin/state"),
    ("GET", "/admin/policy"),
    ("GET", "/admin/calibrations"),
    ("GET", "/admin/keys"),
    ("GET", "/admin/nothing"),
]
PAGES = [("GET", "/metrics"), ("GET", "/version"), ("GET", "/openapi.json")]
PROBES = [("GET", "/health"), ("GET", "/ready")]


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path)


@pytest.fixture
def secrets(file: KeyFile) -> Secrets:
    """A key of each scope."""
    return {scope: file.create(scope, (scope,), None) for scope in Scope}


def make(language: ModelLanguage, writer: Writer, folder: Path, **settings: Any) -> Stack:  # Any: of the settings
    stack = make_stack(language, state_folder=folder, **settings)
    stack.low.script = stack.high.script = writer.script("Paris")
    return stack


async def ask(stack: Stack, route: tuple[str, str], key: str | None = None, **fields: str) -> int:
    """The status of an answer."""
    async with raw_client(stack) as client:
        if key is not None:
            fields["authorization"] = f"Bearer {key}"
        client.send(*route, BODY if route[0] == "POST" else b"", **fields)
        return (await client.answer()).status


async def ask_all(stack: Stack, routes: list[tuple[str, str]], key: str | None) -> set[int]:
    """401 and 403 as they are; 200 for all that is let in, whatever comes of it."""
    statuses = [await ask(stack, route, key) for route in routes]
    return {status if status in {401, 403} else 200 for status in statuses}


async def test_without_keys_everything_is_open(language: ModelLanguage, writer: Writer, tmp_path: Path) -> None:
    async with running(make(language, writer, tmp_path)) as stack:
        for key in (None, WRONG):
            assert await ask_all(stack, INFERENCE + ADMIN + PAGES + PROBES, key) == {200}


async def test_an_operator_key_alone_guards_the_admin_routes_alone(
    language: ModelLanguage, writer: Writer, tmp_path: Path
) -> None:
    async with running(make(language, writer, tmp_path, operator_key=OPERATORS_OWN)) as stack:
        for key, admin in ((None, 401), (WRONG, 401), (OPERATORS_OWN, 200)):
            assert await ask_all(stack, INFERENCE + PAGES + PROBES, key) == {200}
            assert await ask_all(stack, ADMIN, key) == {admin}


@pytest.mark.parametrize("http", [ClientConnection, "httptools"], ids=["our connections", "all over ASGI"])
async def test_with_keys_each_route_asks_for_its_scope(
    language: ModelLanguage, writer: Writer, tmp_path: Path, secrets: Secrets, http: type[ClientConnection] | str
) -> None:
    async with running(make(language, writer, tmp_path, operator_key=OPERATORS_OWN), http=http) as stack:
        for key, inference, operator in (
            (None, 401, 401),
            (WRONG, 401, 401),
            (secrets[Scope.INFERENCE], 200, 403),
            (secrets[Scope.LOADTEST], 200, 403),
            (secrets[Scope.OPERATOR], 200, 200),
            (OPERATORS_OWN, 200, 200),
        ):
            assert await ask_all(stack, INFERENCE, key) == {inference}
            assert await ask_all(stack, ADMIN + PAGES, key) == {operator}
            assert await ask_all(stack, PROBES, key) == {200}
        assert not [request for request in stack.requests if request.pin]


async def test_keys_for_operators_leave_inference_open_and_open_metrics_lets_scrapers_in(
    language: ModelLanguage, writer: Writer, tmp_path: Path, file: KeyFile
) -> None:
    file.create("root", (Scope.OPERATOR,), None)
    async with running(make(language, writer, tmp_path, open_metrics=True)) as stack:
        assert await ask_all(stack, [*INFERENCE, ("GET", "/metrics")], None) == {200}
        assert await ask_all(stack, [*ADMIN, ("GET", "/version"), ("GET", "/openapi.json")], None) == {401}


@pytest.mark.parametrize(("scope", "status"), [(None, 401), (Scope.INFERENCE, 403), (Scope.LOADTEST, 200)])
async def test_with_keys_pins_and_run_tags_are_for_load_tests(
    language: ModelLanguage, writer: Writer, tmp_path: Path, secrets: Secrets, *, scope: Scope | None, status: int
) -> None:
    async with running(make(language, writer, tmp_path)) as stack:
        key = secrets[scope] if scope else None
        for field, value in (("x_crossover_pin", "high"), ("x_crossover_run", "run-1")):
            assert await ask(stack, INFERENCE[0], key, **{field: value}) == status
        assert [(request.pin, request.run) for request in stack.requests] == (
            [(None, "run-1"), ("high", None)] if status == 200 else []
        )


async def test_a_refusal_has_the_form_of_its_api(
    language: ModelLanguage, writer: Writer, tmp_path: Path, secrets: Secrets
) -> None:
    pin = {"x-crossover-pin": "high"}
    async with running(make(language, writer, tmp_path)) as stack:
        async with connect(stack, WRONG) as wrong, connect(stack, secrets[Scope.INFERENCE]) as client:
            with pytest.raises(AuthenticationError) as unknown:
                await wrong.chat.completions.create(model=MODEL, messages=HELLO)
            assert (unknown.value.code, unknown.value.response.headers["www-authenticate"]) == (
                "invalid_api_key",
                "Bearer",
            )
            with pytest.raises(PermissionDeniedError) as lacking:
                await client.chat.completions.create(model=MODEL, messages=HELLO, extra_headers=pin)
            assert (lacking.value.code, lacking.value.type) == ("missing_scope", "permission_error")
            assert [model.id async for model in client.models.list()] == [MODEL]
        for key, headers, error, kind in (
            (WRONG, {}, AnthropicAuthenticationError, "authentication_error"),
            (secrets[Scope.INFERENCE], pin, AnthropicPermissionDenied, "permission_error"),
        ):
            async with AsyncAnthropic(base_url=stack.url, api_key=key, max_retries=0) as anthropic:
                with pytest.raises(error) as caught:
                    await anthropic.messages.create(
                        model=MODEL,
                        max_tokens=8,
                        messages=[{"role": "user", "content": "Hello"}],
                        extra_headers=headers,
                    )
            assert isinstance(caught.value.body, dict)
            assert caught.value.body["type"] == "error"
            assert caught.value.body["error"]["type"] == kind
        async with AsyncAnthropic(base_url=stack.url, api_key=secrets[Scope.INFERENCE], max_retries=0) as anthropic:
            asked = anthropic.messages.create(
                model=MODEL, max_tokens=8, messages=[{"role": "user", "content": "Hello"}]
            )
            assert (await asked).role == "assistant"


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/chat/completions?a=b"], ids=["usual", "by the parser"])
async def test_a_wrong_key_is_refused_before_the_body_is_read(
    language: ModelLanguage, writer: Writer, tmp_path: Path, secrets: Secrets, target: str
) -> None:
    head = (
        f"POST {target} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {WRONG}\r\ncontent-length: 60000\r\n\r\n"
    )
    async with running(make(language, writer, tmp_path)) as stack, raw_client(stack) as client:
        client.writer.write(head.encode())
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (401, "close")
        assert not stack.requests
    assert 'crossover_refused_total{code="invalid_api_key"} 1.0' in stack.metrics


@pytest.mark.parametrize("is_in_two", [False, True])
async def test_the_connection_of_a_small_refused_request_stays(
    language: ModelLanguage, writer: Writer, tmp_path: Path, secrets: Secrets, *, is_in_two: bool
) -> None:
    """`is_in_two`: the body follows the head, as official clients send it, and is thrown away."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(BODY)}\r\n"
    async with running(make(language, writer, tmp_path)) as stack, raw_client(stack) as client:
        for key, status in ((WRONG, 401), (secrets[Scope.INFERENCE], 200), (WRONG, 401)):
            client.writer.write(f"{head}authorization: bearer  {key}\r\n\r\n".encode())
            if is_in_two and status == 401:
                assert (await client.answer()).status == status
                client.writer.write(BODY)
            else:
                client.writer.write(BODY)
                assert (await client.answer()).status == status
        assert len(stack.requests) == 1


async def test_a_refused_client_that_sends_no_body_is_not_waited_for(
    language: ModelLanguage, writer: Writer, tmp_path: Path, secrets: Secrets
) -> None:
    limits = LimitSettings(body_timeout_s=0.3)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-api-key: {WRONG}\r\ncontent-length: 99\r\n\r\n"
    async with running(make(language, writer, tmp_path, limits=limits)) as stack, raw_client(stack) as client:
        client.writer.write(head.encode())
        assert (await client.answer()).status == 401
        async with asyncio.timeout(5):
            assert b" 408 " in await client.reader.read()


async def test_a_running_gateway_goes_by_every_change(
    language: ModelLanguage, writer: Writer, tmp_path: Path, file: KeyFile
) -> None:
    async with running(make(language, writer, tmp_path)) as stack:

        async def becomes(key: str | None, status: int) -> None:
            async with asyncio.timeout(5):
                while await ask(stack, INFERENCE[0], key) != status:  # noqa: ASYNC110 - it is what is tested
                    await asyncio.sleep(0.005)

        await becomes(None, 200)
        first = file.create("alice", (Scope.INFERENCE,), None)
        await becomes(None, 401)
        await becomes(first, 200)
        second = file.rotate("alice", timedelta(), None)
        await becomes(first, 401)
        await becomes(second, 200)
        file.revoke("alice")
        await becomes(second, 401)
        short = file.create("bob", (Scope.INFERENCE,), timedelta(seconds=1))
        await becomes(short, 200)
        await becomes(short, 401)
        assert await ask(stack, INFERENCE[0]) == 401


async def test_an_answer_under_way_outlives_its_key(
    language: ModelLanguage, writer: Writer, tmp_path: Path, file: KeyFile
) -> None:
    key = file.create("alice", (Scope.INFERENCE,), None)
    async with running(make(language, writer, tmp_path)) as stack:
        stack.low.script = [*([token] for token in writer.ids("Paris")), Pause(), *writer.script(" is nice.")]
        async with connect(stack, key) as client:
            stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
            await anext(stream)
            file.revoke("alice")
            await eventually(lambda: not stack.app.access.keyring.find((key.encode(),)))
            stack.low.calls[0].go_on()
            assert [chunk async for chunk in stream][-1].choices[0].finish_reason == "stop"


def test_a_gateway_whose_keys_cannot_be_read_is_not_built(
    language: ModelLanguage, writer: Writer, tmp_path: Path, secrets: Secrets
) -> None:
    (tmp_path / "keys.json").write_bytes(b"{}")
    with pytest.raises(KeyFileUnreadable, match=r"keys\.json"):
        make(language, writer, tmp_path, operator_key=OPERATORS_OWN)


def test_who_calls_is_noted_on_the_request(
    language: ModelLanguage, writer: Writer, tmp_path: Path, secrets: Secrets
) -> None:
    stack = make(language, writer, tmp_path)

    async def unused(*_: object) -> None:
        raise NotImplementedError

    headers = [(b"x-api-key", secrets[Scope.LOADTEST].encode())]
    scope = {"method": "POST", "path": "/", "raw_path": b"/", "query_string": b"", "headers": headers}
    exchange = AsgiExchange(scope, unused, unused, Intake(LimitSettings()))  # type: ignore[arg-type]  # it calls none
    assert stack.app.endpoints.check_head(exchange) is None
    assert exchange.caller is not None
    assert exchange.caller.name == "loadtest"


# ---- hosts and pages -------------------------------------------------------------------------------------------------

FOREIGN = [{"host": "evil.example:8080"}, {"origin": "https://evil.example"}, {"origin": "null"}]


@pytest.mark.parametrize("fields", FOREIGN)
async def test_a_page_from_elsewhere_changes_no_policy_reads_no_state_and_generates_nothing(
    language: ModelLanguage, writer: Writer, tmp_path: Path, fields: dict[str, str]
) -> None:
    async with running(make(language, writer, tmp_path)) as stack:
        async with raw_client(stack) as client:
            client.send("PUT", "/admin/policy", POLICY, content_type="application/json", **fields)
            answer = await client.answer()
            assert (answer.status, orjson.loads(answer.body)["error"]["code"]) == (403, "foreign_site")
        for route in INFERENCE + ADMIN + PAGES:
            assert await ask(stack, route, **fields) == 403, route
        for route in PROBES:
            assert await ask(stack, route, **fields) == 200, route
        assert not stack.requests
        assert stack.app.router.model_state(MODEL).current.version == 1
        async with raw_client(stack) as client:
            client.send("PUT", "/admin/policy", POLICY, content_type="application/json")
            assert (await client.answer()).status == 200


async def test_a_probe_past_the_parser_is_answered_for_any_host_without_a_key(
    language: ModelLanguage, writer: Writer, tmp_path: Path, secrets: Secrets
) -> None:
    async with running(make(language, writer, tmp_path)) as stack, raw_client(stack) as client:
        client.writer.write(b"GET /health HTTP/1.1\r\nhost: evil.example\r\norigin: https://evil.example\r\n\r\n")
        assert (await client.answer()).status == 200


@pytest.mark.parametrize("fields", FOREIGN)
async def test_with_keys_the_key_decides_for_inference_and_operators_routes_stay_for_no_page(
    language: ModelLanguage, writer: Writer, tmp_path: Path, secrets: Secrets, fields: dict[str, str]
) -> None:
    async with running(make(language, writer, tmp_path)) as stack:
        assert await ask(stack, INFERENCE[0], secrets[Scope.INFERENCE], **fields) == 200
        for route in ADMIN + PAGES:
            assert await ask(stack, route, secrets[Scope.OPERATOR], **fields) == 403, route


async def test_an_allowed_host_is_let_in(language: ModelLanguage, writer: Writer, tmp_path: Path) -> None:
    stack = make(language, writer, tmp_path, allowed_hosts=frozenset({"gw.example.com"}))
    async with running(stack):
        fields = {"host": "gw.example.com", "origin": "https://gw.example.com"}
        assert await ask(stack, INFERENCE[0], **fields) == await ask(stack, ADMIN[0], **fields) == 200
