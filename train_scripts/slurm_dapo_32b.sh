#!/usr/bin/env bash
# dapo_qwen2.5_32b_multinode.sh on Slurm: Ray on all nodes, the job submitted on the first. From the repository's root:
#   REWARD=/shared/reward.py sbatch --partition=... --account=... train_scripts/slurm_dapo_32b.sh [FLAG...]
#   SAGC=off REWARD=... sbatch ... train_scripts/slurm_dapo_32b.sh [FLAG...]   twin for plain OpenRLHF
# Options of sbatch win over those below (--nodes, --time). Hardware, memory, data and the variables of the environment
# are in that script. SRUN_ARGS: further options of srun, as for containers. Not run on this hardware.
#SBATCH --job-name=dapo_qwen2.5_32b
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --exclusive
set -euo pipefail
cd "$SLURM_SUBMIT_DIR" # Slurm runs a copy of this file from a folder of its own

PORT=${PORT:-6379}
read -ra srun_args <<<"${SRUN_ARGS:-}"
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

# --overlap: Ray's steps never end and hold the nodes' GPUs. --cpu-bind=none: else one task may get one core.
on() {
    local node=$1
    shift
    srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" --cpu-bind=none "${srun_args[@]}" "$@"
}

head=${nodes[0]}
address=$(on "$head" hostname --ip-address)
address=${address%% *} # a node may have several

on "$head" ray start --head --node-ip-address="$address" --port="$PORT" --block &
for _ in {1..60}; do
    if on "$head" ray job list --address=http://127.0.0.1:8265 >/dev/null 2>&1; then break; fi
    sleep 5
done
for node in "${nodes[@]:1}"; do
    on "$node" ray start --address="$address:$PORT" --block &
done

# The run itself waits until the nodes have joined. Slurm ends Ray's steps with this script.
export NODES=${#nodes[@]}
on "$head" bash train_scripts/dapo_qwen2.5_32b_multinode.sh "$@"
