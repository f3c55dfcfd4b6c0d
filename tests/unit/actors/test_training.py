"""What the policy's actors do with a rollout."""

from types import SimpleNamespace

import pytest
import torch
from transformers import Qwen3Config, get_scheduler

from openrlhf_sagc.actors.training import follow_schedule, keep_number_of_steps, uses_dropout


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant_with_warmup"])
def test_learning_rate_follows_the_share_of_prompts_used(schedule):
    """Steps of 3, 1 and 4 of 16 prompts: each has the rate that the schedule gives at the prompts before it."""
    model_actor = SimpleNamespace(max_steps=16)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    model_actor.actor_scheduler = get_scheduler(schedule, optimizer, num_warmup_steps=2, num_training_steps=16)
    expected = [model_actor.actor_scheduler.lr_lambdas[0](prompts) for prompts in (0, 3, 4, 8)]
    rates = []
    for prompts in (0, 3, 4, 8):
        follow_schedule(model_actor, prompts / 16)
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        model_actor.actor_scheduler.step()  # as DeepSpeed does after each optimizer step
    assert rates == pytest.approx(expected)


@pytest.mark.parametrize("dynamic", [False, True], ids=["", "dynamic batches"])
@pytest.mark.parametrize(
    "samples, micro_batches, times",
    [(32, 4, 1), (40, 3, 1), (64, 4, 1), (65, 5, 2), (128, 8, 2), (132, 9, 3), (256, 16, 4)],
)
def test_larger_groups_are_trained_in_larger_optimizer_steps(dynamic, samples, micro_batches, times):
    """8 prompts x 8 samples in steps of 32 on two actors in micro-batches of 4: two steps of 4 micro-batches on each.

    With 132 samples an actor has 17 micro-batches: steps of 9 and 8, and none of the one that is left over.
    """
    sizes = []
    engine = SimpleNamespace(
        dp_world_size=2, train_micro_batch_size_per_gpu=lambda: 4, set_train_batch_size=sizes.append
    )
    args = SimpleNamespace(
        rollout=SimpleNamespace(batch_size=8, n_samples_per_prompt=8),
        train=SimpleNamespace(batch_size=32, micro_batch_size=4, dynamic_batch_enable=dynamic),
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=2),
        ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
    )
    strategy = SimpleNamespace(args=args, train_batch_size=32, accumulated_gradient=4)
    model_actor = SimpleNamespace(strategy=strategy, actor=SimpleNamespace(model=engine))
    for _ in range(2):
        assert keep_number_of_steps(model_actor, samples) == (1 if samples == 32 else 2)
        if dynamic:
            assert args.train.batch_size == 32 * times and not sizes
        else:
            assert strategy.accumulated_gradient == micro_batches and sizes.pop() == 8 * micro_batches


@pytest.mark.parametrize("samples, ranks, steps", [(48, 1, 4), (72, 1, 3), (6, 4, 1), (8, 4, 2)])
def test_a_rollout_has_as_many_optimizer_steps_as_openrlhfs_buffer_makes_and_ranks_have_samples(samples, ranks, steps):
    """12 samples a micro-batch on one rank, of which 6 go into steps of 2; or one a rank, of which some have one alone."""
    micro_batch_size = 12 if ranks == 1 else 1
    args = SimpleNamespace(
        rollout=SimpleNamespace(batch_size=1, n_samples_per_prompt=48 if ranks == 1 else 12),
        train=SimpleNamespace(micro_batch_size=micro_batch_size, dynamic_batch_enable=False),
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=ranks),
        ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
    )
    engine = SimpleNamespace(
        dp_world_size=ranks,
        train_micro_batch_size_per_gpu=lambda: micro_batch_size,
        set_train_batch_size=lambda _: None,
    )
    strategy = SimpleNamespace(args=args, train_batch_size=12 if ranks == 1 else 4)
    model_actor = SimpleNamespace(strategy=strategy, actor=SimpleNamespace(model=engine))
    assert keep_number_of_steps(model_actor, samples) == steps


@pytest.mark.parametrize(
    "settings, module, found",
    [
        ({}, torch.nn.Dropout(0.0), False),
        ({"attention_dropout": 0.1}, torch.nn.Identity(), True),
        ({"text_config": {"attention_dropout": 0.1}}, torch.nn.Identity(), True),
        ({"router_jitter_noise": 0.01}, torch.nn.Identity(), True),
        ({"attn_pdrop": 0.1}, torch.nn.Identity(), True),
        ({}, torch.nn.Dropout(0.1), True),
    ],
)
def test_noise_of_the_training_is_found_in_the_model_and_its_configuration(settings, module, found):
    module.config = Qwen3Config(**settings)  # which also has labels by number
    model_actor = SimpleNamespace(actor=SimpleNamespace(model=SimpleNamespace(module=module)))
    assert uses_dropout(model_actor) == found
