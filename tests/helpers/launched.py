"""The launch scripts, with programs in the place of Python, Ray and Slurm that note what they are called with."""

import json
import os
import subprocess
import sys

import pytest
from cpu_stack import ROOT

SCRIPTS = ROOT / "train_scripts"
MODULES = {"off": "openrlhf_sagc.off", "unpatched": "openrlhf_sagc.unpatched"}  # by SAGC; else openrlhf_sagc
GPUS = {
    "dapo_qwen2.5_1.5b.sh": 8,
    "dapo_qwen2.5_7b.sh": 8,
    "dapo_qwen2.5_32b_multinode.sh": 64,
    "dapo_async_partial_rollout.sh": 8,
    "multi_turn_agent.sh": 8,
}
SETTINGS = ["recommended", "all"]  # of SAGC with the package
FAKE = f"""#!{sys.executable} -IS
import json, os, sys
name, *words = sys.argv
name = os.path.basename(name)
if name == "bash" and not words[0].endswith("on_cpu.sh"):
    os.execv("/bin/bash", ["bash", *words])
if "redaction.py" in str(words) or "engine_flags.py" in str(words[:1]):  # they run as they are
    os.execv(sys.executable, [sys.executable, *words])
with open(os.environ["COMMANDS"], "a") as file:
    print(json.dumps([name, *words]), file=file)
if name == "python3" and words[0] == "-c":
    if "FIND_CODE" in os.environ:
        sys.exit(int(os.environ["FIND_CODE"]))
    os.execv(sys.executable, [sys.executable, *words])
if name == "ray" and words[0] == "start" and "RAY_NOTES" in os.environ:
    seen = {{key: os.environ.get(key) for key in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_TMPDIR")}}
    seen |= {{"words": words, "session_mode": os.stat(seen["RAY_TMPDIR"]).st_mode, "token": None}}
    if path := seen["RAY_AUTH_TOKEN_PATH"]:
        modes = [os.stat(each).st_mode & 0o777 for each in (path, os.path.dirname(path))]
        seen["token"] = dict(zip(("path", "text", "mode", "folder_mode"), (path, open(path).read(), *modes)))
    with open(os.environ["RAY_NOTES"], "a") as file:
        print(json.dumps(seen), file=file)
if name == "ray" and words[:2] == ["job", "submit"] and "TIME_LIMIT" in os.environ:  # nears while the job runs
    import signal, time
    pid, script, wish = os.getpid(), 0, os.path.join(os.environ["OUTPUT"], "openrlhf_sagc.signal")
    while pid > 1:
        script = pid if b"slurm_dapo" in open(f"/proc/{{pid}}/cmdline", "rb").read() else script
        pid = int(open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()[1])
    os.kill(script, signal.SIGUSR1)
    while not os.path.exists(wish):
        time.sleep(0.05)
    time.sleep(0.5)
    sys.exit(int(os.environ["TIME_LIMIT"]))
if name == "ray":
    sys.exit(int(os.environ.get("RAY_CODE", 0)))
if "preflight.py" in str(words):
    sys.exit(int(os.environ.get("PREFLIGHT_CODE", 0)))
if name == "srun":
    command = next(i for i, word in enumerate(words) if not word.startswith("-"))
    os.execvp(words[command], words[command:])
"""
HUB = """
import os
def hf_hub_download(name, file):
    path = os.path.join(os.path.dirname(__file__), "hub", os.path.basename(name).removesuffix("-Instruct"), file)
    os.stat(path)
    return path
"""
HOSTS = """#!/bin/bash
case ${0##*/} in
    scontrol) [ "$1" != requeue ] || exec printf '["%s", "%s", "%s"]\\n' scontrol "$@" >>"$COMMANDS"
        printf 'node%s\\n' 1 2 3 ;;
    hostname) echo "${ADDRESSES:-10.0.0.1 10.1.0.1}" ;;
esac
"""


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """commands(script, *flags, **environment): the commands it runs, each a list of words.

    fails=True: it ends with exit code 2 before any training; what it says. Else it ends with `code`. A variable that is None is
    not set.
    """
    from studies.recipes.run import CONFIGS

    folder = tmp_path_factory.mktemp("programs")
    log = folder / "log"
    for names, text in ((("bash", "python3", "ray", "srun"), FAKE), (("scontrol", "hostname"), HOSTS)):
        for name in names:
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    (folder / "nvidia-smi").write_text("#!/bin/sh\nexit 1\n")  # a machine without a GPU
    (folder / "nvidia-smi").chmod(0o755)
    (folder / "huggingface_hub.py").write_text(HUB)
    for model, config in CONFIGS.items():
        (folder / "hub" / model).mkdir(parents=True)
        (folder / "hub" / model / "config.json").write_text(json.dumps(config))

    def run(script, *flags, cwd=None, fails=False, code=0, **environment):
        given = {"REWARD": "/reward.py", "OUTPUT": "/output", "SLURM_SUBMIT_DIR": SCRIPTS.parent}
        given |= {"AGENT": "/agent.py"} if "agent" in script else {}
        given |= {
            "PYTHONPATH": f"{SCRIPTS.parent}:{folder}",
            "PATH": f"{folder}:{os.defpath}",
            "SLURM_JOB_NODELIST": "node[1-3]",
            "SLURM_JOB_ID": "77",
            "COMMANDS": log,
            "RAY_TMPDIR": folder,
            **environment,
        }
        log.write_text("")
        command = ["/bin/bash", SCRIPTS / script, *flags]
        given = {name: value for name, value in given.items() if value is not None}
        result = subprocess.run(command, env=given, cwd=cwd, capture_output=True, text=True, timeout=60)
        if fails:
            assert result.returncode == 2 and not [line for line in log.open() if '"-m"' in line]
            return result.stderr
        assert result.returncode == code, result.stderr
        return [json.loads(line) for line in log.read_text().splitlines()]

    return run


@pytest.fixture(scope="module")
def flags_of(commands):
    """flags_of(script, ...) as `commands`: the flags of the training that it starts."""

    def run(*arguments, **environment):
        module = MODULES.get(environment.get("SAGC"), "openrlhf_sagc")
        ran = [words for words in commands(*arguments, **environment) if words[0] != "srun" and "-m" in words]
        (command,) = [words for words in ran if module in words]
        return command[command.index(module) + 1 :]

    return run


def pairs(flags):
    """Each flag with its values."""
    starts = [i for i, word in enumerate(flags) if word.startswith("--")]
    return [tuple(flags[i:j]) for i, j in zip(starts, [*starts[1:], None])]


@pytest.fixture(scope="module")
def many_prompts(tmp_path_factory):
    """A file of 17,000 prompts: more than any launch script asks for."""
    path = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    path.write_text('{"prompt": "1 2 3", "label": "6"}\n' * 17_000)
    return str(path)
