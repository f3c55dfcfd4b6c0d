#!/usr/bin/env bash
# Runs a command on the CPU stack: train_scripts/on_cpu.sh TREE COMMAND...
# TREE is the OpenRLHF of build/ to use: cpu-patched (this project) or cpu-base (unpatched).
# Every run has a Ray cluster of its own, which ends with it, so runs do not meet. Other users of the machine reach its
# ports, and get nothing there without its token; its session folder is private (docs/security.md).
set -euo pipefail
# shellcheck source=/dev/null
. "$(dirname "$0")/help.sh"
root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=/dev/null
. "$root/train_scripts/values.sh"
tree=$root/build/${1:?usage: train_scripts/on_cpu.sh cpu-patched|cpu-base COMMAND...}
shift
[ -d "$tree/openrlhf" ] || { shown "train_scripts/on_cpu.sh: no OpenRLHF in $tree: run train_scripts/setup.sh" >&2; exit 2; }

# Ray hands out GPUs that are not there: OpenRLHF asks for one per actor and engine.
export RAY_OVERRIDE_RESOURCES='{"GPU": 8, "CPU": 32}' RAY_USAGE_STATS_ENABLED=0
export RAY_prestart_worker_first_driver=0 # Ray would start a worker for each CPU, none of which a run uses
export RAY_process_group_cleanup_enabled=true # vLLM's engine ends with its actor, also where that is killed
export DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=$root/build/torch_extensions # keeps DeepSpeed's compiled CPU Adam
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1                       # GiB; vLLM's default takes far more
export VLLM_ENABLE_V1_MULTIPROCESSING=0 # an engine's worker in the engine's process, not in one more that polls
export TORCHDYNAMO_DISABLE=1            # nothing is compiled, but in the workers of a run without --vllm.enforce_eager
# CPU_THREADS: of each process; with a large model two take less time.
export OMP_NUM_THREADS="${CPU_THREADS:-1}" TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
# PACE_PATH: of eval/studies paced, a folder that slows engines and training down to a GPU's.
export PYTHONPATH=$tree${PACE_PATH:+:$PACE_PATH} PATH=$root/.venv/bin:$PATH
[ -z "${WARM_PYTHON:-}" ] || PATH=$(dirname "$WARM_PYTHON"):$PATH # of the tests: a python that starts at once
unset RAY_ADDRESS
unset PYTHONDONTWRITEBYTECODE # some images set it; then every process would compile torch and vLLM anew

# is_open FILE: by a process of this user.
is_open() {
    local open
    for open in /proc/[0-9]*/fd/*; do
        [ ! "$open" -ef "$1" ] || return 0
    done
    return 1
}
# torch holds a lock open while it compiles or loads, and waits for ever for that of a process that was killed meanwhile.
# A process on another machine may hold a young one, where the folder is shared; loading takes seconds.
for lock in "$TORCH_EXTENSIONS_DIR"/*/lock; do
    while made=$(stat -c %Y "$lock" 2>/dev/null); do
        age=$(($(date +%s) - made)) # far below 0 by another clock
        if is_open "$lock"; then    # it may be killed yet
            waits="for a process that has $lock open"
        elif [ $age -gt -60 ] && [ $age -lt 60 ]; then
            waits="$((60 - age)) s before it deletes $lock, which no process of yours has open"
        else
            rm -f "$lock"
            break
        fi
        [ $age -lt 10 ] || shown "train_scripts/on_cpu.sh: waits $waits" >&2
        sleep 2
    done
done

RAY_TMPDIR=$(mktemp -d /tmp/ray.XXXXXX) # short whatever TMPDIR is: Ray's socket paths are limited to 107 characters
export RAY_TMPDIR
# shellcheck source=/dev/null
. "$root/train_scripts/private_ray.sh"
private_ray "$RAY_TMPDIR"

(trap - INT && exec "$@") & # which bash would have ignore it
command=$!
for name in HUP INT TERM USR1; do
    # shellcheck disable=SC2064
    trap "caught=yes; kill -s $name $command 2>/dev/null || true" "$name"
done
# Whatever ends this script, the run ends first, which takes a while where it saves. Ray's last processes may still write there.
trap 'kill "$command" 2>/dev/null || true; wait "$command" || true
for _ in 1 2 3 4 5; do rm -rf "$RAY_TMPDIR" 2>/dev/null && break; sleep 0.5; done' EXIT
until caught=''; wait "$command"; code=$?; [ -z "$caught" ]; do :; done # a signal ends the waiting, not the run
exit $code
