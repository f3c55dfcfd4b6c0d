"""What the other tests here allow is enough for sums in another order, and too little for a mistake in one sample."""

import pytest
import torch
from tolerances import EPSILON, assert_same_training

SAMPLES, TOKENS, WEIGHTS, STEPS, RATE = 16, 24, 400, 3, 1e-2


def train(weigh=lambda gradients: gradients, order=None):
    """Adam on made-up gradients of samples' tokens, which are summed in `order`; `weigh` changes those of step 2."""
    draw = torch.Generator().manual_seed(0)
    weights = torch.nn.Parameter(torch.randn(WEIGHTS, generator=draw))
    mean = torch.randn(WEIGHTS, generator=draw)
    optimizer = torch.optim.AdamW([weights], lr=RATE, betas=(0.9, 0.95), eps=EPSILON)
    for step in range(STEPS):
        gradients = mean + torch.randn(SAMPLES, TOKENS, WEIGHTS, generator=draw)
        gradients = (weigh(gradients) if step == 1 else gradients).flatten(0, 1) / SAMPLES / TOKENS
        total = torch.zeros(WEIGHTS)
        for row in order or range(len(gradients)):
            total += gradients[row]
        weights.grad = total
        optimizer.step()
    state = {name: value.tolist() for name, value in optimizer.state[weights].items() if name != "step"}
    return {"actor": {"weights": weights.tolist(), **state, "optimizer_steps": STEPS}}


def scaled(gradients, factor):
    changed = gradients.clone()
    changed[5] *= factor
    return changed


def test_the_order_of_a_sum_is_allowed():
    assert_same_training(train(order=range(SAMPLES * TOKENS)[::-1]), train(), STEPS, RATE)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda gradients: scaled(gradients, 1.001),
        lambda gradients: scaled(gradients, 0.0),
        lambda gradients: gradients * SAMPLES / (SAMPLES + 1),
        lambda gradients: gradients * 1.0001,
    ],
    ids=["a sample's weight is off by a thousandth", "a sample is left out", "another divisor", "a step weighs more"],
)
def test_a_mistake_in_a_step_is_not(mistake):
    with pytest.raises(AssertionError, match="weights: |exp_avg: "):
        assert_same_training(train(mistake), train(), STEPS, RATE)
