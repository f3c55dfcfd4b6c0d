"""What the package's trainers add to OpenRLHF's."""

import contextlib
import pickle
import queue
import time
from types import SimpleNamespace
from unittest import mock

import pytest
from fake_engines import ONE_SIZE
from openrlhf.trainer import ppo_trainer, ppo_trainer_async
from openrlhf.trainer.ppo_trainer import BasePPOTrainer
from ray.exceptions import ActorDiedError, RayTaskError

import openrlhf_sagc.driver.checkpointing as checkpointing
import openrlhf_sagc.driver.trainers as trainers
from openrlhf_sagc.driver.experience import GroupExperienceMaker
from openrlhf_sagc.driver.rollout import StepSamples, StragglerAwareSamplesGenerator
from openrlhf_sagc.driver.trainers import GroupGenerator, GroupTrainer, GroupTrainerAsync, GroupTrainingActor
from openrlhf_sagc.training.average import save_average
from openrlhf_sagc.training.weight_sync import broadcast_merged

TIMINGS = {f"timing/{name}": 1.0 for name in ("generation", "make_experience", "ppo_train", "broadcast", "other")}
TIMINGS |= {"timing/step_total": 5.0, "rollout/idle_tail_seconds": 0.5, "rollout/reward_wait_seconds": 0.0}


@pytest.fixture
def make(monkeypatch):
    """make(cls, *flags, **more) -> a trainer, or an actor of one, from its own constructor; models and prompts are made up."""
    prompts = mock.MagicMock(__len__=lambda _: 8)
    monkeypatch.setattr("ray.put", mock.Mock())
    for module in (ppo_trainer, ppo_trainer_async):
        monkeypatch.setattr(module, "get_tokenizer", lambda *_, **__: "tokenizer")
        monkeypatch.setattr(module, "prepare_datasets", lambda *_: (prompts, None, 7))

    def run(cls, args, *models, **more):
        return cls("model", SimpleNamespace(args=args), *models, **more)

    return run


def assert_makes_experiences_of_groups(trainer):
    maker = trainer.experience_maker
    assert type(maker) is GroupExperienceMaker
    assert maker.actor_model_group == "actor" and maker.initial_model_group == "reference"
    assert maker.kl_ctl is trainer.kl_ctl and maker.tokenizer == "tokenizer"


def assert_rolls_out_groups(owner):
    generator = owner.samples_generator
    assert type(generator) is StragglerAwareSamplesGenerator
    assert len(owner.prompts_dataloader) == len(generator.prompts_dataloader)
    assert generator.tokenizer == "tokenizer"


def test_synchronous_trainer(start_run, make):
    args = start_run("--rollout.sagc.enable").args
    trainer = make(GroupTrainer, args, "actor", None, None, "reference", [])
    assert_makes_experiences_of_groups(trainer)
    assert_rolls_out_groups(trainer)


def test_asynchronous_trainer(start_run, make, monkeypatch):
    """Its two actors, each made as OpenRLHF's trainer makes it."""
    args = start_run("--rollout.sagc.enable", "--train.async_enable").args
    made = []

    def remote(cls):
        def make_actor(**settings):
            made.append(make(cls, args, **{k: v for k, v in settings.items() if k not in ("pretrain", "strategy")}))
            return made[-1]

        actor_class = SimpleNamespace(remote=make_actor)
        actor_class.options = lambda **_: actor_class
        return actor_class

    monkeypatch.setattr(ppo_trainer_async.ray, "remote", remote)
    monkeypatch.setattr(ppo_trainer_async, "Queue", mock.Mock())
    monkeypatch.setattr(ppo_trainer_async, "VLLMLock", mock.Mock())
    make(GroupTrainerAsync, args, "actor", None, None, "reference", [])
    assert [type(actor) for actor in made] == [GroupGenerator, GroupTrainingActor]
    assert_rolls_out_groups(made[0])
    assert_makes_experiences_of_groups(made[1])


def test_a_checkpoints_state_is_put_once_for_all_actors(start_run, make, monkeypatch):
    actors = SimpleNamespace(async_run_method=lambda method_name, **given: saved.append(given["client_states"]) or [])
    trainer, saved = make(GroupTrainer, start_run("--rollout.sagc.enable").args, actors, None, None, None, []), []
    trainer.args.ckpt.save_steps = 7
    monkeypatch.setattr("ray.get", lambda refs: refs)
    monkeypatch.setattr("ray.put", lambda value: ("put", value))
    monkeypatch.setattr(checkpointing, "write_notes", mock.Mock())
    monkeypatch.setattr(checkpointing, "step_seconds", lambda status: {})
    trainer.save_logs_and_checkpoints(7, {}, {"samples_generator": {"large": 1}})
    ((put, state),) = saved
    assert put == "put" and state["samples_generator"] == {"large": 1}


def test_a_checkpoint_gets_the_average_before_it_counts_as_whole(start_run, make, monkeypatch):
    called = []
    actors = SimpleNamespace(
        async_run_method=lambda *what, **named: called.append((*what, *named.values())) or ["ref"]
    )
    trainer = make(GroupTrainer, start_run("--train.enable_ema").args, actors, None, None, None, [])
    saved = trainer.actor_model_group.async_run_method(method_name="save_checkpoint", tag="global_step7")
    assert called == [("__ray_call__", save_average, "global_step7"), ("save_checkpoint", "global_step7")]
    assert saved == ["ref", "ref"]


@pytest.fixture
def train(make_generator, monkeypatch):
    """train(steps, checkpoint, **hooks) -> (prompts that OpenRLHF's own loop trains, the last step's checkpoint)."""
    monkeypatch.setattr(checkpointing, "step_seconds", lambda status: {})
    monkeypatch.setattr(checkpointing, "write_notes", mock.Mock())
    monkeypatch.setattr(ppo_trainer, "tqdm", mock.Mock())

    def run(steps, checkpoint=None):
        trained, saved = [], []
        start = {"episode": 0, "global_step": 0, "total_consumed_prompts": 0, "data_loader_state_dict": {}}

        def train_step(samples, step):
            if len(trained) == steps:
                raise InterruptedError
            trained.append([of_group.sample.prompt for of_group in samples])
            return {}, step + 1

        monkeypatch.setattr(BasePPOTrainer, "init_checkpoint_states", lambda self: dict(checkpoint or start))
        monkeypatch.setattr(
            BasePPOTrainer, "save_logs_and_checkpoints", lambda self, step, status, states: saved.append(dict(states))
        )
        trainer = GroupTrainer.__new__(GroupTrainer)
        trainer.samples_generator = make_generator(11, train__num_episodes=3, **ONE_SIZE)
        trainer.prompts_dataloader = trainers._PromptsOfRun(trainer.samples_generator)
        trainer.args, trainer.settings = trainer.samples_generator.args, trainer.samples_generator.settings
        trainer.generate_kwargs, trainer.eval_dataloader, trainer.train_step = {}, None, train_step
        trainer.wandb_logger = trainer.tensorboard_logger = None
        trainer.kl_ctl = SimpleNamespace(value=0.1)
        trainer.restore_best_checkpoint_state = trainer.broadcast_to_vllm = lambda *_: None
        with contextlib.suppress(InterruptedError):
            trainer.fit()
        return trained, saved[-1]

    return run


@pytest.mark.parametrize("steps", range(1, 8))
def test_a_resumed_run_trains_each_prompt_of_each_episode_once(train, steps):
    """#1322, and a checkpoint of an episode's last step: OpenRLHF saves neither the waiting prompts nor the next episode."""
    uninterrupted, _ = train(None)
    before, checkpoint = train(steps)
    assert set(checkpoint) >= {"samples_generator", "data_loader_state_dict", "episode"}
    after, _ = train(None, pickle.loads(pickle.dumps(checkpoint)))
    assert before + after == uninterrupted and len(uninterrupted) > steps


@pytest.mark.parametrize(
    "flags, call",
    [([], ("broadcast_to_vllm",)), (["--ds.lora.rank", "8"], ("__ray_call__", broadcast_merged))],
    ids=["without adapters", "with adapters"],
)
def test_the_weights_of_adapters_are_sent_merged(start_run, make, monkeypatch, flags, call):
    called = []
    actors = SimpleNamespace(async_run_method=lambda *what, **named: called.append((*what, *named.values())) or [])
    trainer = make(GroupTrainer, start_run(*flags).args, actors, None, None, None, [])
    monkeypatch.setattr("ray.get", lambda refs: refs)
    trainer.broadcast_to_vllm()
    assert called == [call]


def test_the_steps_metrics_are_logged_after_it_came_through_a_queue(monkeypatch):
    step = pickle.loads(pickle.dumps(StepSamples(["sample"], {"sagc/group_size": 8.0})))
    monkeypatch.setattr(BasePPOTrainer, "train_step", lambda self, samples, step: ({"samples": samples}, step + 1))
    status, number = GroupTrainer.__new__(GroupTrainer).train_step(step, 3)
    assert (status["samples"], status["sagc/group_size"], number) == (["sample"], 8.0, 4)


@pytest.fixture
def logged(monkeypatch):
    """The scalars of every step that is logged; a step of training takes 0.05 s, of which 0.03 s have a name."""
    steps = []

    def train_step(self, samples, step):
        time.sleep(0.05)
        timings = {"timing/make_experience": 0.005, "timing/ppo_train": 0.02, "timing/broadcast": 0.005}
        return timings | {"actor_optimizer_seconds": 0.004}, step + 1

    monkeypatch.setattr(BasePPOTrainer, "train_step", train_step)
    monkeypatch.setattr(
        BasePPOTrainer, "save_logs_and_checkpoints", lambda self, number, scalars, states: steps.append(scalars)
    )
    return steps


def assert_parts_make_the_step(scalars):
    parts = {name: value for name, value in scalars.items() if name.startswith("step_seconds/")}
    assert len(parts) == 8 and min(parts.values()) >= 0
    assert sum(parts.values()) == pytest.approx(scalars["timing/step_total"])
    assert parts["step_seconds/training"] == pytest.approx(0.016)
    assert parts["step_seconds/optimizer"] == 0.004
    assert parts["step_seconds/other"] >= 0.019  # what OpenRLHF names no timing for


def test_the_log_of_a_synchronous_step_has_parts_that_sum_to_its_seconds(start_run, make, logged):
    trainer = make(GroupTrainer, start_run("--rollout.sagc.enable").args, "actor", None, None, "reference", [])

    def generate_samples():
        time.sleep(0.03)
        return (
            StepSamples(["sample"], {"rollout/idle_tail_seconds": 0.01, "rollout/reward_wait_seconds": 0.0}),
            None,
            8,
            True,
        )

    trainer.samples_generator.generate_samples = generate_samples
    trainer.args.train.num_episodes = 2
    trainer.fit()
    assert len(logged) == 2
    for scalars in logged:
        assert_parts_make_the_step(scalars)
        assert scalars["step_seconds/idle_tail"] == 0.01
        assert scalars["step_seconds/decoding"] == pytest.approx(scalars["timing/generation"] - 0.01)


SHARES = ("rollout/engines_wait_share", "rollout/reward_wait_seconds")


def test_an_asynchronous_step_has_the_generation_that_it_waited_for(start_run, make, logged):
    args = start_run("--rollout.sagc.enable", "--train.async_enable").args
    args.ckpt.save_steps = float("inf")  # as OpenRLHF's trainer of both has it
    steps, shared = queue.Queue(), {"generator_actor": None, "vllm_lock": None, "rollout_slots": queue.Queue()}
    actor = make(GroupTrainingActor, args, "actor", None, None, "reference", [], rollout_queue=steps, **shared)
    for _ in range(2):
        steps.put(
            (
                StepSamples(["sample"], {**dict.fromkeys(SHARES, 0.0), "rollout/idle_tail_seconds": 0.01}),
                {},
                None,
                5.0,
            )
        )
    steps.put("done")
    actor.fit()
    for scalars in logged:
        assert_parts_make_the_step(scalars)
        waited = scalars["step_seconds/decoding"] + scalars["step_seconds/idle_tail"]
        assert waited < 0.05 < scalars["timing/generation"] == 5.0
        assert 0 <= scalars["rollout/actors_wait_share"] < 1


@pytest.mark.parametrize("cls", [GroupTrainer, GroupTrainingActor])
@pytest.mark.parametrize(
    "method, arguments", [("save_logs_and_checkpoints", (7, TIMINGS)), ("save_best_checkpoint", ({}, 7))]
)
def test_a_checkpoint_that_cannot_be_saved_is_one_line(cls, method, arguments, monkeypatch):
    trainer = cls.__new__(cls)
    trainer.settings = trainer.args = SimpleNamespace(ckpt=SimpleNamespace(path="/data/run", save_steps=7))
    monkeypatch.setattr(checkpointing, "step_seconds", lambda status: {})
    full = RayTaskError("save_checkpoint", "a long traceback", OSError(28, "No space left on device"))
    monkeypatch.setattr(BasePPOTrainer, method, mock.Mock(side_effect=full.as_instanceof_cause()))
    with pytest.raises(RuntimeError) as ended:
        getattr(trainer, method)(*arguments)
    assert str(ended.value) == (
        "the checkpoint of step 7 could not be saved in --ckpt.path /data/run: OSError: [Errno 28] No space left on device; "
        "mend that, and start again with --ckpt.load_enable"
    )
    monkeypatch.setattr(BasePPOTrainer, method, mock.Mock(side_effect=ActorDiedError()))
    with pytest.raises(ActorDiedError):  # which the command names
        getattr(trainer, method)(*arguments)


def test_ages_of_an_asynchronous_run_count_the_updates_from_dispatch_to_training(make_generator, monkeypatch):
    """Two steps are rolled out ahead of the first sync, as with a queue of two; each sync happens inside of its lock."""
    events = []
    generator = GroupGenerator.__new__(GroupGenerator)
    samples_generator = make_generator(40, train__async_enable=True, **ONE_SIZE)
    generator.samples_generator = samples_generator

    def note_sync():
        generator.note_sync()
        events.append("noted")

    trainer = GroupTrainingActor.__new__(GroupTrainingActor)
    trainer.generator_actor = SimpleNamespace(note_sync=SimpleNamespace(remote=note_sync))
    trainer.vllm_lock = SimpleNamespace(
        acquire=SimpleNamespace(remote=lambda: events.append("locked")),
        release=SimpleNamespace(remote=lambda: events.append("free")),
    )
    trainer._partial_rollout, trainer._waits = False, []
    trainer.rollout_queue = SimpleNamespace(wait_share=0.5)
    monkeypatch.setattr(trainers.ray, "get", lambda ref, timeout=None: ref)
    monkeypatch.setattr(BasePPOTrainer, "broadcast_to_vllm", lambda self: events.append("synced"))

    def train_step(self, samples, step):
        self.broadcast_to_vllm()
        return {}, step + 1

    monkeypatch.setattr(BasePPOTrainer, "train_step", train_step)
    trainer.broadcast_to_vllm()  # of a resume
    assert events == ["locked", "synced", "noted", "free"]
    monkeypatch.setattr(ppo_trainer_async.GenerateSamplesActor, "fit", lambda self: None)
    generator.rollout_slots = SimpleNamespace(put=None)
    generator.fit()  # from now on the weights are those that it resumes with
    ahead = [pickle.loads(pickle.dumps(samples_generator.generate_samples()[0])) for _ in range(3)]
    ages = [trainer.train_step(step, 0)[0]["rollout/age_max"] for step in ahead]
    ages.append(trainer.train_step(samples_generator.generate_samples()[0], 3)[0]["rollout/age_mean"])
    assert ages == [0, 1, 2, 0]
