#!/usr/bin/env bash
# Stands in for every program of the host that deploy/node.sh calls, under that program's name: notes the call in $STATE/calls and answers as a
# machine would whose state are the files in $STATE.
name=${0##*/}
printf '%s\n' "$name $*" >>"$STATE/calls"
has() { [[ -e $STATE/$1 ]]; }
case "$name $*" in
    "id -u") echo 0 ;;
    "uname -m") echo x86_64 ;;
    df*) printf 'Avail\n900G\n' ;;
    "nvidia-smi --query-gpu"*) has gpus && cat "$STATE/gpus" ;;
    "nvidia-smi topo -m") printf '\tGPU0\tGPU1\nGPU0\t X \tNV6\nGPU1\tNV6\t X\n' ;;
    "nvidia-smi -L") has gpus ;;
    "docker compose version --short") has docker && echo 2.40.1 ;;
    "docker info"*) has toolkit && echo '{"nvidia":{},"runc":{}}' ;;
    "apt-get install --yes ca-certificates"*) touch "$STATE/docker" ;;
    "apt-get install --yes nvidia-container-toolkit") touch "$STATE/toolkit" ;;
    curl*keyrings*) touch "${@: -2:1}" ;;
    "docker compose config --images") printf 'triton\nvllm\ngateway\n' ;;
    "docker compose pull"*) touch "$STATE/pulled" ;;
    "docker image inspect --format"*) echo "repository@sha256:$(printf %064d 7)" ;;
    "docker image inspect"*) has pulled ;;
    "docker run"*" -L") for gpu in 0 1 2 3; do echo "GPU $gpu: NVIDIA H100"; done ;;
    "docker compose up"*) touch "$STATE/up" ;;
    "docker compose logs"*) echo "the log of ${!#}" ;;
    "docker compose exec"*) cat "$STATE/findings" 2>/dev/null; ! has findings ;;
    curl*/ready) has up ;;
    curl*/metrics)
        ready=$(cat "$STATE/vllm_ready" 2>/dev/null || echo 1.0)
        printf 'crossover_backend_ready{backend="triton",model="m"} 1.0\ncrossover_backend_ready{backend="vllm",model="m"} %s\n' "$ready"
        ;;
    "systemctl is-enabled"*) has enabled ;;
    "systemctl enable"*) touch "$STATE/enabled" ;;
    "crossover engine build"*)
        while (($#)); do [[ $1 == --out ]] && out=$2; shift; done
        mkdir -p "$out"
        printf '{"pretrained_config": {"mapping": {"world_size": %s}, "quantization": %s}}' \
            "$(cat "$STATE/world_size" 2>/dev/null || echo 2)" "$(cat "$STATE/quantization" 2>/dev/null || echo '{}')" >"$out/config.json"
        ;;
    "crossover engine verify"*)
        [[ -e $3/config.json ]] || { echo "$3: not a directory" >&2; exit 2; }
        if [[ -e $3/mismatch ]]; then echo "refused  version: built by 1.1.0"; exit 1; fi
        echo "$3 fits"
        ;;
    "crossover engine render"*)
        while (($#)); do case $1 in --out) out=$2 ;; --engine) engine=$2 ;; esac; shift; done
        mkdir -p "$out/tensorrt_llm"
        { echo "gpt_model_path: $engine"; cat "$STATE/rendered" 2>/dev/null || true; } >"$out/tensorrt_llm/config.pbtxt"
        ;;
    "crossover calibrate"*)
        status=$(cat "$STATE/calibrate" 2>/dev/null || echo 0)
        ((status != 0)) || touch "$STATE/calibrated"
        exit "$status"
        ;;
    "crossover policy show"*)
        calibration=$(has calibrated && echo '"run-7"' || echo null)
        printf '{"models": [{"model": "m", "policy": {"kind": "curve", "calibration": %s}}]}\n' "$calibration"
        ;;
esac
