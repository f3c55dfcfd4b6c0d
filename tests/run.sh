#!/usr/bin/env bash
# Sets up the CPU stack if need be and passes the tests, first those that find most mistakes in the least time.
#   tests/run.sh           all of it: linters, unit tests, gates of the patch series, the kernel, the real stack, of whose
#                          tests a quarter of those marked in_turns; with TURNS=all it leaves none out
#   tests/run.sh --fast    linters and unit tests: for every commit
#   tests/run.sh ARG...    what pytest makes of the arguments: tests/run.sh tests/unit/decisions -x
set -euo pipefail
cd "$(dirname "$0")/.."

unset PYTHONDONTWRITEBYTECODE # some images set it; then every process would compile torch and vLLM anew
bash train_scripts/setup.sh
export DS_ACCELERATOR=cpu TORCHDYNAMO_DISABLE=1 OMP_NUM_THREADS=1 PYTHONPATH=$PWD/build/cpu-patched
export TORCH_EXTENSIONS_DIR=$PWD/build/torch_extensions # what the set-up has compiled of DeepSpeed
WARM_PYTHON=$(bash train_scripts/on_cpu.sh cpu-base python tests/warm_python.py --start $$) # every test's process is a fork of this one
export WARM_PYTHON
if [ $# -gt 0 ] && [ "$*" != --fast ]; then
    [ "$1" != --fast ] || { echo "tests/run.sh: --fast takes no further arguments, got '${*:2}'" >&2; exit 2; }
    exec "$WARM_PYTHON" -m pytest "$@"
fi

# shellcheck source=/dev/null
. tests/stages.sh
trap table EXIT # also where the run is interrupted
# Three tests at a time fill two cores, since some wait. On the real stack three took 10 GB of memory.
at_once=$({ cat /proc/meminfo /sys/fs/cgroup/memory.max 2>/dev/null || true; } | # the latter where memory is limited
    awk '/^MemAvailable/ {kB = $2} /^[0-9]+$/ && $1 / 1024 < kB {kB = $1 / 1024} END {print kB < 14e6 ? 2 : 3}')
# A worker that dies ends the tests, and is named: xdist would start another and then wait for ever.
run_tests() { stage "$1" "$2" -m pytest -n "$at_once" --dist loadgroup --max-worker-restart 0 -rsfE "${@:3}"; }
mapfile -t scripts < <(git ls-files '*.sh')
stage black .venv/bin/python -m black --check .
stage isort .venv/bin/python -m isort --check .
stage ruff .venv/bin/ruff check .
stage mypy .venv/bin/mypy
stage shellcheck .venv/bin/shellcheck "${scripts[@]}"
run_tests "unit tests" "$WARM_PYTHON" tests/unit
if [ "${1:-}" != --fast ]; then
    run_tests "patches and DeepSpeed" "$WARM_PYTHON" tests/patches tests/deepspeed
    run_tests kernel .venv/bin/python tests/kernels # a new interpreter: Triton decides at its import whether it interprets
    run_tests "real stack" "$WARM_PYTHON" tests/stack
fi
all_passed
