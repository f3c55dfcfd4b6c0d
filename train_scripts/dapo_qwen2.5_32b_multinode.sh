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
# Memory a GPU in GB; MAX_NEW_TOKENS=20480, as in the paper, makes the training's 72, which leaves little:
#   training 43 = 8 states (16 bytes a parameter, ZeRO-3 over 64 GPUs) + 16 logits (10 bytes x 152,064 x 10,240 tokens)
#     + 7 activation checkpoints (2 bytes x 64 layers x 5,120 x tokens) + 9 a layer at work, gathered weights, other
#     + 3 sleeping engines (CUDA graphs, context)
#   generation 69 = 64 engines (0.8 of the card) + 1 sleeping actors' weights (ZeRO-3) + 4 contexts, NCCL, gaps; of the 64:
#     16 weights + 5 at work, CUDA graphs + 43 KV cache, 64 KiB a token (4 bytes x 64 layers x 8 heads x 128 / 4): 0.65 million
#     tokens of an engine, of which a rollout in flight has an eighth of 10,240: 496 at a time
# Disk: 1.9 TB for checkpoints (two, the best, a new one) + 66 GB for the HF weights beside each, which stay: 800 a day.
# Time: 15 minutes a step of 8,192 samples, at most 33 steps an episode. The 10 EPISODES take up to 3.4 days, with 4.6 TB.
# Predicted (python eval/studies recipes): 448 s a step; with OpenRLHF's engine settings (128 at a time, no graphs) 517 s where
# the launches of an iteration take 10 ms, 556 s where they take 18.
set -euo pipefail

export MODEL=${MODEL:-Qwen/Qwen2.5-32B}
export MAX_NEW_TOKENS=${MAX_NEW_TOKENS:-8192}
export PROMPTS=${PROMPTS:-512} SAMPLES=${SAMPLES:-16} TRAIN_BATCH=${TRAIN_BATCH:-512}
export NODES=${NODES:-8} TENSOR_PARALLEL=${TENSOR_PARALLEL:-4}
export STEP_MINUTES=${STEP_MINUTES:-15} DISK_GB=${DISK_GB:-4600} MEMORY_GB=${MEMORY_GB:-300}
export SUBMIT=${SUBMIT:-ray} # no: in small, on one node (smoke.sh)
exec bash "$(dirname "$0")/launch.sh" dapo_qwen2.5_32b_multinode "$@"
