#!/usr/bin/env bash
# The gates of the patch series; prints a line per gate, and on the first that breaks what broke.
#   check.sh              tests the tree after every patch, and every patch alone; writes what it checked to check.lock
#   check.sh --locked     tests the three final trees, and that check.lock is about this very series
#   check.sh --onto PATH  tries the series on another OpenRLHF
# Exit codes: 1 another option, 2, 10-12 from trees.py, 20 a message is incomplete, 21 the series is over budget, 22 a patch
# file is not what its commit exports to, 23 a tree does not compile, 24 black or isort would change a patched file, 25
# upstream's tests fail, or are not all there, after a patch, 26 check.lock is about another series, 27 a patch's own tests
# pass without it, 30 and 31 from onto.sh.
set -euo pipefail
case ${1:-} in
    "" | --locked) ;;
    --onto) exec bash "$(dirname "$0")/onto.sh" "${2:-}" ;;
    *) echo "usage: bash patches/check.sh [--locked | --onto PATH]" >&2; exit 1 ;;
esac
cd "$(dirname "$0")/.."
# shellcheck source=/dev/null
. train_scripts/values.sh

# Each of some forty trees is tested in a process of its own, which is a fork of one that has imported torch.
PYTHON=$(realpath -s "${PYTHON:-$(DS_ACCELERATOR=cpu .venv/bin/python tests/warm_python.py --start $$)}")
BUILD=build/gates # its own trees: those of build/ may be in use
LOCK=patches/check.lock
export PYTHON BUILD GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
# What the set-up has compiled of DeepSpeed, and its ninja: another one would compile it again, which takes a minute.
export TORCH_EXTENSIONS_DIR=${TORCH_EXTENSIONS_DIR:-$PWD/build/torch_extensions} PATH=$PWD/.venv/bin:$PATH
# shellcheck disable=SC2046
unset $(git rev-parse --local-env-vars)
UPSTREAM_TESTS=221
MAIN_BUDGET=480
CPU_BUDGET=150

fail() { echo "patches/check.sh: $2" >&2; exit "$1"; }

# Two runs at a time would delete each other's trees.
mkdir -p build
exec {lock}>build/gates.lock
flock --nonblock "$lock" || { echo "patches/check.sh: waits for another run, which holds build/gates.lock"; flock "$lock"; }
mkdir -p $BUILD

# changed_lines PATCH...: without upstream's tests/, which a patch may extend as far as it needs.
changed_lines() { awk '/^diff --git /{code = !/ a\/tests\//} code && /^[+-]/ && !/^(\+\+\+|---)/' "$@" | wc -l; }

check_messages() {
    local patch field
    for patch in patches/*.patch patches/cpu/*.patch; do
        for field in "^Risk: " "^Forwarded: " "^Signed-off-by: .* <.*@.*>"; do
            grep -qE "$field" "$patch" || fail 20 "$patch: its message has no line like /$field/"
        done
    done
}

# check_budget LIMIT NAME PATCH...
check_budget() {
    local limit=$1 name=$2 lines
    shift 2
    lines=$(changed_lines "$@")
    check_numbers 0 lines limit
    [ "$lines" -le "$limit" ] || fail 21 "the $name series changes $lines lines, its budget is $limit"
    echo "$name series: $# patches, $lines changed lines (budget $limit)"
}

# check_export TREE FOLDER [N]: exporting the commits again, but the last N (0), gives the same bytes.
check_export() {
    local again patch exported kept
    again=$PWD/$BUILD/export
    rm -rf "$again"
    git -C "$1" format-patch --quiet --zero-commit --full-index --no-signature -N -o "$again" "$(git -C "$1" rev-list --max-parents=0 HEAD)..HEAD~${3:-0}"
    for patch in "$2"/*.patch; do
        cmp -s "$patch" "$again/${patch##*/}" || fail 22 "$patch is not what its commit exports to (edited by hand?)"
    done
    exported=$(find "$again" -name '*.patch' | wc -l) kept=$(find "$2" -maxdepth 1 -name '*.patch' | wc -l)
    [ "$exported" = "$kept" ] ||
        fail 22 "$2 holds other patches than $1 has commits"
}

# check_tree TREE NAME: compiles, is formatted as upstream formats, passes upstream's tests.
# shellcheck disable=SC2086 # files: upstream's names, without spaces
check_tree() {
    local tree=$1 name=$2 files passed count log=$1.log
    (cd "$tree" && "$PYTHON" -m compileall -q openrlhf tests) || fail 23 "$name does not compile"
    files=$(git -C "$tree" show --name-only --format= HEAD -- '*.py')
    (cd "$tree" && "$PYTHON" -m black --quiet --check --line-length 119 $files) || fail 24 "$name: black would change it"
    # Two files do not pass isort in the wheel as it is.
    files=$(echo "$files" | grep -vE '/(vllm_worker_wrap|deepspeed)\.py$' || true)
    [ -z "$files" ] || (cd "$tree" && "$PYTHON" -m isort --quiet --check --profile black --line-length 119 --py 310 $files) ||
        fail 24 "$name: isort would change it"
    (cd "$tree" && "$PYTHON" -m pytest -q -p no:cacheprovider --import-mode=prepend -c /dev/null --rootdir . tests) >"$log" 2>&1 ||
        fail 25 "$name: upstream's tests fail, see $log: $(grep -m 1 -E '^(FAILED|ERROR)' "$log")"
    passed=$(sed -nE '$s/.*\b([0-9]+ passed).*/\1/p' "$log")
    count=${passed% passed} count=${count:-0}
    check_numbers 0 count
    [ "$count" -ge "$UPSTREAM_TESTS" ] ||
        fail 25 "$name: not all $UPSTREAM_TESTS upstream tests passed: $(tail -n 1 "$log")"
    echo "$name: $(tail -n 1 "$log")"
    echo "$passed  $name" >>$BUILD/passed
}

# check_red TREE PATCH: the tests that the patch brings fail on the tree without it.
check_red() {
    local tree=$1 patch=$2 log=$1.log tests status=0
    mapfile -t tests < <(git apply --numstat "$patch" | cut -f3 | grep '^tests/')
    [ ${#tests[@]} -gt 0 ] || return 0
    git -C "$tree" apply --include='tests/*' "$PWD/$patch"
    (cd "$tree" && "$PYTHON" -m pytest -q -p no:cacheprovider --import-mode=prepend -c /dev/null --rootdir . "${tests[@]}") >"$log" 2>&1 ||
        status=$?
    [ $status = 1 ] || fail 27 "$patch: its tests do not fail without it: $(tail -n 1 "$log")"
    echo "$patch: without it $(tail -n 1 "$log")"
    echo "$(sed -nE '$s/.*\b([0-9]+ failed).*/\1/p' "$log")  without $patch" >>$BUILD/passed
}

# check_later CHECK TREE NAME: CHECK on a copy of TREE as it is now, as many at a time as there are CPUs.
# Each is waited for once: the number of one that has ended may be another process's by now.
checks=() waited=0 cores=$(nproc)
check_numbers 1 cores
rm -f $BUILD/passed
trap 'for check in "${checks[@]:waited}"; do kill -- "-$check" 2>/dev/null || true; done' EXIT
check_later() {
    local copy=$BUILD/trees/${#checks[@]}
    if [ $((${#checks[@]} - waited)) -ge "$cores" ]; then
        wait "${checks[waited]}" # and exit as it does
        waited=$((waited + 1))
    fi
    rm -rf "$copy"
    mkdir -p "$BUILD/trees"
    cp -r "$2" "$copy"
    set -m # a process group of its own, so that its tests end with it
    ("$1" "$copy" "$3"; rm -rf "$copy") &
    set +m
    checks+=($!)
}

# check_series FROM FOLDER [PATCH...]: every patch of the folder on top of the ones before it and of these.
check_series() {
    local tree=$BUILD/tree patch
    rm -rf "$tree"
    cp -r "$1" "$tree"
    for patch in "${@:3}"; do
        git -C "$tree" -c user.name=OpenRLHF -c user.email=openrlhf@localhost am --quiet --no-3way --keep-non-patch "$PWD/$patch"
    done
    for patch in "$2"/*.patch; do
        check_later check_red "$tree" "$patch"
        git -C "$tree" -c user.name=OpenRLHF -c user.email=openrlhf@localhost am --quiet --no-3way --keep-non-patch "$PWD/$patch"
        check_later check_tree "$tree" "$patch"
    done
    rm -rf "$tree"
}

# check_alone FROM: every patch on FROM with nothing but the patches that it needs.
check_alone() {
    local tree=$BUILD/tree name needs number
    bash patches/onto.sh "$1" >$BUILD/onto
    while read -r name needs; do
        rm -rf "$tree"
        cp -r "$1" "$tree"
        for number in $needs $name; do
            git -C "$tree" -c user.name=OpenRLHF -c user.email=openrlhf@localhost am --quiet --no-3way --keep-non-patch "$PWD/patches/$number"-*.patch
        done
        check_later check_tree "$tree" "$name with ${needs:-nothing else}"
    done < <(sed -nE '/with the cpu series$/q; s/^(.*): applies; (alone|needs)(.*)/\1\3/p' $BUILD/onto)
    rm -rf "$tree"
}

# The files that decide what is checked; trees.py holds the wheel's digest, the requirements what the tests run with.
checked_files() {
    sha256sum patches/*.patch patches/cpu/*.patch patches/trees.py patches/check.sh patches/onto.sh requirements-cpu.txt
}

check_lock() {
    cmp -s <(checked_files) <(grep -E '^[0-9a-f]{64} ' $LOCK) ||
        fail 26 "$LOCK is about another series or script: run patches/check.sh and commit the lock"
    local patch
    for patch in patches/*.patch patches/cpu/*.patch; do
        grep -q "^[0-9]* passed  $patch$" $LOCK || fail 26 "$LOCK does not say that tests passed after $patch: run patches/check.sh"
    done
}

[ "${1:-}" != --locked ] || check_lock
check_messages
check_budget $MAIN_BUDGET main patches/*.patch
check_budget $CPU_BUDGET cpu patches/cpu/*.patch
bash patches/build.sh
check_export $BUILD/patched patches
check_export $BUILD/cpu-base patches/cpu 2 # the last two are of the main series
if [ "${1:-}" = --locked ]; then
    check_later check_tree $BUILD/cpu-base "cpu series" # the fastest first: the third waits for it
    check_later check_tree $BUILD/patched "main series"
else
    check_series $BUILD/base patches
    check_series $BUILD/base patches/cpu patches/*-Pack-samples-without-flash-attn-*.patch # without it nothing can be imported
    check_alone $BUILD/base
fi
check_later check_tree $BUILD/cpu-patched "both series"
for check in "${checks[@]:waited}"; do wait "$check"; done
[ "${1:-}" = --locked ] || { checked_files; sort $BUILD/passed; } >$LOCK
rm -rf $BUILD
