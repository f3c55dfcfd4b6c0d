#!/usr/bin/env bash
# Starts a recipe's training: launch.sh NAME FLAG... The recipes call it with their sizes in the environment and with
# their own flags and the user's, of which the later ones win. preflight.py first says what is missing, a line each.
#
# Environment of every recipe, all optional:
#   SAGC=recommended   dynamic sampling and tail batching (asynchronous: dynamic sampling), always SAMPLES a prompt
#        all           group control too: SAMPLES in the first step, then one of GROUP_SIZES (more prompts, fewer samples)
#        off           the same recipe for the patched OpenRLHF alone: no scheduler, no flags of this package
#        unpatched     the same for OpenRLHF as released; compare.sh trains it beside another
#   SHAPE=async        engines on GPUs of their own beside ACTOR_GPUS, for --train.async_enable behind the script's name
#   MODEL, DATA, EVAL_DATA (empty: no evaluation), REWARD or AGENT, OUTPUT, RUN_NAME, MAX_NEW_TOKENS, PROMPTS, SAMPLES,
#   TRAIN_BATCH, GROUP_SIZES; NODES, ACTOR_GPUS (a node), ENGINES, TENSOR_PARALLEL
#   ATTENTION          the models' attention: kernels-community/flash-attn2@v2, for which nothing is compiled; unpatched needs
#                      flash_attention_2. Where arms are compared, all have to have the same
#   GPU_MEMORY=0.8     share of a GPU's memory for engines; engine_flags.py says how many rollouts they decode at a time
#   SAVE_HOURS=2       hours between checkpoints and evaluations; STEP_MINUTES: what a step takes on your machine
#   WANDB_API_KEY      switches W&B on; WANDB_PROJECT, WANDB_ENTITY, WANDB_RUN_GROUP
#   PREFLIGHT=off      starts without the checks; RUNTIME_ENV_JSON: for `ray job submit`; DEVICE=cpu: see smoke.sh
#   ISOLATED_NETWORK=yes   a cluster needs no token, as its platform lets nobody else reach it (docs/security.md)
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=/dev/null
. "$here/values.sh"
fail() { shown "train_scripts/launch.sh: $*" >&2; exit 2; }
name=${1:?usage: train_scripts/launch.sh NAME FLAG..., which the recipes call}
shift

# help: the first lines of the recipe and of this script, as they stand.
help() {
    local file
    for file in "$here/$name.sh" "$here/launch.sh"; do
        [ ! -e "$file" ] || sed -n '1d; /^# shellcheck/d; /^#/!q; s/^# \{0,1\}//p' "$file"
    done
    echo "Flags behind the script's name: docs/flags.md has this package's; python -m openrlhf_sagc --help has all."
}
for word in "$name" "$@"; do
    case $word in --help | -h) help; exit 0 ;; esac
done

# shellcheck source=/dev/null
. "$here/private_ray.sh"
SAGC=${SAGC:-recommended} DEVICE=${DEVICE:-gpu} SHAPE=${SHAPE:-hybrid} SUBMIT=${SUBMIT:-no}
NODES=${NODES:-1} ACTOR_GPUS=${ACTOR_GPUS:-8} TENSOR_PARALLEL=${TENSOR_PARALLEL:-1}
LONG_SAMPLES=${LONG_SAMPLES:-1} # of full length in a micro-batch
SAVE_HOURS=${SAVE_HOURS:-2} PROMPT_TOKENS=${PROMPT_TOKENS:-2048} GPU_MEMORY=${GPU_MEMORY:-0.8}
check_numbers 1 NODES ACTOR_GPUS TENSOR_PARALLEL PROMPTS SAMPLES TRAIN_BATCH SAVE_HOURS STEP_MINUTES LONG_SAMPLES
ENGINES=${ENGINES:-$((NODES * ACTOR_GPUS / TENSOR_PARALLEL))} # on all GPUs
check_numbers 1 ENGINES
if [ -n "${AGENT:-}" ]; then check_numbers 1 MAX_LEN; else check_numbers 1 MAX_NEW_TOKENS PROMPT_TOKENS; fi
variables="ACTOR_GPUS|AGENT|ATTENTION|DATA|ENGINES|EPISODES|EVAL_DATA|GPU_MEMORY|GROUP_SIZES|MAX_LEN|MAX_NEW_TOKENS|MODEL|NODES|OUTPUT"
variables+="|PREFLIGHT|PROMPTS|PROMPT_TOKENS|REWARD|RUN_NAME|SAGC|SAMPLES|SAVE_HOURS|SHAPE|STEP_MINUTES|TENSOR_PARALLEL|TRAIN_BATCH"
behind=()
for word in "$@"; do
    [[ ! $word =~ ^($variables)= ]] || behind+=("$(printf %q "$word")")
    if [ "$word" = --train.async_enable ] && [ "$SHAPE" != async ]; then
        half=$(((ACTOR_GPUS + 1) / 2))
        fail "--train.async_enable needs engines on GPUs of their own: bash train_scripts/dapo_async_partial_rollout.sh, or in front of" \
            "this command SHAPE=async ACTOR_GPUS=$half ENGINES=$((half < TENSOR_PARALLEL ? 1 : NODES * half / TENSOR_PARALLEL))"
    fi
done
[ ${#behind[@]} = 0 ] || fail "variables go in front of the command: ${behind[*]} bash train_scripts/$name.sh"
read -ra group_sizes <<<"${GROUP_SIZES:-4 8 16 32}"

# What is here gets its whole path, as Ray's processes have another working folder; names on the hub stay as they are.
absolute() { if [ -e "$1" ]; then realpath "$1"; else echo "$1"; fi; }
MODEL=$(absolute "${MODEL:?}")
DATA=$(absolute "${DATA:-OpenRLHF/dapo-math-17k}") # 17 thousand math problems with integer answers
EVAL_DATA=$(absolute "${EVAL_DATA-OpenRLHF/aime-2024}")
RUN_NAME=${RUN_NAME:-${name}_$SAGC}
OUTPUT=$(realpath -m "${OUTPUT:-ckpt/$RUN_NAME}")
save_steps=$((SAVE_HOURS * 60 / STEP_MINUTES))
[ $save_steps -gt 0 ] || save_steps=1

python=(python3) module=openrlhf_sagc tree=cpu-patched
case $SAGC in
    recommended | all) ;;
    off) module=openrlhf_sagc.off ;;
    unpatched) module=openrlhf_sagc.unpatched tree=cpu-base ;;
    *) fail "SAGC is recommended, all, off or unpatched, not $SAGC" ;;
esac
case $SUBMIT in ray | no) ;; *) fail "SUBMIT is ray or no, not $SUBMIT" ;; esac
[ "$DEVICE" = gpu ] || python=(bash "$here/on_cpu.sh" "$tree" python)
# The KERNEL of openrlhf_sagc/config/attention.py. OpenRLHF as released packs with flash-attn alone.
[ "$SAGC" = unpatched ] && attention=flash_attention_2 || attention=kernels-community/flash-attn2@v2

if [ -n "${AGENT:-}" ]; then
    AGENT=$(realpath -m "$AGENT")
    # MAX_LEN: prompt, all turns and what the tools say.
    # No overlong shaping: it would count the tools' tokens as the response's.
    source_of_rewards=(--train.agent_func_path "$AGENT")
else
    REWARD=${REWARD:-$(python3 -c 'from importlib.util import find_spec as f; print(f("openrlhf_sagc.math_reward").origin)' 2>/dev/null)} ||
        fail "the default REWARD, openrlhf_sagc's math_reward.py, is not installed: bash install.sh, or REWARD=FILE"
    [[ $REWARD != *.py ]] || REWARD=$(realpath -m "$REWARD")
    MAX_LEN=$((MAX_NEW_TOKENS + PROMPT_TOKENS))
    # The package's rewards are 0 and 1 where the paper has -1 and 1: half the penalty gives the same advantages.
    source_of_rewards=(
        --reward.remote_url "$REWARD"
        --rollout.max_new_tokens "$MAX_NEW_TOKENS"
        --reward.overlong_buffer_len $((MAX_NEW_TOKENS / 5)) # overlong shaping, 4096 of 20480 in the paper
        --reward.overlong_penalty_factor 0.5
    )
fi

# DAPO (arXiv 2503.14476).
dapo=(
    --algo.advantage.estimator group_norm
    --actor.eps_clip_low_high 0.2 0.28 # clip-higher
    --actor.loss_agg_mode token-mean   # token-level loss
    --algo.kl.init_coef 0              # no KL and no reference model
    --algo.dynamic_filtering_enable    # dynamic sampling
)

sagc=()
if [ "$module" = openrlhf_sagc ]; then
    [ -z "${AGENT:-}" ] || sagc+=(--rollout.agent_timeout "${AGENT_TIMEOUT:-600}")
    if [[ $SHAPE = async && $SAGC != all && " $* " = *" --train.partial_rollout_enable "* ]]; then
        sagc+=(--rollout.vllm_generate_batch_size $((2 * PROMPTS))) # stay in flight over steps
    elif [ "$SHAPE" = async ]; then
        sagc+=(--algo.dynamic_filtering_surplus keep) # engines do not sleep and can finish these rollouts
    else
        sagc+=(--rollout.tail_batching.enable)
    fi
    if [ "$SAGC" = all ]; then
        sagc+=(--rollout.sagc.enable --rollout.sagc.group_sizes "${group_sizes[@]}")
        [ -z "${AGENT:-}" ] || sagc+=(--rollout.sagc.signal seconds) # who waits for tools is a straggler too
    fi
fi

hardware=(
    --actor.num_nodes "$NODES"
    --actor.num_gpus_per_node "$ACTOR_GPUS"
    --vllm.num_engines "$ENGINES"
    --vllm.tensor_parallel_size "$TENSOR_PARALLEL"
    --vllm.gpu_memory_utilization "$GPU_MEMORY"
    --data.apply_chat_template
    --actor.gradient_checkpointing_enable
    --ds.zero_stage 3
    --ds.packing_samples
)
# Training and generation in turn on the same GPUs; else engines have theirs.
[ "$SHAPE" = async ] || hardware+=(--train.colocate_all --vllm.enable_sleep --ds.enable_sleep)
dynamic=(--train.dynamic_batch_enable --train.max_tokens_per_gpu "${TOKENS_PER_GPU:-$((LONG_SAMPLES * MAX_LEN))}")
case $DEVICE in
    gpu) hardware+=("${dynamic[@]}" --ds.attn_implementation "${ATTENTION:-$attention}") ;;
    cpu)
        instead=("--ds.attn_implementation sdpa # flash-attn needs a GPU" "--vllm.sync_backend gloo # so does NCCL"
            "--vllm.enforce_eager # compilation takes longer than a few steps")
        grep -q avx512_bf16 /proc/cpuinfo || instead+=("--ds.param_dtype fp32 # bfloat16 is only emulated here")
        if [ "$SAGC" = unpatched ]; then
            echo "train_scripts/launch.sh: the smoke form leaves out ${dynamic[*]}, for which OpenRLHF as released asks CUDA" >&2
        else
            hardware+=("${dynamic[@]}")
        fi
        for change in "${instead[@]}"; do
            echo "train_scripts/launch.sh: besides sizes, the smoke form changes $change" >&2
            read -ra words <<<"${change% \#*}"
            hardware+=("${words[@]}")
        done
        ;;
    *) fail "DEVICE is gpu or cpu, not $DEVICE" ;;
esac

logs=(--logger.tensorboard_dir "$OUTPUT/tensorboard" --logger.wandb.run_name "$RUN_NAME")
if [ -n "${WANDB_API_KEY:-}" ]; then
    # W&B reads the key from the environment; on the command line everyone on the machine could.
    logs+=(--logger.wandb.key from-WANDB_API_KEY)
    [ -z "${WANDB_PROJECT:-}" ] || logs+=(--logger.wandb.project "$WANDB_PROJECT")
    [ -z "${WANDB_ENTITY:-}" ] || logs+=(--logger.wandb.org "$WANDB_ENTITY")
    [ -z "${WANDB_RUN_GROUP:-}" ] || logs+=(--logger.wandb.group "$WANDB_RUN_GROUP")
fi

evaluation=()
[ -z "$EVAL_DATA" ] || evaluation=(
    --eval.dataset "$EVAL_DATA" --eval.steps "$save_steps" --eval.n_samples_per_prompt 4 --eval.temperature 1
)

flags=(
    --actor.model_name_or_path "$MODEL"
    --data.prompt_dataset "$DATA"
    --data.input_key prompt
    --data.label_key label
    --data.max_len "$MAX_LEN"
    --rollout.batch_size "$PROMPTS"
    --rollout.n_samples_per_prompt "$SAMPLES"
    --train.batch_size "$TRAIN_BATCH"
    --train.num_episodes "${EPISODES:-10}"
    --actor.adam.lr 1e-6
    --actor.lr_scheduler constant_with_warmup
    "${source_of_rewards[@]}"
    "${dapo[@]}"
    "${sagc[@]}"
    "${hardware[@]}"
    "${evaluation[@]}"
    "${logs[@]}"
    --ckpt.output_dir "$OUTPUT"
    --ckpt.path "$OUTPUT/checkpoints"
    --ckpt.save_steps "$save_steps"
    --ckpt.max_num 2
    --ckpt.save_hf
)
# --vllm.engine_args from the model and the memory, and --vllm.enforce_eager where CUDA graphs may fail.
engine_flags=$(DEVICE=$DEVICE python3 "$here/engine_flags.py" "$module" "${flags[@]}" "$@")
[ -z "$engine_flags" ] || mapfile -t -O "${#flags[@]}" flags <<<"$engine_flags"
flags+=("$@")

# For run.jsonl: what no flag says, and where the flags come from. Ray's jobs hand it to a shell, so words and numbers alone.
launched="SCRIPT=$name"
for variable in SAGC SHAPE DEVICE SUBMIT NODES ACTOR_GPUS ENGINES TENSOR_PARALLEL PROMPTS SAMPLES TRAIN_BATCH \
    GROUP_SIZES MAX_NEW_TOKENS PROMPT_TOKENS EPISODES SAVE_HOURS STEP_MINUTES; do
    [[ ! ${!variable:-} =~ ^[A-Za-z0-9_.\ -]+$ ]] || launched+=",$variable=${!variable}"
done
export OPENRLHF_SAGC_LAUNCHED=$launched

RAY_API_SERVER_ADDRESS=${RAY_API_SERVER_ADDRESS:-http://127.0.0.1:8265}
checks=(--device "$DEVICE" --disk_gb "${DISK_GB:-0}" --memory_gb "${MEMORY_GB:-0}")
start=("${python[@]}" -m "$module")
[ "$DEVICE" = gpu ] || start=("${python[@]}" "$here/train_on_cpu.py" "$module")
if [ "$SUBMIT" = ray ] && [ "$DEVICE" = gpu ]; then
    checks+=(--cluster "$RAY_API_SERVER_ADDRESS" --wait_minutes "${WAIT_MINUTES:-10}")
    start=(ray job submit --address "$RAY_API_SERVER_ADDRESS"
        ${RUNTIME_ENV_JSON:+--runtime-env-json "$RUNTIME_ENV_JSON"} -- env "OPENRLHF_SAGC_LAUNCHED=$launched" "${start[@]}")
fi
case ${ISOLATED_NETWORK:-no} in
    yes) checks+=(--isolated_network) ;;
    no) ;;
    *) fail "ISOLATED_NETWORK is yes or no, not $ISOLATED_NETWORK" ;;
esac
[ "${PREFLIGHT:-on}" = off ] || "${python[@]}" "$here/preflight.py" "${checks[@]}" "$module" "${flags[@]}"

due="a checkpoint is due every $save_steps steps, if the run has as many: ${SAVE_HOURS} h at $STEP_MINUTES minutes a step"
due+=", an estimate (STEP_MINUTES=... for yours)"
[[ " $* " != *" --ckpt.save_steps"[\ =]* ]] || due="a checkpoint is due as --ckpt.save_steps says"
shown "train_scripts/launch.sh: $RUN_NAME writes to $OUTPUT; $due" >&2
if [ "$DEVICE" = gpu ] && [ "$SUBMIT" != ray ] && [ -z "${RAY_ADDRESS:-}" ]; then
    # A Ray of this run alone, which other users of this machine cannot enter.
    RAY_TMPDIR=$(mktemp -d "${RAY_TMPDIR:-/tmp}/ray.XXXXXX") # short: Ray's socket paths are limited to 107 characters
    export RAY_TMPDIR
    private_ray "$RAY_TMPDIR"
    variables="RAY_AUTH_MODE=token${RAY_AUTH_TOKEN_PATH:+ RAY_AUTH_TOKEN_PATH=$RAY_AUTH_TOKEN_PATH}"
    shown "train_scripts/launch.sh: Ray's folder is $RAY_TMPDIR; for commands such as ray status: export $variables" >&2
fi
[ "$SAGC" != unpatched ] || echo "train_scripts/launch.sh: OpenRLHF as released trains groups of equal rewards with" \
    "group_norm, accumulates dynamic micro-batches wrongly under ZeRO, and leaves samples of a rollout" \
    "untrained: patches/README.md has all that is mended with SAGC=off" >&2
# Without the secrets of addresses, keys and the runtime env. The run keeps this, its flags, versions and log in OUTPUT.
printf '+ %s\n' "$(printf '%s\0' "${start[@]}" "${flags[@]}" | python3 -I "$here/../openrlhf_sagc/redaction.py")" >&2
exec "${start[@]}" "${flags[@]}"
