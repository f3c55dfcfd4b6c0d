"""OpenRLHF's assertions, in one line that has today's flags and works when it is followed."""

import re

import pytest

from openrlhf_sagc.config.upstream_checks import in_todays_names

ON = ["--rollout.tail_batching.enable"]
MODEL = ["--reward.remote_url", "", "--reward.model_name_or_path", "model"]
# flags -> what the line says, what repairs them
CASES = {
    "no group": (
        ["--rollout.n_samples_per_prompt", "1"],
        "--rollout.n_samples_per_prompt 1 makes no group to compare rewards in: use --rollout.n_samples_per_prompt 8",
        ["--rollout.n_samples_per_prompt", "8"],
    ),
    "no group of a single size": (
        ["--rollout.n_samples_per_prompt", "1", "--rollout.sagc.enable", "--rollout.sagc.group_sizes", "16"],
        "use --rollout.n_samples_per_prompt 16",
        ["--rollout.n_samples_per_prompt", "16"],
    ),
    "recommended flags on a reward model's script": (
        ["--algo.dynamic_filtering_enable", *ON, *MODEL],
        "--algo.dynamic_filtering_enable needs rewards with the responses, from --reward.remote_url or",
        ["--reward.remote_url", "http://host/get"],
    ),
    "an evaluation without such rewards": (
        ["--eval.dataset", "x.jsonl", *MODEL],
        "--eval.dataset needs rewards with the responses, from --reward.remote_url or --train.agent_func_path",
        ["--reward.remote_url", "http://host/get"],
    ),
    "a range the other way round": (
        ["--algo.dynamic_filtering_enable", "--algo.dynamic_filtering_range", "1", "0"],
        "--algo.dynamic_filtering_range 1 0: use the lower number first",
        ["--algo.dynamic_filtering_range", "0", "1"],
    ),
    "a threshold of three": (
        ["--algo.advantage.is_correction_threshold", "1", "2", "3"],
        "--algo.advantage.is_correction_threshold 1.0 2.0 3.0: use LOW HIGH",
        ["--algo.advantage.is_correction_threshold", "1", "2"],
    ),
    "packing without engines": (
        ["--ds.packing_samples", "--vllm.num_engines", "0"],
        "--ds.packing_samples packs samples, which works only with vLLM: use --vllm.num_engines 1 or more",
        ["--vllm.num_engines", "1"],
    ),
    "asynchronous engines that sleep": (
        ["--train.async_enable", "--vllm.enable_sleep", "--train.colocate_all"],
        "--train.async_enable does not work with --vllm.enable_sleep",
        None,
    ),
    "partial rollouts alone": (
        ["--train.partial_rollout_enable"],
        "--train.partial_rollout_enable needs --train.async_enable: add it",
        ["--train.async_enable"],
    ),
    "over-sampling": (
        ["--rollout.vllm_generate_batch_size", "16"],
        "--rollout.vllm_generate_batch_size 16 above --rollout.batch_size 8 needs --train.async_enable "
        "--train.partial_rollout_enable: drop it, or add them",
        ["--rollout.vllm_generate_batch_size", "8"],
    ),
    "images and a critic": (
        ["--data.max_images_per_prompt", "1", "--algo.advantage.estimator", "gae"],
        "--data.max_images_per_prompt 1 does not work with a critic",
        ["--algo.advantage.estimator", "group_norm"],
    ),
    "images in packed samples": (
        ["--data.max_images_per_prompt", "1", "--ds.packing_samples"],
        "--data.max_images_per_prompt 1 does not work with --ds.packing_samples: drop it",
        None,
    ),
    "too few micro-batches": (
        ["--rollout.micro_batch_size", "64", "--actor.num_gpus_per_node", "8"],
        "--rollout.micro_batch_size 64 cuts the 64 samples of a step (--rollout.batch_size 8 x "
        "--rollout.n_samples_per_prompt 8) into too few batches for the 8 data-parallel ranks of the actor: use at most 8",
        ["--rollout.micro_batch_size", "8"],
    ),
    "no reward and a critic": (
        ["--reward.remote_url", "", "--algo.advantage.estimator", "gae"],
        "no reward is given: add --reward.remote_url",
        ["--reward.remote_url", "http://host/get"],
    ),
    "a divisor of 0": (
        ["--ds.ring_attn_size", "0"],
        "--ds.ring_attn_size 0: use 1 or more",
        ["--ds.ring_attn_size", "1"],
    ),
    "micro-batches of 0": (
        ["--rollout.micro_batch_size", "0"],
        "--rollout.micro_batch_size 0: use 1 or more",
        ["--rollout.micro_batch_size", "1"],
    ),
    "engines that do not fill the actor's GPUs": (
        ["--train.colocate_all", "--actor.num_gpus_per_node", "4", "--ref.num_gpus_per_node", "4"],
        "the actor has 4 (--actor.num_nodes x --actor.num_gpus_per_node), the engines 1 (--vllm.num_engines x "
        "--vllm.tensor_parallel_size): use --vllm.num_engines 4",
        ["--vllm.num_engines", "4"],
    ),
    "a reference of another size": (
        ["--train.colocate_actor_ref", "--ref.num_gpus_per_node", "2"],
        "--train.colocate_actor_ref puts actor and reference on the same GPUs, and the actor has 1: use --ref.num_nodes 1 "
        "--ref.num_gpus_per_node 1",
        ["--ref.num_gpus_per_node", "1"],
    ),
}


@pytest.mark.parametrize("flags, line, repair", CASES.values(), ids=CASES.keys())
def test_an_assertion_is_a_line_that_works_when_followed(arguments, refused, flags, line, repair):
    said = refused(arguments, *flags)
    assert line in said
    assert not re.search(r"(?<![\w.])(packing_samples|remote_rm_url|agent_func_path|vllm_num_engines)\b", said)
    assert repair is None or not refused(arguments, *flags, *repair)


def test_all_that_the_recommended_flags_need_is_in_one_line(arguments, refused):
    script = ["--algo.advantage.estimator", "gae", "--rollout.n_samples_per_prompt", "1", *MODEL]
    said = refused(arguments, "--algo.dynamic_filtering_enable", *ON, *script)
    needed = ["--algo.advantage.estimator", "group_norm", "--rollout.n_samples_per_prompt", "8"]
    needed += ["--rollout.batch_size", "1", "--train.batch_size", "8"]  # a step keeps its samples
    assert said.endswith(f"it also needs {' '.join(needed)}")
    assert not refused(arguments, *ON, *script, *needed)


def test_every_assertion_of_openrlhf_has_a_line():
    """Its texts, as they stand in the source of its checks."""
    import ast
    import inspect

    from openrlhf.cli import train_ppo_ray

    from openrlhf_sagc.config.upstream_checks import LINES

    tree = ast.parse(inspect.getsource(train_ppo_ray.validate_args))
    texts = ["".join(ast.unparse(node.msg).split("'")) for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    assert len(texts) > 10
    ours = [
        text for text in texts if not text.startswith('f"--vllm.engine_args')
    ]  # of a patch, behind check_engine_args
    for text in ours:
        assert any(re.search(pattern, text) for pattern in LINES), text


def test_an_unknown_assertion_has_the_names_of_today(parsed):
    from openrlhf_sagc.config.upstream_checks import validated

    def fails(args):
        raise AssertionError("`--packing_samples` and actor_num_nodes,\nnot --rollout.batch_size")

    with pytest.raises(SystemExit, match="--ds.packing_samples and --actor.num_nodes, not --rollout.batch_size$"):
        validated(fails, parsed())
    assert in_todays_names("args.ds.packing_samples") == "args.ds.packing_samples"


def test_openrlhf_warns_as_before_and_a_template_that_it_drops_is_noted(arguments, capsys):
    args = arguments("--data.input_template", "Question: {question}")
    assert args.data.input_template is None and args.data.dropped_template == "Question: {question}"
    assert "[Warning] '{}' not in args.data.input_template" in capsys.readouterr().out
    assert arguments("--data.input_template", "{}").data.dropped_template is None
