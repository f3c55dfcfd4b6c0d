#!/usr/bin/env bash
# Builds OpenRLHF with the patch series from upstream's wheel, in build/ (or in the folder BUILD names):
#   build/base         the wheel's files, as a git repository
#   build/patched      base + patches/*.patch, what GPU machines run
#   build/cpu-base     base + patches/cpu/*.patch + $ENGINES, "unpatched" on a CPU
#   build/cpu-patched  cpu-base + the other patches/*.patch
#   build/dist/        an installable wheel of build/patched (`pip install`; back with `pip install openrlhf===VERSION`)
# Exit codes: 2 no Python, 10 wheel missing, 11 wheel differs from the pinned one, 12 a patch does not apply, 13 no
# wheel built.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=0.11.2
SHA256=c969d70db03a70724c3d8a5a01186c6e0728bce624fb3dff95e39b5396acefa6
WHEEL=build/wheel/openrlhf-$VERSION-cp311-cp311-manylinux1_x86_64.whl # its code is that of the wheels for 3.10 and 3.12
ENGINES=patches/0011-Give-vLLM-s-engines-the-data-type-of-the-training.patch # without it fp32 ends at the first weight sync
BUILD=${BUILD:-build}
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
# Commits must not depend on the user's git settings or on the clock, nor go to a repository that calls this.
# shellcheck disable=SC2046
unset $(git rev-parse --local-env-vars)
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME=OpenRLHF GIT_AUTHOR_EMAIL=openrlhf@localhost GIT_AUTHOR_DATE="2026-11-20T12:00:00+0000"
export GIT_COMMITTER_NAME=OpenRLHF GIT_COMMITTER_EMAIL=openrlhf@localhost GIT_COMMITTER_DATE="2026-11-20T12:00:00+0000"

fail() { echo "patches/build.sh: $2" >&2; exit "$1"; }

fetch_wheel() {
    [ -f "$WHEEL" ] || "$PYTHON" -m pip download --quiet --no-deps --only-binary=:all: --dest build/wheel \
        --python-version 3.11 --implementation cp --abi cp311 --platform manylinux1_x86_64 "openrlhf==$VERSION" ||
        fail 10 "openrlhf $VERSION could not be downloaded: check pip's index, or put its wheel at $WHEEL"
    [ -f "$WHEEL" ] || fail 10 "pip delivered another file than $WHEEL"
    local found
    found=$(sha256sum "$WHEEL" | cut -d" " -f1)
    [ "$found" = "$SHA256" ] || fail 11 "$WHEEL has sha256 $found, the series is made for $SHA256: delete it to download it anew"
}

make_base() {
    rm -rf "$BUILD"/base "$BUILD"/unpacked
    mkdir -p "$BUILD"/base "$BUILD"/unpacked
    "$PYTHON" -m zipfile -e "$WHEEL" "$BUILD"/unpacked
    cp -r "$BUILD"/unpacked/*.data/purelib/. "$BUILD"/base
    git -C "$BUILD"/base init --quiet --initial-branch=base
    git -C "$BUILD"/base add --all --force
    git -C "$BUILD"/base commit --quiet --message "OpenRLHF $VERSION"
}

# apply FROM TO BRANCH PATCH...: copies tree FROM to TO and commits the patches on it, on a new branch.
apply() {
    local from=$1 to=$2 branch=$3
    shift 3
    rm -rf "$to"
    cp -r "$from" "$to"
    git -C "$to" checkout --quiet -b "$branch"
    for patch in "$@"; do
        git -C "$to" am --quiet --no-3way --keep-non-patch --committer-date-is-author-date "$PWD/$patch" ||
            fail 12 "$patch does not apply to $from"
    done
}

# The version changes with the series, so that pip does not take another build of it for this one.
make_wheel() {
    local root=$BUILD/unpacked series=(patches/*.patch) local_version
    local_version="$VERSION+sagc.${#series[@]}.g$(cat "${series[@]}" | sha256sum | cut -c1-8)"
    cp -r "$BUILD"/patched/openrlhf "$BUILD"/patched/tests "$root/openrlhf-$VERSION.data/purelib/"
    sed -i "s/^Version: $VERSION$/Version: $local_version/" "$root/openrlhf-$VERSION.dist-info/METADATA"
    sed -i "s/^Root-Is-Purelib: .*/Root-Is-Purelib: true/; s/^Tag: .*/Tag: py3-none-any/" "$root/openrlhf-$VERSION.dist-info/WHEEL"
    for part in data dist-info; do mv "$root/openrlhf-$VERSION.$part" "$root/openrlhf-$local_version.$part"; done
    rm -rf "$BUILD"/dist
    mkdir "$BUILD"/dist
    SOURCE_DATE_EPOCH=1795176000 "$PYTHON" -m wheel pack --dest-dir "$BUILD"/dist "$root" >"$BUILD"/wheel.log 2>&1 ||
        fail 13 "the wheel was not built: $(tail -n 1 "$BUILD"/wheel.log)"
    rm -rf "$root"
}

command -v "$PYTHON" >/dev/null || fail 2 "no $PYTHON: set PYTHON to a Python 3 with pip and wheel"
mkdir -p build/wheel "$BUILD"
rm -f "$BUILD/stamp"
fetch_wheel
make_base
apply "$BUILD"/base "$BUILD"/patched main patches/*.patch
apply "$BUILD"/base "$BUILD"/cpu-base cpu patches/cpu/*.patch "$ENGINES"
mapfile -t others < <(printf '%s\n' patches/*.patch | grep -vxF "$ENGINES")
apply "$BUILD"/cpu-base "$BUILD"/cpu-patched main "${others[@]}"
make_wheel
cat patches/*.patch patches/cpu/*.patch patches/build.sh | sha256sum >"$BUILD/stamp" # what these trees were built from
echo "built $(ls "$BUILD"/dist/*.whl)"
