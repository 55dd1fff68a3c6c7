"""LoRA adapters as the operator lays them out: a directory in PEFT's form for each, named by its task id.

In: the parameter lora_prefetch_dir, TensorRT-LLM's name for such a folder. Out: directories, or an engine's
own requests for them, by id.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from engines.adapters.arguments import ArgumentError

Request = TypeVar("Request")


def lora_directories(parameters: Mapping[str, str]) -> dict[int, Path]:
    """Finds the directories by id, none without the parameter. Ids begin at 1: for both engines 0 means no adapter."""
    folder = parameters.get("lora_prefetch_dir")
    if not folder:
        return {}
    try:
        found = {path.name: path for path in Path(folder).iterdir() if (path / "adapter_config.json").is_file()}
    except OSError as exc:
        raise ArgumentError(f"cannot read lora_prefetch_dir: {exc}") from exc
    for name in found:
        if not name.isdecimal() or int(name) < 1:
            raise ArgumentError(f"lora_prefetch_dir: {folder}/{name}: the name has to be a number, from 1 on")
    return {int(name): path for name, path in found.items()}


def lora_requests(parameters: Mapping[str, str], make: Callable[[str, int, str], Request]) -> dict[int, Request]:
    """Makes requests by id. `make`: the engine's LoRARequest, which takes a name, an id and a directory."""
    return {task_id: make(str(task_id), task_id, str(path)) for task_id, path in lora_directories(parameters).items()}
