"""The forms in which others publish traffic. Each is read by one function into a Source.

In: the text of a file. Out: requests in order of arrival, and what of the file they do not have.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loadtest.rehearsal.forms.mooncake import read_mooncake
from loadtest.rehearsal.forms.sharegpt import read_sharegpt
from loadtest.rehearsal.forms.source import Completion, Source
from loadtest.rehearsal.forms.tables import read_azure, read_burstgpt

__all__ = ["FORMS", "Completion", "Form", "Source", "recognise"]


@dataclass(frozen=True, slots=True)
class Form:
    """`source` and `licence`: of the file published in this form. `is_completed`: it lacks what a Completion has."""

    read: Callable[[io.TextIOBase, Completion], Source]
    source: str
    licence: str
    is_completed: bool = False


FORMS: Mapping[str, Form] = {
    "azure": Form(read_azure, "Azure LLM inference trace, github.com/Azure/AzurePublicDataset", "CC-BY-4.0"),
    "burstgpt": Form(read_burstgpt, "BurstGPT, github.com/HPMLL/BurstGPT", "CC-BY-4.0"),
    "mooncake": Form(read_mooncake, "Mooncake, github.com/kvcache-ai/Mooncake", "Apache-2.0"),
    "sharegpt": Form(read_sharegpt, "ShareGPT", "unknown", is_completed=True),
}


def recognise(start: str) -> str | None:
    """Returns the form of a file that begins so; None if it is none of them."""
    first = start.lstrip("\ufeff \r\n\t").partition("\n")[0]
    if first.startswith("["):
        return "sharegpt"
    if first.startswith("TIMESTAMP,"):
        return "azure"
    if first.startswith("Timestamp,"):
        return "burstgpt"
    return "mooncake" if first.startswith("{") and '"hash_ids"' in first else None
