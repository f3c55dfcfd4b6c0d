"""Whether OpenRLHF as released and patched OpenRLHF train the same weights from the same rollouts.

    python eval/train_kept.py FOLDER FLAGS...
    bash train_scripts/on_cpu.sh cpu-base python eval/train_kept.py FOLDER FLAGS...

FOLDER is what --train.rollouts_to of a run has written, and FLAGS are those of that run, without this package's own. Each
of the two trains all steps of the folder by its own code, from the model on. Only the rollouts are given, and no engine
is started. It prints the largest difference of a weight, and whether all bits are the same. Its exit code is 0 if they
are, 1 if not, and 2 if one of the two has not trained. The second command is that of the CPU stack, whose released
OpenRLHF has the patches that a CPU needs.
"""

import argparse
import filecmp
import runpy
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from safetensors.torch import load_file

from openrlhf_sagc.run.trees import PATCHED, RELEASED, bring_tree, check_stack, use_tree


def train(kind: str, folder: str, output: str, flags: list[str]) -> None:
    """Train the kept steps by the OpenRLHF of this kind, PATCHED or RELEASED, and save the model in `output`."""
    tree = use_tree(kind)
    check_stack(kind)
    import ray
    from openrlhf import utils
    from openrlhf.trainer import ppo_trainer

    from openrlhf_sagc.driver.kept_steps import KeptRollouts
    from openrlhf_sagc.driver.samples import batch_of

    theirs, get_strategy = ppo_trainer.PPOTrainer, utils.get_strategy
    if kind == RELEASED:  # where it is an actor's class
        theirs = theirs.__ray_metadata__.modified_class.__ray_actor_class__

    class Trainer(theirs):
        """OpenRLHF's, whose rollouts are the kept ones."""

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.samples_generator = self.prompts_dataloader = kept = KeptRollouts(folder)
            read, padding = kept.generate_samples, self.tokenizer.pad_token_id

            def generate_samples(**generate_kwargs):
                step, *rest = read()
                if {made.group_size for made in step} - {self.args.rollout.n_samples_per_prompt}:
                    raise ValueError(
                        "OpenRLHF trains groups of --rollout.n_samples_per_prompt, and a kept step has others"
                    )
                return [batch_of([made.sample], [0], padding) for made in step], *rest

            kept.generate_samples = generate_samples

    def strategy_of(args):
        """OpenRLHF's, of a run that begins with the model, rolls nothing out and writes nothing but its own model."""
        args.vllm.num_engines, args.train.async_enable, args.eval.dataset = 0, False, None
        args.ckpt.load_enable, args.ckpt.save_steps, args.ckpt.output_dir = False, -1, output
        args.logger.tensorboard_dir = args.logger.wandb.key = None
        return get_strategy(args)

    ppo_trainer.PPOTrainer = ray.remote(Trainer) if kind == RELEASED else Trainer
    utils.get_strategy = strategy_of
    bring_tree(tree, eager=True)
    sys.argv[1:] = flags
    runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")


def refuse(problem: str) -> NoReturn:
    print(f"eval/train_kept.py: {problem}", file=sys.stderr)
    sys.exit(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="build/train_kept", help="folder of the two models, before FOLDER")
    parser.add_argument("--child", choices=(PATCHED, RELEASED), help=argparse.SUPPRESS)  # in a process of its own
    parser.add_argument("folder", help="of --train.rollouts_to")
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="of the run")
    arguments = parser.parse_args()
    if arguments.child:
        return train(arguments.child, arguments.folder, arguments.output, arguments.flags)
    folder = Path(arguments.folder).absolute()  # Ray's processes have another working folder
    released, patched = (Path(arguments.output, kind).absolute() for kind in (RELEASED, PATCHED))
    if not list(folder.glob("step-*.json")):
        refuse(f"FOLDER {folder} has no step-N.json: give one that --train.rollouts_to has written")
    for output in (released, patched):
        if output.exists():
            refuse(f"--output {output.parent} has {output.name} already: give another one")
        words = ["--child", output.name, "--output", str(output), str(folder), *arguments.flags]
        code = subprocess.run([sys.executable, __file__, *words]).returncode
        if code or not list(output.glob("*.safetensors")):
            refuse(f"OpenRLHF ({output.name}) has not trained {folder}: see above")
    names = [file.name for file in released.glob("*.safetensors")]
    files = [(load_file(released / name), load_file(patched / name)) for name in names]
    difference = max((one[key].float() - other[key].float()).abs().max().item() for one, other in files for key in one)
    same = filecmp.cmpfiles(released, patched, names, shallow=False)[0] == names
    print(f"largest difference of a weight {difference:g}: {'bit-identical' if same else 'not bit-identical'}")
    sys.exit(not same)


if __name__ == "__main__":
    main()
