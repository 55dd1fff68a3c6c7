"""The keys in force, as every worker looks them up: by the SHA-256 of what a caller sends.

In: the key file, which is looked at on a beat and not by requests. Out: who calls. Knows no request.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256

from gateway.access.key import OPERATOR_KEY, Caller, Key, Scope
from gateway.access.key_file import KeyFile, KeyFileUnreadable
from gateway.errors import PermissionDenied, Unauthorized

LOOK_S = 0.05
NEEDS_KEY = "This needs a key of scope {}, as Authorization: Bearer <key> or as x-api-key."

logger = logging.getLogger(__name__)
audit = logging.getLogger("gateway.audit")


class Keyring:
    """Finds callers. `audits`: whether this process reports changes, one worker of a node.

    `has_keys`: there are keys beside the configuration's operator key, valid or not. `guards_inference`: one of them is
    for inference. `guards_operator`: there is a key of any kind. What a key guards stays so when it ends.
    """

    def __init__(self, operator_key: str | None, file: KeyFile, *, audits: bool = True) -> None:
        """Raises KeyFileUnreadable."""
        own = Caller(OPERATOR_KEY, frozenset(Scope))
        self._own = {} if operator_key is None else {sha256(operator_key.encode()).digest(): own}
        self._file = file
        self._audits = audits
        self.keys: tuple[Key, ...] = ()  # all there ever were
        self._callers: Mapping[bytes, Caller] = self._own
        self._since, self._due = float("-inf"), float("inf")  # when the last key has expired, and the next one will
        self._failed: str | None = None  # what was reported of a file that cannot be read
        self._stamp = file.stamp()
        self._put_in_force(file.read())

    def find(self, credentials: Sequence[bytes]) -> Caller | None:
        """Returns whose valid key is among the credentials, which are SHA-256 digests."""
        return next((self._callers[digest] for digest in credentials if digest in self._callers), None)

    def require(self, credentials: Sequence[bytes], scope: Scope) -> Caller:
        """Returns the caller, who has the scope. Raises Unauthorized, PermissionDenied."""
        having = self._having[scope]
        for digest in credentials:
            if (caller := having.get(digest)) is not None:
                return caller
        if self.find(credentials) is not None:
            raise PermissionDenied(f"You have insufficient permissions for this operation. Missing scopes: {scope}.")
        if credentials:
            raise Unauthorized("This key is not valid here: it is unknown, revoked or expired.")
        raise Unauthorized(NEEDS_KEY.format(scope))

    async def watch(self) -> None:
        """Puts every change of the file in force within two beats, until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Reads the file if it has changed. One that cannot be read, or is gone, leaves the keys as they were."""
        try:
            stamp = self._file.stamp()
            if stamp == self._stamp and self._is_current():
                return
            if stamp is None and self._stamp is not None:
                raise KeyFileUnreadable(f"the keys in {self._file} are gone")  # noqa: TRY301 - reported as the others are
            keys = self._file.read()
        except KeyFileUnreadable as exc:
            if self._failed != str(exc):
                self._failed = str(exc)
                logger.error("%s; those read before stay in force", exc)  # noqa: TRY400 - no fault of the code's
            if not self._is_current():
                self._put_in_force(self.keys)
            return
        self._failed, self._stamp = None, stamp
        if self._audits:
            _report(self.keys, keys)
        self._put_in_force(keys)

    def _is_current(self) -> bool:
        """Whether no key has expired since, nor is valid again: a clock that was ahead is set back."""
        return self._since <= time.time() < self._due

    def _put_in_force(self, keys: tuple[Key, ...]) -> None:
        now = datetime.now(UTC)
        valid = [key for key in keys if key.is_valid(now)]
        self.keys = keys
        self._callers = {bytes.fromhex(key.sha256): key.caller() for key in valid} | self._own
        self._having = {
            scope: {digest: caller for digest, caller in self._callers.items() if scope in caller.scopes}
            for scope in Scope
        }
        ends = [key.expires for key in keys if key.expires and key.revoked is None]
        self._since = max((end.timestamp() for end in ends if end <= now), default=float("-inf"))
        self._due = min((end.timestamp() for end in ends if end > now), default=float("inf"))
        self.has_keys = bool(keys)
        self.guards_inference = any(Scope.INFERENCE in key.scopes for key in keys)
        self.guards_operator = bool(keys or self._own)


def _report(before: Collection[Key], after: Collection[Key]) -> None:
    old = {key.id: key for key in before}
    for key in after:
        known = old.get(key.id)
        if known is None:
            scopes = ", ".join(key.scopes)
            audit.info("key %s (%s) is created for %s, expires: %s", key.name, key.id, scopes, key.expires or "never")
        elif key.revoked and not known.revoked:
            audit.info("key %s (%s) is revoked", key.name, key.id)
        elif key.expires != known.expires:
            audit.info("key %s (%s) expires: %s", key.name, key.id, key.expires)
        if key.limits != (known.limits if known else None):
            audit.info("key %s (%s) has limits: %s", key.name, key.id, key.limits or "none")
