"""The launch scripts run as they are, up to the command that they hand to Python, Ray or Slurm."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launched import GPUS, MODULES, SCRIPTS, SETTINGS, pairs
from studies.recipes import run as recipes

from openrlhf_sagc.arguments import add_arguments
from openrlhf_sagc.config.refusal import POOL
from openrlhf_sagc.driver.trainers import GroupTrainer, GroupTrainerAsync


@pytest.mark.parametrize("script", sorted(file.name for file in SCRIPTS.glob("*.sh")))
def test_shellcheck(script):
    subprocess.run(["bash", "-n", SCRIPTS / script], check=True)
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert shellcheck, "shellcheck is missing: requirements-cpu.txt has it"
    result = subprocess.run([shellcheck, SCRIPTS / script], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("script", [*GPUS, "dapo.sh", "dapo.sh cpu", "dapo_qwen2.5_7b_all.sh", "launch.sh"])
def test_help_is_printed_without_an_environment(script, tmp_path):
    """The first lines of the script and of launch.sh, with nothing but bash and sed."""
    name, *words = script.split()
    for word in ("--help", "-h"):
        command = ["/bin/bash", SCRIPTS / name, *words, *["--train.seed", "1"] * (name != "launch.sh"), word]
        told = subprocess.run(
            command, env={"PATH": os.defpath}, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert "SHAPE=async " in told.stdout and "python -m openrlhf_sagc --help" in told.stdout and not told.stderr
        assert name == "launch.sh" or f"bash train_scripts/{name.replace('_all', '')}" in told.stdout


@pytest.mark.parametrize(
    "script", ["quickstart", "setup", "on_cpu", "smoke", "compare", "slurm_dapo_32b", "lock", "install"]
)
def test_other_scripts_print_their_first_lines_and_do_nothing(script, tmp_path):
    path = SCRIPTS.parent / "install.sh" if script == "install" else SCRIPTS / f"{script}.sh"
    environment = {"PATH": os.defpath, "SLURM_JOB_ID": "1"}
    for word in ("--help", "-h"):
        told = subprocess.run(
            ["/bin/bash", path, word], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert told.stdout.splitlines()[0] == path.read_text().splitlines()[1].removeprefix("# ") and not told.stderr
        assert "SBATCH" not in told.stdout and "set -euo" not in told.stdout


def test_variables_behind_a_script_go_in_front(commands, flags_of):
    said = commands("dapo_qwen2.5_7b.sh", "SAGC=off", "--train.seed", "1", "GROUP_SIZES=4 8", fails=True)
    assert said.endswith(
        "variables go in front of the command: SAGC=off GROUP_SIZES=4\\ 8 bash train_scripts/dapo_qwen2.5_7b.sh\n"
    )
    assert flags_of("dapo_qwen2.5_7b.sh", "--train.seed", "1", SAGC="off")


@pytest.mark.parametrize("script", ["dapo_qwen2.5_1.5b.sh", "dapo_qwen2.5_7b.sh", "dapo_qwen2.5_32b_multinode.sh"])
@pytest.mark.parametrize("sagc", ["recommended", "off"])
def test_asynchronous_training_behind_a_script_as_its_line_says(
    commands, flags_of, start_trainer, many_prompts, script, sagc
):
    flags = ["--train.async_enable", "--data.prompt_dataset", many_prompts]
    said = commands(script, *flags, SAGC=sagc, fails=True)
    assert "bash train_scripts/dapo_async_partial_rollout.sh, or in front of this command SHAPE=async " in said
    given = dict(word.split("=") for word in said.split("command ")[1].split())
    args = start_trainer(flags_of(script, *flags, SAGC=sagc, **given), module=MODULES.get(sagc, "openrlhf_sagc")).args
    assert args.train.async_enable and not args.train.colocate_all
    gpus = args.actor.num_nodes * args.actor.num_gpus_per_node + args.vllm.num_engines * args.vllm.tensor_parallel_size
    assert gpus == GPUS[script]


@pytest.mark.parametrize(
    "flags, given",
    [
        ([], {"SAMPLES": "1"}),
        (["--actor.num_gpus_per_node", "3"], {}),
        (["--actor.num_gpus_per_node", "3", "--algo.kl.init_coef", "0.01"], {}),
        (["--vllm.tensor_parallel_size", "8"], {}),
        (["--rollout.tail_batching.prompt_ratio", "0.8"], {}),
        (["--train.batch_size", "500"], {}),
    ],
)
@pytest.mark.parametrize("sagc", SETTINGS)
@pytest.mark.parametrize("script", ["dapo_qwen2.5_1.5b.sh", "dapo_qwen2.5_7b.sh", "multi_turn_agent.sh"])
def test_a_line_followed_word_by_word_is_accepted_the_first_time(
    flags_of, start_trainer, many_prompts, script, sagc, flags, given
):
    words = flags_of(script, "--data.prompt_dataset", many_prompts, *flags, SAGC=sagc, **given)
    with pytest.raises(SystemExit) as refused:
        start_trainer(words)
    advice = str(refused.value).rpartition(": use ")[2].partition(", or ")[0]
    assert "\n" not in str(refused.value) and "openrlhf_sagc: " in str(refused.value)
    start_trainer([*words, *(advice.split() if advice.startswith("--") else [flags[-2], advice])])


@pytest.mark.parametrize("sagc", SETTINGS)
@pytest.mark.parametrize("script", GPUS)
def test_flags(flags_of, start_trainer, many_prompts, script, sagc):
    """Patched OpenRLHF and the package take them as far as the trainer, on other data; sizes are as said."""
    started = start_trainer(flags_of(script, "--data.prompt_dataset", many_prompts, SAGC=sagc))
    args = started.args
    is_async = "async" in script
    assert started.cls is (GroupTrainerAsync if is_async else GroupTrainer)
    assert args.train.max_tokens_per_gpu >= args.data.max_len  # the longest sample decides otherwise
    assert args.ds.zero_stage == 3  # as dynamic batches need for the token-level loss
    actors, engines = args.actor.num_nodes * args.actor.num_gpus_per_node, args.vllm.num_engines
    generating = 0 if args.train.colocate_all else engines * args.vllm.tensor_parallel_size
    assert actors + generating == GPUS[script]
    assert args.vllm.enable_sleep == args.ds.enable_sleep == args.train.colocate_all
    # CUDA graphs: weights are synced in place, and a sleeping engine keeps its addresses. Their memory is in the script's sum.
    assert not args.vllm.enforce_eager
    assert args.train.partial_rollout_enable == args.train.async_enable == is_async != args.train.colocate_all
    assert args.ckpt.save_hf and args.ckpt.max_num == 2 and args.eval.steps == args.ckpt.save_steps
    assert args.eval.dataset and args.rollout.agent_timeout == (600 if "agent" in script else None)


@pytest.mark.parametrize("script", GPUS)
def test_engines_have_slots_for_their_memory(flags_of, script):
    """Those that the study recipes predicts with, which has the scripts' sizes. OpenRLHF as released has no such flag."""
    flags = dict((pair[0], pair[1:]) for pair in pairs(flags_of(script)))
    slots, batched = json.loads(flags["--vllm.engine_args"][0]).items()
    assert slots[1] > 128 and batched == ("max_num_batched_tokens", 8192)
    assert not [pair for pair in pairs(flags_of(script, SAGC="unpatched")) if pair[0] == "--vllm.engine_args"]
    if recipe := recipes.RECIPES.get(script):
        nodes, gpus, ranks, prompts, samples, longest, trained, share = (
            float(flags[f"--{name}"][0])
            for name in (
                "actor.num_nodes",
                "actor.num_gpus_per_node",
                "vllm.tensor_parallel_size",
                "rollout.batch_size",
                "rollout.n_samples_per_prompt",
                "data.max_len",
                "train.batch_size",
                "vllm.gpu_memory_utilization",
            )
        )
        cap = int(flags.get("--rollout.max_new_tokens", flags["--data.max_len"])[0])
        assert recipe[1:] == (nodes * gpus, ranks, prompts, samples, longest, cap, trained) and share == recipes.SHARE
        assert flags["--actor.model_name_or_path"][0].removesuffix("-Instruct") == f"Qwen/{recipe.model}"
        assert slots == ("max_num_seqs", recipes.slots_of(recipe))


@pytest.mark.parametrize("sagc", ["recommended", "off"])
def test_engine_args_come_through_a_script(flags_of, start_trainer, many_prompts, sagc):
    words = [
        "--data.prompt_dataset",
        many_prompts,
        "--vllm.engine_args",
        '{"max_num_seqs": 512, "kv_cache_dtype": "fp8"}',
    ]
    started = start_trainer(
        flags_of("dapo_qwen2.5_7b.sh", *words, SAGC=sagc), module=MODULES.get(sagc, "openrlhf_sagc")
    )
    assert started.args.vllm.engine_args == {"max_num_seqs": 512, "kv_cache_dtype": "fp8"}


@pytest.mark.parametrize("script", GPUS)
def test_settings(flags_of, start_trainer, many_prompts, script):
    """Recommended keeps the recipe's group size, that of the twin; all lets control choose it."""
    recommended, everything = (
        start_trainer(flags_of(script, "--data.prompt_dataset", many_prompts, SAGC=sagc)).args.rollout
        for sagc in SETTINGS
    )
    assert recommended.sagc.group_sizes == [recommended.n_samples_per_prompt]
    assert everything.sagc.enable and everything.n_samples_per_prompt in everything.sagc.group_sizes
    assert len(everything.sagc.group_sizes) > 1
    assert everything.sagc.signal == ("seconds" if "agent" in script else "tokens")
    for rollout in (recommended, everything):
        assert rollout.tail_batching.enable == ("async" not in script)
        assert rollout.tail_batching.response_ratio == 1 or not rollout.tail_batching.enable


@pytest.mark.parametrize("sagc", SETTINGS)
@pytest.mark.parametrize("script", GPUS)
def test_twin(flags_of, start_trainer, script, sagc):
    """SAGC=off and unpatched leave this package's flags out and nothing else; OpenRLHF as released takes the rest but one."""
    same = {"RUN_NAME": "run", "ATTENTION": "flash_attention_2"}  # which OpenRLHF as released cannot do without
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    package = {f"--{name}" for name in vars(parser.parse_args([]))} | {POOL}
    flags, twin = (pairs(flags_of(script, SAGC=value, **same)) for value in (sagc, "off"))
    assert twin == [pair for pair in flags if pair[0] not in package] and flags != twin
    twin = [pair for pair in twin if pair[0] != "--vllm.engine_args"]  # of a patch
    assert twin == pairs(flags_of(script, SAGC="unpatched", **same))
    assert ("--algo.dynamic_filtering_enable",) in twin
    args = start_trainer([word for pair in twin for word in pair], unpatched="base").args
    assert not hasattr(args.rollout, "sagc") and args.rollout.n_samples_per_prompt > 1
    assert args.data.prompt_dataset.count("/") == args.actor.model_name_or_path.count("/") == 1


@pytest.mark.parametrize("script", GPUS)
def test_environment(commands, flags_of, script):
    given = {"MODEL": "m", "DATA": "d", "EVAL_DATA": "", "GROUP_SIZES": "2 16", "SAGC": "all"}
    flags = dict((pair[0], pair[1:]) for pair in pairs(flags_of(script, SAVE_HOURS="5", STEP_MINUTES="7", **given)))
    assert flags["--actor.model_name_or_path"] == ("m",) and flags["--data.prompt_dataset"] == ("d",)
    assert flags["--rollout.sagc.group_sizes"] == ("2", "16") and flags["--ckpt.output_dir"] == ("/output",)
    assert flags["--ckpt.save_steps"] == ("42",) and "--eval.dataset" not in flags
    assert "SAGC is recommended, all, off or unpatched, not no" in commands(script, SAGC="no", fails=True)
    assert "PROMPTS is '1.5': give a whole number above 0" in commands(script, PROMPTS="1.5", fails=True)


def test_every_script_has_a_folder_and_a_name_of_its_own(flags_of, tmp_path):
    runs = [(script, sagc) for script in [*GPUS, "dapo.sh"] for sagc in (*SETTINGS, *MODULES)]
    names, folders = set(), set()
    for script, sagc in runs:
        flags = dict((pair[0], pair[1:]) for pair in pairs(flags_of(script, SAGC=sagc, OUTPUT=None, cwd=tmp_path)))
        names |= {flags["--logger.wandb.run_name"]}
        folders |= {flags["--ckpt.output_dir"]}
        assert flags["--ckpt.path"][0].startswith(flags["--ckpt.output_dir"][0])
    assert len(names) == len(folders) == len(runs) and {Path(*folder).parent for folder in folders} == {
        tmp_path / "ckpt"
    }


def test_paths_are_absolute_wherever_they_are_given(flags_of, tmp_path):
    """Ray's processes have another working folder. What is not here is a name on the hub, or an address."""
    for name in ("model", "my data"):
        (tmp_path / name).mkdir()
    given = {"MODEL": "model", "DATA": "my data", "REWARD": "../reward.py", "OUTPUT": "out", "EVAL_DATA": "a/b"}
    flags = dict((pair[0], pair[1:]) for pair in pairs(flags_of("dapo_qwen2.5_7b.sh", cwd=tmp_path, **given)))
    expected = {
        "--actor.model_name_or_path": tmp_path / "model",
        "--data.prompt_dataset": tmp_path / "my data",
        "--reward.remote_url": tmp_path.parent / "reward.py",
        "--ckpt.output_dir": tmp_path / "out",
        "--eval.dataset": "a/b",
    }
    assert {name: flags[name] for name in expected} == {name: (str(path),) for name, path in expected.items()}
    url = "http://user:word@host/path?token=1"
    assert ("--reward.remote_url", url) in pairs(flags_of("dapo_qwen2.5_7b.sh", REWARD=url))
    agent = flags_of("multi_turn_agent.sh", AGENT="agent.py", cwd=tmp_path)
    assert ("--train.agent_func_path", str(tmp_path / "agent.py")) in pairs(agent)


def test_the_default_reward_is_the_packages(commands, flags_of):
    from openrlhf_sagc import math_reward

    for sagc in ("recommended", "off"):
        flags = pairs(flags_of("dapo_qwen2.5_7b.sh", REWARD=None, SAGC=sagc))
        assert ("--reward.remote_url", math_reward.__file__) in flags
    said = commands("dapo_qwen2.5_7b.sh", REWARD=None, FIND_CODE="1", fails=True)
    assert "the default REWARD, openrlhf_sagc's math_reward.py, is not installed" in said


def test_wandb(flags_of):
    """The key stays in the environment."""
    assert not [pair for pair in pairs(flags_of("dapo_qwen2.5_7b.sh")) if pair[0] == "--logger.wandb.key"]
    given = {"WANDB_API_KEY": "secret", "WANDB_PROJECT": "p", "WANDB_ENTITY": "e", "WANDB_RUN_GROUP": "g"}
    flags = pairs(flags_of("dapo_qwen2.5_7b.sh", **given))
    for name, value in {"key": "from-WANDB_API_KEY", "project": "p", "org": "e", "group": "g"}.items():
        assert (f"--logger.wandb.{name}", value) in flags
    assert "secret" not in str(flags)


def test_what_the_checks_find_ends_the_script(commands):
    commands("dapo_qwen2.5_7b.sh", PREFLIGHT_CODE="2", fails=True)
    ran = commands("dapo_qwen2.5_7b.sh", "--train.seed", "7", PREFLIGHT_CODE="2", PREFLIGHT="off")
    assert len(ran) == 1 and ran[0][-2:] == ["--train.seed", "7"]
    checked, started = commands("dapo_qwen2.5_7b.sh", "--train.seed", "7")
    assert checked[checked.index("openrlhf_sagc") :] == started[2:]  # what it checks is what starts


def test_all(flags_of):
    assert flags_of("dapo_qwen2.5_7b_all.sh", "--a") == flags_of("dapo_qwen2.5_7b.sh", "--a", SAGC="all")


@pytest.mark.parametrize("script", GPUS)
def test_recipe(flags_of, start_trainer, many_prompts, script):
    """That of dapo_qwen2.5_7b.sh, whose formulas test_dapo.py checks; agents have no overlong shaping."""

    def recipe(script):
        args = start_trainer(flags_of(script, "--data.prompt_dataset", many_prompts)).args
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
    """Once the checks have found the nodes' GPUs."""
    checked, command = commands("dapo_qwen2.5_32b_multinode.sh", NODES="2", RUNTIME_ENV_JSON='{"py_modules": ["x y"]}')
    address = "http://127.0.0.1:8265"
    assert checked[checked.index("--cluster") + 1] == address and "--wait_minutes" in checked
    assert command[:5] == ["ray", "job", "submit", "--address", address]
    assert command[5:8] == ["--runtime-env-json", '{"py_modules": ["x y"]}', "--"]
    launched = "OPENRLHF_SAGC_LAUNCHED=SCRIPT=dapo_qwen2.5_32b_multinode,SAGC=recommended,SHAPE=hybrid,"
    assert command[8] == "env" and command[9].startswith(launched) and ",NODES=2," in command[9]
    assert command[10:13] == ["python3", "-m", "openrlhf_sagc"]
    job = subprocess.list2cmdline([*command[8:10], "printenv", "OPENRLHF_SAGC_LAUNCHED"])  # as Ray hands it to a shell
    assert f"OPENRLHF_SAGC_LAUNCHED={subprocess.check_output(job, shell=True, text=True).strip()}" == command[9]
    assert ("--actor.num_nodes", "2") in pairs(command) and ("--vllm.num_engines", "4") in pairs(command)
