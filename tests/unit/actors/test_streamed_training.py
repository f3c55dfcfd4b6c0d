"""What a policy's actor needs for a step in buckets; tests/deepspeed has what becomes of them."""

from types import SimpleNamespace

import pytest

from openrlhf_sagc.actors.streamed_training import join_buckets


def test_an_optimizer_without_a_loss_scale_is_one_line():
    class Adam:
        pass

    trainer = SimpleNamespace(actor=SimpleNamespace(model=SimpleNamespace(optimizer=Adam())))
    model_actor = SimpleNamespace(trainer=trainer)
    with pytest.raises(
        RuntimeError, match="^--train.stream auto needs a DeepSpeed optimizer with a loss scale, which Adam"
    ):
        join_buckets(model_actor, 1.0, 1)
