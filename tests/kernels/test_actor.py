"""The actor's choice between the kernel and the closed form."""

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_sagc.advantages.kernel import FUSED
from openrlhf_sagc.training.rollout_rewards import SAMPLE, RolloutRewards, rollout_advantages

SIZES = [4, 1, 8, 3]


class OnGPU(torch.Tensor):
    """A tensor that says it is on a GPU: the kernel is interpreted where there is none."""

    is_cuda = True


@pytest.mark.parametrize("kl_coef", [0.0, 0.05])
@pytest.mark.parametrize("estimator", FUSED)
def test_a_gpu_and_a_cpu_train_on_the_same_advantages(device, estimator, kl_coef):
    generator = torch.Generator().manual_seed(0)
    rewards = torch.rand(sum(SIZES), generator=generator)
    offsets = torch.tensor([0, *SIZES]).cumsum(0)
    samples = torch.randperm(sum(SIZES), generator=generator)[:7]
    mask = torch.randint(0, 2, (7, 37), generator=generator)
    mask[2] = 0
    kl = torch.randn(mask.shape, generator=generator) if kl_coef else None
    made = {}
    for on in ("cpu", device):
        rollout = RolloutRewards(rewards, offsets, estimator, (-1.0, 1.2), kl_coef, 0.1, 1.5)
        batch = Experience(action_mask=mask, kl=kl, info={SAMPLE: list(samples)}).to_device(on)
        if made and device == "cpu":
            batch.action_mask = batch.action_mask.as_subclass(OnGPU)
        advantages = rollout_advantages(rollout, batch)
        used = batch.info["advantage_kernel"]
        assert SAMPLE not in batch.info and used.shape == (7,)
        made[bool(used.all())] = advantages.cpu(), batch.info["group_reward_std"].cpu()
    for kernel, closed_form in zip(made[True], made[False]):
        torch.testing.assert_close(kernel, closed_form, rtol=1e-6, atol=1e-6)
