"""How far apart two trainings of the same samples may end: derived from float32 and the optimizers, fitted to no run."""

import pytest
import torch

FLOAT32 = torch.finfo(torch.float32).eps
# Adam divides by root + epsilon, so this bounds how much it amplifies the rounding of a small gradient. It is between the
# median and the largest gradient of the runs, so that weights show what became of the gradients.
EPSILON = 1e-3
BETA_2 = 0.95  # OpenRLHF's default
MUON = 3.4445**5  # by which five Newton-Schulz iterations stretch a small singular value, and with it its rounding


def rounding(summands: int) -> float:
    """How far apart sums of so many float32 numbers in two orders are, as a share of the largest sum.

    An addition is off by eps / 2 at most, to either side, so that a sum is off by about eps / 2 * sqrt(summands); both are.
    """
    return FLOAT32 * summands**0.5


STEP = rounding(32 * 24)  # a gradient is a sum over tokens: these of the largest step


def near(logged, share: float = STEP):
    """Equal to `logged`, a number or several, up to the rounding of a mean over the tokens of a step.

    Terms of a mean are about 1 (advantages, differences of log-probabilities), so that its rounding is `share` if they
    cancel out, or else a share of their size.
    """
    return pytest.approx(logged, rel=share, abs=share)


def assert_same_training(ours: dict, theirs: dict, steps: int, rate: float, muon: bool = False) -> None:
    """Weights and Adam's moments agree to the rounding of the gradients, after so many optimizer steps of both.

    The gradients of a weight are off by d at most, which is STEP times the largest gradient. Adam's moments:

    - m is a mean of gradients, and off by the same share of the largest m.
    - sqrt(v) is a norm of gradients, so it is off by the same share of the largest one, and v by 2 * sqrt(v) times that.

    A step moves a weight by rate * M / (R + epsilon): M is m, and R is sqrt(v), without their bias. An error d of M moves it
    by rate * d / epsilon at most. An error d of R moves it by rate * |M| * d / (R + epsilon) ** 2, which is less, since |M| is
    below 1.2 * R. So every step moves the weight by 2 * rate * d / epsilon too far at most, and rounds it. The next gradients
    are those of such weights. That is not in the bound, since the weights' errors have either sign.

    Args:
        ours, theirs: results of `package_loop.py`.
        muon: whether Muon moves matrices, by rate times a product of orthogonal ones: rate * MUON * STEP too far at most.

    Raises:
        AssertionError: they differ by more, with the name of what differs and how many times more.
    """
    assert ours["actor"]["optimizer_steps"] == theirs["actor"]["optimizer_steps"] == steps
    for name, allowed in allowed_errors(theirs["actor"], steps, rate, muon).items():
        found, expected = (torch.tensor(run["actor"][name], dtype=torch.float64) for run in (ours, theirs))
        differs = (found - expected).abs() > allowed
        share = ((found - expected).abs() / allowed)[differs].max().item() if differs.any() else 0
        assert not differs.any(), f"{name}: {differs.sum()} are off by up to {share:.3g} times what rounding explains"


def allowed_errors(expected: dict, steps: int, rate: float, muon: bool = False) -> dict[str, torch.Tensor]:
    """What `assert_same_training` allows of each weight and moment."""
    weights, means, squares = (
        torch.tensor(expected[name], dtype=torch.float64) for name in ("weights", "exp_avg", "exp_avg_sq")
    )
    roots = squares.sqrt()
    largest = roots.max() / (1 - BETA_2**steps) ** 0.5
    moved = rate * STEP * max(2 * largest.item() / EPSILON, MUON if muon else 0)
    return {
        "weights": steps * (moved + FLOAT32 * weights.abs()),
        "exp_avg": torch.full_like(means, STEP * means.abs().max().item()),
        "exp_avg_sq": STEP * roots.max() * (2 * roots + STEP * roots.max()),
    }
