"""The memory of log-probabilities, forward and backward, on functions whose bytes a logit are known."""

import pytest
from flash_loss import FlashCrossEntropy
from lib.gpu_checks import log_probs
from lib.gpu_checks.outcomes import FAIL, PASS, Node

TOKENS, WORDS = 2048, 128


def fused(logits, labels):
    return -FlashCrossEntropy.apply(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)).view(labels.shape)


def plain(logits, labels):
    return logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]


def test_bytes_a_logit_are_those_that_are_allocated():
    """In bfloat16 2 and in float32 4 of the logits, 4 of a gradient, and plainly 4 more for the log-probabilities."""
    assert log_probs.bytes_a_logit(fused, None, "cpu", TOKENS, WORDS) == pytest.approx(10, rel=0.1)
    assert log_probs.bytes_a_logit(plain, None, "cpu", TOKENS, WORDS) > 11.5


def test_wrong_values_and_gradients_are_found():
    assert log_probs.difference(fused, "cpu") < log_probs.ROUNDING
    assert log_probs.difference(lambda logits, labels: 1.001 * plain(logits, labels), "cpu") > log_probs.ROUNDING
    half = lambda logits, labels: plain((logits + logits.detach()) / 2, labels)  # noqa: E731
    assert log_probs.difference(half, "cpu") > log_probs.ROUNDING


@pytest.mark.parametrize("function, status", [(fused, PASS), (plain, FAIL)])
def test_the_scripts_figure_is_the_bound(function, status, monkeypatch, tmp_path):
    config, sizes = log_probs.of_script()
    small = config, sizes._replace(tokens=TOKENS, logit_bytes=10)
    monkeypatch.setattr(log_probs, "of_script", lambda: small)
    entropy = lambda logits: -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)  # noqa: E731
    monkeypatch.setattr(
        log_probs, "_functions", lambda: {"log_probs_from_logits": function, "compute_entropy": entropy}
    )
    outcome = log_probs.check(Node(tmp_path, dry_run=True))
    assert outcome.status == status and outcome.details["with_entropy"] > outcome.number
    assert f"{TOKENS:,} tokens x 512" in outcome.reason
