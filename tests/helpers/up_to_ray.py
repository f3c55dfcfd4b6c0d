"""The command with flags that fit each other, up to the start of Ray."""

import json
import runpy

import pytest
import ray

SIZES = "--rollout.sagc.group_sizes"
STOP = ["--rollout.tail_batching.enable", "--rollout.tail_batching.method", "stop"]


class RayStarted(Exception):
    pass


def reward_file(folder):
    """A reward that a run can use, in the folder."""
    path = folder / "a_reward.py"
    path.write_text("def reward_func(queries, prompts, labels):\n    return {'rewards': [0.0]}\n")
    return path


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"input": f"prompt {i}"}) + "\n" for i in range(20)))
    return path


@pytest.fixture
def run_trainer(prompts, monkeypatch, tmp_path):
    """run_trainer(*flags, module="openrlhf_sagc"): the command with flags that fit each other and these, up to Ray."""

    def refuse(**_):
        raise RayStarted

    def run(*flags, module="openrlhf_sagc"):
        fitting = {
            "--actor.model_name_or_path": "none",
            "--actor.num_gpus_per_node": 1,
            "--ref.num_gpus_per_node": 1,
            "--reward.remote_url": reward_file(tmp_path),
            "--data.prompt_dataset": prompts,
            "--vllm.num_engines": 1,
            "--ckpt.output_dir": tmp_path / "trained",
            "--rollout.batch_size": 8,
            "--rollout.n_samples_per_prompt": 8,
            "--train.batch_size": 64,
            "--algo.advantage.estimator": "group_norm",
        }
        pairs = [str(word) for pair in fitting.items() for word in pair]
        monkeypatch.setattr("sys.argv", [module, *pairs, *flags])
        runpy.run_module(module, run_name="__main__")

    monkeypatch.setattr(ray, "init", refuse)
    return run
