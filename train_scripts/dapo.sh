#!/usr/bin/env bash
# DAPO (arXiv 2503.14476): clip-higher, dynamic sampling, token-level loss, overlong shaping, no KL.
#   REWARD=reward.py bash train_scripts/dapo.sh [FLAG...]   on a node of 8 GPUs, at the paper's sizes (not run yet)
#   bash train_scripts/dapo.sh cpu [FLAG...]                on two CPU cores: Countdown, results in build/dapo
# GROUP_SIZES="4 8 16 32" lets the straggler-aware control choose the group size. Later flags win.
set -euo pipefail

cpu=0
if [ "${1:-}" = cpu ]; then
    cpu=1
    shift
fi
MAX_NEW_TOKENS=${MAX_NEW_TOKENS:-$((cpu ? 200 : 20480))}
read -ra group_sizes <<<"${GROUP_SIZES:-16}"

# REWARD gives rewards and scores of 0 and 1 where the paper has -1 and 1; with half the overlong penalty the group's
# normalised advantages are the same. For -1 and 1: --reward.overlong_penalty_factor 1.
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
    --rollout.sagc.enable
    --rollout.sagc.group_sizes "${group_sizes[@]}"
    --rollout.n_samples_per_prompt 16
)

# Clipping acts from the second optimizer step of a rollout on: train.batch_size is a part of the rollout's samples.
if ((cpu)); then
    cd "$(dirname "$0")/.."
    output=${OUTPUT:-$PWD/build/dapo}
    bash train_scripts/setup.sh
    [ -e "$output/model/config.json" ] ||
        bash train_scripts/on_cpu.sh cpu-patched python train_scripts/countdown/warm_start.py --output "$output"
    exec bash train_scripts/countdown/train.sh cpu-patched "$output" "$output" \
        "${dapo[@]}" \
        --rollout.batch_size 16 \
        --train.batch_size 64 \
        --data.max_samples 1000 \
        "$@"
fi

exec python3 -m openrlhf.cli.train_ppo_ray \
    --actor.model_name_or_path "${MODEL:-Qwen/Qwen2.5-7B}" \
    --reward.remote_url "${REWARD:?a Python file with reward_func, as OpenRLHF has in examples/python}" \
    --data.prompt_dataset "${DATA:-OpenRLHF/dapo-math-17k}" \
    --data.input_key prompt \
    --data.label_key label \
    --data.apply_chat_template \
    --data.max_len $((MAX_NEW_TOKENS + 2048)) \
    "${dapo[@]}" \
    --rollout.batch_size 512 \
    --train.batch_size 512 \
    --train.num_episodes 10 \
    --actor.adam.lr 1e-6 \
    --actor.lr_scheduler constant_with_warmup \
    --actor.num_nodes 1 \
    --actor.num_gpus_per_node 8 \
    --vllm.num_engines 4 \
    --vllm.tensor_parallel_size 2 \
    --vllm.gpu_memory_utilization 0.6 \
    --vllm.enforce_eager \
    --vllm.enable_sleep \
    --ds.enable_sleep \
    --train.colocate_all \
    --train.dynamic_batch_enable \
    --train.max_tokens_per_gpu 32768 \
    --ds.packing_samples \
    --ds.zero_stage 3 \
    --actor.gradient_checkpointing_enable \
    --ckpt.output_dir "${OUTPUT:-ckpt/dapo}" \
    --ckpt.path "${OUTPUT:-ckpt/dapo}/checkpoints" \
    "$@"
