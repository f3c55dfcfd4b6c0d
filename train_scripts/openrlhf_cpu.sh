#!/usr/bin/env bash
# Runs OpenRLHF's PPO/GRPO trainer without a GPU: train_scripts/openrlhf_cpu.sh TREE FLAG...
# TREE is a folder of build/: cpu-patched (this project) or cpu-base (unpatched); the flags are OpenRLHF's own.
# Every run has a Ray cluster of its own, which ends with it, so runs do not meet.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
tree=$root/build/${1:?usage: train_scripts/openrlhf_cpu.sh cpu-patched|cpu-base FLAG...}
shift
[ -d "$tree/openrlhf" ] || { echo "train_scripts/openrlhf_cpu.sh: no OpenRLHF in $tree: run train_scripts/setup.sh" >&2; exit 2; }

# Ray hands out GPUs that are not there: OpenRLHF asks for one per actor and engine.
export RAY_OVERRIDE_RESOURCES='{"GPU": 8, "CPU": 32}' RAY_USAGE_STATS_ENABLED=0
export DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=$root/build/torch_extensions  # keeps DeepSpeed's compiled CPU Adam
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1                        # GiB; vLLM's default takes half the memory
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
export PYTHONPATH=$tree PATH=$root/.venv/bin:$PATH
unset RAY_ADDRESS
RAY_TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/ray.XXXXXX") # short: Ray's socket paths are limited to 107 characters
export RAY_TMPDIR

python -m openrlhf.cli.train_ppo_ray \
    --vllm.enforce_eager --vllm.sync_backend gloo --ds.attn_implementation eager "$@" &
trainer=$!
trap 'kill "$trainer" 2>/dev/null || true' INT TERM
trap 'rm -rf "$RAY_TMPDIR"' EXIT
code=0
wait "$trainer" || code=$?
exit $code
