"""The key file as processes share it: what it holds, what a change does, what becomes of a damaged one."""

import logging
import os
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import orjson
import pytest

from gateway.access import KeyFile, KeyFileUnreadable, KeyRefused, Keyring, Limits, Scope
from gateway.errors import PermissionDenied, Unauthorized

INFERENCE = (Scope.INFERENCE,)
OPERATORS_OWN = "operator-secret"


def digest(secret: str) -> bytes:
    """Returns a secret as heads have it."""
    return sha256(secret.encode()).digest()


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "state")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "keys.json"


@pytest.fixture
def audited(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "gateway.audit"):
        yield caplog


def name_of(ring: Keyring, secret: str) -> str | None:
    caller = ring.find((digest(secret),))
    return None if caller is None else caller.name


def test_what_the_file_holds_is_no_key_and_each_is_another(file: KeyFile, path: Path) -> None:
    secrets = {file.create(f"user-{number}", INFERENCE, None) for number in range(20)}
    ring = Keyring(None, file)
    text = path.read_text()
    assert len(secrets) == 20
    for secret in secrets:
        assert len(secret.removeprefix("sk-crossover-")) == 43  # 256 bits
        assert name_of(ring, secret) is not None
        assert secret.removeprefix("sk-crossover-") not in text
    for key in file.read():
        assert name_of(ring, key.sha256) is None
        assert name_of(ring, key.id) is None


def test_a_new_key_is_seen_and_a_revoked_one_is_gone(file: KeyFile, audited: pytest.LogCaptureFixture) -> None:
    ring = Keyring(None, file)
    assert (ring.has_keys, ring.guards_inference, ring.guards_operator) == (False, False, False)
    secret = file.create("alice", INFERENCE, None)
    assert name_of(ring, secret) is None
    ring.look()
    assert name_of(ring, secret) == "alice"
    assert (ring.has_keys, ring.guards_inference, ring.guards_operator) == (True, True, True)
    file.revoke("alice")
    ring.look()
    assert name_of(ring, secret) is None
    assert ring.guards_inference  # the last key's end opens nothing
    (key,) = file.read()
    assert audited.messages == [
        f"key alice ({key.id}) is created for inference, expires: never",
        f"key alice ({key.id}) is revoked",
    ]


def test_a_key_is_revoked_by_its_id_alone_too(file: KeyFile) -> None:
    old, new = file.create("alice", INFERENCE, None), file.rotate("alice", timedelta(hours=1), None)
    file.revoke(file.read()[0].id)
    ring = Keyring(None, file)
    assert (name_of(ring, old), name_of(ring, new)) == (None, "alice")


@pytest.mark.parametrize(("overlap_s", "goes_on"), [(0, False), (3600, True)])
def test_a_rotated_key_has_the_same_scopes_and_the_old_one_ends(
    file: KeyFile, overlap_s: int, *, goes_on: bool
) -> None:
    old = file.create("ci", (Scope.LOADTEST,), timedelta(days=1))
    new = file.rotate("ci", timedelta(seconds=overlap_s), None)
    before, after = file.read()
    ring = Keyring(None, file)
    assert (name_of(ring, old), name_of(ring, new)) == ("ci" if goes_on else None, "ci")
    assert after.scopes == before.scopes
    assert after.expires is not None
    assert before.expires is not None
    assert abs((after.expires - after.created).total_seconds() - 86_400) < 60
    assert abs((before.expires - after.created).total_seconds() - overlap_s) < 1


def test_limits_are_the_names_and_a_change_of_them_is_reported(
    file: KeyFile, audited: pytest.LogCaptureFixture
) -> None:
    ring = Keyring(None, file)
    secret = file.create("alice", INFERENCE, None, Limits(requests_per_minute=60, models=("a", "b")))
    other = file.create("bob", INFERENCE, None)
    ring.look()
    new = file.rotate("alice", timedelta(hours=1), None)
    ring.look()
    for changed in (Limits(priority=0), None):
        file.limit("alice", changed)
        ring.look()
        for key, limits in ((secret, changed), (new, changed), (other, None)):
            caller = ring.find((digest(key),))
            assert caller is not None
            assert caller.limits == limits
    with pytest.raises(KeyRefused, match="no valid key has the name carol"):
        file.limit("carol", None)
    ids = [key.id for key in file.read() if key.name == "alice"]
    assert [words for words in audited.messages if "limits" in words] == [
        f"key alice ({ids[0]}) has limits: requests_per_minute=60 models=a,b",
        f"key alice ({ids[1]}) has limits: requests_per_minute=60 models=a,b",
        *(f"key alice ({each}) has limits: priority=0" for each in ids),
        *(f"key alice ({each}) has limits: none" for each in ids),
    ]


def test_a_key_ends_when_it_expires_although_the_file_stays(file: KeyFile) -> None:
    secret = file.create("alice", INFERENCE, timedelta(seconds=0.3))
    ring = Keyring(None, file)
    assert name_of(ring, secret) == "alice"
    time.sleep(0.35)
    ring.look()
    assert name_of(ring, secret) is None


def test_a_key_ends_when_it_expires_although_the_file_is_gone(file: KeyFile, path: Path) -> None:
    secret = file.create("alice", INFERENCE, timedelta(seconds=0.3))
    ring = Keyring(None, file)
    path.rename(path.with_name("elsewhere"))
    ring.look()
    assert name_of(ring, secret) == "alice"
    time.sleep(0.35)
    ring.look()
    assert name_of(ring, secret) is None
    assert ring.guards_inference


def test_the_owner_alone_reads_the_file_whatever_the_umask(file: KeyFile, path: Path) -> None:
    before = os.umask(0o022)
    try:
        file.create("alice", INFERENCE, None)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root acts for another user")
def test_what_root_changes_stays_the_gateways(file: KeyFile, path: Path) -> None:
    file.create("alice", INFERENCE, None)
    os.chown(path.parent, 65534, 65534)
    file.revoke("alice")
    assert (path.stat().st_uid, path.stat().st_gid) == (65534, 65534)


def test_of_two_keys_that_are_sent_the_one_that_may_counts(file: KeyFile) -> None:
    secrets = [file.create(name, scopes, None) for name, scopes in (("a", INFERENCE), ("b", (Scope.OPERATOR,)))]
    ring = Keyring(None, file)
    credentials = [digest(secret) for secret in secrets]
    assert ring.require(credentials, Scope.OPERATOR).name == "b"
    assert ring.require(credentials, Scope.INFERENCE).name == "a"
    with pytest.raises(PermissionDenied):
        ring.require(credentials[:1], Scope.OPERATOR)


def test_nobody_takes_the_name_of_the_configurations_key(file: KeyFile) -> None:
    with pytest.raises(KeyRefused):
        file.create("operator_key", INFERENCE, None)


def test_names_are_unique_among_valid_keys(file: KeyFile, path: Path) -> None:
    file.create("alice", INFERENCE, None)
    content = path.read_bytes()
    with pytest.raises(KeyRefused, match="there is a key alice already"):
        file.create("alice", INFERENCE, None)
    for change in (lambda: file.revoke("bob"), lambda: file.rotate("bob", timedelta(), None)):
        with pytest.raises(KeyRefused, match="no valid key has the name"):
            change()
    for name in ("", "a b", "-c", "a\nb", "x" * 65, "../keys"):
        with pytest.raises(KeyRefused, match="a name has"):
            file.create(name, INFERENCE, None)
    assert path.read_bytes() == content
    file.revoke("alice")
    file.create("alice", INFERENCE, None)


def test_changes_at_once_are_all_kept(file: KeyFile) -> None:
    with ThreadPoolExecutor(8) as threads:
        secrets = [*threads.map(lambda number: file.create(f"user-{number}", INFERENCE, None), range(16))]
    ring = Keyring(None, file)
    assert sorted(filter(None, (name_of(ring, secret) for secret in secrets))) == sorted(
        f"user-{number}" for number in range(16)
    )


def damage(content: bytes) -> Iterator[bytes]:
    document = orjson.loads(content)
    yield b""
    yield content[:-10]
    yield b"[]"
    yield b"\xff\xfe"
    yield orjson.dumps({**document, "keys": []})
    yield orjson.dumps({**document, "schema": "crossover.keys/2"})
    yield orjson.dumps({**document, "keys": [{**document["keys"][0], "limit": 1}]})
    yield orjson.dumps({**document, "keys": [{**document["keys"][0], "scopes": ["all"]}]})
    yield orjson.dumps({**document, "keys": [{**document["keys"][0], "expires": "tomorrow"}]})
    yield orjson.dumps({**document, "keys": [{**document["keys"][0], "sha256": "0"}]})


def test_keys_that_cannot_be_read_are_an_error_that_names_the_file_and_leave_it_there(
    file: KeyFile, path: Path
) -> None:
    file.create("alice", INFERENCE, None)
    for content in damage(path.read_bytes()):
        path.write_bytes(content)
        for use in (lambda: Keyring(OPERATORS_OWN, file), lambda: file.create("bob", INFERENCE, None)):
            with pytest.raises(KeyFileUnreadable, match=str(path)):
                use()
        assert path.read_bytes() == content
    path.unlink()
    path.mkdir()
    with pytest.raises(KeyFileUnreadable, match="is no regular file"):
        Keyring(None, file)


def test_a_file_that_is_damaged_or_gone_changes_nothing_for_those_who_run(
    file: KeyFile, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret, gone = file.create("alice", INFERENCE, None), file.create("bob", INFERENCE, None)
    file.revoke("bob")
    ring = Keyring(None, file)
    content = path.read_bytes()

    def still_holds() -> bool:
        ring.look()
        ring.look()
        return ring.guards_inference and (name_of(ring, secret), name_of(ring, gone)) == ("alice", None)

    path.write_bytes(b"{")
    assert still_holds()
    path.unlink()
    assert still_holds()
    assert [str(path) in message for message in caplog.messages] == [True, True]  # once each, not once a beat
    path.write_bytes(content)
    file.revoke("alice")
    ring.look()
    assert name_of(ring, secret) is None


@pytest.mark.parametrize(
    ("scopes", "may"),
    [
        ((Scope.INFERENCE,), {Scope.INFERENCE}),
        ((Scope.LOADTEST,), {Scope.LOADTEST, Scope.INFERENCE}),
        ((Scope.OPERATOR,), {*Scope}),
    ],
)
def test_a_scope_includes_what_it_needs(file: KeyFile, scopes: tuple[Scope, ...], may: set[Scope]) -> None:
    secret = digest(file.create("someone", scopes, None))
    ring = Keyring(OPERATORS_OWN, file)
    for scope in Scope:
        if scope in may:
            assert ring.require((b"wrong", secret), scope).name == "someone"
        else:
            with pytest.raises(PermissionDenied, match=f"Missing scopes: {scope}"):
                ring.require((secret,), scope)
        assert ring.require((digest(OPERATORS_OWN),), scope).name == "operator_key"
        for wrong in ((), (b"wrong",)):
            with pytest.raises(Unauthorized):
                ring.require(wrong, scope)


def test_only_a_key_for_inference_closes_inference(file: KeyFile) -> None:
    assert not Keyring(OPERATORS_OWN, file).guards_inference
    file.create("root", (Scope.OPERATOR,), None)
    ring = Keyring(OPERATORS_OWN, file)
    assert (ring.has_keys, ring.guards_inference) == (True, False)


def test_a_change_within_the_clocks_tick_is_seen(file: KeyFile, path: Path) -> None:
    """Each change is a new file, of another number, and of another size in most cases."""
    secret = file.create("alice", INFERENCE, None)
    ring = Keyring(None, file)
    written = path.stat().st_mtime_ns
    file.revoke("alice")
    os.utime(path, ns=(written, written))
    ring.look()
    assert name_of(ring, secret) is None
