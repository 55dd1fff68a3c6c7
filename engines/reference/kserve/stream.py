"""One ModelStreamInfer stream: its requests in flight and the responses that wait to be written.

In: requests as they come, tokens from the runner. Out: response messages. Closing it cancels all its requests.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

import grpc
from tritonclient.grpc import service_pb2 as pb

from engines.reference import trtllm_contract as contract
from engines.reference.engine import TokenOutput
from engines.reference.kserve import messages
from engines.reference.kserve.checks import Refusal, read_inputs
from engines.reference.kserve.model import ServedModel
from engines.reference.trtllm_answer import TensorAnswer


class Stream:
    """`messages` ends when the client has half-closed and all is answered, or when there is an `ending`: code and
    details, because the server ends, or the model failed and the client wants errors as a status.
    """

    def __init__(self, model: ServedModel, *, fails_with_status: bool) -> None:
        self.model = model
        self.ending: tuple[grpc.StatusCode, str] | None = None
        self._fails_with_status = fails_with_status
        self._outbox: deque[pb.ModelStreamInferResponse] = deque()
        self._changed = asyncio.Event()
        self._calls: set[StreamCall] = set()
        self._is_half_closed = False

    async def read(self, requests: AsyncIterator[pb.ModelInferRequest]) -> None:
        async for request in requests:
            self._start(request)
        self._is_half_closed = True
        self._changed.set()

    async def messages(self) -> AsyncIterator[pb.ModelStreamInferResponse]:
        while True:
            while self._outbox:
                yield self._outbox.popleft()
            if self.ending or (self._is_half_closed and not self._calls):
                return
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        for call in list(self._calls):
            call.cancel()

    def send(self, message: pb.ModelStreamInferResponse) -> None:
        self._outbox.append(message)
        self._changed.set()

    def end(self, code: grpc.StatusCode, details: str) -> None:
        self.ending = (code, details)
        self._changed.set()

    def fail(self, request: pb.ModelInferRequest, text: str) -> None:
        """Reports an error of the model: in-band, unless the client asked for a status with `triton_grpc_error`."""
        self.model.counts.failure["BACKEND"] += 1
        if self._fails_with_status:
            self.end(grpc.StatusCode.INTERNAL, text)
        else:
            self.send(messages.failure(request, text))

    def forget(self, call: "StreamCall") -> None:
        self._calls.discard(call)
        self._changed.set()

    def _start(self, request: pb.ModelInferRequest) -> None:
        try:
            self.model.check_name(request.model_name, request.model_version)
            self._execute(request, read_inputs(request))
        except Refusal as exc:
            self.send(messages.refusal(request, str(exc)))
        except contract.ContractError as exc:
            self.fail(request, str(exc))

    def _execute(self, request: pb.ModelInferRequest, inputs: dict[str, contract.Array]) -> None:
        if contract.is_stop(inputs):
            self.model.stop(request.id)
            if request.parameters["triton_enable_empty_final_response"].bool_param:
                self.send(messages.response(request, {}, (), is_final=True))
            return
        call = StreamCall(self, request, contract.decode_request(inputs, self.model.limits))
        self._calls.add(call)
        call.start()


class StreamCall:
    """One request in flight: a Receiver."""

    def __init__(self, stream: Stream, request: pb.ModelInferRequest, decoded: contract.TokenRequest) -> None:
        self._stream = stream
        self._request = request
        self._answer = TensorAnswer(decoded)
        self._names = contract.output_names({output.name for output in request.outputs}, decoded)
        self._runner_id = ""

    def start(self) -> None:
        decoded = self._answer.request
        self._runner_id = self._stream.model.start(self._request.id, self, decoded)

    def tokens(self, outputs: Sequence[TokenOutput]) -> None:
        for output in outputs:
            self._answer.feed(output.token_id, output.logprob, output.finish_reason)
        tensors = self._answer.take()
        if tensors is not None:
            is_final = self._answer.is_final
            self._stream.send(messages.response(self._request, tensors, self._names, is_final=is_final))
        if self._answer.is_final:
            self._end()
            self._stream.model.counts.success += 1

    def failed(self, message: str) -> None:
        self._end()
        self._stream.fail(self._request, message)

    def cancel(self) -> None:
        """Cancels the request in the engine: the client has gone or stopped it."""
        self._end()
        self._stream.model.counts.failure["CANCELED"] += 1

    def stop(self) -> None:
        """Answers a stop request: sends a final response with the tokens so far."""
        self._stream.send(messages.response(self._request, self._answer.end(), self._names, is_final=True))
        self.cancel()

    def _end(self) -> None:
        self._stream.model.end(self._request.id, self._runner_id, self)
        self._stream.forget(self)
