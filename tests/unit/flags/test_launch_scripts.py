"""The launch scripts run as they are, up to the command that they hand to Python, Ray or Slurm."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cpu_stack import ROOT

from openrlhf_sagc.arguments import add_arguments
from openrlhf_sagc.driver.trainers import GroupTrainer, GroupTrainerAsync

SCRIPTS = ROOT / "train_scripts"
GPUS = {
    "dapo_qwen2.5_1.5b.sh": 8,
    "dapo_qwen2.5_7b.sh": 8,
    "dapo_qwen2.5_32b_multinode.sh": 64,
    "dapo_async_partial_rollout.sh": 8,
    "multi_turn_agent.sh": 8,
}
SLURM = "slurm_dapo_32b.sh"
MODULES = {"on": "openrlhf_sagc", "off": "openrlhf.cli.train_ppo_ray"}  # by SAGC
FAKE = f"""#!{sys.executable}
import json, os, sys
name, *words = sys.argv
name = os.path.basename(name)
with open(os.environ["COMMANDS"], "a") as file:
    print(json.dumps([name, *words]), file=file)
if name == "srun":
    command = next(i for i, word in enumerate(words) if not word.startswith("-"))
    os.execvp(words[command], words[command:])
"""
HOSTS = """#!/bin/bash
case ${0##*/} in
    scontrol) printf 'node%s\\n' 1 2 3 ;;
    hostname) echo 10.0.0.1 10.1.0.1 ;;
esac
"""


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """commands(script, *flags, **environment): the commands it runs, each a list of words."""
    folder = tmp_path_factory.mktemp("programs")
    log = folder / "log"
    for names, text in ((("python3", "ray", "srun"), FAKE), (("scontrol", "hostname"), HOSTS)):
        for name in names:
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def run(script, *flags, **environment):
        given = {"REWARD": "/reward.py", "AGENT": "/agent.py", "OUTPUT": "/output", "SLURM_SUBMIT_DIR": SCRIPTS.parent}
        given |= {"PATH": f"{folder}:{os.defpath}", "SLURM_JOB_NODELIST": "node[1-3]", "COMMANDS": log, **environment}
        log.write_text("")
        command = ["/bin/bash", SCRIPTS / script, *flags]
        result = subprocess.run(command, env=given, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stderr
        return [json.loads(line) for line in log.read_text().splitlines()]

    return run


@pytest.fixture(scope="module")
def flags_of(commands):
    """flags_of(script, ...) as `commands`: the flags of the training that it starts."""

    def run(*arguments, **environment):
        module = MODULES[environment.get("SAGC", "on")]
        (command,) = [words for words in commands(*arguments, **environment) if words[0] != "srun" and module in words]
        return command[command.index(module) + 1 :]

    return run


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    path.write_text('{"prompt": "1 2 3", "label": "6"}\n' * 17_000)
    return str(path)


def pairs(flags):
    """Each flag with its values."""
    starts = [i for i, word in enumerate(flags) if word.startswith("--")]
    return [tuple(flags[i:j]) for i, j in zip(starts, [*starts[1:], None])]


@pytest.mark.parametrize("script", [*GPUS, SLURM, "dapo.sh"])
def test_shellcheck(script):
    subprocess.run(["bash", "-n", SCRIPTS / script], check=True)
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert shellcheck, "shellcheck is missing: requirements-cpu.txt has it"
    result = subprocess.run([shellcheck, SCRIPTS / script], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("script", GPUS)
def test_flags(flags_of, start_trainer, prompts, script):
    """Patched OpenRLHF and the package take them as far as the trainer, on other data; sizes are as said."""
    started = start_trainer(flags_of(script, "--data.prompt_dataset", prompts))
    args = started.args
    assert started.cls is (GroupTrainerAsync if args.train.async_enable else GroupTrainer)
    assert args.rollout.sagc.signal == ("seconds" if "agent" in script else "tokens")
    assert args.train.max_tokens_per_gpu >= args.data.max_len  # the longest sample decides otherwise
    assert args.ds.zero_stage == 3  # see the token-level loss in README.md
    actors, engines = args.actor.num_nodes * args.actor.num_gpus_per_node, args.vllm.num_engines
    generating = 0 if args.train.colocate_all else engines * args.vllm.tensor_parallel_size
    assert actors + generating == GPUS[script]
    assert args.vllm.enable_sleep == args.ds.enable_sleep == args.train.colocate_all != args.train.async_enable
    assert args.train.partial_rollout_enable == args.train.async_enable == ("async" in script)


@pytest.mark.parametrize("script", GPUS)
def test_twin(flags_of, start_trainer, script):
    """SAGC=off leaves this package's flags out and nothing else; unpatched OpenRLHF takes the rest."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    package = {f"--{name}" for name in vars(parser.parse_args([]))}
    flags, twin = pairs(flags_of(script)), pairs(flags_of(script, SAGC="off"))
    assert twin == [pair for pair in flags if pair[0] not in package]
    assert ("--rollout.sagc.enable",) in flags and ("--algo.dynamic_filtering_enable",) in twin
    args = start_trainer([word for pair in twin for word in pair], unpatched=True).args
    assert not hasattr(args.rollout, "sagc") and args.rollout.n_samples_per_prompt > 1
    assert args.data.prompt_dataset.count("/") == args.actor.model_name_or_path.count("/") == 1


@pytest.mark.parametrize("script", GPUS)
def test_environment(commands, flags_of, script):
    flags = dict((pair[0], pair[1:]) for pair in pairs(flags_of(script, MODEL="m", DATA="d", GROUP_SIZES="2 16")))
    assert flags["--actor.model_name_or_path"] == ("m",) and flags["--data.prompt_dataset"] == ("d",)
    assert flags["--rollout.sagc.group_sizes"] == ("2", "16") and flags["--ckpt.output_dir"] == ("/output",)
    with pytest.raises(AssertionError, match="SAGC is on or off, not no"):
        commands(script, SAGC="no")


@pytest.mark.parametrize("script", GPUS)
def test_recipe(flags_of, start_trainer, prompts, script):
    """That of dapo_qwen2.5_7b.sh, whose formulas test_dapo.py checks; agents have no overlong shaping."""

    def recipe(script):
        args = start_trainer(flags_of(script, "--data.prompt_dataset", prompts)).args
        actor, algo, reward = args.actor, args.algo, args.reward
        overlong = (reward.overlong_buffer_len, reward.overlong_penalty_factor)
        if reward.overlong_buffer_len:
            overlong = (reward.overlong_buffer_len / (args.rollout.max_new_tokens // 5), overlong[1])
        loss = (actor.eps_clip_low_high, actor.loss_agg_mode, actor.dual_clip, actor.adam.lr, actor.lr_scheduler)
        return overlong, loss, algo.kl.init_coef, algo.advantage.estimator, algo.dynamic_filtering_enable

    overlong, *rest = recipe(script)
    expected, *others = recipe("dapo_qwen2.5_7b.sh")
    assert rest == others
    assert overlong == ((None, 1) if "agent" in script else expected)


def test_multinode_submits_to_ray(commands):
    (command,) = commands("dapo_qwen2.5_32b_multinode.sh", NODES="2")
    assert command[:6] == ["ray", "job", "submit", "--address", "http://127.0.0.1:8265", "--"]
    assert command[6:9] == ["python3", "-m", "openrlhf_sagc"]
    assert ("--actor.num_nodes", "2") in pairs(command) and ("--vllm.num_engines", "4") in pairs(command)


def test_slurm(commands, flags_of):
    """Ray's head on the first node, a worker on each other one, and script 2's job for as many nodes as there are."""
    ran = commands(SLURM, "--train.seed", "7", SRUN_ARGS="--container-image=image")
    daemons = {}
    for words in ran:
        if words[0] == "srun" and words[-1] == "--block":
            assert "--overlap" in words and "--container-image=image" in words
            (node,) = [word.partition("=")[2] for word in words if word.startswith("--nodelist=")]
            daemons[node] = words[words.index("ray") :]
    worker = ["ray", "start", "--address=10.0.0.1:6379", "--block"]
    head = ["ray", "start", "--head", "--node-ip-address=10.0.0.1", "--port=6379", "--block"]
    assert daemons == {"node1": head, "node2": worker, "node3": worker}
    flags = flags_of(SLURM, "--train.seed", "7")
    assert flags == flags_of("dapo_qwen2.5_32b_multinode.sh", "--train.seed", "7", NODES="3")


def test_slurm_twin(flags_of):
    assert flags_of(SLURM, SAGC="off") == flags_of("dapo_qwen2.5_32b_multinode.sh", SAGC="off", NODES="3")
