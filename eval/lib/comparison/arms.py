"""The arms of a comparison: from a policy to the flags of its training run."""

from lib.comparison.tasks import COUNTDOWN, Task
from lib.paths import ROOT
from lib.policies import Policy, parse_policy

SIZES = [4, 8, 16, 32]
SAMPLES, PROMPTS = 128, 16  # of a step, where they are held
MICRO_BATCH_SIZE = 16
EVALUATION = {"eval.steps": 8, "eval.n_samples_per_prompt": 8, "eval.temperature": 1.0}
ALGORITHMS = {
    "grpo": {},
    "dapo": {
        "algo.dynamic_filtering_enable": None,
        "actor.loss_agg_mode": "token-mean",
        "reward.overlong_penalty_factor": 0.5,
    },
}
OPTIMIZER_STEPS = {"grpo": 1, "dapo": 2}  # of a rollout
SHAPES = ("padded", "gpu")  # of a step: as the quickstart has it, or as the launch scripts on GPUs
PACKED = {
    "ds.packing_samples": None,
    "ds.attn_implementation": "sdpa",
    "ds.zero_stage": 3,
    "actor.gradient_checkpointing_enable": None,
    "train.colocate_all": None,
    "vllm.enable_sleep": None,
    "ds.enable_sleep": None,
}
PACK_TOKENS = 1024  # at most; the cost of this attention grows with their square
DYNAMIC = {"train.dynamic_batch_enable": None, "train.max_tokens_per_gpu": PACK_TOKENS}
STEP_FLAGS = {
    "forward": {"train.old_log_probs": "forward"},
    "shuffled": {"train.micro_batches": "shuffled"},
    "stream": {"train.stream": "auto"},
    "round": {"rollout.tail_batching.token_weight": "round"},
    "filter": {"algo.dynamic_filtering_enable": None},
}


def first_step_of(policy: Policy) -> tuple[int, int]:
    """Prompts of a run's first step, and samples of each of them."""
    size = SAMPLES // PROMPTS if policy.size is None else policy.size
    return PROMPTS if policy.hold == "prompts" else SAMPLES // max(size, 1), size


def shape_flags(shape: str, patched: bool) -> dict[str, str | int | None]:
    """Flags of a run in one of the SHAPES.

    Dynamic batches of OpenRLHF as released ask CUDA for a device: without the patches a pack is a micro-batch.
    """
    if shape == "padded":
        return {}
    return PACKED | (DYNAMIC if patched else {})


def shape_in_words(shape: str, micro_batch_size: int) -> str:
    """What a report says of it."""
    if shape == "padded":
        return f"micro-batches of {micro_batch_size}"
    return (
        f"packs of at most {PACK_TOKENS} tokens, unpatched of {micro_batch_size} samples, since its dynamic batches need "
        "CUDA; ZeRO 3, checkpointing; engine and actor sleep in turn"
    )


def flags_of(
    policy: str,
    algorithm: str,
    seed: int,
    control: dict[str, float],
    task: Task = COUNTDOWN,
    micro_batch_size: int = MICRO_BATCH_SIZE,
    shape: str = "padded",
) -> tuple[str, list[str]]:
    """The tree of build/ and the flags of a run.

    Args:
        policy: as lib/policies.py has it.
        algorithm: one of ALGORITHMS.
        seed: of the run.
        control: flags of --rollout.sagc besides the sizes.
        task: that is trained.
        micro_batch_size: in samples, for experience and training.
        shape: one of SHAPES.

    Raises:
        ValueError: the policy is none, or its size does not fit a step.
    """
    found = parse_policy(policy)
    patched, hold = found.kind != "unpatched", found.hold or "samples"
    prompts, size = first_step_of(found)
    if not size or not prompts or prompts * size % SAMPLES and hold == "samples":
        raise ValueError(f"--policies {policy}: {size} does not divide the {SAMPLES} samples of a step")
    settings = {
        "rollout.batch_size": prompts,
        "rollout.n_samples_per_prompt": size,
        "train.batch_size": prompts * size // OPTIMIZER_STEPS[algorithm],
        "train.micro_batch_size": min(prompts * size // 2, micro_batch_size),
        "rollout.micro_batch_size": micro_batch_size,
        "train.num_episodes": 100,  # the seconds end a run
        "train.seed": seed,
        "actor.lr_scheduler": "constant",
        "reward.remote_url": ROOT / "eval/lib/synthetic_reward.py",
        "ckpt.best_metric_key": "none",
        **EVALUATION,
        **task.flags,
        **ALGORITHMS[algorithm],
        **shape_flags(shape, patched),
    }
    if algorithm == "dapo":
        settings["reward.overlong_buffer_len"] = task.max_new_tokens // 5
    if patched:  # the straggler rate of a fixed size is measured too
        settings |= {f"rollout.sagc.{name}": value for name, value in control.items()}
    if found.kind == "sagc":
        settings |= {"rollout.sagc.enable": None, "rollout.sagc.hold": hold}
    if found.tail:
        settings |= {"rollout.tail_batching.enable": None, "rollout.tail_batching.method": found.tail}
    if found.response_ratio is not None:
        settings["rollout.tail_batching.response_ratio"] = f"{found.response_ratio:g}"
    if found.lengths:
        settings["rollout.length_aware_dispatch"] = None
    for name in sorted(found.step):
        settings |= STEP_FLAGS[name]
    words = [word for name, value in settings.items() for word in (f"--{name}", value) if word is not None]
    if found.kind == "sagc":
        words += ["--rollout.sagc.group_sizes", *SIZES]
    return "cpu-patched" if patched else "cpu-base", list(map(str, words))
