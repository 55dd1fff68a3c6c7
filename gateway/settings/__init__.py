"""crossover.yaml and the environment in, one frozen Settings out, handed to the rooms in slices.

Nothing else in the gateway reads the environment. Every key, default and meaning: docs/configuration.md.
"""

from gateway.settings.file import Name, PolicySection
from gateway.settings.load import SettingsError, default_path, load_settings, parse_settings
from gateway.settings.slices import (
    MAX_WORKERS,
    BackendSettings,
    EvidenceSettings,
    LimitSettings,
    ModelSettings,
    ProbeSettings,
    RelaySettings,
    Settings,
    ThresholdSettings,
    TritonSettings,
    VLLMSettings,
)

__all__ = [
    "MAX_WORKERS",
    "BackendSettings",
    "EvidenceSettings",
    "LimitSettings",
    "ModelSettings",
    "Name",
    "PolicySection",
    "ProbeSettings",
    "RelaySettings",
    "Settings",
    "SettingsError",
    "ThresholdSettings",
    "TritonSettings",
    "VLLMSettings",
    "default_path",
    "load_settings",
    "parse_settings",
]
