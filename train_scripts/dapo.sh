#!/usr/bin/env bash
# DAPO (arXiv 2503.14476): clip-higher, dynamic sampling, token-level loss, overlong shaping, no KL.
#   bash train_scripts/dapo.sh cpu [FLAG...]   on two CPU cores: Countdown, results in build/dapo
#   bash train_scripts/dapo.sh [FLAG...]       on 8 GPUs at the paper's sizes: dapo_qwen2.5_7b.sh, results in ckpt/dapo_*
# GROUP_SIZES="4 8 16 32" lets the straggler-aware control choose the group size. Later flags win.
set -euo pipefail

case " $* " in *" --help "* | *" -h "*) exec bash "$(dirname "$0")/launch.sh" dapo --help ;; esac
if [ "${1:-}" != cpu ]; then
    [ -z "${GROUP_SIZES:-}" ] || export SAGC=${SAGC:-all}
    NAME=dapo exec bash "$(dirname "$0")/dapo_qwen2.5_7b.sh" "$@"
fi
shift
cd "$(dirname "$0")/.."
MAX_NEW_TOKENS=${MAX_NEW_TOKENS:-200}
# shellcheck source=/dev/null
. train_scripts/values.sh
check_numbers 1 MAX_NEW_TOKENS
output=${OUTPUT:-$PWD/build/dapo}
control=()
if [ -n "${GROUP_SIZES:-}" ]; then
    read -ra group_sizes <<<"$GROUP_SIZES"
    control=(--rollout.sagc.enable --rollout.sagc.group_sizes "${group_sizes[@]}")
fi

# Rewards and scores are 0 and 1 where the paper has -1 and 1; with half the overlong penalty the group's normalised
# advantages are the same. For -1 and 1: --reward.overlong_penalty_factor 1.
dapo=(
    --algo.advantage.estimator group_norm
    --actor.eps_clip_low_high 0.2 0.28                      # clip-higher
    --actor.loss_agg_mode token-mean                        # token-level loss
    --rollout.max_new_tokens "$MAX_NEW_TOKENS"              # overlong shaping: L_max
    --reward.overlong_buffer_len $((MAX_NEW_TOKENS / 5))    # L_cache, 4096 of 20480 in the paper
    --reward.overlong_penalty_factor 0.5
    --algo.kl.init_coef 0                                   # no KL and no reference model
    --algo.dynamic_filtering_enable                         # dynamic sampling
    --algo.dynamic_filtering_max_gen_batches 10
    --rollout.n_samples_per_prompt 16
    "${control[@]}"
)

bash train_scripts/setup.sh
mkdir -p "$output"
exec 8<"$output"
flock 8 # one of two that start together makes the task
[ -e "$output/model/config.json" ] ||
    bash train_scripts/on_cpu.sh cpu-patched python train_scripts/warm_start.py --output "$output"
exec 8<&-
# Clipping acts from the second optimizer step of a rollout on: train.batch_size is a part of the rollout's samples.
exec bash train_scripts/countdown/train.sh cpu-patched "$output" "$output" \
    "${dapo[@]}" \
    --rollout.batch_size 16 \
    --train.batch_size 64 \
    --data.max_samples 1000 \
    --vllm.enforce_eager \
    "$@"
