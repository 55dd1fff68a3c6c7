"""Traces by what `--trace` may say: a shape with its keys, a published trace with its keys, or a file.

In: the text. Out: requests, and the same as an open loop takes them.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from loadtest.client.open_loop import Due
from loadtest.client.probe import PromptLengths
from loadtest.client.prompts import NO_LEAD, Lead
from loadtest.rehearsal.reshape import Reshape, reshape
from loadtest.rehearsal.trace_file import read_trace
from loadtest.rehearsal.traces import TRACES, Pair, TraceRequest, Variant, make_trace

FOLDER = Path(__file__).with_name("published")
PUBLISHED: Mapping[str, Path] = {name: FOLDER / f"{name}.jsonl.gz" for name in ("azure-chat", "mooncake-chat")}
SEED = 1  # of what is left out of a published trace
NAMES = ", ".join((*TRACES, *PUBLISHED))
TRACE_HELP = f"A file, or {NAMES}, with keys as in the example.  [default: {', '.join(TRACES)}]"


def find_trace(text: str, pair: Pair | None, seed: int) -> Sequence[TraceRequest]:
    """Makes a shape known by name, for which it needs the pair, or reads recorded traffic. Raises ValueError."""
    try:
        variant = Variant.parse(text)
        return read_recorded(text) if variant is None else make_trace(variant, _need(pair), seed)
    except OSError as exc:
        raise ValueError(f"--trace {text}: {exc.strerror} (known by name: {NAMES})") from exc
    except ValueError as exc:
        raise ValueError(f"--trace {text}: {exc}") from exc


def read_recorded(text: str) -> Sequence[TraceRequest]:
    """Reads a published trace, reshaped by its keys as in "azure-chat peak=36 seconds=50", or a file.

    Raises OSError, and ValueError.
    """
    name, *terms = text.split() or [""]
    if name not in PUBLISHED:
        return read_trace(Path(text))
    trace, how = read_trace(PUBLISHED[name]), Reshape.parse(terms)
    return reshape(trace, how, SEED)[0] if terms else trace


def _need(pair: Pair | None) -> Pair:
    if pair is None:
        raise ValueError("its rates and lengths follow from a node model: give --node FILE")
    return pair


def list_due(trace: Sequence[TraceRequest], prompts: PromptLengths, backends: Mapping[str, str | None]) -> list[Due]:
    """Returns the requests as an open loop sends them. `backends`: by `only`, where a request is pinned to."""
    return list(_make_due(trace, prompts, backends))


def _make_due(
    trace: Sequence[TraceRequest], prompts: PromptLengths, backends: Mapping[str, str | None]
) -> Iterator[Due]:
    for each in trace:
        lead = Lead(each.prefix, each.block / prompts.tokens_per_word) if each.prefix else NO_LEAD
        words = prompts.count_words(each.prompt_tokens)
        yield Due(each.at, each.tokens, words, backends[each.only], lead, each.after, each.wait_s)
