#!/usr/bin/env bash
# dapo_qwen2.5_32b_multinode.sh on Slurm: Ray on all nodes, the job submitted on the first. From the repository's root:
#   sbatch --partition=... --account=... train_scripts/slurm_dapo_32b.sh [FLAG...]
#   SAGC=off sbatch ... train_scripts/slurm_dapo_32b.sh [FLAG...]   the same recipe without the scheduler
# Options of sbatch win over those below (--nodes, --time). Hardware, memory, disk and the variables of the environment are
# in that script. Ten minutes before the time limit the run saves its last finished step, and the job is queued again; it then goes
# on by itself, as after the loss of a node. OUTPUT and not --ckpt.output_dir names the run's folder here.
# SRUN_ARGS: further options of srun. In a container of pyxis, with OUTPUT in a folder that is mounted:
#   SRUN_ARGS="--container-image=/shared/openrlhf.sqsh --container-mounts=$PWD,/shared --container-workdir=$PWD" sbatch ...
# Ray is reached on HEAD_ADDRESS, by default the first node's first address; PORT 6379. Not run on this hardware.
# Ray (2.52 or later) lets in only who has the job's token, a file in build/, which all nodes share. ISOLATED_NETWORK=yes
# goes without, where nobody else reaches the nodes; RAY_AUTH_TOKEN_PATH names a token of your own.
#SBATCH --job-name=dapo_qwen2.5_32b
#SBATCH --output=%x-%j.log
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=48:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@600
set -euo pipefail
# shellcheck source=/dev/null
[ ! -e "$(dirname "$0")/help.sh" ] || . "$(dirname "$0")/help.sh" # sbatch runs a copy elsewhere
fail() { echo "train_scripts/slurm_dapo_32b.sh: $*" >&2; exit 2; }
[ -n "${SLURM_JOB_NODELIST:-}" ] || fail "no Slurm job: start it with sbatch"
cd "$SLURM_SUBMIT_DIR" # Slurm runs a copy of this file from a folder of its own
[ -e train_scripts/launch.sh ] || fail "sbatch was called in ${PWD@Q}: call it in the repository's root"
# shellcheck source=/dev/null
. train_scripts/values.sh
fail() { shown "train_scripts/slurm_dapo_32b.sh: $*" >&2; exit 2; }

PORT=${PORT:-6379} WAIT_MINUTES=${WAIT_MINUTES:-10}
check_numbers 1 WAIT_MINUTES
read -ra srun_args <<<"${SRUN_ARGS:-}"
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
[ ${#nodes[@]} -gt 0 ] || fail "scontrol names no hosts of $SLURM_JOB_NODELIST"

# --overlap: Ray's steps never end and hold the nodes' GPUs. --cpu-bind=none: else one task may get one core.
on() {
    local node=$1
    shift
    srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" --cpu-bind=none "${srun_args[@]}" "$@"
}

head=${nodes[0]}
# Addresses of interfaces, without the loopback that /etc/hosts may have for the node's name (127.0.1.1).
address=${HEAD_ADDRESS:-$(on "$head" hostname --all-ip-addresses)} || fail "$head does not tell its address: HEAD_ADDRESS=..."
address=${address%% *}
[[ -n $address && $address != 127.* ]] || fail "$head has the address '$address', which other nodes cannot reach: HEAD_ADDRESS=..."
isolated=()
case ${ISOLATED_NETWORK:-no} in
    yes) isolated=(--isolated_network) ;;
    no)
        mkdir -p build
        secrets=$(mktemp -d "$PWD/build/ray.XXXXXX")
        trap 'rm -rf "$secrets"' EXIT
        # shellcheck source=/dev/null
        . train_scripts/private_ray.sh
        private_ray "$secrets"
        ;;
    *) fail "ISOLATED_NETWORK is yes or no, not $ISOLATED_NETWORK" ;;
esac
on "$head" python3 train_scripts/preflight.py --ports "$PORT" 8265 "${isolated[@]}" ||
    fail "$head has no free ports for Ray, or no token, see above"

# Ray opens its session folder to all users; so it is in a private one of each node.
# shellcheck disable=SC2016 # the node's shell expands it
private='[ -z "${RAY_AUTH_TOKEN_PATH:-}" ] || [ -r "$RAY_AUTH_TOKEN_PATH" ] || {
    echo "train_scripts/slurm_dapo_32b.sh: $HOSTNAME cannot read $RAY_AUTH_TOKEN_PATH: call sbatch in a folder that all nodes share" >&2
    exit 2
}
RAY_TMPDIR=$(mktemp -d "${RAY_TMPDIR:-/tmp}/ray.XXXXXX") && export RAY_TMPDIR && exec "$@"'
on "$head" bash -c "$private" node ray start --head --node-ip-address="$address" --port="$PORT" --block &
ray_head=$!
deadline=$((SECONDS + 60 * WAIT_MINUTES))
until on "$head" ray job list --address=http://127.0.0.1:8265 >/dev/null 2>&1; do
    kill -0 $ray_head 2>/dev/null || fail "Ray's head on $head has ended, see above"
    [ $SECONDS -lt $deadline ] || fail "Ray's head on $head does not answer after $WAIT_MINUTES minutes (WAIT_MINUTES)"
    sleep 5
done
for node in "${nodes[@]:1}"; do
    on "$node" bash -c "$private" node ray start --address="$address:$PORT" --block &
done

# OpenRLHF's own command hears no wish: its job is queued again at once, and goes on from its last checkpoint.
export OUTPUT=${OUTPUT:-$PWD/ckpt/${RUN_NAME:-dapo_qwen2.5_32b_multinode_${SAGC:-recommended}}}
# shellcheck disable=SC2016 # the trap expands it
flags=() ends=no wish='scontrol requeue "$SLURM_JOB_ID"'
# shellcheck disable=SC2016
case ${SAGC:-recommended} in
    off | unpatched) ;;
    *)
        flags=(--ckpt.grace_seconds 540) # of the 600 above
        wish='mkdir -p "$OUTPUT" && echo TERM >"$OUTPUT/openrlhf_sagc.signal"'
        ;;
esac
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || flags+=(--ckpt.load_enable)
# shellcheck disable=SC2064
trap "ends=yes caught=yes; $wish" USR1

# The script waits until all nodes have joined, WAIT_MINUTES at most. Slurm ends Ray's steps with this script.
export NODES=${#nodes[@]} WAIT_MINUTES
on "$head" bash train_scripts/dapo_qwen2.5_32b_multinode.sh "${flags[@]}" "$@" &
job=$!
until caught=''; wait "$job"; code=$?; [ -z "$caught" ]; do :; done # a signal ends the waiting, not the job
if [ $ends = yes ] && [ $code != 0 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $code
