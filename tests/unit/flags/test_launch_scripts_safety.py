"""What a launch script is given: no number runs a command, no secret is printed, and Ray is the run's own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launched import GPUS, SCRIPTS


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
    assert f"{variable} is '{odd}': give a whole number above 0" in commands(script, fails=True, **{variable: odd})


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
    assert "SCRIPT=dapo_qwen2.5_7b,SAGC=unpatched," in (tmp_path / "launched").read_text()  # run.jsonl keeps it
