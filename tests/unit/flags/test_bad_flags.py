"""Bad flags and bad input, through the command itself: what fails must fail before Ray starts, in one line."""

import pytest
from up_to_ray import SIZES, STOP

CASES = {
    "size that does not divide the batch": (
        [SIZES, "8", "12"],
        f"{SIZES} 12 does not divide the 64 samples of a step",
        "sizes that do are 2 4 8 16",
    ),
    "no sizes": ([SIZES], f"{SIZES} must hold at least one size", "[]"),
    "limit outside (0, 1)": (
        ["--rollout.sagc.max_straggler_rate", "1.5"],
        "--rollout.sagc.max_straggler_rate must lie between 0 and 1",
        "1.5",
    ),
    "ratio of one": (["--rollout.sagc.straggler_ratio", "1"], "--rollout.sagc.straggler_ratio must be", "above 1"),
    "first size not a candidate": (
        [SIZES, "4", "16"],
        f"{SIZES} 4 16 do not hold --rollout.n_samples_per_prompt 8",
        f"add it, {SIZES} 4 8 16, or set it to one of them",
    ),
    "fewer prompts than a step needs": (
        ["--data.max_samples", "15"],
        "gives 15 prompts",
        "fewer than the 16 of a step at group size 4",
    ),
    "training batch that does not divide the step": (
        ["--train.batch_size", "48"],
        "--train.batch_size 48 does not divide the 64 samples of a step",
        "use --train.batch_size 32, or start",
    ),
    "micro-batches that do not divide the training batch": (
        ["--train.micro_batch_size", "24", "--actor.num_gpus_per_node", "2"],
        "--train.micro_batch_size 24 x 2 data-parallel actors does not divide --train.batch_size 64",
        "use a divisor of 32",
    ),
    "fewer samples than actors where groups of the step before are kept": (
        [
            "--algo.dynamic_filtering_enable",
            "--algo.dynamic_filtering_surplus",
            "keep",
            "--rollout.batch_size",
            "4",
            SIZES,
            "4",
            "8",
            "32",
            "--train.batch_size",
            "32",
            "--train.micro_batch_size",
            "1",
            "--actor.num_gpus_per_node",
            "8",
        ],
        f"--rollout.batch_size 4 and the smallest of {SIZES}, 4, can give only 4 samples to 8 data-parallel actors",
        "use --rollout.batch_size 8",
    ),
    "fewer samples than actors": (
        [
            "--rollout.sagc.hold",
            "prompts",
            "--rollout.batch_size",
            "1",
            "--train.batch_size",
            "8",
            "--actor.num_gpus_per_node",
            "8",
        ],
        f"--rollout.batch_size 1 and the smallest of {SIZES}, 4, can give only 4 samples to 8 data-parallel actors",
        "use --rollout.batch_size 2",
    ),
    "training batch that actors cannot share": (
        ["--actor.num_gpus_per_node", "3"],
        "3 data-parallel actors do not divide --train.batch_size 64",
        "use --rollout.batch_size 12 --train.batch_size 48",
    ),
    "fewer prompts than a step holds": (
        ["--rollout.sagc.hold", "prompts", "--data.max_samples", "7"],
        "gives 7 prompts",
        "fewer than the 8 of a step",
    ),
    "estimator without groups": (
        ["--algo.advantage.estimator", "reinforce"],
        "--algo.advantage.estimator reinforce has no groups for the scheduler",
        "use --algo.advantage.estimator group_norm, or start python -m openrlhf_sagc.off without --rollout.sagc.enable, which runs "
        "the rest as it is (group_norm, dr_grpo, rloo, reinforce_baseline, median have groups)",
    ),
    "prompts that do not exist": (
        ["--data.prompt_dataset", "missing.jsonl"],
        "--data.prompt_dataset missing.jsonl cannot be loaded",
        "missing.jsonl",
    ),
    "tolerance below 0": (
        ["--algo.dynamic_filtering_enable", "--algo.dynamic_filtering_tolerance", "-1"],
        "--algo.dynamic_filtering_tolerance must be a finite number of at least 0",
        "got -1",
    ),
    "cap below 1": (
        ["--algo.dynamic_filtering_max_gen_batches", "0"],
        "--algo.dynamic_filtering_max_gen_batches must be at least 1",
        "got 0",
    ),
    "surplus in engines that sleep": (
        ["--algo.dynamic_filtering_surplus", "keep", "--vllm.enable_sleep", "--train.colocate_all"],
        "--algo.dynamic_filtering_surplus keep does not work with --vllm.enable_sleep",
        "use --algo.dynamic_filtering_surplus discard",
    ),
    "seconds of rollouts that are paused": (
        ["--rollout.sagc.signal", "seconds", "--algo.dynamic_filtering_surplus", "keep"],
        "--algo.dynamic_filtering_surplus keep does not work with --rollout.sagc.signal seconds",
        "or --rollout.sagc.signal tokens",
    ),
    "no time for a reward": (
        ["--reward.timeout", "0"],
        "--reward.timeout must be a number of seconds above 0",
        "got 0",
    ),
    "no time for an agent": (
        ["--rollout.agent_timeout", "0", "--train.agent_func_path", "agent.py"],
        "--rollout.agent_timeout must be a number of seconds above 0",
        "got 0",
    ),
    "time for an agent that is not there": (
        ["--rollout.agent_timeout", "60"],
        "--rollout.agent_timeout 60 has no effect without --train.agent_func_path",
        "use --reward.timeout for a reward function or server",
    ),
    "address without a scheme": (
        ["--reward.remote_url", "user:secret@host:5000/get?secret"],
        "--reward.remote_url *** is neither a .py file nor an address",
        "use ***",
    ),
    "retries below 0": (["--reward.retries", "-1"], "--reward.retries must be at least 0", "got -1"),
    "share above 1": (
        ["--reward.max_failure_share", "10"],
        "--reward.max_failure_share must lie between 0 and 1",
        "got 10",
    ),
    "fewer prompts than needed": (
        [*STOP, "--rollout.tail_batching.prompt_ratio", "0.9"],
        "--rollout.tail_batching.prompt_ratio must be a finite number of at least 1",
        "got 0.9",
    ),
    "fewer rollouts than a group": (
        [*STOP, "--rollout.tail_batching.response_ratio", "nan"],
        "--rollout.tail_batching.response_ratio must be a finite number of at least 1",
        "got nan",
    ),
    "a surplus that sorted steps do not have": (
        ["--rollout.tail_batching.enable", "--rollout.tail_batching.prompt_ratio", "1.25"],
        "--rollout.tail_batching.prompt_ratio must be from 1 to 1.06 where steps are sorted, got 1.25",
        "use 1.06, or --rollout.tail_batching.method stop",
    ),
    "fewer prompts than sorted steps need": (
        ["--rollout.tail_batching.enable", "--rollout.tail_batching.prompt_ratio", "0.8"],
        "--rollout.tail_batching.prompt_ratio must be from 1 to 1.06 where steps are sorted, got 0.8",
        "use 1",
    ),
    "a folder as a trace": (
        ["--rollout.trace", "/"],
        "--rollout.trace / is a folder",
        "give a file, such as /run.csv",
    ),
    "a folder as a trace, which is not there": (
        ["--rollout.trace", "/none/"],
        "--rollout.trace /none/ is a folder",
        "give a file, such as /none/run.csv",
    ),
    "kept steps that are kept again": (
        ["--train.rollouts_to", "/a", "--train.rollouts_from", "/b"],
        "--train.rollouts_to /a has nothing to keep with --train.rollouts_from /b",
        "drop one of them",
    ),
    "kept steps of images": (
        ["--train.rollouts_to", "/a", "--data.max_images_per_prompt", "1"],
        "--train.rollouts_to /a keeps no images",
        "drop it, or --data.max_images_per_prompt 1",
    ),
    "kept steps from a checkpoint on": (
        ["--train.rollouts_from", "/a", "--ckpt.load_enable"],
        "--train.rollouts_from /a begins with a model",
        "drop --ckpt.load_enable",
    ),
    "kept steps that are not there": (
        ["--train.rollouts_from", "/none"],
        "--train.rollouts_from /none has no step-1.json",
        "give a folder that --train.rollouts_to has written",
    ),
    "a learning rate below 0": (["--actor.adam.lr", "-1e-6"], "--actor.adam.lr -1e-06", "use 0 or more"),
    "rollouts that sorted steps do not stop": (
        ["--rollout.tail_batching.enable", "--rollout.tail_batching.response_ratio", "1.5"],
        "--rollout.tail_batching.response_ratio 1.5 is of --rollout.tail_batching.method stop",
        "add that, or drop it",
    ),
    "a history of lengths that nobody asks for": (
        [*STOP, "--rollout.length_history", "/none.csv"],
        "--rollout.length_history /none.csv has no effect",
        "or --rollout.length_aware_dispatch",
    ),
    "a history of lengths that is not there": (
        ["--rollout.tail_batching.enable", "--rollout.length_history", "/none.csv"],
        "--rollout.length_history /none.csv cannot be read as text",
        "No such file",
    ),
    "a folder without a history of lengths": (
        ["--rollout.tail_batching.enable", "--rollout.length_history", "/"],
        "--rollout.length_history / has no checkpoint",
        "or the --rollout.trace",
    ),
    "tail batching that keeps its tail": (
        ["--rollout.tail_batching.enable", "--algo.dynamic_filtering_surplus", "keep"],
        "--algo.dynamic_filtering_surplus keep does not work with --rollout.tail_batching.enable",
        "use --algo.dynamic_filtering_surplus discard",
    ),
    "tail batching under weights that change": (
        ["--rollout.tail_batching.enable", "--train.async_enable", "--train.partial_rollout_enable"],
        "--rollout.tail_batching.enable does not work with --train.partial_rollout_enable",
        "drop one",
    ),
    "a cap below the over-dispatch": (
        [*STOP, "--algo.dynamic_filtering_max_gen_batches", "1"],
        "--algo.dynamic_filtering_max_gen_batches 1 does not allow --rollout.tail_batching.prompt_ratio 1.25",
        "use 2 or more",
    ),
    "a reward's file that is not there": (
        ["--reward.remote_url", "/none.py"],
        "--reward.remote_url /none.py",
        "is not there",
    ),
    "a column that is not there": (
        ["--data.input_key", "question"],
        "--data.input_key question: no such column in --data.prompt_dataset",
        "(there are input): use --data.input_key input",
    ),
    "a model that is not there": (
        ["--actor.model_name_or_path", "/none"],
        "--actor.model_name_or_path /none is not there",
        "give the model's folder",
    ),
    "braces in a template": (
        ["--data.input_template", "{} \\boxed{}"],
        "--data.input_template '{} \\\\boxed{}' does not take the prompt in one place",
        "write {} once, where the prompt goes",
    ),
    "a step of 0": (["--ckpt.save_steps", "0"], "--ckpt.save_steps 0", "use 1 or more, or -1 for never"),
    "an assertion of OpenRLHF": (
        ["--algo.dynamic_filtering_enable", "--reward.remote_url", "", "--reward.model_name_or_path", "none"],
        "--algo.dynamic_filtering_enable needs rewards with the responses",
        "or drop it for the reward model",
    ),
    "adapters of weights that are spread": (
        ["--ds.lora.rank", "8", "--ds.zero_stage", "3"],
        "--ds.lora.rank 8 does not work with --ds.zero_stage 3",
        "use --ds.zero_stage 2",
    ),
    "adapters that an average lacks": (
        ["--ds.lora.rank", "8", "--train.enable_ema"],
        "--ds.lora.rank 8 does not work with --train.enable_ema",
        "drop it",
    ),
    "no engines": (
        ["--vllm.num_engines", "0"],
        "--vllm.num_engines 0 leaves nothing to generate with",
        "use 1 or more",
    ),
    "fewer samples than ranks of the reference model": (
        ["--rollout.sagc.hold", "prompts", "--ref.num_gpus_per_node", "48"],
        "1 of --actor.num_gpus_per_node x --actor.num_nodes, 48 of --ref.num_gpus_per_node x --ref.num_nodes) share 48 samples",
        "a step at group size 4 can have as few as 32: use as many ranks as the actor has, 1, or a divisor",
    ),
    "fewer samples than the ranks of all models share evenly": (
        [
            *("--rollout.sagc.hold", "prompts", "--ref.num_gpus_per_node", "5", "--reward.num_gpus_per_node", "7"),
            *("--train.dynamic_batch_enable", "--reward.remote_url", "", "--reward.model_name_or_path", "none"),
        ],
        "5 of --ref.num_gpus_per_node x --ref.num_nodes, 7 of --reward.num_gpus_per_node x --reward.num_nodes) share 35",
        "can have as few as 32",
    ),
}


@pytest.mark.parametrize("flags, what, remedy", CASES.values(), ids=CASES.keys())
def test_bad_input_is_one_line_before_ray_starts(run_trainer, flags, what, remedy):
    with pytest.raises(SystemExit) as stop:
        run_trainer("--rollout.sagc.enable", *flags)
    message = stop.value.code
    assert message.startswith("openrlhf_sagc: ") and "\n" not in message
    assert what in message and remedy in message
