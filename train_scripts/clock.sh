# shellcheck shell=bash disable=SC2034
# How long the stages of setup.sh and quickstart.sh take on this machine, in the state that it is in. Sourced by both.
# The seconds are those of two free cores of an AMD EPYC; `duration` scales them by what a small piece of work takes here.

TORCH_SECONDS=40 PACKAGES_SECONDS=40 COMPILE_SECONDS=80 TREES_SECONDS=10
BESIDE_SECONDS=10 # of a command beside the set-up, after it
SET_UP_SECONDS=$((TORCH_SECONDS + PACKAGES_SECONDS + COMPILE_SECONDS + TREES_SECONDS))
WARM_START_SECONDS=60 # 850 steps on free cores
TRAINING_START_SECONDS=45 TRAINING_SECONDS=75 # to the first step, and 640 prompts
EVALUATION_SECONDS=35
WORK_MILLISECONDS=500 # of the loop below

# measure_machine: sets SLOWNESS, in per cent of that machine's seconds, unless a caller has. Takes a second or two.
measure_machine() {
    [ -z "${SLOWNESS:-}" ] || return 0
    local before=${EPOCHREALTIME/[.,]/} job jobs=()
    for _ in 1 2; do
        (for ((i = 0; i < 250000; i++)); do :; done) &
        jobs+=($!)
    done
    for job in "${jobs[@]}"; do wait "$job"; done
    export SLOWNESS=$(((${EPOCHREALTIME/[.,]/} - before) / (10 * WORK_MILLISECONDS)))
}

# duration SECONDS: what takes SECONDS there, in words, for here.
duration() {
    local seconds=$(($1 * SLOWNESS / 100))
    [ $seconds -lt 90 ] && echo "$(((seconds + 9) / 10 * 10)) s" || echo "$(((seconds + 30) / 60)) min"
}
