"""`crossover keys` beside `crossover serve`: what a key changes on every worker, and which gateway does not start."""

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from secrets import token_urlsafe

import httpx
import pytest
import yaml
from click.testing import CliRunner, Result

from gateway.commands.keys import keys
from tests.commands.test_workers import Site, opened
from tests.processes import find_children, is_running
from tests.serving.stack import RawClient, eventually
from tests.serving.test_serve import STARTS_WITHIN_S, start, write_config

MODELS = ("GET", "/v1/models")
SEEN_WITHIN_S = 0.1


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"  # the engines' loop; the gateway has its own processes


def run_keys(config: Path, *arguments: str) -> Result:
    return CliRunner().invoke(keys, [*arguments, "-c", str(config)])


def secret_of(config: Path, *arguments: str) -> str:
    result = run_keys(config, *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout.strip()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path)


# ---- the command -----------------------------------------------------------------------------------------------------


def test_a_key_is_shown_once_and_listed_by_name_id_and_state(config: Path) -> None:
    secret = secret_of(config, "create", "alice")
    other = secret_of(config, "create", "ci", "--scope", "loadtest", "--scope", "operator", "--expires", "30d")
    assert re.fullmatch(r"sk-crossover-[A-Za-z0-9_-]{43}", secret)
    assert secret_of(config, "rotate", "alice") not in {secret, other}
    assert run_keys(config, "revoke", "ci").exit_code == 0
    shown = run_keys(config, "list", "--json").stdout
    assert [(row["name"], row["scopes"], row["state"]) for row in json.loads(shown)] == [
        ("alice", ["inference"], "expired"),
        ("ci", ["loadtest", "operator"], "revoked"),
        ("alice", ["inference"], "valid"),
    ]
    table = run_keys(config, "list").stdout
    for row in json.loads(shown):
        assert row["id"] in table
    assert secret not in table + shown


def test_limits_are_given_at_once_or_later_and_replaced_as_a_whole(config: Path) -> None:
    secret_of(config, "create", "alice", "--requests-per-minute", "60", "--model", "a", "--model", "b")
    shown = []
    for options in ((), ("--tokens-per-day", "1000", "--priority", "0"), ("--in-flight", "3")):
        if options:
            assert run_keys(config, "limit", "alice", *options).exit_code == 0
        (row,) = json.loads(run_keys(config, "list", "--json").stdout)
        shown.append(row["limits"])
    assert run_keys(config, "limit", "alice").exit_code == 0
    (row,) = json.loads(run_keys(config, "list", "--json").stdout)
    assert [*shown, row["limits"]] == [
        "requests_per_minute=60 models=a,b",
        "tokens_per_day=1000 priority=0",
        "in_flight=3",
        "none",
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("limit", "bob"), 1, "no valid key has the name bob"),
        (("create", "bob", "--in-flight", "0"), 2, "Invalid value for '--in-flight'"),
        (("usage", "--from", "yesterday"), 2, "Invalid value for '--from'"),
        (("create", "alice"), 1, "there is a key alice already"),
        (("create", "a b"), 1, "a name has"),
        (("revoke", "bob"), 1, "no valid key has the name or the id bob"),
        (("rotate", "bob"), 1, "no valid key has the name bob"),
        (("create", "bob", "--expires", "soon"), 2, "must look like 90s, 15m, 12h or 30d"),
        (("create", "bob", "--expires", "999999999d"), 2, "must look like"),
        (("create", "bob", "--scope", "all"), 2, "Invalid value for '--scope'"),
    ],
)
def test_what_cannot_be_done_is_said(config: Path, arguments: tuple[str, ...], code: int, words: str) -> None:
    secret_of(config, "create", "alice")
    result = run_keys(config, *arguments)
    assert (result.exit_code, words in result.stderr) == (code, True)
    assert len(json.loads(run_keys(config, "list", "--json").stdout)) == 1


def test_keys_that_cannot_be_read_are_neither_listed_nor_overwritten(config: Path) -> None:
    secret_of(config, "create", "alice")
    path = config.parent / "state" / "keys.json"
    path.write_bytes(b"{")
    for arguments in (("list",), ("create", "bob")):
        result = run_keys(config, *arguments)
        assert (result.exit_code, str(path) in result.stderr) == (2, True)
    assert path.read_bytes() == b"{"


# ---- a gateway of two workers ----------------------------------------------------------------------------------------


async def status_of(client: RawClient, key: str | None) -> int:
    client.send(*MODELS, b"", **({} if key is None else {"authorization": f"Bearer {key}"}))
    return (await client.answer()).status


async def time_until(client: RawClient, key: str | None, status: int) -> float:
    """How long the worker behind `client` takes, in seconds."""
    began = time.monotonic()
    async with asyncio.timeout(10):
        while await status_of(client, key) != status:
            pass
    return time.monotonic() - began


async def take_effect(clients: list[RawClient], key: str | None, status: int) -> None:
    taken = await asyncio.gather(*(time_until(client, key, status) for client in clients))
    assert max(taken) < SEEN_WITHIN_S, taken


@pytest.mark.alone
async def test_every_worker_goes_by_a_change_within_a_tenth_of_a_second_and_the_log_names_it_once(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as site:
        config = tmp_path / "crossover.yaml"
        clients = await site.connect_to_each()
        for client in clients:
            assert await status_of(client, None) == 200
        first = secret_of(config, "create", "alice")
        await take_effect(clients, None, 401)
        await take_effect(clients, first, 200)
        second = secret_of(config, "rotate", "alice")
        await take_effect(clients, first, 401)
        await take_effect(clients, second, 200)
        secret_of(config, "revoke", "alice")
        await take_effect(clients, second, 401)
        root = secret_of(config, "create", "root", "--scope", "operator")
        await take_effect(clients, root, 200)
        await put_policy_as_operator(site, clients[1], root)
        site.gateway.process.terminate()
        _, log = await site.gateway.end()
    for words in (
        "key alice .* is revoked",
        "key root .* is created for operator",
        "policy of tiny is version 2, by key root",
    ):
        assert len(re.findall(f"gateway.audit: {words}", log)) == 1, log


async def put_policy_as_operator(site: Site, client: RawClient, key: str) -> None:
    body = json.dumps({"kind": "threshold", "low": "triton", "high": "vllm", "up": 9, "down": 3}).encode()
    client.send("PUT", "/admin/policy", body, authorization=f"Bearer {key}", content_type="application/json")
    assert (await client.answer()).status == 200


@pytest.mark.alone
async def test_a_thousand_wrong_keys_a_second_take_a_fifth_of_a_worker_at_most(tmp_path: Path) -> None:
    """So they slow the others by no more. The worker's own time is measured: other processes hardly change it."""
    count, connections = 2000, 20
    async with opened(tmp_path, workers=1) as site:
        secret_of(tmp_path / "crossover.yaml", "create", "alice")
        clients = [await site.connect() for _ in range(connections)]
        await time_until(clients[0], None, 401)
        before = cpu_of(site.gateway.process.pid)
        for _ in range(count // connections):
            for client in clients:
                client.send("POST", "/v1/chat/completions", b"{}", authorization=f"Bearer {token_urlsafe(32)}")
            for client in clients:
                assert (await client.answer()).status == 401
        assert (cpu_of(site.gateway.process.pid) - before) / count < 0.2 / 1000


def cpu_of(pid: int) -> float:
    """The processor time that a process has taken, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---- which gateway starts --------------------------------------------------------------------------------------------


def change(config: Path, **keys_of_file: object) -> None:
    config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), **keys_of_file}))


async def try_start(config: Path, *options: str) -> tuple[bool, int | None, str]:
    """Whether it is ready; else its exit code; its log."""
    process = await start(config, *options)
    assert process.stdout is not None
    async with asyncio.timeout(STARTS_WITHIN_S):
        line = await process.stdout.readline()
        if line:
            process.terminate()
        _, log = await process.communicate()
    return bool(line), process.returncode, log.decode()


def create_key(config: Path) -> None:
    secret_of(config, "create", "alice")


def create_operator(config: Path) -> None:
    secret_of(config, "create", "root", "--scope", "operator")


def revoke_last(config: Path) -> None:
    create_key(config)
    run_keys(config, "revoke", "alice")


def allow(config: Path) -> None:
    change(config, allow_anonymous=True)


def guard_admin(config: Path) -> None:
    change(config, operator_key="the-operators-own")


def stay_here(config: Path) -> None:
    change(config, listen="127.0.0.1:0")


@pytest.mark.parametrize(
    ("prepare", "options", "starts", "warns"),
    [
        (lambda _: None, (), False, False),
        (guard_admin, (), False, False),
        (create_operator, (), False, False),
        (lambda _: None, ("--allow-anonymous",), True, True),
        (allow, ("--workers", "2"), True, True),
        (create_key, (), True, False),
        (revoke_last, (), True, False),
        (stay_here, (), True, False),
    ],
)
async def test_beyond_this_machine_a_gateway_without_keys_for_inference_has_to_be_allowed(
    config: Path, prepare: Callable[[Path], None], options: tuple[str, ...], *, starts: bool, warns: bool
) -> None:
    change(config, listen="0.0.0.0:0")
    prepare(config)
    ready, code, log = await try_start(config, *options)
    assert (ready, code) == (starts, 0 if starts else 2)
    assert log.count("everyone who reaches 0.0.0.0:0 may use it") == (warns or not starts)
    assert ("allow_anonymous: true (or --allow-anonymous)" in log) == (not starts)


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_gateway_whose_keys_cannot_be_read_does_not_start_and_names_the_file(
    config: Path, workers: str
) -> None:
    change(config, allow_anonymous=True)
    create_key(config)
    path = config.parent / "state" / "keys.json"
    path.write_bytes(path.read_bytes()[:-20])
    ready, code, log = await try_start(config, "--workers", workers)
    assert (ready, code, str(path) in log, "Traceback" in log) == (False, 1, True, False)


async def test_a_worker_that_starts_after_the_keys_went_lets_nobody_in(config: Path) -> None:
    change(config, listen="0.0.0.0:0")
    create_key(config)
    process = await start(config, "--workers", "1")
    assert process.stdout is not None
    try:
        async with asyncio.timeout(STARTS_WITHIN_S):
            url = (await process.stdout.readline()).decode().split()[1].replace("0.0.0.0", "127.0.0.1")
        (config.parent / "state" / "keys.json").unlink()
        (worker,) = (pid for pid, command in find_children(process.pid).items() if "commands.worker" in command)
        os.kill(worker, signal.SIGKILL)
        await eventually(lambda: not is_running(worker))
        for _ in range(10):
            with suppress(httpx.TransportError):
                async with httpx.AsyncClient(timeout=0.3) as client:
                    assert (await client.get(f"{url}/models")).status_code == 401
            await asyncio.sleep(0.2)
    finally:
        process.kill()
    assert b"everyone who reaches 0.0.0.0:0 may use it" in (await process.communicate())[1]
