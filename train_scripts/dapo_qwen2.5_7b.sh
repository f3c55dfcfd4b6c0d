#!/usr/bin/env bash
# DAPO with the recommended settings, dynamic sampling and tail batching: Qwen2.5-7B on one node (hybrid engine).
#   bash train_scripts/dapo_qwen2.5_7b.sh [FLAG...]                later flags win
#   SAGC=off bash train_scripts/dapo_qwen2.5_7b.sh [FLAG...]       the same recipe without the scheduler, as a baseline
#   bash train_scripts/dapo_qwen2.5_7b_all.sh [FLAG...]            with group control too
# What else the environment can set stands in launch.sh. Not run on this hardware: memory, disk and time are estimates.
# Hardware: 8 GPUs of 80 GB, 250 GB of host memory (sleeping states).
# Memory a GPU in GB, predicted by recipe_memory.py; docs/launch_scripts.md has other cards:
#   training 64 = 15 states + 34 logits of 10 bytes + 5.2 activation checkpoints + 3.0 ZeRO's buffers + 3.0 sleeping
#     engines + 3.0 context, NCCL, gaps
#   engines 69 = 7.6 weights + 5.0 at work, CUDA graphs + 51 KV cache + 1.9 sleeping actors' weights + 3.0 context,
#     NCCL, gaps
# Disk: 430 GB for checkpoints (two, the best, a new one) + 15 GB for the HF weights beside each, which stay: 180 a day.
# Time: 20 minutes a step of 8,192 samples, at most 33 steps an episode. The 10 EPISODES take up to 4.6 days, with 1,260 GB.
# Predicted (python eval/studies recipes): 962 s a step; with OpenRLHF's engine settings (128 at a time, no graphs) 1,127 s where
# the launches of an iteration take 10 ms, 1,486 s where they take 18.
set -euo pipefail

export MODEL=${MODEL:-Qwen/Qwen2.5-7B}
export MAX_NEW_TOKENS=${MAX_NEW_TOKENS:-20480}
export PROMPTS=${PROMPTS:-512} SAMPLES=${SAMPLES:-16} TRAIN_BATCH=${TRAIN_BATCH:-512}
export TENSOR_PARALLEL=${TENSOR_PARALLEL:-2}
export STEP_MINUTES=${STEP_MINUTES:-20} DISK_GB=${DISK_GB:-1260} MEMORY_GB=${MEMORY_GB:-250}
exec bash "$(dirname "$0")/launch.sh" "${NAME:-dapo_qwen2.5_7b}" "$@"
