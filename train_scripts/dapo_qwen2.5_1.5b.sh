#!/usr/bin/env bash
# DAPO with the recommended settings, dynamic sampling and tail batching: Qwen2.5-1.5B on one node (hybrid engine).
#   bash train_scripts/dapo_qwen2.5_1.5b.sh [FLAG...]              later flags win
#   SAGC=off bash train_scripts/dapo_qwen2.5_1.5b.sh [FLAG...]     the same recipe without the scheduler, as a baseline
#   SAGC=all bash train_scripts/dapo_qwen2.5_1.5b.sh [FLAG...]     with group control too
# What else the environment can set stands in launch.sh. Not run on this hardware: memory, disk and time are estimates.
# Hardware: 8 GPUs of 80 GB, 100 GB of host memory (sleeping states).
# Memory a GPU in GB, predicted by recipe_memory.py; docs/launch_scripts.md has other cards:
#   training 45 = 3.1 states + 31 logits of 10 bytes + 2.0 activation checkpoints + 3.0 ZeRO's buffers + 3.0 sleeping
#     engines + 3.0 context, NCCL, gaps
#   engines 67 = 3.1 weights + 5.0 at work, CUDA graphs + 56 KV cache + 0.4 sleeping actors' weights + 3.0 context,
#     NCCL, gaps
# Disk: 87 GB for checkpoints (two, the best, a new one) + 3 GB for the HF weights beside each, which stay: 36 a day.
# Time: 4 minutes a step of 2,048 samples, at most 132 steps an episode. The 10 EPISODES take up to 3.7 days, with 220 GB.
# Predicted (python eval/studies recipes): 63 s a step; with OpenRLHF's engine settings (128 at a time, no graphs) 128 s where
# the launches of an iteration take 10 ms, 210 s where they take 18.
set -euo pipefail

export MODEL=${MODEL:-Qwen/Qwen2.5-1.5B}
export MAX_NEW_TOKENS=${MAX_NEW_TOKENS:-8192}
export PROMPTS=${PROMPTS:-128} SAMPLES=${SAMPLES:-16} TRAIN_BATCH=${TRAIN_BATCH:-128}
export LONG_SAMPLES=2
export STEP_MINUTES=${STEP_MINUTES:-4} DISK_GB=${DISK_GB:-220} MEMORY_GB=${MEMORY_GB:-100}
exec bash "$(dirname "$0")/launch.sh" dapo_qwen2.5_1.5b "$@"
