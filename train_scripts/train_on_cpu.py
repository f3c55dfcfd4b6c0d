"""Runs a training module in a Ray cluster without a dashboard, whose ten processes take longer to start than Ray.

train_on_cpu.py MODULE [FLAG...]: MODULE is openrlhf_sagc, openrlhf_sagc.off or openrlhf_sagc.unpatched. OpenRLHF, which the last
two start, holds no folder, and overwrites what is there. So here its folders are held as the first one does, and what an earlier
run has left is moved aside: when it starts Ray, which is after its own checks.
"""

import argparse
import contextlib
import functools
import runpy
import sys
from collections.abc import Sequence

import ray

HELD = contextlib.ExitStack()  # until this process ends


@functools.cache  # Ray may be started again
def hold_outputs(module: str, flags: Sequence[str]) -> None:
    """Hold the folders of a run that does not do so itself, and move what an earlier run has left aside.

    Raises:
        SystemExit: another run holds one of them, or it cannot be used; the message is one line.
    """
    if module == "openrlhf_sagc":
        return
    from openrlhf.utils.config import hierarchize

    from openrlhf_sagc.run.earlier_outputs import set_earlier_outputs_aside
    from openrlhf_sagc.run.output_folders import MODELS, held_folders

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--ckpt.load_enable", action="store_true")
    texts = {"ckpt.output_dir": "./ckpt", "ckpt.path": "./ckpt/checkpoints_ppo_ray", "ckpt.best_metric_key": ""}
    texts |= {
        "eval.dataset": None,
        "logger.tensorboard_dir": None,
        "logger.wandb.run_name": None,
    }
    for name, default in (texts | {f"{model}.model_name_or_path": None for model in MODELS}).items():
        parser.add_argument(f"--{name}", default=default)
    for name in ("ckpt.save_steps", "eval.steps"):
        parser.add_argument(f"--{name}", type=int, default=-1)
    args = hierarchize(parser.parse_known_args(flags)[0])
    if args.logger.wandb.run_name is None:
        args.logger.tensorboard_dir = None  # the log gets a name of its own
    set_earlier_outputs_aside(args, HELD.enter_context(held_folders(args)))


def main() -> None:
    del sys.argv[0]
    module, flags = sys.argv[0], tuple(sys.argv[1:])
    init = ray.init

    def init_ray(**settings):
        hold_outputs(module, flags)
        return init(**settings, include_dashboard=False)

    ray.init = init_ray
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
