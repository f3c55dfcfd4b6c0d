#!/usr/bin/env bash
# A multi-turn agent with straggler-aware group control by seconds: a rollout that waits for its tools is a straggler
# with few tokens too. Qwen2.5-7B-Instruct on one node (hybrid engine).
#   AGENT=/path/agent.py bash train_scripts/multi_turn_agent.sh [FLAG...]   later flags win
#   SAGC=off ...   twin for plain OpenRLHF: the same flags without this package's, always 8 samples a prompt
# Hardware: 8 GPUs of 80 GB, 250 GB of host memory (sleeping states). Not run on this hardware.
# Memory a GPU in GB, estimated:
#   training 50 = 15 states (16 bytes a parameter, ZeRO-3 over 8 GPUs) + 25 logits (10 bytes x 152,064 x 16,384 tokens)
#     + 3 activation checkpoints (2 bytes x 28 layers x 3,584 x tokens) + 7 a layer at work, gathered weights, other
#   generation 48 (0.6 of the card) = 15 weights + KV cache, 56 KiB a token (4 bytes x 28 layers x 4 heads x 128)
# Data: OpenRLHF/dapo-math-17k, 17 thousand math problems with integer answers; DATA for what the agent is made for.
# AGENT: a Python file with AgentExecutor, such as OpenRLHF's examples/python/agent_func.py (whose rewards are random).
set -euo pipefail

SAGC=${SAGC:-on}
MODEL=${MODEL:-Qwen/Qwen2.5-7B-Instruct}
DATA=${DATA:-OpenRLHF/dapo-math-17k}
AGENT=${AGENT:?a Python file with AgentExecutor, as OpenRLHF has in examples/python}
OUTPUT=${OUTPUT:-ckpt/multi_turn_agent_sagc_$SAGC}
MAX_LEN=${MAX_LEN:-16384} # prompt, all turns and what the tools say
read -ra group_sizes <<<"${GROUP_SIZES:-4 8 16}"

sagc=()
case $SAGC in
    on)
        module=openrlhf_sagc
        sagc=(
            --rollout.sagc.enable
            --rollout.sagc.signal seconds
            --rollout.sagc.group_sizes "${group_sizes[@]}" # each divides rollout.batch_size x n_samples_per_prompt
        )
        ;;
    off) module=openrlhf.cli.train_ppo_ray ;;
    *) echo "$0: SAGC is on or off, not $SAGC" >&2; exit 2 ;;
esac

# DAPO without overlong shaping, which would count the tools' tokens as the response's.
dapo=(
    --algo.advantage.estimator group_norm
    --actor.eps_clip_low_high 0.2 0.28                    # clip-higher
    --actor.loss_agg_mode token-mean                      # token-level loss
    --algo.kl.init_coef 0                                 # no KL and no reference model
    --algo.dynamic_filtering_enable                       # dynamic sampling
)

set -x
exec python3 -m "$module" \
    --actor.model_name_or_path "$MODEL" \
    --train.agent_func_path "$AGENT" \
    --data.prompt_dataset "$DATA" \
    --data.input_key prompt \
    --data.label_key label \
    --data.apply_chat_template \
    --data.max_len "$MAX_LEN" \
    --rollout.batch_size 128 \
    --rollout.n_samples_per_prompt 8 \
    "${dapo[@]}" \
    "${sagc[@]}" \
    --train.batch_size 256 \
    --train.num_episodes 10 \
    --train.dynamic_batch_enable \
    --train.max_tokens_per_gpu "$MAX_LEN" \
    --actor.adam.lr 1e-6 \
    --actor.lr_scheduler constant_with_warmup \
    --actor.gradient_checkpointing_enable \
    --actor.num_nodes 1 \
    --actor.num_gpus_per_node 8 \
    --vllm.num_engines 8 \
    --vllm.tensor_parallel_size 1 \
    --vllm.enable_prefix_caching \
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
