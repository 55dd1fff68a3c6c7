"""Statements about an engine (a topic, a value, the source), and the account that is made of them. Pure.

In: statements from any source. Out: an account, with one statement for each topic that any source mentions.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple, TypeAlias


class Topic(StrEnum):
    """What a statement is about: first the features, on or off; then numbers and other facts that rules need."""

    IN_FLIGHT_BATCHING = "in_flight_batching"
    PAGED_KV = "paged_kv"
    CUDA_GRAPHS = "cuda_graphs"
    FP8 = "fp8"  # of the weights
    FP8_KV = "fp8_kv"
    CHUNKED_PREFILL = "chunked_prefill"
    PREFIX_CACHING = "prefix_caching"

    CONTEXT_LENGTH = "context_length"  # tokens, prompt and answer
    CAPACITY = "capacity"  # requests that the engine runs at once
    GPU_SHARE = "gpu_share"  # of a GPU's whole memory, 0 to 1
    HAS_FIXED_CACHE = "has_fixed_cache"  # its KV cache does not depend on what else is on the GPU when it starts
    HAS_SEVERAL_API_PROCESSES = "has_several_api_processes"
    HAS_SAME_PROMPTS = "has_same_prompts"  # as the gateway, of the same texts and chats
    IS_ON_GPU = "is_on_gpu"


FEATURES = (
    Topic.IN_FLIGHT_BATCHING,
    Topic.PAGED_KV,
    Topic.CUDA_GRAPHS,
    Topic.FP8,
    Topic.FP8_KV,
    Topic.CHUNKED_PREFILL,
    Topic.PREFIX_CACHING,
)


class Statement(NamedTuple):
    """A value of a topic. `source`: where it was read, in words that can follow "by"."""

    topic: Topic
    value: float
    source: str


Account: TypeAlias = Mapping[Topic, Statement]


def make_account(statements: Iterable[Statement]) -> Account:
    """Keeps the first statement on each topic: callers put the most reliable source first."""
    account: dict[Topic, Statement] = {}
    for statement in statements:
        account.setdefault(statement.topic, statement)
    return account
