#!/usr/bin/env bash
# DAPO with straggler-aware group control: Qwen2.5-32B on a Ray cluster (hybrid engine).
# On the head node, once all nodes have joined (slurm_dapo_32b.sh does all of it on Slurm):
#   REWARD=/path/reward.py bash train_scripts/dapo_qwen2.5_32b_multinode.sh [FLAG...]   later flags win
#   SAGC=off ...   twin for plain OpenRLHF: the same flags without this package's, always 16 samples a prompt
# REWARD and OUTPUT are absolute paths that all nodes share; patched OpenRLHF and this package are on every node.
# Hardware: NODES (8) nodes of 8 GPUs of 80 GB and 300 GB of host memory (sleeping states). Not run on this hardware.
# MAX_NEW_TOKENS shrinks all but the states and weights below.
# Memory a GPU in GB, estimated:
#   training 69 = 8 states (16 bytes a parameter, ZeRO-3 over 64 GPUs) + 34 logits (10 bytes x 152,064 x 22,528 tokens)
#     + 15 activation checkpoints (2 bytes x 64 layers x 5,120 x tokens) + 12 a layer at work, gathered weights, other
#   generation 48 (0.6 of the card) = 16 weights + KV cache, 64 KiB a token (4 bytes x 64 layers x 8 heads x 128 / 4)
# Data: OpenRLHF/dapo-math-17k, 17 thousand math problems with integer answers.
# REWARD: a Python file with reward_func, such as OpenRLHF's examples/python/math_reward_func.py.
set -euo pipefail

SAGC=${SAGC:-on}
MODEL=${MODEL:-Qwen/Qwen2.5-32B}
DATA=${DATA:-OpenRLHF/dapo-math-17k}
REWARD=${REWARD:?the absolute path of a Python file with reward_func, as OpenRLHF has in examples/python}
OUTPUT=${OUTPUT:-$PWD/ckpt/dapo_qwen2.5_32b_multinode_sagc_$SAGC}
NODES=${NODES:-8}
MAX_NEW_TOKENS=${MAX_NEW_TOKENS:-20480}
MAX_LEN=$((MAX_NEW_TOKENS + 2048))
read -ra group_sizes <<<"${GROUP_SIZES:-4 8 16 32}"

sagc=()
case $SAGC in
    on)
        module=openrlhf_sagc
        sagc=(
            --rollout.sagc.enable
            --rollout.sagc.group_sizes "${group_sizes[@]}" # each divides rollout.batch_size x n_samples_per_prompt
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
exec ray job submit --address "${RAY_API_SERVER_ADDRESS:-http://127.0.0.1:8265}" \
    -- python3 -m "$module" \
    --actor.model_name_or_path "$MODEL" \
    --reward.remote_url "$REWARD" \
    --data.prompt_dataset "$DATA" \
    --data.input_key prompt \
    --data.label_key label \
    --data.apply_chat_template \
    --data.max_len "$MAX_LEN" \
    --rollout.max_new_tokens "$MAX_NEW_TOKENS" \
    --rollout.batch_size 512 \
    --rollout.n_samples_per_prompt 16 \
    "${dapo[@]}" \
    "${sagc[@]}" \
    --train.batch_size 512 \
    --train.num_episodes 10 \
    --train.dynamic_batch_enable \
    --train.max_tokens_per_gpu "$MAX_LEN" \
    --actor.adam.lr 1e-6 \
    --actor.lr_scheduler constant_with_warmup \
    --actor.gradient_checkpointing_enable \
    --actor.num_nodes "$NODES" \
    --actor.num_gpus_per_node 8 \
    --vllm.num_engines $((NODES * 8 / 4)) \
    --vllm.tensor_parallel_size 4 \
    --vllm.gpu_memory_utilization 0.6 \
    --vllm.enforce_eager \
    --vllm.enable_sleep \
    --ds.enable_sleep \
    --train.colocate_all \
    --ds.zero_stage 3 \
    --ds.packing_samples \
    --logger.tensorboard_dir "$OUTPUT/tensorboard" \
    --ckpt.output_dir "$OUTPUT" \
    --ckpt.path "$OUTPUT/checkpoints" \
    --ckpt.save_steps 20 \
    "$@"
