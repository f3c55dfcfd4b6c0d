"""The Slurm script runs as it is, with programs in the place of Slurm's, Ray's and Python's."""

import json
import re
import stat
from pathlib import Path

import pytest
from launched import SCRIPTS

SLURM = "slurm_dapo_32b.sh"


def test_slurm(commands, flags_of):
    """Ray's head on the first node, a worker on each other one, and the recipe's job for as many nodes as there are."""
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
    grace = ["--ckpt.grace_seconds", "540"]
    assert flags == flags_of("dapo_qwen2.5_32b_multinode.sh", *grace, "--train.seed", "7", NODES="3")
    assert re.search(r"^#SBATCH --time=", (SCRIPTS / SLURM).read_text(), re.MULTILINE)


@pytest.mark.parametrize("code, queued", [(1, [["requeue", "77"]]), (0, [])])
def test_a_job_near_its_time_limit_ends_its_run_and_is_queued_again(commands, tmp_path, code, queued):
    """Slurm's signal reaches the script alone; a run that is finished meanwhile is not queued."""
    ran = commands(SLURM, code=code, TIME_LIMIT=str(code), OUTPUT=tmp_path / "output")
    assert (tmp_path / "output/openrlhf_sagc.signal").read_text() == "TERM\n"
    assert [words[1:] for words in ran if words[0].endswith("scontrol")] == queued
    text = (SCRIPTS / SLURM).read_text()
    assert all(f"\n#SBATCH --{option}\n" in text for option in ("requeue", "signal=B:USR1@600", "open-mode=append"))


def test_a_job_that_was_queued_again_goes_on(flags_of):
    assert "--ckpt.load_enable" not in flags_of(SLURM) + flags_of(SLURM, SAGC="off")
    for settings in ({}, {"SAGC": "off"}):
        assert "--ckpt.load_enable" in flags_of(SLURM, SLURM_RESTART_COUNT="1", **settings)


def test_ray_starts_with_a_token_in_a_private_folder(run_slurm):
    """The token is on no command line, is not printed, can be read by this user alone and goes with the job."""
    starts, output, token = run_slurm()
    assert len(starts) == 3 and re.fullmatch("[0-9a-f]{64}", token["text"])
    assert token["mode"] == 0o600 and token["folder_mode"] == 0o700 and not Path(token["path"]).exists()
    for start in starts:
        assert start["RAY_AUTH_MODE"] == "token" and start["RAY_AUTH_TOKEN_PATH"] == token["path"]
        assert stat.S_IMODE(start["session_mode"]) == 0o700
    assert len({start["RAY_TMPDIR"] for start in starts}) == 3
    assert token["text"] not in output + str([start["words"] for start in starts])
    assert run_slurm()[2]["text"] != token["text"]


def test_an_isolated_network_goes_without_a_token(run_slurm):
    starts, _, token = run_slurm(ISOLATED_NETWORK="yes")
    assert token is None and {start["RAY_AUTH_MODE"] for start in starts} == {None}


def test_a_token_of_ones_own_is_taken(run_slurm, tmp_path):
    own = tmp_path / "token"
    own.write_text("own")
    own.chmod(0o600)
    starts, _, _ = run_slurm(RAY_AUTH_TOKEN_PATH=str(own))
    assert {start["RAY_AUTH_TOKEN_PATH"] for start in starts} == {str(own)}


def test_slurm_twin(flags_of):
    assert flags_of(SLURM, SAGC="off") == flags_of("dapo_qwen2.5_32b_multinode.sh", SAGC="off", NODES="3")


@pytest.fixture
def run_slurm(commands, tmp_path):
    """run_slurm(**environment) -> what each `ray start` got, all output, and the token's file while they ran."""

    def run(**environment):
        notes = tmp_path / "notes"
        notes.write_text("")
        environment = {"RAY_NOTES": notes, "RAY_TMPDIR": tmp_path, **environment}
        output = json.dumps(commands(SLURM, **environment))
        starts = [json.loads(line) for line in notes.read_text().splitlines()]
        return starts, output, starts[0].pop("token")

    return run


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({"ISOLATED_NETWORK": "true"}, "ISOLATED_NETWORK is yes or no, not true"),
        ({"SLURM_JOB_NODELIST": None}, "no Slurm job: start it with sbatch"),
        ({"SLURM_SUBMIT_DIR": "/"}, "sbatch was called in '/': call it in the repository's root"),
        ({"ADDRESSES": "127.0.1.1"}, "node1 has the address '127.0.1.1', which other nodes cannot reach"),
        ({"ADDRESSES": " "}, "node1 has the address ''"),
        ({"WAIT_MINUTES": "soon"}, "WAIT_MINUTES is 'soon': give a whole number above 0"),
        ({"PREFLIGHT_CODE": "2"}, "node1 has no free ports for Ray, or no token, see above"),
        ({"RAY_CODE": "1"}, "Ray's head on node1 has ended"),
    ],
)
def test_slurm_says_what_fails(commands, environment, line):
    said = commands(SLURM, fails=True, **environment)
    assert f"train_scripts/slurm_dapo_32b.sh: {line}" in said.splitlines()[-1]
