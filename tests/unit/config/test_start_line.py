"""The start-up line; what else it says is in tests/unit/flags/test_arguments.py, for whole commands."""

import pytest
from flags import arguments_with
from lib.policies import parse_policy
from lib.simulation.flags import default_arguments, training_arguments

from openrlhf_sagc.config.start_line import _tail_batching, warn_of_no_checkpoint


def said(word, **settings):
    usual = {"batch_size": 8, "n_samples_per_prompt": 8, "seed": 0, "dynamic_sampling": False}
    return _tail_batching(training_arguments(parse_policy(word), default_arguments(**usual | settings)))


def test_each_method_is_told_by_what_it_does():
    assert said("fixed:8+tail:stop").startswith("short rounds dispatch 1.25 times the prompts")
    assert said("fixed:8+tail:sort") == "each step has prompts whose earlier responses were alike in length"
    assert said("fixed:8+tail:sort", prompt_ratio=1.02).endswith(", and 1.02 times as many as it needs")
    assert said("fixed:8+tail").endswith("the log says when, and what comes before")


@pytest.mark.parametrize(
    "prompts, flags, beyond",
    [
        (200, {"ckpt.save_steps": 25}, None),
        (200, {"ckpt.save_steps": 26}, (25, 12)),
        (201, {"ckpt.save_steps": 26}, None),
        (200, {"ckpt.save_steps": 26, "train.num_episodes": 2}, None),
        (8, {"ckpt.save_steps": 2}, (1, 1)),
        (200, {"ckpt.save_steps": 50, "rollout.sagc.group_sizes": [4, 16]}, None),
        (200, {"ckpt.save_steps": 51, "rollout.sagc.group_sizes": [4, 16]}, (50, 25)),
        (200, {"ckpt.save_steps": 26, "rollout.sagc.group_sizes": [4, 16], "rollout.sagc.hold": "prompts"}, (25, 12)),
        (200, {"ckpt.save_steps": 100, "eval.dataset": "e.jsonl", "eval.steps": 5}, None),
        (200, {"ckpt.save_steps": 100, "eval.dataset": "e.jsonl", "eval.steps": 50}, (25, 12)),
        (
            200,
            {"ckpt.save_steps": 100, "eval.dataset": "e.jsonl", "eval.steps": 5, "ckpt.best_metric_key": "none"},
            (25, 12),
        ),
        (200, {"ckpt.save_steps": -1}, None),  # which asks for none
    ],
)
def test_a_run_whose_first_checkpoint_is_beyond_its_last_step_says_so(capsys, prompts, flags, beyond):
    usual = {"rollout.batch_size": 8, "rollout.n_samples_per_prompt": 8, "rollout.sagc.group_sizes": [8]}
    others = {"train.num_episodes": 1, "eval.dataset": None, "eval.steps": -1, "ckpt.best_metric_key": ""}
    warn_of_no_checkpoint(arguments_with(usual | others | flags), prompts)
    said = capsys.readouterr().out
    if beyond is None:
        assert not said
    else:
        steps, enough = beyond
        assert said.startswith(
            f"openrlhf_sagc: --ckpt.save_steps {flags['ckpt.save_steps']} is beyond the last step, since "
        )
        assert said.endswith(
            f"make {steps} at most: no checkpoint is saved before the end; use --ckpt.save_steps {enough} or less\n"
        )
