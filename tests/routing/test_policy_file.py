"""Policies that outlive a gateway: what its next start begins with, and what is never lost or half written."""

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from pydantic import ValidationError

from gateway.core import Policy
from gateway.routing.policies import Curve, Share, Threshold, read_policy
from gateway.routing.policy_file import NAME, PolicyFile
from gateway.routing.states import PolicyRecord
from gateway.settings import ModelSettings
from gateway.state_folder import MOST_BYTES
from tests.fakes.backend import described

CONFIGURED = Threshold(low="triton", high="vllm", up=48, down=40)
SET = Share(low="triton", high="vllm", share=0.25)
FINGERPRINT = {"vllm": {"engine": "vllm", "version": "0.32"}}


def settings(policy: Policy | None = CONFIGURED, *names: str, model: str = "llama") -> ModelSettings:
    return ModelSettings(model, Path(), described(names or ("triton", "vllm")), policy)


def keep(folder: Path, record: PolicyRecord, model: ModelSettings | None = None) -> PolicyFile:
    """As a gateway does whose policy is changed once after its start."""
    model = model or settings()
    file = PolicyFile(folder, [model])
    file.try_to_keep(model.id, [*file.begin(model), record])
    return file


@pytest.fixture
def changed(tmp_path: Path) -> PolicyRecord:
    record = PolicyRecord(2, SET, "alice", 1.5, "run-7", FINGERPRINT)
    keep(tmp_path / "state", record)
    return record


def test_without_a_folder_or_a_file_the_configured_policy_begins(tmp_path: Path) -> None:
    for folder in (None, tmp_path / "none"):
        (record,) = PolicyFile(folder, [settings()]).begin(settings())
        assert (record.version, record.policy, record.by) == (1, CONFIGURED, "configuration")
    assert not (tmp_path / "none").exists()


def test_a_policy_that_was_set_goes_on_with_its_version_and_its_origin(tmp_path: Path, changed: PolicyRecord) -> None:
    first, second = PolicyFile(tmp_path / "state", [settings()]).begin(settings())
    assert first.policy == CONFIGURED
    assert second == changed


def test_a_configuration_that_was_changed_wins_for_good(tmp_path: Path, changed: PolicyRecord) -> None:
    edited = settings(replace(CONFIGURED, up=60))
    records = PolicyFile(tmp_path / "state", [edited]).begin(edited)
    assert (records[-1].version, records[-1].policy, records[-1].by) == (3, edited.policy, "configuration")
    assert records[-2] == changed
    # Once it has been changed back, that is the newest wish; what had been set before is over.
    again = PolicyFile(tmp_path / "state", [settings()]).begin(settings())
    assert (again[-1].version, again[-1].policy) == (4, CONFIGURED)


def test_a_policy_in_force_that_is_written_into_the_configuration_stays_as_it_is(
    tmp_path: Path, changed: PolicyRecord
) -> None:
    edited = settings(SET)
    assert PolicyFile(tmp_path / "state", [edited]).begin(edited)[-1] == changed


@pytest.mark.parametrize(
    "other", [settings(replace(CONFIGURED, low="sglang"), "sglang", "vllm"), settings(None, "vllm")]
)
def test_a_policy_whose_backends_are_gone_gives_way(
    tmp_path: Path, changed: PolicyRecord, other: ModelSettings
) -> None:
    current = PolicyFile(tmp_path / "state", [other]).begin(other)[-1]
    assert (current.version, current.policy) == (changed.version + 1, other.policy)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"llama": {}}',
        b'{"llama": {"history": [["single"]]}}',
        b'{"llama": 3}',
        b'{"llama": {"history": []}}',
        b'{"llama": null}',
        b'{"llama": {"configured": {}, "history": [["share", {"policy": {"low": 1}, "version": 9}]]}}',
    ],
)
def test_a_file_that_is_none_is_reported_and_replaced_by_the_next_change(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / NAME).write_bytes(content)
    (record,) = PolicyFile(tmp_path, [settings()]).begin(settings())
    assert record.policy == CONFIGURED
    assert (f"{tmp_path / NAME} cannot be read" in caplog.text) == (b"null" not in content)
    keep(tmp_path, PolicyRecord(2, SET, "alice", 1.5))
    assert PolicyFile(tmp_path, [settings()]).begin(settings())[-1].policy == SET


def make_unreadable(path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
        (path / "inside").write_text("kept")
    elif kind == "endless":
        with path.open("wb") as file:
            file.truncate(MOST_BYTES + 1)
    else:
        loop = path.with_name("loop")
        loop.symlink_to(path)
        path.symlink_to(loop)


@pytest.mark.timeout(20)  # a pipe would be waited for
@pytest.mark.parametrize("kind", ["pipe", "folder", "endless", "loop"])
def test_what_is_no_file_is_set_aside_and_prevents_no_start(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    make_unreadable(tmp_path / NAME, kind)
    (record,) = PolicyFile(tmp_path, [settings()]).begin(settings())
    assert record.policy == CONFIGURED
    assert "cannot be read" in caplog.text
    if kind != "loop":  # nobody knows what would be there
        assert os.path.lexists(tmp_path / f"{NAME}.unreadable-1")
        keep(tmp_path, PolicyRecord(2, SET, "alice", 1.5))
        assert PolicyFile(tmp_path, [settings()]).begin(settings())[-1].policy == SET


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2**70},
        {"version": "3"},
        {"version": 0},
        {"version": True},
        {"at": "now"},
        {"by": 7},
        {"fingerprint": [1]},
    ],
    ids=str,
)
def test_an_entry_with_a_field_of_another_form_is_set_aside_and_others_stay(
    tmp_path: Path, changed: PolicyRecord, change: dict[str, object]
) -> None:
    qwen = settings(model="qwen")
    keep(tmp_path / "state", PolicyRecord(2, SET, "bob", 1.5), qwen)
    path = tmp_path / "state" / NAME
    content = orjson.loads(path.read_bytes())
    content["llama"]["history"][-1][1] |= change
    damaged = json.dumps(content)  # orjson writes no 2**70
    path.write_text(damaged)
    (record,) = PolicyFile(tmp_path / "state", [settings(), qwen]).begin(settings())
    assert (record.version, record.policy) == (1, CONFIGURED)
    assert path.with_name(f"{NAME}.unreadable-1").read_text() == damaged
    assert PolicyFile(tmp_path / "state", [settings(), qwen]).begin(qwen)[-1].by == "bob"


def test_what_cannot_be_written_is_reported_and_harms_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("no folder")
    keep(tmp_path / "file", PolicyRecord(2, SET, "alice", 1.5))
    assert "the policy of llama ends with this gateway" in caplog.text


def test_models_and_writers_leave_each_others_policies_alone(tmp_path: Path) -> None:
    models = [settings(model=f"org/model {number}") for number in range(4)]
    file = PolicyFile(tmp_path, models)

    def change_often(model: ModelSettings) -> None:
        records = [*file.begin(model)]
        for version in range(2, 12):
            records.append(PolicyRecord(version, replace(CONFIGURED, up=50 + version), "alice", 1.5))
            file.try_to_keep(model.id, records)

    threads = [threading.Thread(target=change_often, args=[model]) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [file.begin(model)[-1].version for model in models] == [11] * 4
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert set(orjson.loads((tmp_path / NAME).read_bytes())) == {model.id for model in models}


def test_a_writer_that_comes_late_takes_nothing_back(tmp_path: Path, changed: PolicyRecord) -> None:
    file = keep(tmp_path / "state", PolicyRecord(3, CONFIGURED, "bob", 2.5))
    file.try_to_keep("llama", [changed])
    assert file.begin(settings())[-1].by == "bob"


# As versions before engines.physics made and kept it.
OLDER_ENGINE = {"steps_ms": [[1, 4.0]], "prefill_tokens_per_s": 60_000.0, "max_in_flight": 64, "ttft_ms": None}
OLDER_NODE = {"low": OLDER_ENGINE, "high": OLDER_ENGINE, "interference": 1.0, "prompt_tokens": 80, "answer_tokens": 128}


def test_a_policy_kept_with_an_older_node_model_goes_on_as_its_fallback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    curve = Curve(low="triton", high="vllm", fallback="low", margin=0.2)
    keep(tmp_path, PolicyRecord(2, curve, "alice", 1.5, "run-7", FINGERPRINT))
    kept = orjson.loads((tmp_path / NAME).read_bytes())
    kept["llama"]["history"][-1][1]["policy"] |= {"node": OLDER_NODE, "headroom": 0.25, "horizon_s": 3.0}
    (tmp_path / NAME).write_bytes(orjson.dumps(kept))
    records = PolicyFile(tmp_path, [settings()]).begin(settings())
    assert records[-1] == PolicyRecord(2, curve, "alice", 1.5, "run-7", FINGERPRINT)
    assert "`crossover calibrate --apply` makes a new one; until then all requests go to its `fallback`" in caplog.text


def test_a_node_model_of_the_older_form_is_refused_with_the_command_that_makes_a_new_one() -> None:
    with pytest.raises(ValidationError, match=r"(?s)node.low.*is of an older form.*crossover calibrate --apply"):
        read_policy({"kind": "curve", "low": "triton", "high": "vllm", "node": OLDER_NODE})
