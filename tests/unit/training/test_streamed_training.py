"""What a policy's actor needs for a step in buckets; tests/deepspeed has what becomes of them."""

import pytest

from openrlhf_sagc.training.streamed_training import check_loss_scale


def test_an_optimizer_without_a_loss_scale_is_one_line():
    class Adam:
        pass

    with pytest.raises(RuntimeError, match="^--train.stream auto needs .*Adam.*: use --train.stream off"):
        check_loss_scale(Adam())
