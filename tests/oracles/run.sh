#!/usr/bin/env bash
# Compares the group advantages with verl's, torch_scatter's and TRL's, in a venv of their own (build/oracles/.venv, made
# once). Arguments go to pytest. Exit codes: 2 something is missing, 3 an installation failed, else pytest's.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=/dev/null
. train_scripts/values.sh

REQUIREMENTS=tests/oracles/requirements.txt
VENV=build/oracles/.venv
DISK_GB=3
fail() { echo "tests/oracles/run.sh: $2" >&2; exit "$1"; }
note() { echo "[oracles $(date +%H:%M:%S)] $*"; }

check_machine() {
    local program free
    [ -x .venv/bin/python ] || fail 2 ".venv is missing: run bash train_scripts/setup.sh"
    for program in g++ flock; do
        command -v $program >/dev/null || fail 2 "$program is missing: install it (Debian: apt-get install g++ util-linux)"
    done
    free=$(df --output=avail -BG . | tail -n 1 | tr -dc 0-9)
    check_numbers 0 free
    [ -x $VENV/bin/python ] || [ "$free" -ge $DISK_GB ] || fail 2 "needs $DISK_GB GB of free disk here, found $free GB"
}

# shellcheck disable=SC2046 # a requirement has no spaces
install_packages() {
    local pip="$VENV/bin/python -m pip install --disable-pip-version-check --quiet"
    requirements() { grep -oE '^[^ #]+' $REQUIREMENTS | grep -E "$@"; }
    note "making $VENV (about 6 minutes)"
    rm -rf $VENV
    .venv/bin/python -m venv $VENV
    note "1/3 torch, TRL and what verl imports"
    $pip $(requirements -v '^(torch_scatter|verl)=') || fail 3 "pip could not install $REQUIREMENTS"
    note "2/3 verl"
    $pip --no-deps $(requirements '^verl=') || fail 3 "pip could not install verl"
    note "3/3 torch_scatter, compiled"
    # A wheel in pip's cache may have been compiled against another torch.
    FORCE_ONLY_CPU=1 $pip --no-deps --no-build-isolation --no-cache-dir $(requirements '^torch_scatter=') ||
        fail 3 "pip could not compile torch_scatter"
}

check_machine
mkdir -p build/oracles
exec 9>build/oracles/lock
flock 9
if [ "$(cat $VENV/stamp 2>/dev/null)" != "$(sha256sum <$REQUIREMENTS)" ]; then
    install_packages
    sha256sum <$REQUIREMENTS >$VENV/stamp
fi
PYTHONPATH=$PWD exec $VENV/bin/python -m pytest tests/oracles "$@"
