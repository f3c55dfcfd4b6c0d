"""The launch scripts run as they are, up to the command that they hand to Python, Ray or Slurm."""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launched import MODULES, SCRIPTS, pairs

from openrlhf_sagc.arguments import add_arguments
from openrlhf_sagc.driver.trainers import GroupTrainer, GroupTrainerAsync

GPUS = {
    "dapo_qwen2.5_1.5b.sh": 8,
    "dapo_qwen2.5_7b.sh": 8,
    "dapo_qwen2.5_32b_multinode.sh": 64,
    "dapo_async_partial_rollout.sh": 8,
    "multi_turn_agent.sh": 8,
}
SETTINGS = ["recommended", "all"]  # of SAGC with the package


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    path.write_text('{"prompt": "1 2 3", "label": "6"}\n' * 17_000)
    return str(path)


@pytest.mark.parametrize("script", sorted(file.name for file in SCRIPTS.glob("*.sh")))
def test_shellcheck(script):
    subprocess.run(["bash", "-n", SCRIPTS / script], check=True)
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert shellcheck, "shellcheck is missing: requirements-cpu.txt has it"
    result = subprocess.run([shellcheck, SCRIPTS / script], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("sagc", SETTINGS)
@pytest.mark.parametrize("script", GPUS)
def test_flags(flags_of, start_trainer, prompts, script, sagc):
    """Patched OpenRLHF and the package take them as far as the trainer, on other data; sizes are as said."""
    started = start_trainer(flags_of(script, "--data.prompt_dataset", prompts, SAGC=sagc))
    args = started.args
    is_async = "async" in script
    assert started.cls is (GroupTrainerAsync if is_async else GroupTrainer)
    assert args.train.max_tokens_per_gpu >= args.data.max_len  # the longest sample decides otherwise
    assert args.ds.zero_stage == 3  # as dynamic batches need for the token-level loss
    actors, engines = args.actor.num_nodes * args.actor.num_gpus_per_node, args.vllm.num_engines
    generating = 0 if args.train.colocate_all else engines * args.vllm.tensor_parallel_size
    assert actors + generating == GPUS[script]
    assert args.vllm.enable_sleep == args.ds.enable_sleep == args.train.colocate_all == args.vllm.enforce_eager
    assert args.train.partial_rollout_enable == args.train.async_enable == is_async != args.train.colocate_all
    assert args.ckpt.save_hf and args.ckpt.max_num == 2 and args.eval.steps == args.ckpt.save_steps
    assert args.eval.dataset and args.rollout.agent_timeout == (600 if "agent" in script else None)


@pytest.mark.parametrize("sagc", ["recommended", "off"])
def test_engine_args_come_through_a_script(flags_of, start_trainer, prompts, sagc):
    words = ["--data.prompt_dataset", prompts, "--vllm.engine_args", '{"max_num_seqs": 512, "kv_cache_dtype": "fp8"}']
    started = start_trainer(
        flags_of("dapo_qwen2.5_7b.sh", *words, SAGC=sagc), module=MODULES.get(sagc, "openrlhf_sagc")
    )
    assert started.args.vllm.engine_args == {"max_num_seqs": 512, "kv_cache_dtype": "fp8"}


@pytest.mark.parametrize("script", GPUS)
def test_settings(flags_of, start_trainer, prompts, script):
    """Recommended keeps the recipe's group size, that of the twin; all lets control choose it."""
    recommended, everything = (
        start_trainer(flags_of(script, "--data.prompt_dataset", prompts, SAGC=sagc)).args.rollout for sagc in SETTINGS
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
    """SAGC=off and unpatched leave this package's flags out and nothing else; OpenRLHF as released takes the rest."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    package = {f"--{name}" for name in vars(parser.parse_args([]))}
    flags, twin = (pairs(flags_of(script, SAGC=value, RUN_NAME="run")) for value in (sagc, "off"))
    assert twin == [pair for pair in flags if pair[0] not in package] and flags != twin
    assert twin == pairs(flags_of(script, SAGC="unpatched", RUN_NAME="run"))
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
    assert "PROMPTS is a whole number above 0, not '1.5'" in commands(script, PROMPTS="1.5", fails=True)


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


def smoke_environment():
    """What smoke.sh gives a launch script."""
    assignments = re.findall(r"^export (.*?)(?: #.*)?$", (SCRIPTS / "smoke.sh").read_text(), re.MULTILINE)
    return {name: text.strip('"') for line in assignments for name, text in re.findall(r'(\w+)=("[^"]*"|\S+)', line)}


@pytest.mark.parametrize("sagc", [*SETTINGS, *MODULES])
@pytest.mark.parametrize("script", GPUS)
def test_smoke_form(commands, start_trainer, prompts, script, sagc):
    """With smoke.sh's sizes the script trains on the CPU stack; tests/stack does so."""
    sizes = smoke_environment()
    sizes |= {"MODEL": "/model", "DATA": prompts, "EVAL_DATA": prompts, "STEP_MINUTES": "6", "SAGC": sagc}
    assert sizes["DEVICE"] == "cpu" and sizes["PROMPTS"] == "8"
    checked, started = commands(script, "--data.max_samples", "200", **sizes)
    assert checked[:2] == started[:2] == ["bash", str(SCRIPTS / "on_cpu.sh")]
    tree, module = "cpu-base" if sagc == "unpatched" else "cpu-patched", MODULES.get(sagc, "openrlhf_sagc")
    assert started[2:6] == [tree, "python", str(SCRIPTS / "train_on_cpu.py"), module]
    how = {"unpatched": tree} if sagc == "unpatched" else {"module": module}
    args = start_trainer(started[6:], **how).args
    assert args.actor.num_nodes * args.actor.num_gpus_per_node == args.vllm.num_engines == 1
    steps = args.rollout.batch_size * args.rollout.n_samples_per_prompt / args.train.batch_size
    assert steps == 2 and args.train.max_tokens_per_gpu >= args.data.max_len
    assert args.ckpt.save_steps == 10 and args.train.async_enable == ("async" in script)


SIZES = {
    *("--actor.num_nodes", "--actor.num_gpus_per_node", "--vllm.num_engines", "--vllm.tensor_parallel_size"),
    *("--data.max_len", "--rollout.batch_size", "--rollout.n_samples_per_prompt", "--rollout.max_new_tokens"),
    *("--rollout.sagc.group_sizes", "--train.batch_size", "--train.max_tokens_per_gpu"),
    *("--reward.overlong_buffer_len", "--ckpt.save_steps", "--eval.steps"),
}
NEED_GPUS = {"--ds.attn_implementation", "--vllm.sync_backend", "--vllm.enforce_eager", "--ds.param_dtype"}


@pytest.mark.parametrize("script", GPUS)
def test_the_smoke_form_is_the_recipe_but_for_sizes_and_what_needs_a_gpu(commands, script):
    same = {"MODEL": "m", "DATA": "d", "EVAL_DATA": "e", "OUTPUT": "/output", "RUN_NAME": "run", "SAGC": "all"}
    started = [
        commands(script, **environment)[-1]
        for environment in (same, smoke_environment() | same | {"STEP_MINUTES": "6"})
    ]
    recipe, smoke = (
        {pair[0]: pair[1:] for pair in pairs(words[words.index("openrlhf_sagc") + 1 :])} for words in started
    )
    assert not recipe.keys() - smoke.keys() and smoke.keys() - recipe.keys() <= NEED_GPUS
    assert {name for name, value in recipe.items() if smoke[name] != value} <= SIZES


def test_multinode_submits_to_ray(commands):
    """Once the checks have found the nodes' GPUs."""
    checked, command = commands("dapo_qwen2.5_32b_multinode.sh", NODES="2", RUNTIME_ENV_JSON='{"py_modules": ["x y"]}')
    address = "http://127.0.0.1:8265"
    assert checked[checked.index("--cluster") + 1] == address and "--wait_minutes" in checked
    assert command[:5] == ["ray", "job", "submit", "--address", address]
    assert command[5:8] == ["--runtime-env-json", '{"py_modules": ["x y"]}', "--"]
    launched = "OPENRLHF_SAGC_LAUNCHED=SCRIPT=dapo_qwen2.5_32b_multinode;SAGC=recommended;SHAPE=hybrid;"
    assert command[8] == "env" and command[9].startswith(launched) and ";NODES=2;" in command[9]
    assert command[10:13] == ["python3", "-m", "openrlhf_sagc"]
    assert ("--actor.num_nodes", "2") in pairs(command) and ("--vllm.num_engines", "4") in pairs(command)


@pytest.mark.parametrize(
    "script", [*GPUS, "dapo.sh", "dapo.sh cpu", "smoke.sh dapo_qwen2.5_7b.sh", "quickstart.sh", "slurm_dapo_32b.sh"]
)
def test_no_number_runs_a_command(script, tmp_path):
    """Bash computes with x[$(command)] by running the command."""
    text = (SCRIPTS / script.split()[0]).read_text() + (SCRIPTS / "launch.sh").read_text()
    names = set(re.findall(r"\b([A-Z][A-Z0-9_]+)=", text)) | set(re.findall(r"\$\{?([A-Z][A-Z0-9_]+)", text))
    names -= {"PATH", "SLURM_SUBMIT_DIR", "PWD", "SECONDS", "BASH_SOURCE", "HOSTNAME", "REWARD", "AGENT", "OUTPUT"}
    assert {"NODES", "MAX_NEW_TOKENS", "PROMPT_TOKENS", "STEP_MINUTES"} <= names
    ran, clone = tmp_path / "ran", tmp_path / "clone"
    shutil.copytree(SCRIPTS, clone / "train_scripts")  # they write to build/
    for program in ("ray", "python3", "bash", "srun", "scontrol"):
        (tmp_path / program).write_text('#!/bin/sh\n[ "${1##*/}" = launch.sh ] && exec /bin/bash "$@"\nexit 0\n')
        (tmp_path / program).chmod(0o755)
    name, *words = script.split()
    for variable in sorted(names):
        given = {"SLURM_JOB_NODELIST": "n", "SLURM_SUBMIT_DIR": clone, "REWARD": "/r.py", "OUTPUT": tmp_path}
        given |= {"RAY_TMPDIR": tmp_path, "PREFLIGHT": "off", "PATH": f"{tmp_path}:{os.defpath}"}
        given |= {"AGENT": "/a.py"} if "agent" in name else {}
        given[variable] = f"PATH[$(touch {ran})]"
        command = ["/bin/bash", clone / "train_scripts" / name, *words]
        subprocess.run(command, env=given, capture_output=True, timeout=60, cwd=tmp_path)
        assert not ran.exists(), variable


@pytest.mark.parametrize(
    ("script", "variable"),
    [
        ("dapo_qwen2.5_7b.sh", "MAX_NEW_TOKENS"),
        ("dapo_qwen2.5_1.5b.sh", "MAX_NEW_TOKENS"),
        ("dapo_qwen2.5_7b.sh", "PROMPT_TOKENS"),
        ("dapo_qwen2.5_32b_multinode.sh", "NODES"),
        ("dapo_qwen2.5_32b_multinode.sh", "TENSOR_PARALLEL"),
        ("multi_turn_agent.sh", "MAX_LEN"),
    ],
)
def test_a_number_that_is_none_is_named(commands, tmp_path, script, variable):
    odd = f"PATH[$(touch {tmp_path}/ran)]"
    assert f"{variable} is a whole number above 0, not '{odd}'" in commands(script, fails=True, **{variable: odd})


SECRET_LAUNCHES = [
    {"REWARD": "http://user:s3/cret@host/get"},
    {"REWARD": "http://user:s3 cret@host/get"},
    {"REWARD": "HTTP://user:s3cret@host/get"},
    {"REWARD": "http://host/get#s3cret"},
    {"REWARD": "http://host/get?token=s3cret,https://user:s3cret@other/get"},
    {"DATA": "hf://user:s3cret@datasets/x"},
    {"DATA": "s3://KEY:s3/c+ret@bucket/x"},
    {"EVAL_DATA": "https://user:s3cret@host/x.json"},
    {"MODEL": "https://user:s3cret@host/model"},
    {"WANDB_API_KEY": "s3cret-of-wandb", "flags": ["--logger.wandb.key", "s3cret-of-wandb"]},
    {"flags": ["--logger.wandb.key", "s3cret"]},
    {"flags": ["--logger.wandb.key=s3cret"]},
    {"RUNTIME_ENV_JSON": '{"env_vars": {"HF_TOKEN": "s3cret", "PLAIN": "s3cret"}}', "SUBMIT": "ray"},
    {"RUNTIME_ENV_JSON": '{"working_dir": "https://user:s3 cret@host/x.zip"}', "SUBMIT": "ray"},
]


@pytest.mark.parametrize("given", SECRET_LAUNCHES, ids=str)
def test_the_command_is_printed_without_secrets(tmp_path, given):
    given = dict(given)
    flags = given.pop("flags", [])
    secrets = re.compile(r"s3/?.?c")
    for name in ("ray", "python3"):
        (tmp_path / name).write_text(
            f'#!/bin/sh\ncase "$*" in *redaction.py*) exec {sys.executable} "$@" ;; esac\n'
            f'printf "%s\\n" "$@" >{tmp_path}/started\n'
        )
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.defpath}",
        "REWARD": "/reward.py",
        "PREFLIGHT": "off",
        "RAY_TMPDIR": tmp_path,
    }
    command = ["/bin/bash", SCRIPTS / "dapo_qwen2.5_7b.sh", *flags]
    ran = subprocess.run(command, env={**environment, **given}, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0 and secrets.search((tmp_path / "started").read_text())  # the training gets them whole
    assert not secrets.search(ran.stdout + ran.stderr)
    (line,) = [line for line in ran.stderr.splitlines() if line.startswith("+ ")]
    assert "--actor.model_name_or_path" in line and "--ckpt.save_hf" in line


def test_a_run_on_one_node_has_a_ray_of_its_own(tmp_path):
    """With a token and a private folder, unless RAY_ADDRESS names another Ray."""
    (tmp_path / "python3").write_text(
        f'#!/bin/sh\ncase "$*" in *redaction.py*) exit ;; esac\n'
        f'echo "$RAY_AUTH_MODE" "$RAY_AUTH_TOKEN_PATH" "$RAY_TMPDIR" >{tmp_path}/started\n'
        f'echo "$OPENRLHF_SAGC_LAUNCHED" >{tmp_path}/launched\n'
    )
    (tmp_path / "python3").chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.defpath}",
        "REWARD": "/reward.py",
        "PREFLIGHT": "off",
        "RAY_TMPDIR": tmp_path,
    }

    def run(**more):
        command = ["/bin/bash", SCRIPTS / "dapo_qwen2.5_7b.sh"]
        ran = subprocess.run(command, env={**environment, **more}, cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return (tmp_path / "started").read_text().split(), ran.stderr

    (mode, path, folder), said = run()
    assert mode == "token" and Path(path).parent == Path(folder) and Path(folder).parent == tmp_path
    assert Path(path).stat().st_mode & 0o777 == 0o600 and Path(folder).stat().st_mode & 0o777 == 0o700
    assert Path(path).read_text() not in said and f"RAY_AUTH_TOKEN_PATH={path}" in said
    assert run(RAY_ADDRESS="10.0.0.1:6379")[0] == [str(tmp_path)]
    assert "OpenRLHF as released trains groups of equal rewards" not in said
    assert "OpenRLHF as released trains groups of equal rewards" in run(SAGC="unpatched")[1]
    assert "SCRIPT=dapo_qwen2.5_7b;SAGC=unpatched;" in (tmp_path / "launched").read_text()  # run.jsonl keeps it
