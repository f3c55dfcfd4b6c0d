"""Weights on their way from actors to engines on the same GPU. Only CUDA's own calls are replaced."""

import json
import runpy
from types import SimpleNamespace

import pytest
import torch
import vllm.envs
from cpu_stack import ROOT
from openrlhf.trainer.ray import utils
from torch.multiprocessing import reductions
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder
from vllm.v1.worker.gpu_worker import Worker

HANDLE, COUNTER, EVENT = b"h" * 66, b"r" * 64, b"e" * 64  # of CUDA's memory, as many bytes as it gives
SENDER, RECEIVER = 0, 3  # numbers that the two processes have for the same GPU


@pytest.fixture
def worker_wrap():
    """OpenRLHF's extension of vLLM's worker, as GPU nodes have it."""
    return runpy.run_path(str(ROOT / "build/patched/openrlhf/trainer/ray/vllm_worker_wrap.py"))["WorkerWrap"]


@pytest.fixture
def handle_of(monkeypatch):
    """handle_of(weight): what torch gives for a weight on a GPU, which this one is not."""
    monkeypatch.setattr(reductions, "shared_cache", {})

    def handle(weight):
        storage = weight._typed_storage()
        memory = storage._untyped_storage
        given = (SENDER, HANDLE, memory.nbytes(), 512, COUNTER, 24, EVENT, True)
        storage._untyped_storage = SimpleNamespace(
            device=torch.device("cuda"), _share_cuda_=lambda: given, _weak_ref=memory._weak_ref
        )
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "_typed_storage", lambda self: storage)
            return reductions.reduce_tensor(weight)

    return handle


@pytest.fixture
def opened(monkeypatch):
    """opened(weight): the list of what CUDA is asked for, which gives the memory of this weight."""

    def open_memory(weight):
        asked = []

        def new_shared(*arguments):
            asked.append(arguments)
            return weight.untyped_storage()

        monkeypatch.setattr(torch.UntypedStorage, "_new_shared_cuda", new_shared)
        monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
        monkeypatch.setattr(utils, "get_physical_gpu_id", lambda: "GPU-b")
        return asked

    return open_memory


def through_vllm(call: tuple) -> tuple:
    """A call to an engine's core, as it comes out of the message to it."""
    return MsgpackDecoder().decode(MsgpackEncoder().encode((0, 1, "collective_rpc", call)))[3]


def test_the_handle_of_a_weight_comes_through_vllms_messages(worker_wrap, handle_of, opened, monkeypatch):
    # As OpenRLHF sets it. vLLM may have kept its environment, in a test before this one.
    monkeypatch.setitem(vars(vllm.envs), "VLLM_ALLOW_INSECURE_SERIALIZATION", True)
    weight = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    handles = {"GPU-a": None, "GPU-b": handle_of(weight)}
    sent = ("update_weight_cuda_ipc", None, ("lm_head.weight", weight.dtype, weight.shape, handles, True), None)
    method, _, arguments, _ = through_vllm(sent)
    asked, loaded = opened(weight), []
    worker = SimpleNamespace(
        model_config=SimpleNamespace(dtype=torch.bfloat16),
        device=torch.device("cuda", RECEIVER),
        model_runner=SimpleNamespace(model=SimpleNamespace(load_weights=lambda weights: loaded.extend(weights))),
    )
    getattr(worker_wrap, method)(worker, *arguments)
    assert asked == [(RECEIVER, HANDLE, 24, 512, COUNTER, 24, EVENT, True)]
    ((name, received),) = loaded
    assert name == "lm_head.weight" and received.dtype == torch.bfloat16 and torch.equal(received, weight)


def test_weights_one_by_one_are_those_of_all_at_once(run_in_tree):
    """On CPUs engines reload all weights at once."""
    compared = json.loads(run_in_tree("patched", "-m", "synced_models").splitlines()[-1])
    assert compared.keys() == {"Qwen2", "Qwen2, tied", "Qwen3", "Llama"}
    for found in compared.values():
        assert (
            found["parameters"] > 10 and not found["differ"]
        )  # where no weight came there is NaN, which equals nothing


def test_the_extension_adds_no_method_that_vllms_gpu_worker_has(worker_wrap):
    added = [name for name in dir(worker_wrap) if not name.startswith("__")]
    assert {"init_process_group", "update_weight", "update_weight_cuda_ipc"} <= set(added)
    assert not [name for name in added if hasattr(Worker, name)]
