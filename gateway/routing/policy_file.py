"""The policies of a gateway in a file, with which its next start goes on.

In: what is configured, and each change. Out: the history that a model begins with. Knows neither HTTP nor the ledger.
"""

import logging
import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from gateway.core import Policy
from gateway.routing.history import decode_history, encode_history
from gateway.routing.policies import POLICIES, READERS
from gateway.routing.states import PolicyRecord
from gateway.settings import ModelSettings
from gateway.state_folder import locked, read_anew, read_object, set_aside, write_whole

logger = logging.getLogger(__name__)

NAME = "policies.json"
CONFIGURATION = "configuration"  # who set the policy of crossover.yaml
MOST_VERSIONS = 2**31

Entry = dict[str, Any]  # of a model: {"configured": the policy configured then, "history": records}; JSON, our own


class PolicyFile:
    """policies.json in a folder; `folder` None: nothing is kept."""

    def __init__(self, folder: Path | None, models: Collection[ModelSettings]) -> None:
        self._folder = folder
        self._path = folder / NAME if folder else None
        self._models = {model.id: model for model in models}

    def begin(self, model: ModelSettings) -> tuple[PolicyRecord, ...]:
        """Returns the history that the model begins with; its last entry is in force.

        That is the policy kept, unless the configuration's has been changed since, or its backends are no more.
        """
        configured = PolicyRecord(version=1, policy=model.policy, by=CONFIGURATION, at=time.time())
        kept: Mapping[str, Entry] = {}
        try:
            kept = read_object(self._path)
            entry = kept.get(model.id)
            records = (configured,) if entry is None else _decode(entry)
        except (OSError, ValueError) as exc:
            logger.warning(
                "policy of %s is the configuration's, because %s cannot be read: %s", model.id, self._path, exc
            )
            if isinstance(exc, ValueError):
                self._set_aside(model.id, kept, exc)
            return (configured,)
        if entry is None:
            return records
        current = records[-1]
        if self._holds(current, entry, model):
            logger.info("policy of %s is version %d, by %s, from %s", model.id, current.version, current.by, self._path)
            return records
        logger.warning("policy of %s is the configuration's; before it was %s", model.id, current.policy)
        records = (*records, PolicyRecord(current.version + 1, model.policy, CONFIGURATION, configured.at))
        self.try_to_keep(model.id, records)
        return records

    def try_to_keep(self, model: str, records: Sequence[PolicyRecord]) -> None:
        """Writes the model's policies, all or nothing, unless newer ones are there; warns where it cannot."""
        if self._folder is None:
            return
        configured = _describe(self._models[model].policy)
        entry = {"configured": configured, "history": orjson.Fragment(encode_history(records))}
        try:
            with locked(self._folder) as folder:
                kept = read_anew(self._path)
                before = _find_newest(kept.get(model))
                if before < records[-1].version:  # else a worker that was later has been faster
                    write_whole(self._folder / NAME, orjson.dumps({**kept, model: entry}, option=orjson.OPT_INDENT_2))
                    os.fsync(folder)
        except OSError as exc:
            logger.warning("the policy of %s ends with this gateway: cannot write %s: %s", model, self._path, exc)

    def find_version(self, model: str) -> int:
        """Returns the version that is kept for a model; 0 if none is that can be read."""
        try:
            return _find_newest(read_anew(self._path).get(model))
        except OSError:
            return 0

    def _set_aside(self, model: str, kept: Mapping[str, Entry], why: ValueError) -> None:
        """Sets the file aside, and goes on with the entries of the other models, `kept`."""
        assert self._folder is not None  # a file was there
        assert self._path is not None
        others = {name: entry for name, entry in kept.items() if name != model}
        try:
            with locked(self._folder):
                if set_aside(self._path, why) and others:
                    write_whole(self._path, orjson.dumps(others, option=orjson.OPT_INDENT_2))
        except OSError as exc:
            logger.warning("%s cannot be set aside: %s", self._path, exc)

    def _holds(self, current: PolicyRecord, entry: Entry, model: ModelSettings) -> bool:
        """Whether a kept policy goes on; a configuration that has been changed to the very same policy is no change."""
        if model.policy is None or current.policy is None:
            return model.policy == current.policy
        if any(current.policy.problems(model.chosen_from)):
            return False
        return model.policy == current.policy or _describe(model.policy) == entry.get("configured")


def _describe(policy: Policy | None) -> object:
    """Describes a policy as the file does: by plain JSON values, which can be compared."""
    return policy and orjson.loads(orjson.dumps({"kind": policy.kind, **policy.keys()}))


def _decode(entry: Entry) -> tuple[PolicyRecord, ...]:
    """Returns the records of an entry, one at least. Raises ValueError for what no gateway of this version wrote."""
    try:
        records = decode_history(orjson.dumps(_renew(entry["history"])), READERS)
    except (KeyError, TypeError, ValueError) as exc:  # pydantic's errors are ValueErrors
        raise ValueError(f"{type(exc).__name__}: {exc}") from exc
    if not records:
        raise ValueError("holds no policy")
    for record in records:
        _check(record)
    return records


def _check(record: PolicyRecord) -> None:
    """Raises ValueError for a field that no gateway wrote."""
    is_number = type(record.version) is int and type(record.at) in {int, float}
    if not is_number or not 1 <= record.version <= MOST_VERSIONS:
        raise ValueError(f"the version {str(record.version)[:40]} or its time is no number of ours")
    texts = (record.by, record.calibration or "")
    if not all(isinstance(text, str) for text in texts) or not isinstance(record.fingerprint or {}, dict):
        raise ValueError(f"version {record.version} has an origin of another form")


def _renew(history: Sequence[tuple[str | None, Entry]]) -> Sequence[tuple[str | None, Entry]]:
    """Returns what an earlier version has kept as this one reads it, and warns where the policy in force is another."""
    renewed, note = [], None
    for kind, fields in history:
        policy, note = POLICIES[kind].renew(fields["policy"]) if kind and kind in POLICIES else (fields["policy"], None)
        renewed.append((kind, {**fields, "policy": policy}))
    if note is not None:
        logger.warning("the policy in force goes on without what it was measured by: %s", note)
    return renewed


def _find_newest(entry: Entry | None) -> int:
    try:
        return 0 if entry is None else _decode(entry)[-1].version
    except ValueError:
        return 0
