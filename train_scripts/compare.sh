#!/usr/bin/env bash
# One launch script as two arms or more on the same GPUs, and a report of them (docs/benchmarks.md):
#   bash train_scripts/compare.sh dapo_qwen2.5_7b.sh --arms unpatched recommended --steps 40 [--turns 20] [FLAG...]
# The arms train one after the other; with --turns N in turns of N steps, by checkpoints. An arm is a value of SAGC.
# Flags behind are for all arms. Results in --output, by default build/compare-NAME. --smoke: in small, on a CPU.
set -euo pipefail
# shellcheck source=/dev/null
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."

python=python3
[ ! -x .venv/bin/python ] || python=.venv/bin/python
exec "$python" eval/compare.py scripts "$@"
