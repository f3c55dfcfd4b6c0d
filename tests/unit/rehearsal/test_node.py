"""What the launch scripts' check says of a GPU node that lacks something, and that it says nothing once its advice is followed."""

import sysconfig

import pytest
from cpu_stack import ROOT

KERNEL = "kernels-community/flash-attn2@v2"
SETTINGS = {"--ds.attn_implementation": [KERNEL], "--actor.num_gpus_per_node": ["8"], "--train.colocate_all": []}
FUSED = "torch's fused AdamW takes the place of DeepSpeed's, with the same weights"


@pytest.fixture
def check(node, monkeypatch, tmp_path, capsys):
    """check(without=(), settings=None, **variables): the problems of a node that lacks programs, and what else is printed."""
    monkeypatch.syspath_prepend(str(ROOT / "train_scripts"))
    import attention
    import gpus
    import preflight
    import toolchain

    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    for module in (attention, gpus, toolchain):  # which read the installed torch's folder
        monkeypatch.setattr(module, "torch_cuda", lambda: "13.0")
    monkeypatch.setattr(toolchain, "USUAL_NVCC", str(tmp_path / "none"))
    for name in ("CUDA_HOME", "CUDA_PATH", "CC", "CXX", "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "DS_ACCELERATOR"):
        monkeypatch.delenv(name, raising=False)

    hub = []

    def found(without=(), settings=SETTINGS, driver="13.0", **variables):
        for name, value in node(without, driver, **variables).items():
            monkeypatch.setenv(name, value)
        if variables:  # of the hub: what was found with others does not count
            attention.why_not.cache_clear()
            hub.append(variables)
        problems = list(preflight.problems_here("openrlhf_sagc", settings, []))
        return problems, capsys.readouterr().out

    yield found
    if hub:
        attention.why_not.cache_clear()


def test_a_node_that_has_all_is_right(check):
    assert check() == ([], "")


def test_without_nvcc_another_adam_is_taken(check):
    problems, said = check(without=["nvcc"])
    assert problems == [] and said == f"train_scripts/preflight.py: no nvcc of CUDA 13.0: {FUSED}\n"


def test_without_a_network_the_fetched_kernel_is_taken_offline(check):
    (problem,), _ = check(HUB="away")
    assert "is in the cache of this node, but the hub does not answer: export HF_HUB_OFFLINE=1, or on" in problem
    # It says so since the kernel has loaded with that.


def test_without_a_network_and_a_fetched_kernel_torch_has_an_attention(check):
    (problem,), _ = check(HUB="away", CACHED="no")
    assert (
        "is neither in the cache of this node nor can the hub be reached: python3 train_scripts/attention.py --fetch"
        in problem
    )
    assert "or --ds.attn_implementation sdpa" in problem
    assert check(HUB="away", CACHED="no", settings=SETTINGS | {"--ds.attn_implementation": ["sdpa"]})[0] == []


def test_an_old_driver_is_named(check):
    (problem,), _ = check(driver="12.8")
    assert problem.startswith("the driver has CUDA 12, torch was built for 13: update the driver")
