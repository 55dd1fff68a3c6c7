#!/usr/bin/env bash
# Becomes tritonserver over the model repository, one rank for each GPU of a compiled engine (TensorRT-LLM's leader mode).
# exec, so that signals and the exit code are mpirun's own; the image's launch script forks and does not wait.
set -euo pipefail

ranks=${TRITON_RANKS:?"TRITON_RANKS: tensor x pipeline parallelism of the compiled engine; 1 for the Python model"}
repository=${TRITON_MODEL_REPOSITORY:?"TRITON_MODEL_REPOSITORY: the folder that holds tensorrt_llm/config.pbtxt"}
[[ $ranks =~ ^[1-9][0-9]?$ ]] || { echo "TRITON_RANKS: must be a number from 1 to 99, is '$ranks'" >&2; exit 2; }
config=$repository/tensorrt_llm/config.pbtxt
[[ -r $config ]] || { echo "TRITON_MODEL_REPOSITORY: there is no $config" >&2; exit 2; }
# Triton takes an unfilled placeholder for "not set" and goes on with a default, so CUDA graphs would be off in silence.
# shellcheck disable=SC2016 # the two characters themselves
if grep -nF '${' "$config" >&2; then echo "$config: has unfilled placeholders, render it again" >&2; exit 2; fi

server=(
    tritonserver "--model-repository=$repository" --disable-auto-complete-config
    "--http-port=${TRITON_HTTP_PORT:-8000}" "--grpc-port=${TRITON_GRPC_PORT:-8001}" "--metrics-port=${TRITON_METRICS_PORT:-8002}"
    "--exit-timeout-secs=${TRITON_EXIT_TIMEOUT_S:-30}"
)
# Without it Triton listens on every interface, which is right where the network is the container's own.
address=${TRITON_ADDRESS:-}
[[ -z $address ]] || server+=("--http-address=$address" "--grpc-address=$address" "--metrics-address=$address")
((ranks > 1)) || exec "${server[@]}"

command=(mpirun --allow-run-as-root)
for ((rank = 0; rank < ranks; rank++)); do
    ((rank == 0)) || command+=(:)
    command+=(-n 1 "${server[@]}" "--backend-config=python,shm-region-prefix-name=prefix${rank}_")
    # The other ranks answer nobody: they load the engine and nothing else of the repository.
    ((rank == 0)) || command+=(--model-control-mode=explicit --load-model=tensorrt_llm)
done
exec "${command[@]}"
