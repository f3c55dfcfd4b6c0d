#!/usr/bin/env bash
# Asynchronous DAPO with dynamic sampling and partial rollouts: Qwen2.5-7B on one node. 4 GPUs train while 4 generate; vLLM
# pauses for new weights and goes on with the rollouts that run.
#   bash train_scripts/dapo_async_partial_rollout.sh [FLAG...]             later flags win
#   SAGC=off bash train_scripts/dapo_async_partial_rollout.sh [FLAG...]    the same recipe without the scheduler
#   SAGC=all bash train_scripts/dapo_async_partial_rollout.sh [FLAG...]    with group control, whose gain here is unknown
# What else the environment can set stands in launch.sh. Not run on this hardware: memory, disk and time are estimates.
# Hardware: 8 GPUs of 80 GB.
# Memory a GPU in GB, predicted by recipe_memory.py; docs/launch_scripts.md has other cards:
#   training 54 = 30 states + 16 logits of 10 bytes + 2.3 activation checkpoints + 3.0 ZeRO's buffers + 3.0 context,
#     NCCL, gaps
#   engines 72 = 15 weights + 5.0 at work, CUDA graphs + 52 KV cache
# Disk: 430 GB for checkpoints (two, the best, a new one) + 15 GB for the HF weights beside each, which stay: 180 a day.
# Time: 8 minutes a step of 2,048 samples, at most 132 steps an episode. The 10 EPISODES take up to 7.3 days, with 1,750 GB.
#   Not in it: at each weight sync vLLM drops the KV cache of all that runs and reads it again, some 30 s where it is full (0.9 million
#   tokens x 2 x 7.6e9 at half of an H100's 989 TFLOP/s).
set -euo pipefail

export MODEL=${MODEL:-Qwen/Qwen2.5-7B}
export MAX_NEW_TOKENS=${MAX_NEW_TOKENS:-8192}
export PROMPTS=${PROMPTS:-128} SAMPLES=${SAMPLES:-16} TRAIN_BATCH=${TRAIN_BATCH:-512}
export ACTOR_GPUS=${ACTOR_GPUS:-4} ENGINES=${ENGINES:-4} GPU_MEMORY=${GPU_MEMORY:-0.9}
export STEP_MINUTES=${STEP_MINUTES:-8} DISK_GB=${DISK_GB:-1750}
export SHAPE=async
exec bash "$(dirname "$0")/launch.sh" dapo_async_partial_rollout \
    --train.async_enable \
    --train.partial_rollout_enable \
    --algo.advantage.is_correction_level token \
    "$@"
