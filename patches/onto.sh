#!/usr/bin/env bash
# Tries both series on another OpenRLHF, for check.sh --onto PATH: a source tree, a checkout, a wheel or an sdist. PATH is
# only read. Prints a line a patch: how it applies on top of the ones before it, and which of those it needs.
# Exit codes: 30 PATH is no OpenRLHF, 31 a patch does not apply, or only with fuzz, which build.sh refuses.
set -euo pipefail
path=$(realpath -s "${1:-}" 2>/dev/null || true)
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# shellcheck disable=SC2046 # a list of names
unset $(git rev-parse --local-env-vars)
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1

fail() { echo "patches/check.sh --onto: $2" >&2; exit "$1"; }
# Patches go to git's index alone, so that a tree is left and taken up again in one call.
tree() { git -C "$scratch/tree" "$@" 2>"$scratch/log"; }

# unpack PATH: writes its openrlhf/ and tests/ as tree object $base.
unpack() {
    local folder found=""
    case $1 in
        *.whl) "$PYTHON" -m zipfile -e "$1" "$scratch/archive" 2>/dev/null || fail 30 "$1 is no wheel" ;;
        *.tar.gz) mkdir "$scratch/archive"; tar -xzf "$1" -C "$scratch/archive" 2>/dev/null || fail 30 "$1 is no sdist" ;;
    esac
    # A wheel holds them at its top or in *.data/purelib, an sdist in its only folder.
    for folder in "$1" "$scratch"/archive "$scratch"/archive/* "$scratch"/archive/*/purelib; do
        [ ! -f "$folder/openrlhf/trainer/ppo_trainer.py" ] || found=$folder
    done
    [ -n "$found" ] || fail 30 "${1:-no PATH given:} is no OpenRLHF tree, wheel (.whl) or sdist (.tar.gz)"
    git init --quiet "$scratch/tree"
    cp -r "$found/openrlhf" "$scratch/tree"
    [ ! -d "$found/tests" ] || cp -r "$found/tests" "$scratch/tree"
    tree add --all --force
    base=$(tree write-tree)
}

# stand TREE PATCH...: whether these patches alone apply to TREE, each with as much context as in its turn.
stand() {
    local patch
    tree read-tree "$1"
    for patch in "${@:2}"; do tree apply --cached "-C${context[$patch]}" "$PWD/$patch" || return 1; done
}

# needed TREE PATCH EARLIER...: the fewest of EARLIER that PATCH applies to TREE with; the latest is left out first.
needed() {
    local from=$1 patch=$2 kept=("${@:3}") fewer i
    if stand "$from" "$patch"; then echo alone; return; fi
    for ((i = ${#kept[@]} - 1; i >= 0; i--)); do
        fewer=("${kept[@]:0:i}" "${kept[@]:i+1}")
        if stand "$from" "${fewer[@]}" "$patch"; then kept=("${fewer[@]}"); fi
    done
    echo "needs $(numbers "${kept[@]}")"
}

numbers() { printf '%s\n' "$@" | sed -E 's|patches/([^-]*)-.*|\1|' | paste -sd ' '; }

# try_series TREE FOLDER: FOLDER's patches in their order on TREE; what they make of it is tree object $result.
try_series() {
    local patch how offset before applied=() missing=()
    result=$1
    for patch in "$2"/*.patch; do
        tree read-tree "$result"
        context[$patch]=3
        if tree apply --cached --verbose "$PWD/$patch"; then
            offset=$(sed -nE 's/.*\(offset -?([0-9]+) lines?\).*/\1/p' "$scratch/log" | sort -n | tail -n 1)
            how="applies${offset:+ with offset $offset line}"
            [ "${offset:-1}" = 1 ] || how+=s
        elif cp "$scratch/log" "$scratch/why"; tree apply --cached --check --reverse "$PWD/$patch"; then
            how="already there"
        elif context[$patch]=1; tree apply --cached "$PWD/$patch" -C1; then
            how="applies with fuzz"
            failed=1
        else
            how="conflicts in $(sed -nE 's/^error: (.*): (patch does not apply|does not exist.*|No such file.*)$/\1/p' "$scratch/why" | paste -sd ' ')"
            failed=1
        fi
        before=${missing[*]+ (tried without $(numbers "${missing[@]}"))}
        case $how in
            applies*)
                result=$(tree write-tree)
                how+="; $(needed "$1" "$patch" "${applied[@]}")"
                applied+=("$patch")
                ;;
            conflicts*) missing+=("$patch") ;;
        esac
        echo "$(numbers "$patch"): $how$before"
    done
}

declare -A context
failed=0
unpack "$path"
echo "main series on ${path##*/}"
try_series "$base" patches
echo "cpu series on ${path##*/}"
try_series "$base" patches/cpu
echo "main series on ${path##*/} with the cpu series"
try_series "$result" patches
[ $failed = 0 ] || fail 31 "not every patch applies to $path"
