"""The `tensorrt_llm` model as a Triton Python model: decodes the tensors, drives an engine, streams new token ids.

In: Triton's requests. Out: decoupled responses. engines/reference/trtllm_contract.py has the meaning of the tensors,
engines/adapters the engines.
"""

# ruff: noqa: TID251 - a variable of the process is the only way in: Triton's stub ignores PYTHONPATH
import json
import locale
import os
import site
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

# The stub embeds a bare interpreter. engines/triton.py sets these variables, which name the project and the packages of
# Triton's environment. Without them the project is found by the place of this file.
ROOT = os.environ.get("CROSSOVER_ROOT", str(Path(__file__).resolve().parents[4]))
PACKAGES = os.environ.get("CROSSOVER_SITE_PACKAGES", "")
sys.path[:0] = [path for path in (ROOT, *PACKAGES.split(os.pathsep)) if path and path not in sys.path]
for directory in filter(None, PACKAGES.split(os.pathsep)):
    site.addsitedir(directory)  # some packages add to the path by a file there: editable ones, CUTLASS's
# The stub leaves the interpreter in the C locale, whose files are ASCII: PyTorch's own sources are not.
locale.setlocale(locale.LC_CTYPE, "C.UTF-8")

import triton_python_backend_utils as pb_utils  # noqa: E402 - the path comes first

from engines.adapters import ADAPTERS, TokenEngine  # noqa: E402 - the path comes first
from engines.process import prefer_latency  # noqa: E402 - the path comes first
from engines.reference import trtllm_contract as contract  # noqa: E402 - the path comes first
from engines.reference.engine import EngineLoad, TokenOutput  # noqa: E402 - the path comes first
from engines.reference.trtllm_answer import TensorAnswer  # noqa: E402 - the path comes first
from engines.reference.trtllm_metrics import report  # noqa: E402 - the path comes first
from engines.stub_tensors import TensorCodec, choose_codec  # noqa: E402 - the path comes first

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
DEFAULTS = {
    "engine": "reference",
    "model_dir": str(Path(ROOT) / "engines/reference/weights"),
    "cancellation_check_period_ms": "100",  # TensorRT-LLM's default, and its parameter's name
}
Result = TypeVar("Result")
# Triton's own classes; pb_utils publishes no types.
Request = Any
Sender = Any


class TritonPythonModel:
    """The model; Triton looks for a class of this name."""

    def initialize(self, args: Mapping[str, str]) -> None:
        self._codec = choose_codec(pb_utils)
        config = json.loads(args["model_config"])
        parameters = read_parameters(config)
        self._engine = ADAPTERS[parameters["engine"]](parameters)
        warn_of_unfollowed(config, self._engine.limits.unfollowed)
        prefer_latency()
        self._calls = Calls()
        self._metrics = Metrics(args["model_name"], args["model_version"])
        period_s = int(parameters["cancellation_check_period_ms"]) / 1000
        self._watch = Watch(self._calls, self._report, period_s)

    def execute(self, requests: Sequence[Request]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._start(request, sender)
            except contract.ContractError as exc:
                fail(sender, str(exc))
        self._watch.wake()

    def finalize(self) -> None:
        self._watch.close()
        self._engine.close()

    def _report(self) -> bool:
        """Update the metrics. Returns whether the engine holds no request now."""
        load = self._engine.load
        self._metrics.update(load)
        return not (load.running or load.waiting)

    def _start(self, request: Request, sender: Sender) -> None:
        inputs = {tensor.name(): self._codec.read(tensor) for tensor in request.inputs()}
        if contract.is_stop(inputs):
            self._calls.stop(request.request_id())
            sender.send(flags=FINAL)
            return
        decoded = contract.decode_request(inputs, self._engine.limits)
        names = contract.output_names(request.requested_output_names(), decoded)
        outgoing = Outgoing(sender, TensorAnswer(decoded), names, self._codec)
        Call(request.request_id(), outgoing, self._calls).start(self._engine)


class Outgoing:
    """An answer that leaves through Triton's response sender."""

    def __init__(self, sender: Sender, answer: TensorAnswer, names: Collection[str], codec: TensorCodec) -> None:
        self.sender = sender
        self.answer = answer
        self._names = names
        self._codec = codec

    def send(self, tensors: Mapping[str, contract.Array]) -> None:
        response = pb_utils.InferenceResponse([self._codec.write(name, tensors[name]) for name in self._names])
        self.sender.send(response, flags=FINAL if self.answer.is_final else 0)


class Call:
    """One request in flight: the engine's Receiver.

    Tokens, the watch and a stop request come on different threads. Whichever ends it first, under the lock, sends the
    final response.
    """

    def __init__(self, request_id: str, outgoing: Outgoing, calls: "Calls") -> None:
        self.request_id = request_id
        self._out = outgoing
        self._calls = calls
        self._lock = threading.Lock()
        self._is_over = False
        self._cancel: Callable[[], None] = lambda: None

    def start(self, engine: TokenEngine) -> None:
        with self._lock:
            self._calls.add(self)
            self._cancel = engine.start(self._out.answer.request, self)

    def tokens(self, outputs: Sequence[TokenOutput]) -> None:
        with self._lock:
            if self._is_over:
                return
            try:
                self._hand_on(outputs)
            # Edge of the engine's thread: an answer that cannot be sent, for want of shared memory, ends no other.
            except Exception:  # noqa: BLE001 - logged by Triton
                log_error("an answer could not be sent")
                self._fail("The answer could not be sent.")

    def failed(self, message: str) -> None:
        with self._lock:
            if not self._is_over:
                self._fail(message)

    def stop(self) -> None:
        """End it with the tokens so far."""
        with self._lock:
            if not self._is_over:
                self._end()
                self._out.send(self._out.answer.end())

    def drop_if_cancelled(self) -> None:
        """Cancel the engine's work if the client has gone. Triton needs a final response all the same.

        It asks `is_cancelled` under the lock too: tritonserver crashes on that once the final response is out.
        """
        with self._lock:
            if not self._is_over and self._out.sender.is_cancelled():
                self._end()
                self._out.sender.send(flags=FINAL)

    def _fail(self, message: str) -> None:
        self._end()
        try:
            fail(self._out.sender, message)
        # The same edge: an error needs shared memory too, and the other answers of this step come after it.
        except Exception:  # noqa: BLE001 - logged by Triton
            log_error("an error could not be sent")

    def _hand_on(self, outputs: Sequence[TokenOutput]) -> None:
        for output in outputs:
            self._out.answer.feed(output.token_id, output.logprob, output.finish_reason)
        tensors = self._out.answer.take()
        if tensors is not None:
            self._out.send(tensors)
        if self._out.answer.is_final:
            self._end()

    def _end(self) -> None:
        self._is_over = True
        self._cancel()
        self._calls.remove(self)


class Calls:
    """The requests in flight. Of several with the same Triton request id, the id finds the last, as in TensorRT-LLM."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: set[Call] = set()
        self._by_id: dict[str, Call] = {}

    def __len__(self) -> int:
        return len(self._all)

    def snapshot(self) -> list[Call]:
        with self._lock:
            return list(self._all)

    def add(self, call: Call) -> None:
        with self._lock:
            self._all.add(call)
            self._by_id[call.request_id] = call

    def remove(self, call: Call) -> None:
        with self._lock:
            self._all.discard(call)
            if self._by_id.get(call.request_id) is call:
                del self._by_id[call.request_id]

    def stop(self, request_id: str) -> None:
        if not request_id:
            raise contract.ContractError(contract.STOP_WITHOUT_ID)
        call = self._by_id.get(request_id)
        if call is not None:
            call.stop()


class Watch:
    """A thread that, while requests are in flight, asks Triton which are cancelled and updates the metrics."""

    def __init__(self, calls: Calls, report: Callable[[], bool], period_s: float) -> None:
        """`report` updates the metrics and returns whether they stay as they are until another request comes."""
        self._calls = calls
        self._report = report
        self._period_s = period_s
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def close(self) -> None:
        self._closing.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.clear()
            for call in self._calls.snapshot():
                self._try(call.drop_if_cancelled)
            is_at_rest = self._try(self._report) is not False
            self._closing.wait(self._period_s)
            # The engine frees a request some time after its end: on a busy machine later than a period.
            if is_at_rest and not len(self._calls):
                self._wake.wait()

    @staticmethod
    def _try(step: Callable[[], Result]) -> Result | None:
        try:
            return step()
        # Edge of the thread: if it ended, no cancellation would be seen any more.
        except Exception:  # noqa: BLE001 - logged by Triton
            log_error("the watch failed")
            return None


class Metrics:
    """TensorRT-LLM's own metrics on Triton's metrics page."""

    def __init__(self, model: str, version: str) -> None:
        self._labels = {"model": model, "version": version}
        self._family = cache(make_family)  # a name and a label set are made once, and kept for as long as this is
        self._metric = cache(self._make_metric)

    def update(self, load: EngineLoad) -> None:
        for gauges in report(load):
            for key, value in gauges.values.items():
                self._metric(gauges.name, gauges.label, key).set(value)

    def _make_metric(self, name: str, label: str, key: str) -> Any:  # pb_utils' class, as above
        return self._family(name).Metric(labels={label: key, **self._labels})


def make_family(name: str) -> Any:
    kind = pb_utils.MetricFamily.GAUGE
    return pb_utils.MetricFamily(name=name, description="As TensorRT-LLM reports it.", kind=kind)


def fail(sender: Sender, message: str) -> None:
    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(message)), flags=FINAL)


def warn_of_unfollowed(config: Mapping[str, Any], unfollowed: Mapping[str, str]) -> None:  # JSON: any values
    for tensor in config["input"]:
        if reason := unfollowed.get(tensor["name"]):
            pb_utils.Logger.log_warn(
                f"config.pbtxt declares {tensor['name']}, which is refused where it asks for something: {reason}. "
                "Without that line a gateway sends such requests elsewhere from the first one on."
            )


def log_error(what: str) -> None:
    """Logs `what` with the exception being handled."""
    pb_utils.Logger.log_error(f"{what}:\n{traceback.format_exc()}")


def read_parameters(config: Mapping[str, Any]) -> dict[str, str]:  # JSON: any values
    """Returns the defaults with the configuration's non-empty parameters over them; the environment overrides both."""
    given = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
    parameters = DEFAULTS | {key: value for key, value in given.items() if value}
    for name in ("engine", "model_dir", "engine_args"):
        if override := os.environ.get(f"CROSSOVER_{name.upper()}"):
            parameters[name] = override
    if parameters["engine"] not in ADAPTERS:
        raise pb_utils.TritonModelException(f"engine {parameters['engine']!r} is none of {', '.join(ADAPTERS)}")
    return parameters
