"""What an evaluation counts, on made-up samples and on the engines of fake_engines.py."""

from types import SimpleNamespace

import pytest
from fake_engines import ONE_SIZE
from openrlhf.trainer import ppo_trainer, ppo_trainer_async

import openrlhf_sagc.driver.evaluation as evaluation_module
from openrlhf_sagc.decisions.records import ROLLOUT, Rollout
from openrlhf_sagc.driver.evaluation import FAILED, evaluation_metrics
from openrlhf_sagc.driver.trainers import GroupGenerator, GroupTrainer, GroupTrainingActor


def sample(reward, length=10.0):
    return SimpleNamespace(prompt="what its agent calls it", reward=reward, response_length=length, truncated=False)


def rows(*sources_of_texts):
    return [([source], [text], [""], [None]) for source, text in sources_of_texts]


def test_a_prompt_of_two_evaluation_sets_counts_for_both():
    prompts = rows(("easy", "1 + 1"), ("easy", "2 + 2"), ("hard", "1 + 1"))
    samples = [sample(1.0), sample(1.0), sample(0.0), sample(0.0), sample(0.0), sample(1.0)]
    metrics = evaluation_metrics(samples, prompts, 2)
    assert (metrics["eval_easy_pass1"], metrics["eval_hard_pass1"]) == (0.5, 0.5)
    assert (metrics["eval_easy_pass2"], metrics["eval_hard_pass2"]) == (0.5, 1.0)
    assert metrics[FAILED] == 0.0 and metrics["eval_num_samples"] == 6.0


@pytest.mark.parametrize("lowest, mean", [(0.0, 0.25), (-1.0, -0.5), (0.5, 0.375)])
def test_a_failed_reward_counts_as_the_worst_of_the_evaluation(lowest, mean):
    """It stays in the denominator: without its prompt the mean would be that of the easier ones."""
    prompts = rows(("all", "a"), ("all", "b"))
    metrics = evaluation_metrics([sample(1.0), None, sample(lowest), None], prompts, 2)
    assert metrics["eval_all_pass1"] == mean and metrics[FAILED] == 2.0
    assert metrics["eval_all_response_length_mean"] == 10.0  # of those that have one
    assert evaluation_metrics([None, None], rows(("all", "a")), 2)["eval_all_pass1"] == 0.0
    assert evaluation_metrics([], [], 2) == {}


def test_an_evaluation_is_in_the_order_of_its_prompts_whatever_comes_back_first(make_generator, monkeypatch):
    """A prompt that is in two sets, with another label in each; the reward is right for the first set alone."""
    generator = make_generator(8, **ONE_SIZE)
    generator.eval_dataloader = rows(("first", "0"), ("first", "1"), ("second", "0"), ("second", "2"))

    def dispatch(prompts, labels, *, images, n_samples_per_prompt, **settings):
        rewards = iter([1.0, 1.0, 0.0, None])
        return [[response(next(rewards))] * n_samples_per_prompt for _ in prompts]

    def response(reward):
        rollout = Rollout(4, 1.0, 0.0, finished=True, stopped=False, failure="E" if reward is None else None)
        fields = {"prompt": "0", "label": "", "images": None, "observation_tokens": [1] * 6, "action_ranges": [(2, 6)]}
        fields |= {"rollout_log_probs": None, "extra_logs": {}}
        return fields | {"reward": reward, "scores": reward, ROLLOUT: rollout}

    generator._dispatch_prompts_to_vllm = dispatch
    monkeypatch.setattr("ray.get", lambda refs, timeout=None: refs)
    metrics = generator.evaluate(n_samples_per_prompt=2, max_len=200)
    assert (metrics["eval_first_pass1"], metrics["eval_second_pass1"], metrics[FAILED]) == (1.0, 0.0, 2.0)


@pytest.mark.parametrize("cls", [GroupTrainer, GroupTrainingActor])
def test_an_evaluation_with_failed_rewards_never_becomes_best(cls, monkeypatch):
    saved = []
    base = "openrlhf.trainer.ppo_trainer.BasePPOTrainer.save_best_checkpoint"
    monkeypatch.setattr(base, lambda self, metrics, step, *args: saved.append(step))
    monkeypatch.setattr("openrlhf_sagc.driver.checkpointing.write_notes", lambda *args: None)
    trainer = cls.__new__(cls)
    trainer.settings = SimpleNamespace(ckpt=SimpleNamespace(path="ckpt"), data=SimpleNamespace(described={}))
    trainer.save_best_checkpoint({"eval_all_pass1": 1.0, FAILED: 1.0}, 4)
    trainer.save_best_checkpoint({"eval_all_pass1": 0.5, FAILED: 0.0}, 8)
    trainer.save_best_checkpoint({}, 12)
    assert saved == [8, 12]


def test_wandb_gets_the_axis_that_it_was_told_of(start_run, monkeypatch):
    logged = []
    monkeypatch.setattr(
        ppo_trainer, "WandbLogger", lambda args: SimpleNamespace(log_eval=lambda *entry: logged.append(entry))
    )
    for module in (ppo_trainer, ppo_trainer_async):
        monkeypatch.setattr(module, "get_tokenizer", lambda *_, **__: "tokenizer")
    args = start_run("--rollout.sagc.enable", "--train.async_enable", "--logger.wandb.key", "key").args
    shared = dict.fromkeys(("generator_actor", "vllm_lock", "rollout_queue", "rollout_slots"))
    trainer = GroupTrainingActor("model", SimpleNamespace(args=args), "actor", None, None, "reference", [], **shared)
    trainer.wandb_logger.log_eval(8, {"eval_all_pass1": 0.5})
    assert logged == [(8, {"eval_all_pass1": 0.5, "epoch": 8})]


class Locked:
    held = False

    def __enter__(self):
        self.held = True

    def __exit__(self, *_):
        self.held = False


@pytest.mark.parametrize("pool, waits", [(None, True), (16, False)])  # beside a pool no step is waited for
def test_both_trainers_evaluate_with_the_flags_of_an_evaluation(pool, waits):
    asked = []
    lock = Locked()

    def evaluate(**settings):
        asked.append((settings, lock.held))
        return {"eval_all_pass1": 0.5}

    args = SimpleNamespace(eval=SimpleNamespace(temperature=0.6, n_samples_per_prompt=4))
    generator = GroupGenerator.__new__(GroupGenerator)
    generator.args, generator.generate_kwargs, generator._generation_lock = (
        args,
        {"temperature": 1.0, "top_p": 0.9},
        lock,
    )
    generator.samples_generator = SimpleNamespace(evaluate=evaluate, planner=SimpleNamespace(pool=pool))
    assert generator.evaluate() == {"eval_all_pass1": 0.5}
    assert asked == [({"temperature": 0.6, "top_p": 0.9, "n_samples_per_prompt": 4}, waits)]
    logged = []
    trainer = GroupTrainer.__new__(GroupTrainer)
    trainer.samples_generator, trainer.wandb_logger = generator.samples_generator, None
    trainer.tensorboard_logger = SimpleNamespace(log_eval=lambda *entry: logged.append(entry))
    assert trainer.evaluate(7, n_samples_per_prompt=2) == {"eval_all_pass1": 0.5}
    assert logged == [(7, {"eval_all_pass1": 0.5})]


def test_a_rollout_that_was_stopped_counts_as_failed(make_generator, monkeypatch):
    stopped = {"prompt": "0", ROLLOUT: Rollout(4, 1.0, 0.0, finished=False, stopped=True, failure=None)}
    generator = make_generator(4)
    monkeypatch.setattr("ray.get", lambda ref, timeout: ref)
    monkeypatch.setattr(evaluation_module, "_collect_prompt_batch", lambda *_: (["0"], [""], [None], True))
    generator._dispatch_prompts_to_vllm = lambda *_, **__: [[stopped] * 2]
    generator._evaluated = iter([0])
    assert generator._generate_vllm(None, 1, False)[0] == [None, None] and len(generator.eval_failures) == 2
