"""One real vLLM engine in Ray, without a trainer, and schedulers on it: fixtures and helpers.

A step has 4 groups of 4. What a prompt's responses are like stands in its label, see agents/labelled_agent.py.
"""

import json
import os
import runpy
import shutil
import sys
import tempfile
import threading

import pytest
import ray
from cpu_stack import cpu_environment
from openrlhf.trainer.ppo_trainer import prepare_datasets
from openrlhf.trainer.ray.vllm_engine import create_vllm_engines
from openrlhf.utils.utils import get_strategy, get_tokenizer
from real_runs import AGENTS
from torch.utils.data import SequentialSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from openrlhf_sagc.driver.experience import group_sizes_of
from openrlhf_sagc.driver.rollout import StragglerAwareSamplesGenerator
from openrlhf_sagc.engine.rollouts import stop_rollouts

AGENT = AGENTS / "labelled_agent.py"
SLOW = 1000  # tokens of a slow rollout: two seconds, as a test may wait that long for a core before it stops one
MAX_LEN = 1280
ENGINE_ARGS = {"max_num_seqs": 100, "block_size": MAX_LEN, "compilation_config": {"cudagraph_capture_sizes": [1, 2]}}


@pytest.fixture(scope="session")
def engine(task, python, session_folder):
    """A vLLM engine with the untrained model, in a Ray cluster of its own."""
    (session_folder / "engine").mkdir()  # or another worker has one too: see pytest_collection_modifyitems
    folder = tempfile.mkdtemp(prefix="ray.", dir="/tmp")  # short: Ray's socket paths are limited to 107 characters
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("RAY_")]:
            patch.delenv(name)
        for name, value in cpu_environment("cpu-patched").items():
            patch.setenv(name, value)
        patch.setattr("sys.executable", str(python))  # with which Ray starts its workers
        ray.init(address="local", include_dashboard=False, _temp_dir=folder)
    try:
        model, reserve = str(task / "model"), {"gpu_memory_utilization": 0.9, "engine_args": ENGINE_ARGS}
        (engine,) = create_vllm_engines(1, 1, model, 0, False, False, True, MAX_LEN, **reserve)
        yield engine
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def make_scheduler(engine, task, python, tmp_path, monkeypatch):
    """make_scheduler(labels, *flags): a scheduler whose prompts are 0, 1, ... in the order of their labels."""
    monkeypatch.setattr(
        "sys.executable", str(python)
    )  # with which a run tries to import its agent or reward before it starts

    def make(labels, *flags, reward=("--train.agent_func_path", AGENT)):
        lines = [json.loads(line) for line in (task / "prompts.jsonl").read_text().splitlines()]
        data = tmp_path / "prompts.jsonl"
        rows = [{**line, "label": label} for line, label in zip(lines, labels, strict=False)]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        args = parse(
            ["--actor.model_name_or_path", task / "model", "--data.prompt_dataset", data, "--data.input_key", "prompt"]
            + ["--data.label_key", "label", "--data.max_len", MAX_LEN, "--rollout.max_new_tokens", SLOW]
            + ["--rollout.batch_size", 4, "--rollout.n_samples_per_prompt", 4, "--rollout.micro_batch_size", 4]
            + ["--train.batch_size", 16, "--train.micro_batch_size", 4, "--actor.num_gpus_per_node", 1]
            + ["--vllm.num_engines", 1, "--algo.kl.init_coef", 0, "--ckpt.output_dir", tmp_path / "trained"]
            + ["--algo.advantage.estimator", "group_norm", *reward, *flags],
            monkeypatch,
        )
        agent, url = args.train.agent_func_path, args.reward.remote_url

        def use(actor):
            from openrlhf.trainer.ray.vllm_engine import SingleTurnAgentExecutor, _load_agent_executor

            actor.executor = _load_agent_executor(agent) if agent else SingleTurnAgentExecutor(url)

        ray.get(engine.__ray_call__.remote(use))
        strategy = get_strategy(args)
        tokenizer = get_tokenizer(str(task / "model"), None, "left", strategy)
        prompts, evaluation, _ = prepare_datasets(strategy, tokenizer)
        scheduler = StragglerAwareSamplesGenerator(strategy, in_order(prompts), evaluation, tokenizer, [engine])
        scheduler.numbers = {row["prompt"]: number for number, row in enumerate(rows)}
        return scheduler

    yield make
    ray.get(engine.resume_generation.remote())
    ray.get(engine.__ray_call__.remote(stop_rollouts))


def in_order(dataloader) -> StatefulDataLoader:
    """The prompt dataloader, but not shuffled."""
    sampler = SequentialSampler(dataloader.dataset)
    sampler.generator = dataloader.sampler.generator  # which the scheduler seeds
    return StatefulDataLoader(dataloader.dataset, batch_size=1, collate_fn=dataloader.collate_fn, sampler=sampler)


def parse(flags, monkeypatch):
    """The arguments as they are checked and passed on."""
    found = {}

    class Started(Exception):
        pass

    def stop():
        if threading.current_thread() is not threading.main_thread():  # the one that looks for deaths
            return False
        found["args"] = sys._getframe(1).f_locals["args"]
        raise Started

    with monkeypatch.context() as patch, pytest.raises(Started):
        patch.setattr("sys.argv", ["openrlhf_sagc", *map(str, flags)])
        patch.setattr(ray, "is_initialized", stop)
        runpy.run_module("openrlhf_sagc", run_name="__main__")
    return found["args"]


def take_step(scheduler, **settings):
    """(numbers of the trained prompts in order, response lengths of their samples, metrics, the whole return value)."""
    settings = {"max_len": MAX_LEN, "max_new_tokens": SLOW, "temperature": 1.0, **settings}
    result = scheduler.generate_samples(**settings)
    samples, start, prompts = result[0], 0, []
    for size in group_sizes_of(samples):
        prompts.append(scheduler.numbers[samples[start].sample.prompt])
        start += size
    lengths = [made.sample.response_length for made in samples]
    metrics = {name.removeprefix("dynamic_filtering/"): value for name, value in scheduler.metrics.items()}
    return prompts, lengths, metrics, result


def of_vllm(engine, *names: str) -> list[float]:
    """vLLM's own metrics of these names."""

    def read(actor):
        from vllm.v1.metrics.reader import get_metrics_snapshot

        return {metric.name: metric.value for metric in get_metrics_snapshot() if hasattr(metric, "value")}

    metrics = ray.get(engine.__ray_call__.remote(read))
    return [metrics[f"vllm:{name}"] for name in names]


def unfinished(engine):
    return ray.get(engine.get_num_unfinished_requests.remote())
