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
    note "1/4 supervised warm start (about 2 minutes)"
    python $task/warm_start.py --output "$out" --seed "$SEED"
    echo "$made_by" >"$out/warm_start.done"
else
    note "1/4 warm-started model found in $out/model"
fi

note "2/4 reinforcement learning (4 to 8 minutes); full log: $out/train.log"
bash $task/train.sh cpu-patched "$out" "$out" \
    --rollout.sagc.enable \
    --rollout.sagc.group_sizes 4 8 16 32 \
    --rollout.sagc.max_straggler_rate $MAX_STRAGGLER_RATE \
    --data.max_samples $PROMPTS \
    --train.seed "$SEED" \
    --algo.dynamic_filtering_enable 2>&1 |
    python train_scripts/watch.py --log "$out/train.log" --steps 100 ||
    { tail -n 15 "$out/train.log" >&2; echo "train_scripts/quickstart.sh: the training failed, see $out/train.log" >&2; exit 1; }

note "3/4 held-out problems, before and after"
bash train_scripts/on_cpu.sh cpu-patched \
    python eval/evaluate.py --models "$out/model" "$out/trained" --dataset "$out/data/heldout.jsonl" \
    --grader $task/reward.py --max_new_tokens 200 --max_model_len 256 --enforce_eager --seed "$SEED" \
    --json "$out/heldout.json" --responses "$out/responses.jsonl" >"$out/heldout.log" 2>&1 ||
    { echo "train_scripts/quickstart.sh: the evaluation failed, see $out/heldout.log" >&2; exit 1; }

note "4/4 report"
python eval/report.py --tensorboard "$out/tensorboard/run" --heldout "$out/heldout.json" \
    --max_straggler_rate $MAX_STRAGGLER_RATE --output "$out"
note "finished in $((SECONDS - started)) s; trained model: $out/trained"
