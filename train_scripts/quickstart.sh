#!/usr/bin/env bash
# The main job on a machine without a GPU: sets everything up, makes the Countdown task and a small warm-started model,
# trains it with GRPO under Straggler-Aware Group Control (SAGC) on real Ray, vLLM and DeepSpeed, and reports what happened.
# SEED=1 bash train_scripts/quickstart.sh trains another seed. Results: build/quickstart/seed-SEED.
set -euo pipefail
# shellcheck source=/dev/null
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."

SEED=${SEED:-0}
WARM_START_STEPS=${WARM_START_STEPS:-850} # the model then solves about half of the problems
PROMPTS=${PROMPTS:-640}                   # training prompts of one pass, some 16 a step
HELDOUT=${HELDOUT:-256}                   # problems that are held out of training
# shellcheck source=/dev/null
. train_scripts/clock.sh
check_numbers 0 SEED
check_numbers 1 WARM_START_STEPS PROMPTS HELDOUT
MAX_STRAGGLER_RATE=0.3
out=$PWD/build/quickstart/seed-$SEED
task=train_scripts/countdown
started=$SECONDS
note() { shown "[quickstart $(date +%H:%M:%S)] $*"; }
fail() { shown "train_scripts/quickstart.sh: $*" >&2; exit 1; }

mkdir -p "$out"
# As long as a process of this quickstart runs. The lock is the folder's own: no file that is deleted takes it away.
exec 8<"$out"
flock --nonblock 8 || fail "another quickstart of SEED=$SEED runs: wait for its end, or take another SEED"
made_by="$(cat $task/{task,words}.py train_scripts/{warm_start,word_level}.py | sha256sum) $WARM_START_STEPS $HELDOUT"
warm_start=()
if [ "$(cat "$out/warm_start.done" 2>/dev/null)" = "$made_by" ]; then
    first="the warm-started model is in $out/model" warming=0
else
    first="then the supervised warm start of a small model" warming=$((WARM_START_SECONDS * WARM_START_STEPS / 850))
    rm -f "$out/warm_start.done"
    # A thread that waits leaves its core to the set-up.
    warm_start=(env DS_ACCELERATOR=cpu OMP_WAIT_POLICY=passive .venv/bin/python train_scripts/warm_start.py --output "$out" --seed "$SEED" --steps "$WARM_START_STEPS" --heldout "$HELDOUT")
fi
set_up=0
bash train_scripts/setup.sh --is-done || set_up=$?
[ "$set_up" = 0 ] || [ "$set_up" = 1 ] || exit "$set_up" # something is missing
measure_machine
training=$((TRAINING_START_SECONDS + TRAINING_SECONDS * PROMPTS / 640))
AFTER=$((warming + training + EVALUATION_SECONDS))
total=$((AFTER + set_up * SET_UP_SECONDS))
note "takes about $(duration $total) on this machine as busy as it is now"
note "1/4 set-up, $first ($(duration $total) left)"
AFTER=$AFTER bash train_scripts/setup.sh "${warm_start[@]}"
echo "$made_by" >"$out/warm_start.done"
export PATH=$PWD/.venv/bin:$PATH PYTHONUNBUFFERED=1

note "2/4 reinforcement learning; full log: $out/train.log ($(duration $((training + EVALUATION_SECONDS))) left)"
bash $task/train.sh cpu-patched "$out" "$out" \
    --rollout.sagc.enable \
    --rollout.sagc.group_sizes 4 8 16 32 \
    --rollout.sagc.max_straggler_rate $MAX_STRAGGLER_RATE \
    --actor.adam.lr 1.6e-4 \
    --data.max_samples "$PROMPTS" \
    --train.seed "$SEED" \
    --algo.dynamic_filtering_enable \
    --vllm.enforce_eager 2>&1 |
    python train_scripts/watch.py --log "$out/train.log" ||
    { tail -n 15 "$out/train.log" >&2; fail "the training failed, see $out/train.log"; }

note "3/4 held-out problems, before and after ($(duration "$EVALUATION_SECONDS") left)"
bash train_scripts/on_cpu.sh cpu-patched \
    python eval/evaluate.py --models "$out/model" "$out/trained" --dataset "$out/data/heldout.jsonl" \
    --grader $task/reward.py --max_new_tokens 200 --max_model_len 256 --enforce_eager --seed "$SEED" \
    --json "$out/heldout.json" --responses "$out/responses.jsonl" >"$out/heldout.log" 2>&1 ||
    fail "the evaluation failed, see $out/heldout.log"

note "4/4 report"
python eval/report.py "$out" --heldout "$out/heldout.json" --output "$out"
note "finished in $((SECONDS - started)) s; trained model: $out/trained"
