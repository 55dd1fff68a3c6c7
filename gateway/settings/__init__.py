"""crossover.yaml and the environment in, one frozen Settings out, handed to the rooms in slices.

Nothing else in the gateway reads the environment. Every key, default and meaning: docs/configuration.md.
"""

from gateway.settings.file import PolicySection
from gateway.settings.forms import Name
from gateway.settings.load import SettingsError, default_path, load_settings, parse_settings
from gateway.settings.slices import (
    MAX_WORKERS,
    AllowSettings,
    BackendSettings,
    Capabilities,
    EvidenceSettings,
    LimitSettings,
    ModelSettings,
    PolicySettings,
    ProbeSettings,
    ReasoningParser,
    RelaySettings,
    Settings,
    ShareSettings,
    StreamSettings,
    ThresholdSettings,
    ToolParser,
    TritonSettings,
    VLLMSettings,
)

__all__ = [
    "MAX_WORKERS",
    "AllowSettings",
    "BackendSettings",
    "Capabilities",
    "EvidenceSettings",
    "LimitSettings",
    "ModelSettings",
    "Name",
    "PolicySection",
    "PolicySettings",
    "ProbeSettings",
    "ReasoningParser",
    "RelaySettings",
    "Settings",
    "SettingsError",
    "ShareSettings",
    "StreamSettings",
    "ThresholdSettings",
    "ToolParser",
    "TritonSettings",
    "VLLMSettings",
    "default_path",
    "load_settings",
    "parse_settings",
]
