#!/usr/bin/env bash
# Sets up the CPU stack if need be and passes the tests: linters, the gates of the patch series, the kernel's, then the
# others. Arguments go to pytest and leave the gates out: tests/run.sh tests/unit, tests/run.sh -m "not stack".
set -euo pipefail
cd "$(dirname "$0")/.."

bash train_scripts/setup.sh
run() { DS_ACCELERATOR=cpu PYTHONPATH=build/cpu-patched .venv/bin/python -m pytest "$@"; }
if [ $# -eq 0 ]; then
    gate() { "${@:2}" || { echo "tests/run.sh: $1" >&2; exit 1; }; }
    mapfile -t scripts < <(git ls-files '*.sh')
    gate "black would change the code" .venv/bin/python -m black --quiet --check .
    gate "isort would change the code" .venv/bin/python -m isort --quiet --check .
    gate "ruff finds unused or undefined names" .venv/bin/ruff check --quiet .
    gate "mypy finds wrong types" .venv/bin/mypy --no-error-summary
    gate "shellcheck finds faults in scripts" .venv/bin/shellcheck "${scripts[@]}"
    bash patches/check.sh
    run tests/kernels # in a process of its own: Triton decides at its import whether it interprets
fi
run "$@"
