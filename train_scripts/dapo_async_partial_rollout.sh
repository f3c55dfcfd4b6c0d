#!/usr/bin/env bash
# Asynchronous DAPO with dynamic sampling and partial rollouts: Qwen2.5-7B on one node. 4 GPUs train while 4 generate; vLLM
# pauses for new weights and goes on with the rollouts that run.
#   bash train_scripts/dapo_async_partial_rollout.sh [FLAG...]             later flags win
#   SAGC=off bash train_scripts/dapo_async_partial_rollout.sh [FLAG...]    the same recipe without the scheduler
#   SAGC=all bash train_scripts/dapo_async_partial_rollout.sh [FLAG...]    with group control, whose gain here is unknown
# What else the environment can set stands in launch.sh. Not run on this hardware: memory, disk and time are estimates.
# Hardware: 8 GPUs of 80 GB.
# Memory a GPU in GB:
#   training 53 = 30 states (16 bytes a parameter, ZeRO-3 over 4 GPUs) + 16 logits (10 bytes x 152,064 x 10,240 tokens)
#     + 2 activation checkpoints (2 bytes x 28 layers x 3,584 x tokens) + 5 a layer at work, gathered weights, other
#   generation 72 (0.9 of the card) = 15 weights + 5 at work, CUDA graphs + 52 KV cache, 56 KiB a token (4 bytes x 28 layers x 4
#     heads x 128): 0.9 million tokens, of which a rollout in flight has an eighth of 10,240: 512 at a time
# Disk: 430 GB for checkpoints (two, the best, a new one) + 15 GB for the HF weights beside each, which stay: 180 a day.
# Time: 8 minutes a step of 2,048 samples, at most 132 steps an episode. The 10 EPISODES take up to 7.3 days, with 1,750 GB.
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
