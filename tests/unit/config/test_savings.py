"""What a training step leaves out, and what the start of a run says of it; tests/deepspeed has the weights in the end."""

import pytest
from flags import arguments_with

from openrlhf_sagc.config.savings import describe_savings, why_forward, why_not_streamed, why_shuffled

FLAGS = {
    "train.old_log_probs": "auto",
    "train.micro_batches": "length",
    "train.max_epochs": 1,
    "train.batch_size": 32,
    "train.dynamic_batch_enable": False,
    "rollout.batch_size": 4,
    "rollout.n_samples_per_prompt": 8,
    "algo.kl.init_coef": 0.0,
    "algo.kl.use_loss": False,
    "algo.kl.unbiased_gradient": False,
    "ds.packing_samples": False,
    "train.stream": "auto",
    "train.colocate_all": False,
    "train.async_enable": False,
    "train.enable_ema": False,
    "vllm.enable_sleep": False,
    "ds.enable_sleep": False,
    "ds.param_dtype": "bf16",
    "ds.zero_stage": 2,
    "ds.grad_accum_dtype": None,
    "actor.num_nodes": 1,
    "actor.num_gpus_per_node": 4,
    "ref.num_nodes": 1,
    "ref.num_gpus_per_node": 2,
    "reward.num_nodes": 1,
    "reward.num_gpus_per_node": 8,
    "reward.remote_url": ["reward.py"],
    "train.agent_func_path": None,
    "train.colocate_actor_ref": False,
    "ds.ring_attn_size": 1,
    "ds.tensor_parallel_size": 1,
    "algo.advantage.estimator": "group_norm",
    "actor.loss_agg_mode": "token-mean",
    "actor.policy_loss_type": "ppo",
    "actor.optim": "adam",
    "actor.aux_loss_coef": 0.0,
}
KL = {"algo.kl.init_coef": 0.1}


@pytest.mark.parametrize(
    "flags, forward, shuffled",
    [
        ({}, "", ""),
        ({"train.old_log_probs": "forward"}, "--train.old_log_probs forward asks for it", ""),
        ({"train.micro_batches": "shuffled"}, "", "--train.micro_batches shuffled asks for it"),
        ({"train.max_epochs": 2}, "--train.max_epochs 2 trains on a rollout again", ""),
        ({"train.batch_size": 8}, "", ""),
        (
            {"train.batch_size": 8, "train.enable_ema": True},
            "--train.batch_size 8 makes 4 optimizer steps of a rollout, which cannot be trained one by one with --train.enable_ema",
            "",
        ),
        (KL, "the KL in the reward needs a forward pass", ""),
        ({**KL, "algo.kl.use_loss": True}, "", ""),
        (
            {**KL, "algo.kl.use_loss": True, "algo.kl.unbiased_gradient": True},
            "--algo.kl.unbiased_gradient needs a forward pass",
            "",
        ),
        ({"ds.packing_samples": True}, "", "--ds.packing_samples leaves no padding"),
        ({"train.dynamic_batch_enable": True}, "", "--train.dynamic_batch_enable makes micro-batches by their tokens"),
        ({"actor.aux_loss_coef": 0.01}, "", "--actor.aux_loss_coef 0.01 is a loss of each micro-batch"),
    ],
)
def test_what_is_kept_has_a_reason(flags, forward, shuffled):
    args = arguments_with(FLAGS | flags)
    assert (why_forward(args), why_shuffled(args)) == (forward, shuffled)
    described = describe_savings(args)
    assert f"({forward})" in described if forward else "own forward pass gives the old log-prob" in described
    assert ("first optimizer step" in described) == (not forward and args.train.batch_size < 32)
    assert f"({shuffled})" in described if shuffled else "samples of like lengths" in described


@pytest.mark.parametrize(
    "flags, reason",
    [
        ({}, ""),
        ({**KL, "algo.kl.use_loss": True}, ""),
        ({"train.stream": "off"}, "--train.stream off asks for it"),
        ({"train.colocate_all": True}, "--train.colocate_all"),
        ({"vllm.enable_sleep": True}, "--vllm.enable_sleep and --ds.enable_sleep let engines and actors take turns"),
        ({"ds.enable_sleep": True}, "--vllm.enable_sleep and --ds.enable_sleep let engines and actors take turns"),
        ({"train.async_enable": True}, "--train.async_enable trains beside the rollouts already"),
        ({"train.rollouts_to": "kept"}, "--train.rollouts_to and --train.rollouts_from have whole steps"),
        ({"train.batch_size": 8}, ""),
        (KL, "the KL in the reward needs a forward pass"),
        ({"train.old_log_probs": "forward"}, "--train.old_log_probs forward asks for it"),
        ({"ds.packing_samples": True}, "--ds.packing_samples plans its micro-batches with all samples"),
        (
            {"train.dynamic_batch_enable": True},
            "--train.dynamic_batch_enable plans its micro-batches with all samples",
        ),
        ({"algo.advantage.estimator": "reinforce_baseline"}, "reinforce_baseline whitens over all samples"),
        ({"actor.aux_loss_coef": 0.01}, "--actor.aux_loss_coef 0.01 is a loss of each micro-batch"),
        ({"actor.loss_agg_mode": "seq-mean-token-mean"}, "seq-mean-token-mean is not a mean over tokens"),
        ({"actor.policy_loss_type": "gspo"}, "--actor.policy_loss_type gspo is not a mean over tokens"),
        ({"train.enable_ema": True}, "--train.enable_ema is not tried with it"),
        ({"actor.optim": "muon"}, "--actor.optim muon has no loss scale"),
        ({"ds.param_dtype": "fp16"}, "--ds.param_dtype fp16 has a loss scale of its own"),
        ({"ds.zero_stage": 0}, "--ds.zero_stage 0 has no loss scale"),
        (
            {**KL, "algo.kl.use_loss": True, "ref.num_gpus_per_node": 8},
            "the reference or the reward model has a number of ranks that does not divide the actor's",
        ),
        (
            {"reward.remote_url": None},
            "the reference or the reward model has a number of ranks that does not divide the actor's",
        ),
        (
            {**KL, "algo.kl.use_loss": True, "train.colocate_actor_ref": True},
            "--train.colocate_actor_ref puts the reference model on the actors' devices",
        ),
        (
            {"algo.dynamic_filtering_surplus": "keep"},
            "--algo.dynamic_filtering_surplus keep trains groups of the step",
        ),
        (
            {"ds.zero_stage": 1, "ds.grad_accum_dtype": "fp32"},
            "--ds.grad_accum_dtype fp32 under ZeRO 1 has no loss scale",
        ),
        ({"ds.ring_attn_size": 2}, "ranks of a ring or of tensor parallelism share their samples"),
        ({"ds.tensor_parallel_size": 2}, "ranks of a ring or of tensor parallelism share their samples"),
        ({"algo.dynamic_filtering_at_cap": "keep"}, "--algo.dynamic_filtering_at_cap keep may end a step early"),
    ],
)
def test_a_step_that_is_not_streamed_has_a_reason(flags, reason):
    args = arguments_with(FLAGS | flags)
    found = why_not_streamed(args)
    assert reason in found and bool(found) == bool(reason)
    assert (f"all groups ({found})" if reason else "while others still decode") in describe_savings(args)


@pytest.mark.parametrize(
    "flags, holds_for_one",
    [
        ({"ds.packing_samples": True}, "--ds.packing_samples"),
        ({"train.dynamic_batch_enable": True}, "--train.dynamic_batch_enable"),
        ({"ds.ring_attn_size": 2}, "a ring or tensor parallelism"),
        ({"ds.tensor_parallel_size": 2}, "a ring or tensor parallelism"),
        ({"train.enable_ema": True}, "--train.enable_ema"),
    ],
)
def test_several_optimizer_steps_have_a_forward_pass_where_they_cannot_be_trained_one_by_one(flags, holds_for_one):
    assert not why_forward(arguments_with(FLAGS | flags))
    assert f"which cannot be trained one by one with {holds_for_one}" in why_forward(
        arguments_with(FLAGS | flags | {"train.batch_size": 16})
    )
