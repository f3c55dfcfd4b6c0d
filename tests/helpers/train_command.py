"""`python -m openrlhf_sagc` or `.off`, and train_ppo_ray of unpatched OpenRLHF, up to the start of the trainer."""

import argparse
import contextlib
import functools
import runpy
from types import SimpleNamespace
from unittest import mock

import pytest
from cpu_stack import ROOT

SCRIPT = "openrlhf/cli/train_ppo_ray.py"  # which holds the parser
FLAGS = {
    "--actor.model_name_or_path": "model",
    "--reward.remote_url": "reward.py",
    "--rollout.batch_size": "8",
    "--rollout.n_samples_per_prompt": "8",
    "--train.batch_size": "64",
    "--actor.num_gpus_per_node": "1",
    "--algo.advantage.estimator": "group_norm",
    "--vllm.num_engines": "1",
}


@pytest.fixture(scope="session")
def start_trainer():
    """start_trainer(flags, unpatched="", module="openrlhf_sagc") -> args, models, ref, cls: the trainer that a run starts, and of what.

    Through `python -m MODULE`, or the script of the tree `unpatched` of build/: base, or cpu-base.

    Flags have to be written out: argparse alone takes the beginning of a name as well.
    """
    # Before anything is patched, which a first import would keep.
    import openrlhf.cli.train_ppo_ray  # noqa: F401

    import openrlhf_sagc.driver.trainers  # noqa: F401

    sources = {
        "placement_group": "ray.util.placement_group",
        "get_strategy": "openrlhf.utils",
        "create_vllm_engines": "openrlhf.trainer.ray",
        "RayActorGroup": "openrlhf.trainer.ray.launcher",
    }
    whole_names = functools.partialmethod(argparse.ArgumentParser.__init__, allow_abbrev=False)

    def start(flags, unpatched="", module="openrlhf_sagc"):
        groups, trainer, strategy = mock.Mock(), mock.Mock(), SimpleNamespace(print=mock.Mock())
        trainer.remote.side_effect = InterruptedError
        make_actor = mock.Mock(return_value=trainer)
        stand_ins = dict.fromkeys(sources, mock.Mock())
        stand_ins["get_strategy"] = lambda args: vars(strategy).update(args=args) or strategy
        stand_ins["RayActorGroup"] = groups
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch("sys.argv", ["train_ppo_ray", *flags]))
            stack.enter_context(mock.patch("openrlhf_sagc.run.output_folders._output_folders", lambda args: {}))
            stack.enter_context(mock.patch("openrlhf_sagc.run.kept.keep_run"))  # whose default folder is here
            stack.enter_context(mock.patch("openrlhf_sagc.arguments.check_inputs", lambda args: 10**6))
            stack.enter_context(mock.patch.object(argparse.ArgumentParser, "__init__", whole_names))
            stack.enter_context(
                mock.patch.multiple(
                    "ray", init=mock.DEFAULT, is_initialized=mock.DEFAULT, get=mock.DEFAULT, remote=make_actor
                )
            )
            for name, source in sources.items():  # where the script takes them from, or has them
                owner = source if unpatched else "openrlhf.cli.train_ppo_ray"
                stack.enter_context(mock.patch(f"{owner}.{name}", stand_ins[name]))
            if unpatched:
                stack.enter_context(mock.patch("openrlhf.trainer.ppo_trainer.PPOTrainer", trainer))
                stack.enter_context(mock.patch("openrlhf.trainer.ppo_trainer_async.PPOTrainerAsync", trainer))
            stack.enter_context(pytest.raises(InterruptedError))
            if unpatched:
                runpy.run_path(str(ROOT / "build" / unpatched / SCRIPT), run_name="__main__")
            else:
                runpy.run_module(module, run_name="__main__")
        models = [call.args[2] for call in groups.call_args_list]
        cls = None if unpatched else make_actor.call_args.args[0]
        return SimpleNamespace(args=strategy.args, models=models, ref=trainer.remote.call_args.args[5], cls=cls)

    return start


@pytest.fixture
def start_run(start_trainer, tmp_path):
    """start_run(*flags, **how) -> as start_trainer does, with the flags that any run needs."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"input": "1"}\n' * 200)
    words = [word for pair in FLAGS.items() for word in pair] + ["--data.prompt_dataset", str(prompts)]
    return lambda *flags, **how: start_trainer([*words, *flags], **how)
