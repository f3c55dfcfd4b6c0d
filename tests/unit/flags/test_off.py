"""`python -m openrlhf_sagc.off`: OpenRLHF's trainers and arguments, and no flag of this package."""

from types import SimpleNamespace

import pytest
from openrlhf.trainer.ppo_trainer import PPOTrainer
from openrlhf.trainer.ppo_trainer_async import PPOTrainerAsync
from up_to_ray import RayStarted

OFF = "openrlhf_sagc.off"


@pytest.mark.parametrize(
    "flags, cls",
    [
        ([], PPOTrainer),
        (["--train.async_enable"], PPOTrainerAsync),
        (["--train.batch_size", "32", "--algo.kl.init_coef", "0", "--algo.dynamic_filtering_enable"], PPOTrainer),
        (["--algo.advantage.estimator", "gae", "--rollout.n_samples_per_prompt", "1"], PPOTrainer),
    ],
)
def test_trainer_and_arguments_are_those_of_unpatched_openrlhf(start_run, flags, cls):
    flags = [*flags, "--logger.wandb.run_name", "run"]  # its default has the minute
    ours, theirs = start_run(*flags, module=OFF), start_run(*flags, unpatched="base")
    assert ours.cls is cls and ours.models == theirs.models
    for section, values in vars(theirs.args).items():
        own = getattr(ours.args, section)
        if isinstance(values, SimpleNamespace):
            assert vars(own).items() >= vars(values).items() and not hasattr(own, "sagc")
        else:
            assert own == values


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--rollout.sagc.enable"], "--rollout.sagc.enable is a flag of python -m openrlhf_sagc, not of"),
        (["--reward.retries=2"], "--reward.retries is a flag of"),
        (
            ["--rollout.tail_ba", "--train.stream", "auto"],
            "--rollout.tail_ba --train.stream are flags of",
        ),  # shortened
        (["--algo.advantage.estimator", "median"], "'median' (choose from"),
        (["--no_flag"], "--no_flag is not a flag of OpenRLHF"),
        (["--pretrain", "m"], "--pretrain is --actor.model_name_or_path since 0.10.2"),
        (
            ["--rollout.n_samples_per_prompt", "1"],
            "makes no group to compare rewards in: use --rollout.n_samples_per_prompt 8",
        ),
    ],
)
def test_what_it_does_not_take_is_one_line(run_trainer, flags, said):
    with pytest.raises(SystemExit, match="^openrlhf_sagc: [^\n]+$") as ended:
        run_trainer(*flags, module=OFF)
    assert said in str(ended.value)


def test_the_key_is_not_printed(run_trainer):
    with pytest.raises(RayStarted) as started:
        run_trainer("--logger.wandb.key", "secret", module=OFF)
    args = next(frame.frame.f_locals["args"] for frame in started.traceback if frame.name == "train")
    assert args.logger.wandb.key == "secret" and "secret" not in repr(args)


@pytest.mark.parametrize("resumes", [True, False])
def test_a_resume_from_the_schedulers_checkpoint_says_what_is_lost(resumes, run_trainer, tmp_path, capsys):
    """`run_trainer` ends where Ray would start."""
    flags = ["--ckpt.path", str(tmp_path), *(["--ckpt.load_enable"] if resumes else [])]
    for saved in (False, True):
        if saved:
            (tmp_path / "_actor" / "global_step2").mkdir(parents=True)
            (tmp_path / "_actor" / "global_step2" / "openrlhf_sagc.json").write_text("{}")
        with pytest.raises(RayStarted):
            run_trainer(*flags, module=OFF)
        said = f"--ckpt.path {tmp_path} has checkpoints of the scheduler" in capsys.readouterr().err
        assert said == (saved and resumes)
