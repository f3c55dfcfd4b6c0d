#!/usr/bin/env bash
# Sets up the CPU stack if need be and passes the tests, first those that find most mistakes in the least time.
#   tests/run.sh           everything: linters, unit tests, gates of the patch series, the kernel, the real stack
#   tests/run.sh --fast    linters and unit tests: for every commit
#   tests/run.sh ARG...    what pytest makes of the arguments: tests/run.sh tests/unit/decisions -x
set -euo pipefail
cd "$(dirname "$0")/.."

unset PYTHONDONTWRITEBYTECODE # some images set it; then every process would compile torch and vLLM anew
bash train_scripts/setup.sh
export DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 PYTHONPATH=$PWD/build/cpu-patched
export TORCH_EXTENSIONS_DIR=$PWD/build/torch_extensions # what the set-up has compiled of DeepSpeed
WARM_PYTHON=$(bash train_scripts/on_cpu.sh cpu-base python tests/warm_python.py --start $$) # every test's process is a fork of this one
export WARM_PYTHON
if [ $# -gt 0 ] && [ "$*" != --fast ]; then
    [ "$1" != --fast ] || { echo "tests/run.sh: --fast takes no further arguments, got '${*:2}'" >&2; exit 2; }
    exec "$WARM_PYTHON" -m pytest "$@"
fi

log=build/tests.log
: >$log
# Two tests at a time. A worker that dies ends the tests, and is named: xdist would start another and then wait for ever.
run() { "$@" -n 2 --dist loadgroup --max-worker-restart 0 2>&1 | tee -a $log; }
end() {
    stage "passed; skipped here:"
    grep -E '^SKIPPED' $log || echo "nothing"
}

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
run "$WARM_PYTHON" -m pytest tests/unit
[ "${1:-}" != --fast ] || { end; exit; }
stage gates of the patch series
PYTHON=$WARM_PYTHON bash patches/check.sh --locked
run "$WARM_PYTHON" -m pytest tests/patches tests/deepspeed
stage kernel
run .venv/bin/python -m pytest tests/kernels # a new interpreter: Triton decides at its import whether it interprets
stage real stack
run "$WARM_PYTHON" -m pytest tests/stack
end
