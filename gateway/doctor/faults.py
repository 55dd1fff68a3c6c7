"""Every fault that the doctor can find, and its cure. docs/doctor.md shows this table; a test holds the two together.

Values only: the rules that find a fault stand elsewhere.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum


class Severity(StrEnum):
    ERROR = "error"  # requests fail, answers differ, or a credited feature is not there
    WARNING = "warning"  # it works, slower or closer to a limit than it has to be


class Fault(Enum):
    """The table: a fault in each row, with its severity, what it means and its cure."""

    def __init__(self, severity: Severity, meaning: str, cure: str) -> None:
        self.severity = severity
        self.meaning = meaning
        self.cure = cure

    UNREACHABLE = (
        Severity.ERROR,
        "Nothing answers at the backend's address, so no request is sent there.",
        "Start the engine, or correct the backend's `url`.",
    )
    WRONG_WIRE = (
        Severity.ERROR,
        "Another kind of server answers at the backend's address.",
        "Give the backend the address that its `kind` speaks: Triton's gRPC port, vLLM's API server.",
    )
    NOT_READY = (
        Severity.ERROR,
        "The server answers, but the model behind it does not serve.",
        "Read the engine's log for why the model did not load, and correct `model` if it goes by another name.",
    )
    CANNOT_GENERATE = (
        Severity.ERROR,
        "A short request by the path that the gateway itself takes ended in an error.",
        "Follow the engine's log at the time of the request.",
    )
    NOT_DECOUPLED = (
        Severity.ERROR,
        "Without a decoupled model Triton cannot stream, and some releases end as a whole when they are asked to.",
        "Set `model_transaction_policy { decoupled: true }` in config.pbtxt and load the model again.",
    )
    TENSORS_DIFFER = (
        Severity.ERROR,
        "The Triton model does not take or give the tensors that the gateway speaks, so Triton refuses its requests.",
        "Serve the model with the config.pbtxt of model_repo/ of this release.",
    )
    CONFIG_HIDDEN = (
        Severity.WARNING,
        "Triton serves the model and hides its configuration: what the model can do is not known.",
        "Take `model-config` out of --grpc-restricted-protocol, or start Triton without it.",
    )
    PLACEHOLDER_LEFT = (
        Severity.ERROR,
        "A template was not filled in: TensorRT-LLM takes the parameter for unset and goes on with its default.",
        "Render config.pbtxt again with a value for every parameter.",
    )
    IN_FLIGHT_BATCHING_OFF = (
        Severity.ERROR,
        "Requests wait until those before them have ended: the engine does not batch in flight.",
        "Set gpt_model_type to `inflight_fused_batching`, or start an engine that batches continuously.",
    )
    PAGED_KV_OFF = (
        Severity.ERROR,
        "The KV cache is not paged: each request takes the room of the longest, and few fit.",
        "Build the engine with `--kv_cache_type paged`.",
    )
    CREDITED_NOT_SHOWN = (
        Severity.ERROR,
        "A feature that --require names is off, or nothing that was looked at shows that it is on.",
        "Turn the feature on, or show it by giving the engine's log with --log.",
    )
    PROMPT_MISMATCH = (
        Severity.ERROR,
        "The gateway makes other token ids of a text or a chat than the engine does: its tokenizer is not the model's.",
        "Point `tokenizer` at the directory that the engine loads its model from.",
    )
    TOKENIZER_UNUSABLE = (
        Severity.ERROR,
        "The gateway cannot load the tokenizer, and would not start.",
        "Put the model's tokenizer, chat template and config.json into the directory that `tokenizer` names.",
    )
    OPEN_TO_EVERYONE = (
        Severity.ERROR,
        "Whoever reaches the port can change the policy and start calibrations.",
        "Create a key (crossover keys create), set CROSSOVER_OPERATOR_KEY, or listen on 127.0.0.1.",
    )
    PORTS_CLASH = (
        Severity.ERROR,
        "Two servers are configured to have the same port.",
        "Give one of them another port; Triton and vLLM both take 8000 by default.",
    )
    LISTEN_TAKEN = (
        Severity.ERROR,
        "A server that is no Crossover gateway has the port that the gateway is to listen on.",
        "End it, or change `listen`.",
    )
    MEMORY_OVERCOMMITTED = (
        Severity.ERROR,
        "The engines on one GPU claim more memory than it has: the last one to start fails, or has a tiny cache.",
        "Lower --gpu-memory-utilization until the shares on each GPU add up to less than 0.95.",
    )
    MEMORY_BY_START_ORDER = (
        Severity.WARNING,
        "TensorRT-LLM takes a share of what is free when it loads: its KV cache depends on which engine started first.",
        "Set max_tokens_in_paged_kv_cache, and start Triton before vLLM.",
    )
    CUDA_GRAPHS_OFF = (
        Severity.WARNING,
        "Every decoding step launches its kernels one by one, which costs most at small batches.",
        "Remove --enforce-eager from vLLM, or set cuda_graph_mode (cuda_graph_config) of TensorRT-LLM.",
    )
    CHUNKED_PREFILL_OFF = (
        Severity.WARNING,
        "A long prompt holds up every answer under way until it is read.",
        "Turn on enable_chunked_context (--enable-chunked-prefill), with an engine that has paged context FMHA.",
    )
    PREFIX_CACHING_OFF = (
        Severity.WARNING,
        "The turns of a chat and shared system prompts are computed anew each time.",
        "Set enable_kv_cache_reuse to true, or remove --no-enable-prefix-caching.",
    )
    TOKEN_ROUTE_OFF = (
        Severity.WARNING,
        "Ids go to vLLM by /v1/completions, which makes text of every token that nobody reads.",
        "Start vLLM with --enable-scale-out.",
    )
    ONE_API_PROCESS = (
        Severity.WARNING,
        "vLLM has one API process for all its streams: with hundreds in flight it gives out before the GPU does.",
        "Start vLLM with --api-server-count 4, or with its Rust front end.",
    )
    DEV_MODE_OPEN = (
        Severity.WARNING,
        "vLLM's development routes are open to the network: whoever reaches them can put the engine to sleep.",
        "Unset VLLM_SERVER_DEV_MODE, or bind vLLM to 127.0.0.1.",
    )
    CONTEXT_BEYOND_ENGINE = (
        Severity.WARNING,
        "The gateway accepts longer requests than the engine: it refuses them, or ends them early.",
        "Raise --max-model-len (max_seq_len), or lower model_max_length in the gateway's tokenizer_config.json.",
    )
    CAPACITY_BELOW_THRESHOLD = (
        Severity.WARNING,
        "The policy sends the engine more requests at once than it runs; the rest wait in its queue.",
        "Raise --max-num-seqs (max_batch_size of the engine), or calibrate again for a lower threshold.",
    )
    METRICS_MISSING = (
        Severity.WARNING,
        "Without the engine's metrics page the gateway cannot hold its count of requests against the engine's.",
        "Set `metrics_url`, for Triton usually http://HOST:8002/metrics.",
    )
    METRICS_SILENT = (
        Severity.WARNING,
        "The metrics page does not answer, or does not hold the engine's count of requests.",
        "Correct `metrics_url`, and start the engine with its metrics on.",
    )
    POLICY_STALE = (
        Severity.WARNING,
        "The running gateway's policy was measured on other engines than it steers now.",
        "Measure again with `crossover calibrate --apply`.",
    )
    FEW_OPEN_FILES = (
        Severity.WARNING,
        "The gateway may run out of file descriptors before the engines are full: a request in flight takes up to two.",
        "Raise the limit with `ulimit -n 65536` or LimitNOFILE=65536.",
    )
    SMALL_SHARED_MEMORY = (
        Severity.WARNING,
        "NCCL, Triton's Python backend and vLLM's queues need /dev/shm; too little of it ends in crashes.",
        "Give the container `shm_size: 16gb` (an emptyDir of medium Memory in Kubernetes), or use the host's IPC.",
    )
    RELEASE_OLD = (
        Severity.WARNING,
        "The engine is older than any release that this gateway has been run with.",
        "Install vLLM 0.24 or newer, or Triton 2.51 (24.10) or newer.",
    )
    DRIVER_OLD = (
        Severity.WARNING,
        "The GPU driver is older than the one that the engine's container image was released with.",
        "Install the driver that NVIDIA's support matrix lists for the newest image on the node.",
    )

    @property
    def code(self) -> str:
        """Its name in reports and in the documentation."""
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault that was found. `where`: the name of an engine in crossover.yaml, the gateway or the node."""

    fault: Fault
    where: str
    seen: str
