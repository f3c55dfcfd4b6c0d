"""The Slurm script runs as it is, with programs in the place of Slurm's, Ray's and Python's."""

import re

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
    assert flags == flags_of("dapo_qwen2.5_32b_multinode.sh", "--train.seed", "7", NODES="3")
    assert re.search(r"^#SBATCH --time=", (SCRIPTS / SLURM).read_text(), re.MULTILINE)


def test_slurm_twin(flags_of):
    assert flags_of(SLURM, SAGC="off") == flags_of("dapo_qwen2.5_32b_multinode.sh", SAGC="off", NODES="3")


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({"SLURM_JOB_NODELIST": None}, "no Slurm job: start it with sbatch"),
        ({"SLURM_SUBMIT_DIR": "/"}, "sbatch was called in /: call it in the repository's root"),
        ({"ADDRESSES": "127.0.1.1"}, "node1 has the address '127.0.1.1', which other nodes cannot reach"),
        ({"ADDRESSES": " "}, "node1 has the address ''"),
        ({"WAIT_MINUTES": "soon"}, "WAIT_MINUTES is a whole number above 0, not 'soon'"),
        ({"PREFLIGHT_CODE": "2"}, "node1 has no free ports for Ray"),
        ({"RAY_CODE": "1"}, "Ray's head on node1 has ended"),
    ],
)
def test_slurm_says_what_fails(commands, environment, line):
    said = commands(SLURM, fails=True, **environment)
    assert f"train_scripts/slurm_dapo_32b.sh: {line}" in said.splitlines()[-1]
