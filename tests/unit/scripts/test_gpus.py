import importlib.util
import runpy
from types import SimpleNamespace
from unittest import mock

import pytest
from cpu_stack import ROOT
from nvidia_smi import write_nvidia_smi

FREE = (10, 81559)
USED = (40960, 81559)


@pytest.fixture(scope="module")
def gpus():
    return SimpleNamespace(**runpy.run_path(str(ROOT / "train_scripts" / "gpus.py")))


@pytest.fixture
def node(monkeypatch, tmp_path):
    """node(*memory of each GPU, visible=None, ...): a node whose nvidia-smi says so; its UUIDs."""

    def make(*memory, visible=None, **more):
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        return write_nvidia_smi(tmp_path, *memory, **more)

    return make


UUIDS = ["GPU-8932f937", "GPU-8932f938-d72c-4106-c12f-20bd9faed9f6", "GPU-8932f939"]  # so node's begin


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        (" 1, +2", [1, 2]),
        ("-1", []),
        ("0,2,-1,1", [0, 2]),  # the guide's own example
        ("0,9,1", [0]),
        ("0,1,1", []),
        ("NoDevFiles", []),  # Slurm's, of a job without GPUs
        (",".join(UUIDS), [0, 1, 2]),
        (",".join(UUIDS[2:]), [2]),
        (f"{UUIDS[1]},GPU-77,{UUIDS[0]}", [1]),
        ("GPU-8932f9", []),  # of several
        (f"{UUIDS[0]},{UUIDS[0]}", []),
        (f"{UUIDS[0]},1", [0]),
        (f"0,{UUIDS[1]}", [0]),
    ],
)
def test_visible_gpus_are_those_of_cuda(gpus, node, visible, indices):
    memory, names = (FREE, (20.0, 24576.0), USED), ("H100", "RTX 4090, a name with a comma", "H100")
    uuids = node(*memory, visible=visible, names=names)
    assert gpus.visible_gpus() == [(index, uuids[index], names[index], *memory[index]) for index in indices]


@pytest.mark.parametrize("visible", [None, "0,1", "-1", "0,2,-1,1", "1,1", "", "GPU-", "0,GPU-1", *UUIDS])
def test_torch_counts_the_same_names(gpus, node, visible):
    """Before it asks CUDA."""
    import torch.cuda as cuda

    uuids = node(FREE, FREE, FREE, visible=visible)
    names = cuda._parse_visible_devices()
    if names and isinstance(names[0], str):
        names = cuda._transform_uuid_to_ordinals(names, uuids)
    assert [gpu.index for gpu in gpus.visible_gpus()] == [index for index in names if index < 3]


@pytest.mark.parametrize(
    ("memory", "visible", "line"),
    [
        ([FREE] * 8, None, ""),
        ([FREE] * 4, None, "the run needs 8 GPUs, this node has 4: set ACTOR_GPUS, ENGINES and TENSOR_PARALLEL"),
        ([FREE], None, "this node has 1: take a node that has 2, which are the fewest for this script"),
        ([FREE] * 8, "0,1", "this node has 2 in CUDA_VISIBLE_DEVICES=0,1: set"),
        ([FREE] * 8, "", "this node has 0 in CUDA_VISIBLE_DEVICES=: take a node"),
        ([FREE] * 8, "-1", "CUDA_VISIBLE_DEVICES=-1 names 1 GPUs, of which CUDA shows 0: give each GPU once"),
        ([FREE] * 8, "0,1,2,3,4,5,6,7,8,9", "names 10 GPUs, of which CUDA shows 8"),
        ([FREE] * 8, "0,0", "names 2 GPUs, of which CUDA shows 0"),
        ([FREE] * 7 + [USED], None, "GPU 7 has 40 of 80 GiB in use"),
        ([USED] + [FREE] * 8, "1,2,3,4,5,6,7,8", ""),
        (
            [USED] + [FREE] * 8,
            "GPU-8932f937",
            "this node has 1 in CUDA_VISIBLE_DEVICES=GPU-8932f937: take a node that has",
        ),
        ([USED] + [FREE] * 8, "GPU-8932f937", "GPU 0 has 40 of 80 GiB in use"),
        (
            [("[N/A]", "[N/A]")],
            None,
            "of GPU 0 (NVIDIA H100 80GB HBM3), as in MIG mode or where GPU and host share it: nvidia-smi",
        ),
        ([("[N/A]", "[N/A]")] + [FREE] * 8, "1,2,3,4,5,6,7,8", ""),
        ([FREE], "MIG-1,MIG-2", "CUDA_VISIBLE_DEVICES=MIG-1,MIG-2 names parts of GPUs: name whole ones"),
        ([], None, "it says '' instead of each GPU's memory"),
    ],
)
def test_gpus(gpus, node, memory, visible, line):
    node(*memory, visible=visible)
    problems = list(gpus.gpu_problems(8, fewest=2))
    assert line in " / ".join(problems) and bool(line) == bool(problems)
    assert not any("\n" in problem for problem in problems)


def test_a_node_without_the_driver(gpus, node, tmp_path):
    node(text="No devices were found")
    assert "it says 'No devices were found'" in " / ".join(gpus.gpu_problems(8))
    (tmp_path / "nvidia-smi").unlink()
    (line,) = gpus.gpu_problems(8)
    assert line.startswith("nvidia-smi does not tell this node's GPUs, and the run needs 8: ")
    assert gpus.driver_cuda() == "" and not list(gpus.driver_problems())


@pytest.mark.parametrize(
    ("driver", "torch", "line"),
    [
        ("CUDA Version: 12.8  ", "13.0", "the driver has CUDA 12, torch was built for 13: update the driver, or load"),
        ("CUDA UMD Version: 12.9  ", "13.0", "the driver has CUDA 12, torch was built for 13"),
        ("CUDA UMD Version: 13.3  ", "13.0", ""),
        ("CUDA Version: 13.1  ", "13.0", ""),
        ("CUDA Version: 12.4  ", "12.8", ""),  # of one major version
        ("CUDA Version: 12.4  ", None, ""),
        ("CUDA Version: N/A  ", "13.0", ""),
    ],
)
def test_driver_older_than_torchs_cuda_is_named(gpus, node, monkeypatch, tmp_path, driver, torch, line):
    node(header=f"| NVIDIA-SMI 1   Driver Version: 1   {driver}|")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text(f"cuda = {torch!r}\n")
    spec = mock.Mock(origin=str(tmp_path / "torch/__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    said = list(gpus.driver_problems())
    assert len(said) == bool(line) and line in "".join(said)
