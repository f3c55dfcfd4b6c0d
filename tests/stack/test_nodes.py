"""preflight.py asks two real Ray nodes what they have, by a job, with programs in the place of nvidia-smi."""

import json
import os
import re
import runpy
from types import SimpleNamespace

import pytest
from cpu_stack import ROOT
from nvidia_smi import write_nvidia_smi
from ray_nodes import Cluster

pytestmark = [pytest.mark.stack, pytest.mark.in_turns]


@pytest.fixture
def node(tmp_path, monkeypatch):
    """node(name, *memory of each GPU, visible=...): nodes that start from here on have such an nvidia-smi."""

    def make(name, *memory, visible):
        (tmp_path / name).mkdir()
        write_nvidia_smi(tmp_path / name, *memory)
        monkeypatch.setenv("PATH", f"{tmp_path / name}:{os.environ['PATH']}")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return make


def test_each_node_is_asked_in_the_runtime_environment_of_the_job(node, tmp_path, python, monkeypatch, capsys):
    """The second one has a GPU in use. CUDA_VISIBLE_DEVICES of a node's Ray counts, though the job asks for no GPU."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/sitecustomize.py").write_text("")
    (tmp_path / "module").mkdir()
    environment = {"env_vars": {"HF_TOKEN": "s3cret-of-mine"}, "working_dir": str(tmp_path / "mine")}
    monkeypatch.setenv("RUNTIME_ENV_JSON", json.dumps(environment | {"py_modules": [str(tmp_path / "module")]}))
    node("first", (1, 81559), (1, 81559), visible="1")
    with Cluster(tmp_path, python) as cluster:
        node("second", (70000, 81559), visible="0")
        cluster.join()
        script = SimpleNamespace(**runpy.run_path(str(ROOT / "train_scripts/cluster.py")))
        settings = {"--ds.attn_implementation": ["sdpa"], "--logger.wandb.key": ["s3cret"]}
        problems = list(script.node_problems(cluster.dashboard, "openrlhf_sagc", settings, minutes=5))
    printed = capsys.readouterr().out
    header, *lines = printed.splitlines()
    table = [line for line in lines if "NVIDIA H100" in line]  # behind it, what this machine's compilers lack
    assert len(table) == 2 and "compilers" in header, printed + str(problems)
    assert all(re.search(r"\) +1 x NVIDIA H100 80GB HBM3, 86 GB +CUDA 13\.0 .*sdpa", line) for line in table), table
    (in_use,) = [problem for problem in problems if "GiB in use" in problem]
    assert "): GPU 0 has 68 of 80 GiB in use: end what runs there" in in_use
    assert "s3cret" not in printed + str(problems)
