# shellcheck shell=bash disable=SC2034
# How long the stages of setup.sh and quickstart.sh take on this machine, in the state that it is in. Sourced by both.
# The seconds were measured on two free cores of an AMD EPYC; `duration` scales them by what a small piece of work takes
# here.
# shellcheck source=/dev/null
. "${BASH_SOURCE[0]%/*}/values.sh"
TORCH_SECONDS=45 # 13 with the build for CPUs on the disk
PACKAGES_SECONDS=20
COMPILE_SECONDS=140 TREES_SECONDS=10 # while the warm start begins
SET_UP_SECONDS=$((TORCH_SECONDS + PACKAGES_SECONDS + COMPILE_SECONDS + TREES_SECONDS))
WARM_START_SECONDS=75 # 850 steps, or what is left of them when the set-up is done
TRAINING_START_SECONDS=45 TRAINING_SECONDS=90 # to the first step, and 640 prompts
EVALUATION_SECONDS=45

# slowness REAL CPU: per cent of that machine's seconds, where a piece of work takes REAL seconds on two cores and CPU
# seconds of both, which took it 0.55 and 0.95. Other programs make REAL longer, of which we take the root: the stages
# wait for network and disk too, and the load may end before they do.
slowness() { awk -v real="$1" -v cpu="$2" 'BEGIN { printf "%.0f", 100 * sqrt(real / 0.55 * cpu / 0.95) }'; }

# measure_machine: sets SLOWNESS, unless a caller has. Takes a second or two. The work is a compiler's, as most of the
# set-up is: a loop of bash ran a third faster on one EPYC than on another where the quickstart took as long.
measure_machine() {
    [ -z "${SLOWNESS:-}" ] || { check_numbers 1 SLOWNESS; return 0; }
    local TIMEFORMAT='%R %U' work="g++ -std=c++17 -fsyntax-only -x c++ - <<<'#include <regex>'" times
    times=$({ time { bash -c "$work" & bash -c "$work" & wait; }; } 2>&1)
    # shellcheck disable=SC2086 # two numbers
    SLOWNESS=$(LC_ALL=C slowness ${times//,/.})
    export SLOWNESS
}

# duration SECONDS: what takes SECONDS there, in words, for here.
duration() {
    local seconds=$1
    check_numbers 0 seconds SLOWNESS
    seconds=$((seconds * SLOWNESS / 100))
    [ $seconds -lt 90 ] && echo "$(((seconds + 9) / 10 * 10)) s" || echo "$(((seconds + 30) / 60)) min"
}
