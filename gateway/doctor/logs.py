"""Reads engines' settings from their logs, from the lines of the last start in the file.

In: the lines of a log. Out: statements. The texts are those of vLLM 0.24 to 0.32 and TensorRT-LLM 1.2; those about CUDA
graphs were read in the sources and in public logs, not seen on a GPU of ours. Pure.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Protocol

from gateway.doctor.statements import Statement, Topic
from gateway.doctor.vllm_settings import find_fp8, is_no_mode

SOURCE = "its log"

# A line of either begins a start; the lines before it are of a process that is gone.
STARTS = re.compile(r"Initializing a V1 LLM engine|Pinned memory pool is created")
API_PROCESS = re.compile(r"\(ApiServer_(\d+) pid=")


class Rule(Protocol):
    def __call__(self, found: re.Match[str]) -> Statement | None:
        """Returns the statement, or None if the text may mean several things."""
        ...


def _fixed(topic: Topic, value: bool) -> Rule:
    return lambda found: Statement(topic, value, f"{SOURCE}: {found[0]}")


def _equals(topic: Topic, *truths: str) -> Rule:
    return lambda found: Statement(topic, found[1].lower() in truths, f"{SOURCE}: {found[0]}")


def _number(topic: Topic) -> Rule:
    return lambda found: Statement(topic, int(found[1]), f"{SOURCE}: {found[0]}")


def _has_graphs(found: re.Match[str]) -> Statement:
    return Statement(Topic.CUDA_GRAPHS, not is_no_mode(found[1]), f"{SOURCE}: {found[0]}")


def _has_fp8(found: re.Match[str]) -> Statement | None:
    is_fp8 = find_fp8(found[1])
    return None if is_fp8 is None else Statement(Topic.FP8, is_fp8, f"{SOURCE}: {found[0]}")


# The rule to be believed most comes first: what happened before what was asked for.
RULES: tuple[tuple[re.Pattern[str], Rule], ...] = (
    (re.compile(r"Graph capturing finished"), _fixed(Topic.CUDA_GRAPHS, True)),
    (re.compile(r"Skipping CUDA graph capture"), _fixed(Topic.CUDA_GRAPHS, False)),
    (re.compile(r"Creating CUDA graph instances for \d+ batch sizes"), _fixed(Topic.CUDA_GRAPHS, True)),
    (re.compile(r"Run generation-only CUDA graph warmup"), _fixed(Topic.CUDA_GRAPHS, True)),
    (re.compile(r"cuda_graph_mode is not specified, will be set to (\w+)"), _equals(Topic.CUDA_GRAPHS, "true")),
    (
        re.compile(r"enable_chunked_context is not specified, will be set to (\w+)"),
        _equals(Topic.CHUNKED_PREFILL, "true"),
    ),
    (re.compile(r"\benforce_eager=(True)\b"), _fixed(Topic.CUDA_GRAPHS, False)),
    (re.compile(r"'cudagraph_mode': <?(?:CUDAGraphMode\.)?(\w+)"), _has_graphs),
    (re.compile(r"\bquantization=([\w-]+)"), _has_fp8),
    (re.compile(r"\bkv_cache_dtype=(?!auto)(\w+)"), _equals(Topic.FP8_KV, "fp8", "fp8_e4m3", "fp8_e5m2")),
    (re.compile(r"\benable_prefix_caching=(\w+)"), _equals(Topic.PREFIX_CACHING, "true")),
    (re.compile(r"\benable_chunked_prefill=(\w+)"), _equals(Topic.CHUNKED_PREFILL, "true")),
    (re.compile(r"\bdevice_config=(\w+)"), _equals(Topic.IS_ON_GPU, "cuda")),
    (re.compile(r"\bmax_seq_len=(\d+)"), _number(Topic.CONTEXT_LENGTH)),
    (re.compile(r"'max_num_seqs': (\d+)"), _number(Topic.CAPACITY)),
)


def read_statements(lines: Iterable[str]) -> Iterator[Statement]:
    text = "\n".join(_last_start(lines))
    for pattern, rule in RULES:
        if (found := pattern.search(text)) is not None and (statement := rule(found)) is not None:
            yield statement
    if processes := set(API_PROCESS.findall(text)):
        yield Statement(Topic.HAS_SEVERAL_API_PROCESSES, len(processes) > 1, f"{SOURCE}: ApiServer_N")


def _last_start(lines: Iterable[str]) -> list[str]:
    """Returns the lines that any rule matches, from the last start on. vLLM logs its options just before it begins."""
    kept: list[str] = []
    options: list[str] = []
    for line in lines:
        if "non-default args" in line:
            options = [line]
        if STARTS.search(line):
            kept, options = [*options, line], []
        elif API_PROCESS.search(line) or any(pattern.search(line) for pattern, _ in RULES):
            kept.append(line)
    return kept
