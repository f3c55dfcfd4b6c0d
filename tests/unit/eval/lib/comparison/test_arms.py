"""From a policy to the flags of its run."""

import re

import pytest
from comparison_runs import CONTROL
from cpu_stack import ROOT
from lib.comparison.arms import ALGORITHMS, flags_of
from lib.comparison.tasks import TASKS


def value_of(flags: list[str], name: str) -> str:
    return flags[flags.index(f"--{name}") + 1]


@pytest.mark.parametrize(
    "policy, tree, prompts, size, sizes",
    [
        ("unpatched:4", "cpu-base", 32, 4, None),
        ("unpatched:32@prompts", "cpu-base", 16, 32, None),
        ("fixed:16", "cpu-patched", 8, 16, []),
        ("sagc", "cpu-patched", 16, 8, ["4", "8", "16", "32"]),
        ("sagc@prompts", "cpu-patched", 16, 8, ["4", "8", "16", "32"]),
        ("fixed:8+tail:1", "cpu-patched", 16, 8, []),
        ("sagc+tail+lengths@prompts", "cpu-patched", 16, 8, ["4", "8", "16", "32"]),
    ],
)
def test_policies(policy, tree, prompts, size, sizes):
    made, flags = flags_of(policy, "grpo", 3, CONTROL)
    assert made == tree and value_of(flags, "train.seed") == "3"
    assert value_of(flags, "rollout.batch_size") == str(prompts)
    assert value_of(flags, "rollout.n_samples_per_prompt") == str(size)
    assert value_of(flags, "train.batch_size") == str(prompts * size)
    control = [flag for flag in flags if flag.startswith("--rollout.sagc")]
    if sizes is None:
        assert not control  # unpatched OpenRLHF does not know them
    elif not sizes:  # its straggler rate is measured as that of the others
        assert {flag.rpartition(".")[2] for flag in control} == CONTROL.keys()
    else:
        at = flags.index("--rollout.sagc.group_sizes") + 1
        assert flags[at:] == sizes
        assert value_of(flags, "rollout.sagc.hold") == ("prompts" if "@prompts" in policy else "samples")
        assert value_of(flags, "rollout.sagc.max_straggler_rate") == "0.3"


@pytest.mark.parametrize("policy, ratio", [("sagc", None), ("sagc+tail", None), ("fixed:8+tail:1", "1")])
def test_tail_batching_and_its_ratio(policy, ratio):
    flags = flags_of(policy, "grpo", 0, CONTROL)[1]
    assert ("--rollout.tail_batching.enable" in flags) == ("+tail" in policy)
    method = "stop" if ratio else "auto"
    assert "+tail" not in policy or value_of(flags, "rollout.tail_batching.method") == method
    assert ("--rollout.tail_batching.response_ratio" in flags) == (ratio is not None)
    assert ratio is None or value_of(flags, "rollout.tail_batching.response_ratio") == ratio
    assert "--rollout.length_aware_dispatch" not in flags
    assert "--rollout.length_aware_dispatch" in flags_of(f"{policy}+lengths", "grpo", 0, CONTROL)[1]


def test_rounds_are_weighed_unless_the_policy_says_otherwise():
    flags = flags_of("fixed:8+tail:1+round", "grpo", 0, CONTROL)[1]
    assert value_of(flags, "rollout.tail_batching.token_weight") == "round"
    assert "--rollout.tail_batching.token_weight" not in flags_of("fixed:8+tail:1", "grpo", 0, CONTROL)[1]


def test_parts_of_the_faster_step_are_switched():
    flags = flags_of("fixed:8+forward+shuffled+stream", "grpo", 0, CONTROL)[1]
    assert value_of(flags, "train.old_log_probs") == "forward"
    assert value_of(flags, "train.micro_batches") == "shuffled"
    assert value_of(flags, "train.stream") == "auto"
    plain = flags_of("fixed:8", "grpo", 0, CONTROL)[1]
    assert not {"--train.old_log_probs", "--train.micro_batches", "--train.stream"} & {*plain}


@pytest.mark.parametrize("policy", ["unpatched:8", "fixed:8+tail", "sagc"])
def test_any_policy_may_filter(policy):
    plain, filtered = (flags_of(word, "grpo", 0, CONTROL) for word in (policy, f"{policy}+filter"))
    assert {*filtered[1]} - {*plain[1]} == {"--algo.dynamic_filtering_enable"} and filtered[0] == plain[0]


@pytest.mark.parametrize("name, tokens, buffer", [("countdown", "200", "40"), ("route", "584", "116")])
def test_a_task_says_how_long_responses_are(name, tokens, buffer):
    flags = flags_of("unpatched:8", "dapo", 0, CONTROL, TASKS[name])[1]
    assert value_of(flags, "rollout.max_new_tokens") == tokens
    assert value_of(flags, "reward.overlong_buffer_len") == buffer
    assert int(value_of(flags, "data.max_len")) > int(tokens)


def test_micro_batches_are_as_large_in_every_arm():
    for policy in ("unpatched:8", "sagc"):
        flags = flags_of(policy, "grpo", 0, CONTROL, micro_batch_size=32)[1]
        assert value_of(flags, "train.micro_batch_size") == value_of(flags, "rollout.micro_batch_size") == "32"


def test_dapo_is_the_same_work_in_two_optimizer_steps():
    flags = {name: flags_of("unpatched:8", name, 0, CONTROL)[1] for name in ALGORITHMS}
    assert [value_of(flags[name], "train.batch_size") for name in ("grpo", "dapo")] == ["128", "64"]
    assert (
        "--algo.dynamic_filtering_enable" in flags["dapo"] and "--algo.dynamic_filtering_enable" not in flags["grpo"]
    )


OF_SHAPE = r"--(?:ds\.\w+|train\.(?:colocate|dynamic|max_tokens)\w+|vllm\.enable_sleep|actor\.gradient\w+)"


@pytest.mark.parametrize("policy", ["unpatched:8", "fixed:8+tail"])
def test_the_gpu_shape_is_that_of_the_launch_scripts(policy):
    padded, packed = (flags_of(policy, "dapo", 0, CONTROL, shape=shape)[1] for shape in ("padded", "gpu"))
    launched = {*re.findall(OF_SHAPE, (ROOT / "train_scripts/launch.sh").read_text())} - {"--ds.param_dtype"}
    if policy.startswith("unpatched"):  # whose dynamic batches ask CUDA for a device
        launched -= {"--train.dynamic_batch_enable", "--train.max_tokens_per_gpu"}
    assert {word for word in packed if word.startswith("--")} - {*padded} == launched and {*padded} < {*packed}


@pytest.mark.parametrize(
    "policy, words",
    [
        ("fixed", "use unpatched:N or fixed:N or sagc"),
        ("sagc:8", "use unpatched:N or fixed:N or sagc"),
        ("unpatched:8+tail", "behind fixed:N or sagc"),
        ("fixed:8+tail+tail", "behind fixed:N or sagc"),
        ("fixed:12", "12 does not divide the 128 samples of a step"),
        ("unpatched:256", "256 does not divide the 128 samples of a step"),
        ("unpatched:0", "0 does not divide the 128 samples of a step"),
        ("sagc+tail:1..2", "behind fixed:N or sagc"),
    ],
)
def test_a_bad_policy_is_named(policy, words):
    with pytest.raises(ValueError, match=f"--policies {re.escape(policy)}: .*{words}"):
        flags_of(policy, "grpo", 0, CONTROL)
