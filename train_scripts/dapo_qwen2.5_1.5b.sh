#!/usr/bin/env bash
# DAPO with the recommended settings, dynamic sampling and tail batching: Qwen2.5-1.5B on one node (hybrid engine).
#   bash train_scripts/dapo_qwen2.5_1.5b.sh [FLAG...]              later flags win
#   SAGC=off bash train_scripts/dapo_qwen2.5_1.5b.sh [FLAG...]     the same recipe without the scheduler, as a baseline
#   SAGC=all bash train_scripts/dapo_qwen2.5_1.5b.sh [FLAG...]     with group control too
# What else the environment can set stands in launch.sh. Not run on this hardware: memory, disk and time are estimates.
# Hardware: 8 GPUs of 80 GB, 100 GB of host memory (sleeping states).
# Memory a GPU in GB:
#   training 43 = 3 states (16 bytes a parameter, ZeRO-3 over 8 GPUs) + 31 logits (10 bytes x 151,936 x 20,480 tokens)
#     + 2 activation checkpoints (2 bytes x 28 layers x 1,536 x tokens) + 4 a layer at work, gathered weights, other
#     + 3 sleeping engines (CUDA graphs, context)
#   generation 69 = 64 engines (0.8 of the card) + 1 sleeping actors' weights (ZeRO-3) + 4 contexts, NCCL, gaps; of the 64:
#     3 weights + 5 at work, CUDA graphs + 56 KV cache, 28 KiB a token (4 bytes x 28 layers x 2 heads x 128): 2 million tokens, of
#     which a rollout in flight has an eighth of 10,240: 512 at a time, for which vLLM has graphs
# Disk: 87 GB for checkpoints (two, the best, a new one) + 3 GB for the HF weights beside each, which stay: 36 a day.
# Time: 4 minutes a step of 2,048 samples, at most 132 steps an episode. The 10 EPISODES take up to 3.7 days, with 220 GB.
# Predicted (python eval/studies recipes): 63 s a step; with OpenRLHF's engine settings (128 at a time, no graphs) 128 s where
# the launches of an iteration take 10 ms, 210 s where they take 18.
set -euo pipefail

export MODEL=${MODEL:-Qwen/Qwen2.5-1.5B}
export MAX_NEW_TOKENS=${MAX_NEW_TOKENS:-8192}
export PROMPTS=${PROMPTS:-128} SAMPLES=${SAMPLES:-16} TRAIN_BATCH=${TRAIN_BATCH:-128}
export ENGINES=${ENGINES:-8} LONG_SAMPLES=2
export STEP_MINUTES=${STEP_MINUTES:-4} DISK_GB=${DISK_GB:-220} MEMORY_GB=${MEMORY_GB:-100}
exec bash "$(dirname "$0")/launch.sh" dapo_qwen2.5_1.5b "$@"
