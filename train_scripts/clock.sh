# shellcheck shell=bash disable=SC2034
# How long the stages of setup.sh and quickstart.sh take on this machine, in the state that it is in. Sourced by both.
# The seconds are those of two free cores of an AMD EPYC; `duration` scales them by what a small piece of work takes here.
TORCH_SECONDS=45 PACKAGES_SECONDS=40 COMPILE_SECONDS=110 TREES_SECONDS=10
SET_UP_SECONDS=$((TORCH_SECONDS + PACKAGES_SECONDS + COMPILE_SECONDS + TREES_SECONDS))
WARM_START_SECONDS=60 # 850 steps on free cores
TRAINING_START_SECONDS=45 TRAINING_SECONDS=80 # to the first step, and 640 prompts
EVALUATION_SECONDS=40

# slowness REAL CPU: per cent of that machine's seconds, where a piece of work that took it 0.5 s on each of two cores takes
# REAL seconds and CPU seconds of both. Other programs make REAL longer, of which we take the root: the stages wait for
# network and disk too, and the load may end before they do.
slowness() { awk -v real="$1" -v cpu="$2" 'BEGIN { printf "%.0f", 100 * sqrt(real / 0.5 * cpu / 1) }'; }

# measure_machine: sets SLOWNESS, unless a caller has. Takes a second or two.
measure_machine() {
    [ -z "${SLOWNESS:-}" ] || return 0
    local TIMEFORMAT='%R %U' work='for ((i = 0; i < 250000; i++)); do :; done' times
    times=$({ time { bash -c "$work" & bash -c "$work" & wait; }; } 2>&1)
    # shellcheck disable=SC2086 # two numbers
    SLOWNESS=$(LC_ALL=C slowness ${times//,/.})
    export SLOWNESS
}

# duration SECONDS: what takes SECONDS there, in words, for here.
duration() {
    local seconds=$(($1 * SLOWNESS / 100))
    [ $seconds -lt 90 ] && echo "$(((seconds + 9) / 10 * 10)) s" || echo "$(((seconds + 30) / 60)) min"
}
