"""Findings as sections of sentences and tables, for fabric.md and the terminal. Pure."""

from collections.abc import Iterator, Sequence

from engines.fabric.curve import Fit, Timing, find_bus_bandwidth, fit_latency
from engines.fabric.findings import WAYS, Findings, Measured
from engines.fabric.forecast import PROMPTS, Forecast, Row, Step, find_message_bytes, find_spans
from engines.sections import Section

BINARY = ("B", "KiB", "MiB", "GiB")
HOST_BOUND = 1.5  # eager over graph, from which on the calls are what takes time


def list_sections(findings: Findings) -> list[Section]:
    sections = [Section("Fabric: all-reduce between GPUs", list(_introduce(findings)))]
    sections += [_report_measured(findings, measured) for measured in findings.measured]
    if findings.forecast:
        sections += _report_forecast(findings.forecast)
    return sections


def _introduce(findings: Findings) -> Iterator[str]:
    machine, sheet = findings.machine, findings.sheet
    libraries = [f"torch {machine.torch}"]
    libraries += [f"{name} {version}" for name, version in (("CUDA", machine.cuda), ("NCCL", machine.nccl)) if version]
    yield f"{findings.device}, {findings.backend}; {', '.join(libraries)}; {findings.started_at}."
    if machine.settings:
        yield f"Set: {' '.join(f'{name}={value}' for name, value in machine.settings.items())}."
    if sheet.link is not None:
        yield f"{sheet.link_name}: {sheet.link / 1e9:.0f} GB/s in each direction, {sheet.link / 5e8:.0f} in both."
    yield from _find_detours(findings)


def _find_detours(findings: Findings) -> Iterator[str]:
    used = max((measured.devices for measured in findings.measured), key=len)
    apart = [(a, b) for a in used for b in used if a < b and (a, b) not in findings.machine.peers]
    if apart:
        pairs = ", ".join(f"{a} and {b}" for a, b in apart)
        yield f"NO PEER ACCESS between GPUs {pairs}: what they exchange goes through the host."


def _report_measured(findings: Findings, measured: Measured) -> Section:
    gpus = f", GPUs {', '.join(map(str, measured.devices))}" if measured.devices else ""
    return Section(f"TP {measured.tp}{gpus}", list(_judge(findings, measured)), list(_list_sizes(findings, measured)))


def _judge(findings: Findings, measured: Measured) -> Iterator[str]:
    curve = measured.main
    smallest = show_size(curve.timings[0].size)
    yield f"Small messages: {show_time(curve.floor_s)} for {smallest}{_describe_calls(measured)}."
    fit = fit_latency(curve.timings)
    if fit:
        yield _describe_fit(fit)
    best = curve.best
    share = findings.find_link_share(best, measured.tp)
    at = f"{_show_bandwidth(best, measured.tp)} GB/s at {show_size(best.size)}"
    yield f"Bus bandwidth at best: {at}" + (f", {share:.0%} of the link." if share is not None else ".")


def _describe_fit(fit: Fit) -> str:
    line = f"{show_time(fit.latency_s)} + size / {fit.bytes_per_s / 1e9:.3g} GB/s"
    return f"All sizes together: {line}, which misses single sizes by up to {fit.worst:.0%}."


def _describe_calls(measured: Measured) -> str:
    """Describes how much a graph saves; empty unless both ways were measured."""
    if len(measured.curves) < 2:
        return ""
    graph, eager = (measured.curves[way].floor_s for way in WAYS)
    both = f" from a CUDA graph, {show_time(eager)} called one by one"
    return f"{both}: without graphs the host is what takes time" if eager > HOST_BOUND * graph else both


def _list_sizes(findings: Findings, measured: Measured) -> Iterator[tuple[str, ...]]:
    ways = [way for way in WAYS if way in measured.curves]
    has_link = findings.sheet.link is not None
    yield ("message", *(f for way in ways for f in (way, "spread")), "bus GB/s", *(["of link"] if has_link else []))
    by_way = [measured.curves[way].timings for way in ways]
    for timings in zip(*by_way, strict=True):
        first = timings[0]
        times = (field for timing in timings for field in (show_time(timing.median_s), f"{timing.spread:.0%}"))
        share = findings.find_link_share(first, measured.tp)
        link = [f"{share:.1%}"] if share is not None else []
        yield (show_size(first.size), *times, _show_bandwidth(first, measured.tp), *link)


def _show_bandwidth(timing: Timing, tp: int) -> str:
    return f"{find_bus_bandwidth(timing.size, timing.median_s, tp) / 1e9:.3g}"


def _report_forecast(forecast: Forecast) -> Iterator[Section]:
    model = forecast.model
    weights = f"{model.weights.read_bytes / 1e9:.2f} GB of weights read by a step ({model.weights.source})"
    shape = f"{model.layers} layers of {model.hidden}, {2 * model.layers} all-reduces a step; {weights}."
    message = f"Each token in a step adds {show_size(find_message_bytes(model, 1))} to each of them."
    bound = (
        "Times are bounds: the roofline of the matrices by the data sheet, and all-reduces as measured, nothing hidden."
    )
    yield Section(f"Model {model.name}", [shape, message, bound, *_advise(forecast)])
    if forecast.decode:
        yield _report_decode(forecast)
    if forecast.prefill:
        yield _report_prefill(forecast)


def _advise(forecast: Forecast) -> Iterator[str]:
    yield from (f"Left out: {reason}." for reason in forecast.reasons)
    if find_message_bytes(forecast.model, PROMPTS[-1]) > forecast.largest:
        yield f"Beyond {show_size(forecast.largest)} nothing was measured: larger sums go by that size's bandwidth."
    if not forecast.decode:
        yield "No degree of tensor parallelism is left: it takes more or larger GPUs."
        return
    yield _recommend("Decode", "in flight", forecast.decode, [row.best for row in forecast.decode])
    if forecast.prefill:
        prefill = forecast.prefill
        yield _recommend("One prompt alone", "tokens", prefill, [row.best for row in prefill])
        yield _recommend("Prompts at capacity", "tokens", prefill, [row.most or row.best for row in prefill])
    else:
        yield "No forecast of prefill: the GPU's arithmetic is not known (--tflops)."


def _recommend(regime: str, unit: str, rows: Sequence[Row], choices: Sequence[int]) -> str:
    spans = find_spans(rows, choices)
    if len(spans) == 1:
        return f"{regime}: TP {spans[0][2]} at all loads."
    parts = (
        f"TP {tp} {f'at {first}' if first == last else f'from {first} to {last}'} {unit}" for first, last, tp in spans
    )
    return f"{regime}: {', '.join(parts)}."


def _report_decode(forecast: Forecast) -> Section:
    title = f"Decode: time per token, requests in flight on {forecast.gpus} GPUs"
    headings = ("in flight", *_head_degrees(forecast), "best")
    rows = [(str(row.load), *map(_show_step, row.steps), f"TP {row.best}") for row in forecast.decode]
    return Section(title, [], [headings, *rows])


def _report_prefill(forecast: Forecast) -> Section:
    title = "Prefill: time of a prompt alone on one replica; most tokens a second with all replicas busy"
    headings = ("tokens", *_head_degrees(forecast), "soonest", "most")
    rows = [
        (str(row.load), *map(_show_step, row.steps), f"TP {row.best}", f"TP {row.most}") for row in forecast.prefill
    ]
    return Section(title, [], [headings, *rows])


def _head_degrees(forecast: Forecast) -> Iterator[str]:
    for tp in forecast.degrees:
        replicas = forecast.gpus // tp
        yield f"{replicas} x TP {tp}" + (", of it sums" if tp > 1 else "")


def _show_step(step: Step) -> str:
    if step.tp == 1:
        return show_time(step.total_s)
    return f"{show_time(step.total_s)}, {step.reduce_s / step.total_s:.0%}"


def show_time(seconds: float) -> str:
    """Returns three digits with a unit."""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 999.5:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def show_size(size: int) -> str:
    power = min((max(size, 1).bit_length() - 1) // 10, len(BINARY) - 1)
    return f"{size / 1024**power:.3g} {BINARY[power]}" if power else f"{size} B"
