#!/usr/bin/env bash
# dapo_qwen2.5_7b.sh with everything that this package has: group control on top of dynamic sampling and tail batching.
#   bash train_scripts/dapo_qwen2.5_7b_all.sh [FLAG...]   later flags win
# Control starts at 16 samples a prompt and keeps to its limit of 20 % of groups with a straggler. A step keeps its number of
# samples, so that with smaller groups it has more prompts. GROUP_SIZES="8 16" keeps it from going lower.
set -euo pipefail

export SAGC=all
exec bash "$(dirname "$0")/dapo_qwen2.5_7b.sh" "$@"
