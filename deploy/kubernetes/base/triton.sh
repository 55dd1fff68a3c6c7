#!/usr/bin/env bash
# Runs tritonserver over the model repository, one rank for each GPU of a compiled engine (TensorRT-LLM's leader mode). On SIGTERM running
# answers get TRITON_EXIT_TIMEOUT_S. Exit codes: Triton's own (0: stopped, every answer whole; 1: failed, or answers were cut); 143: stopped
# while it loaded; 2: wrong settings.
set -euo pipefail

ranks=${TRITON_RANKS:?"TRITON_RANKS: tensor x pipeline parallelism of the compiled engine; 1 for the Python model"}
repository=${TRITON_MODEL_REPOSITORY:?"TRITON_MODEL_REPOSITORY: the folder that holds tensorrt_llm/config.pbtxt"}
exit_timeout_s=${TRITON_EXIT_TIMEOUT_S:-30}
[[ $ranks =~ ^[1-9][0-9]?$ ]] || { echo "TRITON_RANKS: must be a number from 1 to 99, is '$ranks'" >&2; exit 2; }
[[ $exit_timeout_s =~ ^(0|[1-9][0-9]{0,4})$ ]] || { echo "TRITON_EXIT_TIMEOUT_S: must be whole seconds, is '$exit_timeout_s'" >&2; exit 2; }
config=$repository/tensorrt_llm/config.pbtxt
[[ -r $config ]] || { echo "TRITON_MODEL_REPOSITORY: there is no $config" >&2; exit 2; }
# Triton takes an unfilled placeholder for "not set" and goes on with a default, so CUDA graphs would be off in silence.
# shellcheck disable=SC2016 # the two characters themselves
if grep -nF '${' "$config" >&2; then echo "$config: has unfilled placeholders, render it again" >&2; exit 2; fi

server=(
    tritonserver "--model-repository=$repository" --disable-auto-complete-config
    "--http-port=${TRITON_HTTP_PORT:-8000}" "--grpc-port=${TRITON_GRPC_PORT:-8001}" "--metrics-port=${TRITON_METRICS_PORT:-8002}"
    "--exit-timeout-secs=$exit_timeout_s"
)
# Without it Triton listens on every interface, which is right where the network is the container's own.
address=${TRITON_ADDRESS:-}
[[ -z $address ]] || server+=("--http-address=$address" "--grpc-address=$address" "--metrics-address=$address")

leader=$(mktemp) # will hold the process id of the rank that answers
trap 'rm -f "$leader"' EXIT
# shellcheck disable=SC2016 # for the shell that becomes the leader
first=(bash -c 'echo $$ >"$0" && exec "$@"' "$leader" "${server[@]}")
command=("${first[@]}")
if ((ranks > 1)); then
    # Open MPI would pin each of two ranks to one core, with all the threads that a rank has.
    command=(mpirun --allow-run-as-root --bind-to none -n 1 "${first[@]}" "--backend-config=python,shm-region-prefix-name=prefix0_")
    for ((rank = 1; rank < ranks; rank++)); do
        command+=(: -n 1 "${server[@]}" "--backend-config=python,shm-region-prefix-name=prefix${rank}_")
        # The other ranks answer nobody: they load the engine and nothing else of the repository.
        command+=(--model-control-mode=explicit --load-model=tensorrt_llm)
    done
fi

# SIGTERM goes to the leader alone. It ends its answers, then lets the other ranks go. Those never leave the loading of their model, where
# TensorRT-LLM's backend waits for the leader (model_instance_state.cc) and Triton handles no signal yet (src/main.cc): they would die at
# once, and mpirun would kill the rest. mpirun itself, sent SIGTERM, kills every rank within 2 s.
stop() {
    local job code=0 waited
    trap '' TERM
    job=$(jobs -p)
    [[ -n $job ]] || exit 143
    kill -TERM "$(<"$leader")" 2>/dev/null || kill -TERM "$job" 2>/dev/null || true
    # A leader that gives up at the end of its time then waits in MPI_Finalize, for ranks that do not come.
    for ((waited = 0; waited < 10 * (exit_timeout_s + 5); waited++)); do
        kill -0 "$job" 2>/dev/null || break
        sleep 0.1
    done
    kill -TERM "$job" 2>/dev/null || true
    wait "$job" || code=$?
    exit "$code"
}
trap stop TERM
"${command[@]}" &
wait $!
