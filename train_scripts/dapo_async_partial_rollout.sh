#!/usr/bin/env bash
# Asynchronous DAPO with straggler-aware group control and partial rollouts: Qwen2.5-7B on one node. 4 GPUs train while
# 4 generate; vLLM pauses for new weights and goes on with the rollouts that run.
#   REWARD=/path/reward.py bash train_scripts/dapo_async_partial_rollout.sh [FLAG...]   later flags win
#   SAGC=off ...   twin for plain OpenRLHF: the same flags without this package's, always 16 samples a prompt
# Hardware: 8 GPUs of 80 GB. Not run on this hardware.
# Memory a GPU in GB, estimated:
#   training 53 = 30 states (16 bytes a parameter, ZeRO-3 over 4 GPUs) + 16 logits (10 bytes x 152,064 x 10,240 tokens)
#     + 2 activation checkpoints (2 bytes x 28 layers x 3,584 x tokens) + 5 a layer at work, gathered weights, other
#   generation 72 (0.9 of the card) = 15 weights + KV cache, 56 KiB a token (4 bytes x 28 layers x 4 heads x 128)
# Data: OpenRLHF/dapo-math-17k, 17 thousand math problems with integer answers.
# REWARD: a Python file with reward_func, such as OpenRLHF's examples/python/math_reward_func.py.
set -euo pipefail

SAGC=${SAGC:-on}
MODEL=${MODEL:-Qwen/Qwen2.5-7B}
DATA=${DATA:-OpenRLHF/dapo-math-17k}
REWARD=${REWARD:?a Python file with reward_func, as OpenRLHF has in examples/python}
OUTPUT=${OUTPUT:-ckpt/dapo_async_partial_rollout_sagc_$SAGC}
MAX_NEW_TOKENS=${MAX_NEW_TOKENS:-8192}
MAX_LEN=$((MAX_NEW_TOKENS + 2048))
read -ra group_sizes <<<"${GROUP_SIZES:-4 8 16 32}"

sagc=()
case $SAGC in
    on)
        module=openrlhf_sagc
        sagc=(
            --rollout.sagc.enable
            --rollout.sagc.group_sizes "${group_sizes[@]}" # each divides rollout.batch_size x n_samples_per_prompt
            --algo.dynamic_filtering_surplus keep          # engines do not sleep and can finish these rollouts
        )
        ;;
    off) module=openrlhf.cli.train_ppo_ray ;;
    *) echo "$0: SAGC is on or off, not $SAGC" >&2; exit 2 ;;
esac

# Rewards of 0 and 1 where the paper has -1 and 1: half the overlong penalty gives the same normalised advantages.
dapo=(
    --algo.advantage.estimator group_norm
    --actor.eps_clip_low_high 0.2 0.28                    # clip-higher
    --actor.loss_agg_mode token-mean                      # token-level loss
    --reward.overlong_buffer_len $((MAX_NEW_TOKENS / 5))  # overlong shaping, 4096 of 20480 in the paper
    --reward.overlong_penalty_factor 0.5
    --algo.kl.init_coef 0                                 # no KL and no reference model
    --algo.dynamic_filtering_enable                       # dynamic sampling
)

set -x
exec python3 -m "$module" \
    --actor.model_name_or_path "$MODEL" \
    --reward.remote_url "$REWARD" \
    --data.prompt_dataset "$DATA" \
    --data.input_key prompt \
    --data.label_key label \
    --data.apply_chat_template \
    --data.max_len "$MAX_LEN" \
    --rollout.max_new_tokens "$MAX_NEW_TOKENS" \
    --rollout.batch_size 128 \
    --rollout.n_samples_per_prompt 16 \
    "${dapo[@]}" \
    "${sagc[@]}" \
    --train.async_enable \
    --train.partial_rollout_enable \
    --algo.advantage.is_correction_level token \
    --train.batch_size 512 \
    --train.num_episodes 10 \
    --train.dynamic_batch_enable \
    --train.max_tokens_per_gpu "$MAX_LEN" \
    --actor.adam.lr 1e-6 \
    --actor.lr_scheduler constant_with_warmup \
    --actor.gradient_checkpointing_enable \
    --actor.num_nodes 1 \
    --actor.num_gpus_per_node 4 \
    --vllm.num_engines 4 \
    --vllm.tensor_parallel_size 1 \
    --vllm.gpu_memory_utilization 0.9 \
    --vllm.enforce_eager \
    --ds.zero_stage 3 \
    --ds.packing_samples \
    --logger.tensorboard_dir "$OUTPUT/tensorboard" \
    --ckpt.output_dir "$OUTPUT" \
    --ckpt.path "$OUTPUT/checkpoints" \
    --ckpt.save_steps 20 \
    "$@"
