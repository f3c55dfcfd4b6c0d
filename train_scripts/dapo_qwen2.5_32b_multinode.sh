#!/usr/bin/env bash
# DAPO with the recommended settings, dynamic sampling and tail batching: Qwen2.5-32B on a Ray cluster (hybrid engine).
# On the head node, where it waits until all nodes have joined (slurm_dapo_32b.sh does all of it on Slurm):
#   bash train_scripts/dapo_qwen2.5_32b_multinode.sh [FLAG...]             later flags win
#   SAGC=off bash train_scripts/dapo_qwen2.5_32b_multinode.sh [FLAG...]    the same recipe without the scheduler
#   SAGC=all bash train_scripts/dapo_qwen2.5_32b_multinode.sh [FLAG...]    with group control too
# OUTPUT, and REWARD if given, are on a file system that all nodes share; patched OpenRLHF and this package are installed
# on every node, or RUNTIME_ENV_JSON brings them. With WANDB_API_KEY set before Ray starts on the nodes, W&B logs.
# Start Ray with a token, on all nodes (docs/clusters.md); else the script ends with the line that makes one.
# What else the environment can set stands in launch.sh. Not run on this hardware: memory, disk and time are estimates.
# Hardware: NODES (8) nodes of 8 GPUs of 80 GB and 300 GB of host memory (sleeping states).
# Memory a GPU in GB, predicted by recipe_memory.py; docs/launch_scripts.md has other cards, and MAX_NEW_TOKENS=20480, as in
# the paper, fits 80 GB too:
#   training 40 = 8.2 states + 16 logits of 10 bytes + 7.1 activation checkpoints + 3.0 ZeRO's buffers + 3.0 sleeping
#     engines + 3.0 context, NCCL, gaps
#   engines 68 = 16 weights + 5.0 at work, CUDA graphs + 43 KV cache + 1.0 sleeping actors' weights + 3.0 context,
#     NCCL, gaps
# Disk: 1.9 TB for checkpoints (two, the best, a new one) + 66 GB for the HF weights beside each, which stay: 800 a day.
# Time: 15 minutes a step of 8,192 samples, at most 33 steps an episode. The 10 EPISODES take up to 3.4 days, with 4.6 TB.
# Predicted (python eval/studies recipes): 450 s a step; with OpenRLHF's engine settings (128 at a time, no graphs) 519 s where
# the launches of an iteration take 10 ms, 558 s where they take 18.
set -euo pipefail

export MODEL=${MODEL:-Qwen/Qwen2.5-32B}
export MAX_NEW_TOKENS=${MAX_NEW_TOKENS:-8192}
export PROMPTS=${PROMPTS:-512} SAMPLES=${SAMPLES:-16} TRAIN_BATCH=${TRAIN_BATCH:-512}
export NODES=${NODES:-8} TENSOR_PARALLEL=${TENSOR_PARALLEL:-4}
export STEP_MINUTES=${STEP_MINUTES:-15} DISK_GB=${DISK_GB:-4600} MEMORY_GB=${MEMORY_GB:-300}
export SUBMIT=${SUBMIT:-ray} # no: in small, on one node (smoke.sh)
exec bash "$(dirname "$0")/launch.sh" dapo_qwen2.5_32b_multinode "$@"
