#!/usr/bin/env bash
# Turns a bare Ubuntu host with four H100 into a running, calibrated node.
# Each step asks whether it is in force, makes it so if not, and asks again; what does not hold then ends the script with its cure.
# So it may be run again at any time: it goes on where it stopped. DESTDIR goes before every path of the host, as with make install.
set -Eeuo pipefail

usage() {
    cat <<'END'
Usage: deploy/node.sh --checkpoint DIR --recipe RECIPE [OPTIONS]

  Turn a bare Ubuntu host with four H100 into a running, calibrated node.

  Every step is checked before and after. Run it again after a reboot, or when what it complained of is cured.

Options:
  --checkpoint DIR     The Hugging Face checkpoint. It is copied to HOME/checkpoint.
  --recipe RECIPE      Of the engine for Triton: a file, or a name that `crossover engine recipes` lists.
  --model-id ID        What clients send as `model`.  [default: the checkpoint's folder name]
  --layout LAYOUT      two-plus-two: two GPUs for each engine. shared: both engines on all four.  [default: two-plus-two]
  --home DIR           Where checkpoint, engine, model repository and runs lie.  [default: /srv/crossover]
  --driver BRANCH      The NVIDIA driver to have at least, and to install where there is none.  [default: 590]
  --quantization Q     vLLM's, so that both engines compute alike: fp8 beside an FP8 engine.  [default: None, as the checkpoint is]
  --kv-cache-dtype T   Likewise of its KV cache: fp8 beside an FP8 cache.  [default: auto]
  --kv-cache-bytes N   vLLM's KV cache on each GPU, with --layout shared.  [default: 25769803776]
  --calibrate OPTIONS  Options of `crossover calibrate` besides --apply, in quotes.  [default: none, the full calibration]
  --from STEP          Begin with this step.
  --only STEP          This step alone.
  --list               List the steps.
  --dry-run            Print every step and its commands, and run none.
  -h, --help           This.

Examples:
  deploy/node.sh --checkpoint /data/llama-3.1-8b --recipe mine.yaml --dry-run
  sudo deploy/node.sh --checkpoint /data/llama-3.1-8b --recipe llama-3.1-8b-fp8-tp2 --quantization fp8 --kv-cache-dtype fp8

Exit codes: 0 the node runs and is calibrated; 1 a step does not hold; 2 bad arguments; 3 reboot, then run it again;
4 it runs and was measured, but no single threshold is right (docs/calibration.md).
END
}

steps=(host driver docker limits cli checkpoint settings images gpus engine repository start boot doctor calibrate)
declare -A titles=(
    [host]="Ubuntu, root, enough disk"
    [driver]="four H100 and a driver that the images can use"
    [docker]="Docker with compose, and NVIDIA's runtime in it"
    [limits]="kernel settings"
    [cli]="crossover's command line"
    [checkpoint]="the checkpoint in its place"
    [settings]="crossover.yaml and the settings of compose"
    [images]="images, pinned by digest"
    [gpus]="GPUs inside both engines' images"
    [engine]="the compiled engine, held against its recipe"
    [repository]="Triton's model repository"
    [start]="both engines and the gateway ready"
    [boot]="the node starts with the machine"
    [doctor]="crossover doctor finds nothing"
    [calibrate]="both engines measured, and the policy set"
)
declare -A cures=(
    [host]="use Ubuntu 22.04 or 24.04 on x86-64, as root, with 200 GiB free"
    [driver]="install a driver of that branch by NVIDIA's guide, reboot, and run this again"
    [docker]="install Docker with compose 2.24.4 or newer and nvidia-container-toolkit by hand, then run this again"
    [limits]="look at sysctl's message; a container host may forbid kernel settings"
    [cli]="run make install in the checkout and look at its message"
    [checkpoint]="give --checkpoint a folder with config.json, a tokenizer and *.safetensors"
    [settings]="remove the file it names to have it written anew"
    [images]="look at docker's message; nvcr.io may want docker login"
    [gpus]="compare the driver with what the image was built for, and run nvidia-ctk runtime configure --runtime=docker"
    [engine]="follow its message; --recipe has to be one for this layout's number of GPUs"
    [repository]="render it with a recipe of the compiled flow"
    [start]="docker compose logs names the engine that failed"
    [boot]="systemctl status crossover-compose.service"
    [doctor]="each finding above has its cure; then run this again with --from doctor"
    [calibrate]="its message above has a section in docs/calibration.md; then run this again with --from calibrate"
)

emit() { printf '%s\n' "$*"; }
lacks() { emit "$*"; return 1; } # why a step is not in force
refuse() { printf 'node.sh: %s\n' "$*" >&2; exit 2; }
die() { printf 'node.sh: %s: %s\n  cure: %s\n' "$1" "$2" "${cures[$1]}" >&2; exit 1; }

run() {
    printf '   $'; printf ' %q' "$@"; printf '\n'
    ((dry_run)) || "$@"
}

# The file $1 from stdin, with mode $2: whole or not at all.
put() {
    local path=$1 mode=$2 content
    content=$(cat)
    emit "   > $path (mode $mode)"
    if ((dry_run)); then printf '     %s\n' "${content//$'\n'/$'\n'     }"; return; fi
    install -d "$(dirname "$path")"
    (umask 077 && printf '%s\n' "$content" >"$path.new")
    chmod "$mode" "$path.new"
    mv "$path.new" "$path"
}

# ---- steps: has_X gives the reason why it is not in force, do_X makes it so ----

has_host() {
    [[ $(id -u) == 0 ]] || lacks "not root" || return
    [[ $(uname -m) == x86_64 ]] || lacks "$(uname -m) is not x86-64" || return
    local name
    # shellcheck source=/dev/null
    name=$(. "$DESTDIR/etc/os-release" && emit "$ID $VERSION_ID")
    [[ $name == "ubuntu 22.04" || $name == "ubuntu 24.04" ]] || lacks "this is $name" || return
    local free
    free=$(df --output=avail --block-size=G "$(existing "$home")" | tail -1 | tr -dc 0-9)
    ((free >= 200)) || [[ -d $home/engine ]] || lacks "$free GiB are free for $home"
}
do_host() { :; }

existing() {
    local path=$1
    while [[ ! -e $path ]]; do path=$(dirname "$path"); done
    emit "$path"
}

has_driver() {
    local gpus
    gpus=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null) || lacks "no driver answers nvidia-smi" || return
    local fit
    fit=$(grep -cE 'H100|H200' <<<"$gpus" || true)
    ((fit >= 4)) || lacks "four H100 are needed, found: ${gpus//$'\n'/; }" || return
    local major
    major=$(head -1 <<<"$gpus" | sed 's/.*, *//; s/\..*//')
    ((major >= driver)) || lacks "the driver is of branch $major, Triton's image lists $driver" || return
    has_nvlink || emit "   note: no NVLink between GPUs 0 and 1; tensor parallelism goes over PCIe (crossover fabric measures it)"
}
has_nvlink() { nvidia-smi topo -m | awk '$1 == "GPU0" {found = $3 ~ /^NV/} END {exit !found}'; }
do_driver() {
    if ((!dry_run)) && nvidia-smi -L >/dev/null 2>&1; then return; fi # the machine is another, or its driver somebody's choice
    run apt-get update
    run apt-get install --yes "nvidia-headless-$driver-server-open" "nvidia-utils-$driver-server"
    ((dry_run)) || { emit "node.sh: the driver is installed; reboot, then run this again" >&2; exit 3; }
}

has_docker() {
    local version
    version=$(docker compose version --short 2>/dev/null) || lacks "docker compose does not answer" || return
    [[ $(printf '%s\n' 2.24.4 "${version#v}" | sort -V | head -1) == 2.24.4 ]] || lacks "docker compose is $version, older than 2.24.4" || return
    docker info --format '{{json .Runtimes}}' 2>/dev/null | grep -q nvidia || lacks "docker has no nvidia runtime"
}
do_docker() {
    local key=$DESTDIR/etc/apt/keyrings/nvidia-container-toolkit.asc
    run apt-get update
    run apt-get install --yes ca-certificates curl docker.io docker-compose-v2
    # Ubuntu has no nvidia-container-toolkit; this is where NVIDIA publishes it.
    run install -d "$(dirname "$key")"
    run curl --fail --silent --show-error --location --output "$key" https://nvidia.github.io/libnvidia-container/gpgkey
    put "$DESTDIR/etc/apt/sources.list.d/nvidia-container-toolkit.list" 644 \
        <<<"deb [signed-by=/etc/apt/keyrings/nvidia-container-toolkit.asc] https://nvidia.github.io/libnvidia-container/stable/deb/amd64 /"
    run apt-get update
    run apt-get install --yes nvidia-container-toolkit
    run nvidia-ctk runtime configure --runtime=docker
    run systemctl restart docker
}

has_limits() {
    cmp --silent "$here/systemd/crossover.sysctl" "$DESTDIR/etc/sysctl.d/90-crossover.conf" || lacks "90-crossover.conf is not there, or another"
}
do_limits() {
    run install -D -m 644 "$here/systemd/crossover.sysctl" "$DESTDIR/etc/sysctl.d/90-crossover.conf"
    run sysctl --load "$DESTDIR/etc/sysctl.d/90-crossover.conf"
    run nvidia-smi -pm 1
}

has_cli() { "$cli" engine --help >/dev/null 2>&1 || lacks "$cli does not run"; }
do_cli() {
    run apt-get install --yes make python3-venv openssl
    run make -C "$checkout" install
}

has_checkpoint() {
    local source=${1:-$home/checkpoint} file
    for file in config.json tokenizer_config.json; do [[ -r $source/$file ]] || lacks "$source has no $file" || return; done
    compgen -G "$source/*.safetensors" >/dev/null || lacks "$source has no *.safetensors" || return
    [[ ! -r $checkpoint/config.json ]] || cmp --silent "$checkpoint/config.json" "$source/config.json" ||
        lacks "$source is of another model than $checkpoint"
}
do_checkpoint() {
    ((dry_run)) || [[ ! -e $home/checkpoint ]] || die checkpoint "$(has_checkpoint || true)"
    run install -d -m 755 "$home"
    run cp --archive --dereference --reflink=auto "$checkpoint" "$home/checkpoint"
    run chmod -R a+rX "$home/checkpoint" # the gateway reads its tokenizer as a user without rights
}

has_settings() {
    [[ -r $settings ]] || lacks "$settings is not there" || return
    [[ -r $home/crossover.yaml ]] || lacks "$home/crossover.yaml is not there" || return
    grep -qxF "MODEL_ID=$model_id" "$settings" || lacks "$settings is for another model" || return
    grep -qF "id: $model_id" "$home/crossover.yaml" || lacks "$home/crossover.yaml is for another model" || return
    grep -qxF "COMPOSE_FILE=$compose_files" "$settings" || lacks "$settings is for another layout"
}
do_settings() {
    ((dry_run)) || [[ ! -e $settings ]] || die settings "$(has_settings || true)"
    # Made here, so that no two nodes share one; --dry-run shows none.
    local operator='(made here)' grafana='(made here)'
    ((dry_run)) || { operator=$(openssl rand -hex 24) grafana=$(openssl rand -hex 12); }
    put "$settings" 600 <<END
# What deploy/compose and crossover-compose.service go by. Written by deploy/node.sh; env.example in deploy/compose explains each.
COMPOSE_FILE=$compose_files
CROSSOVER_HOME=$home
MODEL_ID=$model_id
CROSSOVER_OPERATOR_KEY=$operator
GRAFANA_PASSWORD=$grafana
TRITON_RANKS=$ranks
VLLM_TENSOR_PARALLEL=$ranks
VLLM_KV_CACHE_BYTES=$kv_cache_bytes
VLLM_QUANTIZATION=$quantization
VLLM_KV_CACHE_DTYPE=$kv_cache_dtype
TRITON_TAG=$triton_tag
END
    sed "s|id: llama-3.1-8b|id: $model_id|; s|/srv/crossover|$home|" "$here/compose/crossover.yaml" | put "$home/crossover.yaml" 644
}

# Settings as variables, as docker compose takes them.
load_settings() {
    set -a
    # shellcheck source=/dev/null
    [[ ! -r $settings ]] || . "$settings"
    set +a
}

has_images() {
    load_settings
    local name
    for name in TRITON_DIGEST VLLM_DIGEST; do [[ -n ${!name:-} ]] || lacks "$settings has no $name" || return; done
    local image
    for image in $(images); do docker image inspect "$image" >/dev/null 2>&1 || lacks "$image is not here" || return; done
}
images() { docker compose config --images; }
do_images() {
    load_settings
    run docker compose pull --ignore-buildable --quiet
    run docker compose build gateway
    pin TRITON_DIGEST "$triton_image"
    pin VLLM_DIGEST "$(vllm_image)"
}
vllm_image() { emit "vllm/vllm-openai:${VLLM_TAG:-v0.32.0}"; }
# What the tag $2 stands for today, written down: a later pull gets the same bytes or nothing.
pin() {
    ((!dry_run)) || { emit "   > $settings: $1=(digest of $2)"; return; }
    [[ -z ${!1:-} ]] || return 0
    local digest
    digest=$(docker image inspect --format '{{index .RepoDigests 0}}' "$2")
    emit "$1=${digest#*@}" >>"$settings"
    emit "   > $settings: $1=${digest#*@}"
}

has_gpus() {
    load_settings
    local image seen
    for image in "$triton_image" "$(vllm_image)"; do
        seen=$(docker run --rm --gpus all --entrypoint nvidia-smi "$image" -L 2>&1 | grep -c '^GPU ' || true)
        ((seen >= 4)) || lacks "$image sees $seen GPUs" || return
    done
}
do_gpus() { run nvidia-ctk runtime configure --runtime=docker; run systemctl restart docker; }

has_engine() {
    [[ -r $home/engine/config.json ]] || lacks "$home/engine holds no engine" || return
    verify_engine || return
    local world weights cache
    read -r world weights cache < <(read_engine)
    [[ $world == "$ranks" ]] || lacks "the engine is for $world GPUs, the layout $layout gives Triton $ranks" || return
    # Engines of unequal precision answer differently, and what is faster then is no question of load.
    load_settings
    [[ $weights != FP8 || ${VLLM_QUANTIZATION:-} == fp8 ]] || grep -q '"quantization_config"' "$home/checkpoint/config.json" ||
        lacks "the engine computes in FP8, vLLM as the checkpoint is: set VLLM_QUANTIZATION=fp8 in $settings" || return
    [[ $cache != FP8 || ${VLLM_KV_CACHE_DTYPE:-} == fp8* ]] ||
        lacks "the engine's KV cache is FP8, vLLM's is not: set VLLM_KV_CACHE_DTYPE=fp8 in $settings"
}
verify_engine() {
    "$cli" engine verify "$home/engine" --recipe "$recipe" --checkpoint "$home/checkpoint" --container "$triton_image"
}
read_engine() {
    python3 - "$home/engine/config.json" <<'END'
import json, sys
config = json.load(open(sys.argv[1]))["pretrained_config"]
quantization = config.get("quantization") or {}
print(config["mapping"]["world_size"], quantization.get("quant_algo"), quantization.get("kv_cache_quant_algo"))
END
}
do_engine() {
    # What is built already and fits its recipe is not built again for a setting of vLLM's.
    if ((!dry_run)) && verify_engine >/dev/null 2>&1; then return; fi
    ((dry_run)) || [[ ! -e $home/engine ]] || run mv "$home/engine" "$home/engine.refused.$(date -u +%Y%m%dT%H%M%SZ)"
    run "$cli" engine build "$recipe" --checkpoint "$home/checkpoint" --out "$home/engine" --container "$triton_image" --gpu-ids "$triton_gpus"
}

has_repository() {
    local config=$home/model_repo/tensorrt_llm/config.pbtxt
    [[ -r $config ]] || lacks "there is no $config" || return
    # shellcheck disable=SC2016 # the two characters themselves
    ! grep -qF '${' "$config" || lacks "$config has unfilled placeholders" || return
    "$cli" engine verify "$home/engine" --quick --recipe "$recipe" --repository "$home/model_repo" || return
    [[ $layout != shared ]] || grep -A1 -E 'max_tokens_in_paged_kv_cache' "$config" | grep -qE '"[1-9][0-9]*"' ||
        lacks "$config has no max_tokens_in_paged_kv_cache: beside another engine its KV cache needs a fixed size"
}
do_repository() { run "$cli" engine render "$recipe" --engine "$home/engine" --out "$home/model_repo" --tokenizer "$home/checkpoint"; }

gateway_url() { emit "http://127.0.0.1:${GATEWAY_PORT:-8080}"; }
has_start() {
    load_settings
    curl --silent --fail --output /dev/null "$(gateway_url)/ready" || lacks "$(gateway_url)/ready is not 200" || return
    local ready
    ready=$(curl --silent --fail "$(gateway_url)/metrics" | grep -cE '^crossover_backend_ready\{.*\} 1(\.0)?$' || true)
    ((ready == 2)) || lacks "$ready of two engines are ready"
}
do_start() { load_settings; run docker compose up --detach --wait --wait-timeout 2400; }

has_boot() {
    cmp --silent "$here/systemd/crossover-compose.service" "$units/crossover-compose.service" || lacks "the unit is not there, or another" || return
    systemctl is-enabled --quiet crossover-compose.service || lacks "the unit is not enabled"
}
do_boot() {
    run install -D -m 644 "$here/systemd/crossover-compose.service" "$units/crossover-compose.service"
    run systemctl daemon-reload
    run systemctl enable crossover-compose.service
}

# Inside, where the engines' names are known; their logs tell what no endpoint does.
has_doctor() {
    load_settings
    install -d "$home/logs"
    local engine
    for engine in triton vllm; do docker compose logs --no-log-prefix "$engine" >"$home/logs/$engine.log" || return; done
    docker compose exec -T gateway crossover doctor -c "$home/crossover.yaml" --log "triton=$home/logs/triton.log" --log "vllm=$home/logs/vllm.log"
}
do_doctor() {
    ((dry_run)) || return 0
    emit "   $ docker compose logs --no-log-prefix triton > $home/logs/triton.log"
    emit "   $ docker compose logs --no-log-prefix vllm > $home/logs/vllm.log"
    emit "   $ docker compose exec -T gateway crossover doctor -c $home/crossover.yaml --log triton=$home/logs/triton.log --log vllm=$home/logs/vllm.log"
}

# The gateway keeps the policy over restarts.
has_calibrate() {
    load_settings
    local calibration
    calibration=$("$cli" policy show --url "$(gateway_url)" --json |
        python3 -c 'import json, sys; [m] = json.load(sys.stdin)["models"]; print(m["policy"]["calibration"] or "")') ||
        lacks "the gateway does not report its policy" || return
    [[ -n $calibration ]] || lacks "the policy in force comes from no calibration"
}
do_calibrate() {
    load_settings
    local code=0
    # shellcheck disable=SC2086 # options, one word each
    run "$cli" calibrate --url "$(gateway_url)" --apply --out "$home/runs" $calibrate || code=$?
    ((code != 4)) || { emit "node.sh: the node runs; no single threshold is right for it, the report gives the reason" >&2; exit 4; }
    ((code == 0)) || die calibrate "crossover calibrate ended with $code"
}

# ---- arguments ----

quantization=None kv_cache_dtype=auto
dry_run=0 only='' from='' layout=two-plus-two home=/srv/crossover driver=590 kv_cache_bytes=25769803776 calibrate=''
checkpoint='' recipe='' model_id=''
DESTDIR=${DESTDIR:-}

value() { (($# > 1)) || refuse "$1 needs a value"; emit "$2"; }
while (($#)); do
    case $1 in
        --checkpoint) checkpoint=$(value "$@") ;;
        --recipe) recipe=$(value "$@") ;;
        --model-id) model_id=$(value "$@") ;;
        --layout) layout=$(value "$@") ;;
        --home) home=$(value "$@") ;;
        --driver) driver=$(value "$@") ;;
        --quantization) quantization=$(value "$@") ;;
        --kv-cache-dtype) kv_cache_dtype=$(value "$@") ;;
        --kv-cache-bytes) kv_cache_bytes=$(value "$@") ;;
        --calibrate) calibrate=$(value "$@") ;;
        --from) from=$(value "$@") ;;
        --only) only=$(value "$@") ;;
        --dry-run) dry_run=1; shift; continue ;;
        --list) for step in "${steps[@]}"; do printf '%-12s %s\n' "$step" "${titles[$step]}"; done; exit 0 ;;
        -h | --help) usage; exit 0 ;;
        *) refuse "unknown option $1; --help lists them" ;;
    esac
    shift 2
done

[[ -n $checkpoint ]] || refuse "--checkpoint is missing; --help explains it"
[[ -n $recipe ]] || refuse "--recipe is missing; --help explains it"
checkpoint=${checkpoint%/}
model_id=${model_id:-$(basename "$checkpoint")}
[[ $model_id =~ ^[A-Za-z0-9._/-]+$ ]] || refuse "--model-id: letters, digits, '.', '_', '-' and '/' only, is '$model_id'"
[[ $home == /* && $home =~ ^[A-Za-z0-9._/-]+$ ]] || refuse "--home: must be an absolute path without blanks, is '$home'"
[[ $driver =~ ^[0-9]+$ ]] || refuse "--driver: must be a branch like 590, is '$driver'"
[[ $kv_cache_bytes =~ ^[0-9]+$ ]] || refuse "--kv-cache-bytes: must be a number, is '$kv_cache_bytes'"
for word in "$quantization" "$kv_cache_dtype"; do
    [[ $word =~ ^[A-Za-z0-9_-]+$ ]] || refuse "--quantization, --kv-cache-dtype: must be one word, is '$word'"
done
for step in $from $only; do [[ -v titles[$step] ]] || refuse "there is no step '$step'; --list lists them"; done

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
checkout=$(dirname "$here")
cli=${CROSSOVER_CLI:-$checkout/.venv/bin/crossover}
settings=$DESTDIR/etc/crossover/compose.env
units=$DESTDIR/etc/systemd/system
triton_tag=26.07-trtllm-python-py3
triton_image=nvcr.io/nvidia/tritonserver:$triton_tag
case $layout in
    two-plus-two) ranks=2 triton_gpus=0,1 compose_files=$here/compose/compose.yaml ;;
    shared) ranks=4 triton_gpus=0,1,2,3 compose_files=$here/compose/compose.yaml:$here/compose/shared.yaml ;;
    *) refuse "--layout: must be two-plus-two or shared, is '$layout'" ;;
esac

# ---- the run ----

# A check may fail; that is its answer, and no error of this script.
ask() { trap - ERR; set +e; "has_$1" 2>&1; }

perform() {
    local step=$1 reason
    emit "== $step: ${titles[$step]}"
    if ((dry_run)); then "do_$step"; return; fi
    if reason=$(ask "$step"); then emit "${reason:-   holds}"; return; fi
    emit "   not yet: $reason"
    "do_$step"
    reason=$(ask "$step") || die "$step" "$reason"
    emit "   holds now"
}

trap 'printf "node.sh: %s: a command failed (line %s)\n  cure: %s\n" "${step:-start}" "$LINENO" "${cures[${step:-host}]}" >&2; exit 1' ERR
begun=0
[[ -n $from ]] || begun=1
for step in "${steps[@]}"; do
    [[ $step != "$from" ]] || begun=1
    ((begun)) || continue
    [[ -z $only || $step == "$only" ]] || continue
    perform "$step"
done
[[ -z $only ]] || exit 0
((!dry_run)) || { emit "== this is what would be run; nothing was"; exit 0; }
load_settings
emit "== done: the gateway is at $(gateway_url)/v1, Grafana at http://127.0.0.1:${GRAFANA_PORT:-3000}, keys are in $settings"
