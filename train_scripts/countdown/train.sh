#!/usr/bin/env bash
# Trains a warm-started Countdown model with GRPO on the CPU stack: train.sh TREE TASK OUTPUT [FLAG...]
# TREE is cpu-patched (with this package; NO_SCHEDULER=1 without its scheduler) or cpu-base (unpatched), TASK a folder that
# warm_start.py has made, OUTPUT gets tensorboard/run and trained/; later flags win over the ones here. What an earlier run has left there is moved aside.
# vLLM compiles its model, which pays from some 140 steps on, or 30 where it was compiled before; with --vllm.enforce_eager it does not.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -ge 3 ] || { echo "train_scripts/countdown/train.sh: usage: train.sh TREE TASK OUTPUT [FLAG...]" >&2; exit 2; }
tree=$1 task=$2 output=$3
shift 3

# CPUs without bfloat16 emulate it: there, float32 takes 0.6 times the seconds.
grep -q avx512_bf16 /proc/cpuinfo && dtype=bf16 || dtype=fp32
[ "$tree" = cpu-patched ] && module=openrlhf_sagc${NO_SCHEDULER:+.off} || module=openrlhf_sagc.unpatched
exec bash train_scripts/on_cpu.sh "$tree" python train_scripts/train_on_cpu.py "$module" \
    --actor.model_name_or_path "$task/model" \
    --reward.remote_url "$PWD/train_scripts/countdown/reward.py" \
    --data.prompt_dataset "$task/data/train.jsonl" \
    --data.input_key prompt \
    --data.label_key label \
    --data.max_len 256 \
    --rollout.max_new_tokens 200 \
    --rollout.batch_size 16 \
    --rollout.n_samples_per_prompt 8 \
    --rollout.micro_batch_size 16 \
    --train.batch_size 128 \
    --train.micro_batch_size 16 \
    --actor.num_gpus_per_node 1 \
    --actor.adam.lr 8e-5 \
    --actor.lr_scheduler constant_with_warmup \
    --actor.eps_clip_low_high 0.2 0.28 \
    --algo.advantage.estimator group_norm \
    --algo.kl.init_coef 0 \
    --vllm.num_engines 1 \
    --vllm.sync_backend gloo \
    --ds.param_dtype "$dtype" \
    --ds.attn_implementation eager \
    --ds.zero_stage 2 \
    --logger.tensorboard_dir "$output/tensorboard" \
    --logger.wandb.run_name run \
    --ckpt.output_dir "$output/trained" \
    "$@"
