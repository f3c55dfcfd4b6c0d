#!/usr/bin/env bash
# Sets up the CPU stack if need be and passes the tests: the gates of the patch series, the kernel's, then the others.
# Arguments go to pytest and leave the gates out: tests/run.sh tests/unit, tests/run.sh -m "not stack".
set -euo pipefail
cd "$(dirname "$0")/.."

bash train_scripts/setup.sh
run() { DS_ACCELERATOR=cpu PYTHONPATH=build/cpu-patched .venv/bin/python -m pytest "$@"; }
if [ $# -eq 0 ]; then
    .venv/bin/python -m black --quiet --check . || { echo "tests/run.sh: black would change the code" >&2; exit 1; }
    .venv/bin/python -m isort --quiet --check . || { echo "tests/run.sh: isort would change the code" >&2; exit 1; }
    bash patches/check.sh
    run tests/kernels # in a process of its own: Triton decides at its import whether it interprets
fi
run "$@"
