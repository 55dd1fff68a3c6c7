"""The configuration as frozen values, handed to the rooms. Every key, default and meaning: docs/configuration.md."""

from gateway.settings.backends import (
    NAME_KEY,
    AllowSettings,
    BackendSettings,
    Capabilities,
    RelaySettings,
    TritonSettings,
    VLLMSettings,
)
from gateway.settings.forms import FORM, Flag, Folder, Name, make_problem, number
from gateway.settings.settings import (
    MAX_WORKERS,
    EvidenceSettings,
    LimitSettings,
    ModelSettings,
    MoveSettings,
    ProbeSettings,
    QueueSettings,
    ResponseSettings,
    Settings,
    StreamSettings,
)

__all__ = [
    "FORM",
    "MAX_WORKERS",
    "NAME_KEY",
    "AllowSettings",
    "BackendSettings",
    "Capabilities",
    "EvidenceSettings",
    "Flag",
    "Folder",
    "LimitSettings",
    "ModelSettings",
    "MoveSettings",
    "Name",
    "ProbeSettings",
    "QueueSettings",
    "RelaySettings",
    "ResponseSettings",
    "Settings",
    "StreamSettings",
    "TritonSettings",
    "VLLMSettings",
    "make_problem",
    "number",
]
