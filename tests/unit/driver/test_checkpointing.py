"""What a trainer saves at the command's wish, in OpenRLHF's own loop on simulated engines."""

import pickle
import queue
from types import SimpleNamespace
from unittest import mock

import pytest
from fake_engines import ONE_SIZE
from openrlhf.trainer import ppo_trainer, ppo_trainer_async
from openrlhf.trainer.ppo_trainer import BasePPOTrainer

import openrlhf_sagc.driver.checkpointing as checkpointing
from openrlhf_sagc.driver.trainers import GroupGenerator, GroupTrainer, GroupTrainingActor, _PromptsOfRun
from openrlhf_sagc.run.wishes import GivenUp, Training, Wish, wishes

PROMPTS, EPISODES = 11, 3
END = Wish(end=True)
START = {"episode": 0, "global_step": 0, "total_consumed_prompts": 0, "data_loader_state_dict": {}}


@pytest.fixture
def wish(monkeypatch):
    """wish(Wish(...)): the command's, of which this process hears; none before."""
    heard = wishes()
    monkeypatch.setattr(heard, "wish", Wish())
    monkeypatch.setattr(heard, "_saves", 0)
    monkeypatch.setattr(heard, "_callbacks", [])

    def say(word):
        heard.wish = word
        for callback in heard._callbacks if word.end else ():
            callback()

    return say


@pytest.fixture
def saved(monkeypatch):
    """[(step, states)] of the checkpoints, which OpenRLHF saves where it is due."""
    checkpoints = []

    def save(self, step, status, states):
        if step % self.args.ckpt.save_steps == 0:
            checkpoints.append((step, pickle.loads(pickle.dumps(states))))

    monkeypatch.setattr(BasePPOTrainer, "save_logs_and_checkpoints", save)
    monkeypatch.setattr(checkpointing, "step_seconds", lambda status: {})
    monkeypatch.setattr(checkpointing, "write_notes", mock.Mock())
    monkeypatch.setattr(ppo_trainer, "tqdm", mock.Mock())
    monkeypatch.setattr(ppo_trainer_async, "tqdm", mock.Mock())
    return checkpoints


def prepared(trainer, generator):
    """A trainer that was made without its constructor."""
    trainer.args, trainer.settings = generator.args, generator.settings
    trainer.args.eval.dataset, trainer.kl_ctl = None, SimpleNamespace(value=0.1)
    trainer.generate_kwargs, trainer.wandb_logger, trainer.tensorboard_logger = {}, None, mock.Mock()
    trainer.restore_best_checkpoint_state = trainer.broadcast_to_vllm = lambda *_: None
    return trainer


@pytest.fixture
def train(make_generator, monkeypatch, saved, wish):
    """train(checkpoint, in_training, in_rollouts, **flags) -> prompts of each step that OpenRLHF's own loop trains.

    The functions are called with the number of the step.
    """

    def run(checkpoint=START, in_training=None, in_rollouts=None, evaluates=None, **flags):
        trained = []

        def train_step(self, samples, step):
            if in_training:
                in_training(step + 1)
            trained.append([of_group.sample.prompt for of_group in samples])
            return {}, step + 1

        def respond(prompt, size):
            if in_rollouts:
                in_rollouts(generator.planner.steps + 1)
            return [(10 + prompt, 1.0)] * size

        monkeypatch.setattr(BasePPOTrainer, "init_checkpoint_states", lambda self: dict(checkpoint))
        monkeypatch.setattr(BasePPOTrainer, "train_step", train_step)
        generator = make_generator(PROMPTS, respond, train__num_episodes=EPISODES, **ONE_SIZE, **flags)
        trainer = prepared(GroupTrainer.__new__(GroupTrainer), generator)
        trainer.samples_generator, trainer.prompts_dataloader = generator, _PromptsOfRun(generator)
        trainer.eval_dataloader = generator.eval_dataloader = evaluates
        trainer.train_step = lambda samples, step: _trained(trainer, samples, step)
        trainer.save_best_checkpoint = mock.Mock()
        run.trainer = trainer
        try:
            trainer.fit()
        except GivenUp:
            trained.append(GivenUp)
        return trained

    return run


def _trained(trainer, samples, step):
    with trainer.trains():
        return BasePPOTrainer.train_step(trainer, samples, step)


@pytest.mark.parametrize("at", [2, 4, 7])
@pytest.mark.parametrize("place", ["in_rollouts", "in_training"])
def test_a_run_that_ends_saves_its_last_finished_step_and_goes_on_from_it(train, saved, wish, at, place):
    """The step that is rolled out is given up, one that is trained is finished; OpenRLHF itself would save no step."""
    uninterrupted = train(ckpt__save_steps=100)
    assert not saved and len(uninterrupted) > 7
    *before, end = train(ckpt__save_steps=100, **{place: lambda step: step == at and wish(END)})
    finished = at - 1 if place == "in_rollouts" else at
    ((step, checkpoint),) = saved
    assert end is GivenUp and len(before) == step == finished
    train.trainer.tensorboard_logger.close.assert_called_once()
    wish(Wish())
    assert before + train(checkpoint, ckpt__save_steps=100) == uninterrupted


def test_a_step_that_is_saved_already_is_not_saved_again(train, saved, wish):
    train(ckpt__save_steps=1, in_rollouts=lambda step: step == 3 and wish(END))
    assert [step for step, _ in saved] == [1, 2]


def test_a_run_without_a_finished_step_or_without_a_place_saves_nothing(train, saved, wish):
    assert train(ckpt__save_steps=100, in_rollouts=lambda step: wish(END)) == [GivenUp]
    assert train(ckpt__save_steps=100, in_rollouts=lambda step: wish(END)) == [GivenUp]  # before it begins
    wish(Wish())
    train(ckpt__save_steps=100, in_rollouts=lambda step: step == 3 and wish(Wish(end=True, may_save=False)))
    assert not saved


def test_a_wished_checkpoint_is_saved_once_and_the_run_goes_on(train, saved, wish):
    uninterrupted = train(ckpt__save_steps=100)
    assert train(ckpt__save_steps=100, in_training=lambda step: step == 3 and wish(Wish(saves=1))) == uninterrupted
    assert [step for step, _ in saved] == [3]


def test_an_evaluation_is_given_up_and_the_step_saved_without(train, saved, wish, monkeypatch):
    def evaluate(**kwargs):
        wish(END)
        wishes().look()

    monkeypatch.setattr(
        "openrlhf_sagc.driver.rollout.StragglerAwareSamplesGenerator.evaluate", lambda self, **_: evaluate()
    )
    *before, end = train(
        ckpt__save_steps=100, eval__steps=2, eval__temperature=1, eval__n_samples_per_prompt=1, evaluates="prompts"
    )
    assert end is GivenUp and [step for step, _ in saved] == [len(before)] == [2]
    assert train.trainer.save_best_checkpoint.call_args.args[0] == {}


def test_waiting_for_an_evaluations_responses_ends_with_the_run(make_generator, wish, monkeypatch):
    generator = make_generator(PROMPTS)
    monkeypatch.setattr("ray.get", lambda ref, timeout: wish(END) or (_ for _ in ()).throw(_timeout()))
    with pytest.raises(GivenUp):
        generator.engines.result("reference")


def _timeout():
    from ray.exceptions import GetTimeoutError

    return GetTimeoutError()


def test_what_the_trainer_says_of_its_training(train, wish, saved, monkeypatch):
    """The usual seconds are those of the slowest of the last steps and of the last save."""
    said, clock = [], iter(range(0, 10_000, 10))
    monkeypatch.setattr(checkpointing, "tell", said.append)
    monkeypatch.setattr(checkpointing.time, "time", lambda: float(next(clock)))
    train(ckpt__save_steps=2)
    assert said[0] == Training(None, None) and said[-1] == Training(None, None)
    usual = [word.usual for word in said if word.since is not None]
    assert usual[:4] == [None, 10.0, 20.0, 20.0]  # each look at the clock takes 10 s


class Queue(queue.Queue):
    """Ray's, in one process; what is put is as if it went to another."""

    def put(self, item, block=True):
        super().put(pickle.loads(pickle.dumps(item)), block)


@pytest.mark.parametrize("save_steps", [100, 2])
def test_an_asynchronous_run_saves_the_last_step_that_was_trained(
    make_generator, monkeypatch, saved, wish, save_steps
):
    """Three steps are rolled out, of which two are trained; the fourth is under way."""
    monkeypatch.setattr("ray.get", lambda ref: ref)
    generator = make_generator(
        40, train__async_enable=True, train__async_queue_size=4, ckpt__save_steps=save_steps, **ONE_SIZE
    )
    actor = GroupGenerator.__new__(GroupGenerator)
    actor.args, actor.generate_kwargs, actor.samples_generator = generator.args, {}, generator
    actor.prompts_dataloader = _PromptsOfRun(generator, 5)
    actor.vllm_lock, actor._generation_lock, actor._partial_rollout = mock.Mock(), mock.MagicMock(), True
    actor.rollout_queue, actor.rollout_slots = Queue(), Queue()
    for _ in range(4):
        actor.rollout_slots.put(0)
    theirs = generator.generate_samples

    def generate_samples(**kwargs):
        if generator.planner.steps == 3:
            wish(END)
        return theirs(**kwargs)

    generator.generate_samples = generate_samples
    actor.fit(0, 0)  # returns, as OpenRLHF waits for both
    assert actor.rollout_queue.qsize() == 3
    states = {step: pickle.loads(pickle.dumps(actor.state_of(step))) for step in (1, 2, 3)}
    assert all(state["samples_generator"]["steps"] == step for step, state in states.items())

    wish(Wish())
    trainer = prepared(GroupTrainingActor.__new__(GroupTrainingActor), generator)
    trainer.generator_actor = SimpleNamespace(state_of=SimpleNamespace(remote=actor.state_of))
    trainer.rollout_queue, trainer.rollout_slots = actor.rollout_queue, actor.rollout_slots

    def train_step(samples, step):
        if step == 1:
            wish(END)
        return {}, step + 1

    trainer.train_step = train_step
    with pytest.raises(GivenUp):
        trainer.fit()
    ((step, checkpoint),) = saved
    assert step == 2 and checkpoint["samples_generator"] == states[2]["samples_generator"]
    with pytest.raises(GivenUp):  # also where it waits for rollouts
        trainer.rollout_queue.get(block=True)


def test_the_state_of_a_step_ahead_of_its_training_is_sent_where_its_checkpoint_is_due(make_generator):
    """The trainer saves every third step, or also the best one after an evaluation of every second."""

    def sent_steps(evaluation, eval_steps=2):
        generator = make_generator(40, ckpt__save_steps=3, group_sizes=[4])
        generator.eval_dataloader, generator.args.eval.steps = evaluation, eval_steps
        prompts, states = _PromptsOfRun(generator, ahead=2), []
        for _ in range(6):
            generator.generate_samples()
            states.append(prompts.state_dict())
        assert all(not state or state["samples_generator"]["steps"] == n for n, state in enumerate(states, 1))
        assert sorted(prompts.kept) == [4, 5, 6] and prompts.kept[6] == states[5]
        return [n for n, state in enumerate(states, 1) if state]

    assert sent_steps(None) == sent_steps("prompts", float("inf")) == [3, 6]
    assert sent_steps("prompts") == [2, 3, 4, 6]


@pytest.mark.parametrize(
    "own, saved, best, key, warns",
    [
        ("", "a", 0.7, "a", False),
        ("a", "a", 0.7, "a", False),
        ("b", "a", float("-inf"), "b", True),
        ("none", "a", float("-inf"), "none", True),
        ("b", "", 0.7, "b", False),
    ],
)
def test_the_runs_own_metric_of_the_best_counts(monkeypatch, own, saved, best, key, warns):
    warnings = []
    monkeypatch.setattr(checkpointing.logger, "warning", warnings.append)
    trainer = GroupTrainer.__new__(GroupTrainer)
    trainer.best_eval_metric_key, trainer.best_eval_metric_value = own, float("-inf")
    trainer.restore_best_checkpoint_state({"best_eval_metric_key": saved, "best_eval_metric_value": 0.7})
    assert (trainer.best_eval_metric_key, trainer.best_eval_metric_value) == (key, best)
    assert len(warnings) == warns and all(
        line.startswith(f"--ckpt.best_metric_key {own} takes the place of a, by which") for line in warnings
    )


@pytest.mark.parametrize("target, value", [(6.0, 0.5), (None, 0.1)])
def test_an_adaptive_kl_coefficient_goes_on_and_a_fixed_one_is_the_flags(monkeypatch, target, value):
    args = SimpleNamespace(
        algo=SimpleNamespace(kl=SimpleNamespace(target=target)), train=SimpleNamespace(enable_ema=True)
    )
    warnings, called = [], []
    monkeypatch.setattr(checkpointing.logger, "warning", warnings.append)
    monkeypatch.setattr("ray.get", lambda refs: refs)
    trainer = GroupTrainer.__new__(GroupTrainer)
    trainer.args, trainer.kl_ctl = args, SimpleNamespace(value=0.5)
    trainer.actor_model_group = SimpleNamespace(async_run_method=lambda *call: called.append(call) or [False])
    states = {"global_step": 3, "samples_generator": {"episode": 1}, "data_loader_state_dict": {}}
    trainer._complete(3, states)
    trainer.kl_ctl.value = 0.1
    monkeypatch.setattr(BasePPOTrainer, "init_checkpoint_states", lambda self: states)
    trainer.init_checkpoint_states()
    assert trainer.kl_ctl.value == value and called == [("__ray_call__", checkpointing.load_average)]
    assert len(warnings) == 1 and "has no average of the weights (--train.enable_ema)" in warnings[0]


def test_a_note_says_what_is_left(train, saved):
    """A run is over where all its episodes are, whatever waits of the next one, of which the last step may have taken some."""
    train(ckpt__save_steps=1)
    episodes = [call.args[2]["episodes"] for call in checkpointing.write_notes.call_args_list]
    assert episodes[-1] == EPISODES > episodes[-2]
