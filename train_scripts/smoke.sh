#!/usr/bin/env bash
# A launch script in small, on a machine without a GPU or on few GPUs: some 20 steps of the very script with an untrained tiny model.
# It has every flag of the script but sizes, the reward and what needs a GPU, which it names.
#   bash train_scripts/smoke.sh dapo_qwen2.5_7b.sh [FLAG...]   any of the launch scripts; SAGC as for the script itself
#   DEVICE=gpu bash train_scripts/smoke.sh ...                 on one GPU, with what install.sh installs; not run yet
#   TENSOR_PARALLEL=2 DEVICE=gpu bash train_scripts/smoke.sh ...   on two: an engine of both, and training on both with NCCL
# GPUs: ACTOR_GPUS, by default those of an engine (TENSOR_PARALLEL=1), and ENGINES, by default as many as these hold. Engines of
# dapo_async_partial_rollout.sh have GPUs of their own, so that it takes two. The script for a cluster starts on this node.
# It shows that the script's flags, evaluation and checkpoints work together; not that its sizes fit your GPUs.
# STEPS=20; results in OUTPUT, by default build/smoke/NAME. TASK: a folder that warm_start.py has made, else it is made. Not for
# dapo.sh, which has a form for the CPU, nor for slurm_dapo_32b.sh, which starts dapo_qwen2.5_32b_multinode.sh.
set -euo pipefail
# shellcheck source=/dev/null
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
# shellcheck source=/dev/null
. train_scripts/values.sh
fail() { shown "train_scripts/smoke.sh: $*" >&2; exit 2; }

script=${1:-}
shift || true
case $script in
    dapo_*.sh | multi_turn_agent.sh) [ -e "train_scripts/$script" ] || fail "there is no train_scripts/$script" ;;
    *) fail "takes a launch script, such as dapo_qwen2.5_7b.sh, not '$script'" ;;
esac
STEPS=${STEPS:-20} TENSOR_PARALLEL=${TENSOR_PARALLEL:-1}
ACTOR_GPUS=${ACTOR_GPUS:-$TENSOR_PARALLEL}
check_numbers 1 STEPS TENSOR_PARALLEL ACTOR_GPUS
ENGINES=${ENGINES:-$((ACTOR_GPUS < TENSOR_PARALLEL ? 1 : ACTOR_GPUS / TENSOR_PARALLEL))}
name=${script%.sh}
task=${TASK:-$PWD/build/smoke/task_4_heads}
case ${DEVICE:=cpu} in
    cpu)
        python=(bash train_scripts/on_cpu.sh cpu-patched python) && bash train_scripts/setup.sh
        [ "$TENSOR_PARALLEL" = 1 ] || export VLLM_CPU_OMP_THREADS_BIND=nobind # vLLM would give each worker cores of its own
        ;;
    gpu) python=(python3) ;;
    *) fail "DEVICE is cpu or gpu, not '$DEVICE'" ;;
esac

mkdir -p "$task"
exec 8<"$task"
flock 8 # one of two that start together makes the task
[ -e "$task/model/config.json" ] ||
    "${python[@]}" train_scripts/warm_start.py --output "$task" --steps 1 --heads 4 2
exec 8<&-
python3 -c 'import json, sys; sys.exit(json.load(open(sys.argv[1]))["num_attention_heads"] % int(sys.argv[2]) > 0)' \
    "$task/model/config.json" "$TENSOR_PARALLEL" ||
    fail "TENSOR_PARALLEL=$TENSOR_PARALLEL does not divide the heads of $task/model: take 1, 2 or 4, without TASK"
# Outside of the run's folder: nothing is written there before the run holds it. It moves what an earlier one left aside.
problems=$(mktemp -d)
trap 'rm -rf "$problems"' EXIT
head -n 4 "$task/data/heldout.jsonl" >"$problems/heldout.jsonl"

export DEVICE MODEL=$task/model DATA=$task/data/train.jsonl EVAL_DATA=$problems/heldout.jsonl
export OUTPUT=${OUTPUT:-build/smoke/$name} RUN_NAME=run PROMPTS=8 SAMPLES=4 TRAIN_BATCH=16 GROUP_SIZES="2 4"
export NODES=1 SUBMIT=no ACTOR_GPUS ENGINES TENSOR_PARALLEL
export MAX_NEW_TOKENS=64 PROMPT_TOKENS=64 MAX_LEN=128 TOKENS_PER_GPU=512
# A checkpoint half-way, and each 10 steps at least.
export SAVE_HOURS=1 STEP_MINUTES=$((60 / (STEPS < 2 ? 1 : STEPS < 20 ? STEPS / 2 : 10))) DISK_GB=1 MEMORY_GB=0
rewards=$PWD/train_scripts/smoke_reward.py
if [ "$script" = multi_turn_agent.sh ]; then export AGENT=$rewards; else export REWARD=$rewards; fi
# A quarter more prompts than the steps train: groups of equal rewards are dropped.
(trap - INT && exec bash "train_scripts/$script" --data.max_samples $((10 * STEPS)) --train.num_episodes 1 "$@") & # it hears Ctrl-C
training=$!
for name in HUP INT TERM USR1; do
    # shellcheck disable=SC2064
    trap "caught=yes; kill -s $name $training 2>/dev/null || true" "$name"
done
until caught='' code=0; wait "$training" || code=$?; [ -z "$caught" ]; do :; done # a signal ends the waiting, not the run
[ $code = 0 ] || exit $code
shown "train_scripts/smoke.sh: $script has trained, evaluated and saved; see $OUTPUT"
