#!/usr/bin/env bash
# A multi-turn agent with the recommended settings, dynamic sampling and tail batching: Qwen2.5-7B-Instruct on one node
# (hybrid engine).
#   AGENT=/path/agent.py bash train_scripts/multi_turn_agent.sh [FLAG...]   later flags win
#   SAGC=off ...   the same recipe without the scheduler, as a baseline
#   SAGC=all ...   with group control by seconds too: a rollout that waits for its tools is a straggler with few tokens too
# AGENT: a Python file with AgentExecutor, such as OpenRLHF's examples/python/agent_func.py (whose rewards are random). A
# tool that does not answer for AGENT_TIMEOUT (600) seconds costs its sample alone. DATA: what the agent is made for.
# What else the environment can set stands in launch.sh. Not run on this hardware: memory, disk and time are estimates.
# Hardware: 8 GPUs of 80 GB, 250 GB of host memory (sleeping states).
# Memory a GPU in GB, predicted by recipe_memory.py; docs/launch_scripts.md has other cards:
#   training 53 = 15 states + 25 logits of 10 bytes + 3.8 activation checkpoints + 3.0 ZeRO's buffers + 3.0 sleeping
#     engines + 3.0 context, NCCL, gaps
#   engines 69 = 7.6 weights + 5.0 at work, CUDA graphs + 51 KV cache + 1.9 sleeping actors' weights + 3.0 context,
#     NCCL, gaps
# Disk: 430 GB for checkpoints (two, the best, a new one) + 15 GB for the HF weights beside each, which stay: 180 a day.
# Time: 8 minutes a step of 1,024 samples, at most 132 steps an episode. The 10 EPISODES take up to 7.3 days, with 1,750 GB.
# Predicted without the tools' seconds (python eval/studies recipes): 161 s a step; with OpenRLHF's engine settings (128 at a time,
# no graphs) 237 s where the launches of an iteration take 10 ms, 377 s where they take 18. With engines of one GPU 212 s.
set -euo pipefail

case " $* " in *" --help "* | *" -h "*) exec bash "$(dirname "$0")/launch.sh" multi_turn_agent --help ;; esac
export AGENT=${AGENT:?a Python file with AgentExecutor, as OpenRLHF has in examples/python}
export MODEL=${MODEL:-Qwen/Qwen2.5-7B-Instruct}
export MAX_LEN=${MAX_LEN:-16384} # prompt, all turns and what the tools say
export PROMPTS=${PROMPTS:-128} SAMPLES=${SAMPLES:-8} TRAIN_BATCH=${TRAIN_BATCH:-256}
export GROUP_SIZES=${GROUP_SIZES:-4 8 16} TENSOR_PARALLEL=${TENSOR_PARALLEL:-2}
export STEP_MINUTES=${STEP_MINUTES:-8} DISK_GB=${DISK_GB:-1750} MEMORY_GB=${MEMORY_GB:-250}
exec bash "$(dirname "$0")/launch.sh" multi_turn_agent --vllm.enable_prefix_caching "$@"
