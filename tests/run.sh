#!/usr/bin/env bash
# Sets up the CPU stack if need be and passes the tests, first those that find most mistakes in the least time.
#   tests/run.sh           everything: linters, unit tests, gates of the patch series, the kernel, the real stack
#   tests/run.sh --fast    linters and unit tests: for every commit
#   tests/run.sh ARG...    what pytest makes of the arguments: tests/run.sh tests/unit/decisions -x
set -euo pipefail
cd "$(dirname "$0")/.."

bash train_scripts/setup.sh
export DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 PYTHONPATH=$PWD/build/cpu-patched
WARM_PYTHON=$(bash train_scripts/on_cpu.sh cpu-base python tests/warm_python.py --start $$) # every test's process is a fork of this one
export WARM_PYTHON
run() { "$WARM_PYTHON" -m pytest "$@"; }
in_pairs() { run -n 2 --dist loadgroup "$@"; } # two tests at a time
if [ $# -gt 0 ] && [ "$1" != --fast ]; then
    run "$@"
    exit
fi

stage() { echo "[tests, minute $((SECONDS / 60))] $*"; }
gate() { "${@:2}" || { echo "tests/run.sh: $1" >&2; exit 1; }; }
mapfile -t scripts < <(git ls-files '*.sh')
stage linters
gate "black would change the code" .venv/bin/python -m black --quiet --check .
gate "isort would change the code" .venv/bin/python -m isort --quiet --check .
gate "ruff finds unused or undefined names" .venv/bin/ruff check --quiet .
gate "mypy finds wrong types" .venv/bin/mypy --no-error-summary
gate "shellcheck finds faults in scripts" .venv/bin/shellcheck "${scripts[@]}"
stage unit tests
in_pairs tests/unit tests/patches
[ "${1:-}" != --fast ] || exit 0
stage gates of the patch series
PYTHON=$WARM_PYTHON bash patches/check.sh --locked
stage kernel
.venv/bin/python -m pytest -n 2 tests/kernels # a new interpreter: Triton decides at its import whether it interprets
stage real stack
in_pairs tests/stack
