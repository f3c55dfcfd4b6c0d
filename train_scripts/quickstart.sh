#!/usr/bin/env bash
# The main job on a machine without a GPU: sets everything up, makes the Countdown task and a small warm-started model,
# trains it with GRPO under straggler-aware group control on real Ray, vLLM and DeepSpeed, and reports what happened.
# SEED=1 bash train_scripts/quickstart.sh trains another seed. Results: build/quickstart/seed-SEED.
set -euo pipefail
cd "$(dirname "$0")/.."

SEED=${SEED:-0}
[[ $SEED =~ ^[0-9]+$ ]] || { echo "train_scripts/quickstart.sh: SEED must be a whole number, got '$SEED'" >&2; exit 2; }
PROMPTS=1400             # training prompts of one pass
MAX_STRAGGLER_RATE=0.3
out=$PWD/build/quickstart/seed-$SEED
task=train_scripts/countdown
started=$SECONDS
note() { echo "[quickstart $(date +%H:%M:%S)] $*"; }

bash train_scripts/setup.sh
export PATH=$PWD/.venv/bin:$PATH PYTHONUNBUFFERED=1
mkdir -p "$out"

made_by=$(cat $task/{task,tokenizer,warm_start}.py | sha256sum)
if [ "$(cat "$out/warm_start.done" 2>/dev/null)" != "$made_by" ]; then
    note "1/4 supervised warm start (about 90 s)"
    python $task/warm_start.py --output "$out" --seed "$SEED"
    echo "$made_by" >"$out/warm_start.done"
else
    note "1/4 warm-started model found in $out/model"
fi

note "2/4 reinforcement learning (about 4 minutes); full log: $out/train.log"
rm -rf "$out/tensorboard" "$out/trained"
bash train_scripts/on_cpu.sh cpu-patched python -m openrlhf.cli.train_ppo_ray \
    --rollout.sagc.enable \
    --rollout.sagc.group_sizes 4 8 16 32 \
    --rollout.sagc.max_straggler_rate $MAX_STRAGGLER_RATE \
    --rollout.sagc.tradeoff 0.5 \
    --actor.model_name_or_path "$out/model" \
    --reward.remote_url "$PWD/$task/reward.py" \
    --data.prompt_dataset "$out/data/train.jsonl" \
    --data.input_key prompt \
    --data.label_key label \
    --data.max_samples $PROMPTS \
    --data.max_len 256 \
    --rollout.max_new_tokens 200 \
    --rollout.batch_size 16 \
    --rollout.n_samples_per_prompt 8 \
    --rollout.micro_batch_size 64 \
    --train.batch_size 128 \
    --train.micro_batch_size 64 \
    --train.seed "$SEED" \
    --actor.num_gpus_per_node 1 \
    --actor.adam.lr 8e-5 \
    --actor.lr_scheduler constant_with_warmup \
    --actor.eps_clip_low_high 0.2 0.28 \
    --algo.advantage.estimator group_norm \
    --algo.kl.init_coef 0 \
    --algo.dynamic_filtering_enable \
    --vllm.num_engines 1 \
    --vllm.enforce_eager \
    --vllm.sync_backend gloo \
    --ds.attn_implementation eager \
    --ds.zero_stage 2 \
    --logger.tensorboard_dir "$out/tensorboard" \
    --logger.wandb.run_name run \
    --ckpt.output_dir "$out/trained" 2>&1 |
    python train_scripts/watch.py --log "$out/train.log" --steps 100 ||
    { tail -n 15 "$out/train.log" >&2; echo "train_scripts/quickstart.sh: the training failed, see $out/train.log" >&2; exit 1; }

note "3/4 held-out problems, before and after"
VLLM_ENABLE_V1_MULTIPROCESSING=0 bash train_scripts/on_cpu.sh cpu-patched \
    python $task/evaluate.py --models "$out/model" "$out/trained" --prompts "$out/data/heldout.jsonl" \
    --seed "$SEED" --json "$out/heldout.json" >"$out/heldout.log" 2>&1 ||
    { echo "train_scripts/quickstart.sh: the evaluation failed, see $out/heldout.log" >&2; exit 1; }

note "4/4 report"
python eval/report.py --tensorboard "$out/tensorboard/run" --heldout "$out/heldout.json" \
    --max_straggler_rate $MAX_STRAGGLER_RATE --output "$out"
note "finished in $((SECONDS - started)) s; trained model: $out/trained"
