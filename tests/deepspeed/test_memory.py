"""What train_scripts/memory.py counts and no model in one process shows: DeepSpeed's states, and the compiled entropy."""

import runpy
import subprocess
import sys

import pytest
from cpu_stack import ROOT, deepspeed_environment

MEMORY = runpy.run_path(str(ROOT / "train_scripts/memory.py"))
STATES = """
import gc, os, warnings
warnings.simplefilter("ignore")
import deepspeed, torch
from openrlhf.utils.deepspeed.deepspeed_utils import get_train_ds_config

os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT="0")
deepspeed.init_distributed("gloo", init_method="file://" + STORE, rank=0, world_size=1)
adam = {"type": "Adam", "params": {"lr": 1e-3}}
config = get_train_ds_config(False, adam_offload=False, stage=3, optim_config=adam)
config |= {"train_micro_batch_size_per_gpu": 1, "train_batch_size": 1}
config["zero_optimization"]["reduce_bucket_size"] = 1000  # the buckets count elsewhere
with deepspeed.zero.Init(config_dict_or_path=config):
    model = torch.nn.Sequential(*(torch.nn.Linear(400, 400, bias=False) for _ in range(5)))
engine, *_ = deepspeed.initialize(model=model, config=config)
for _ in range(2):
    loss = engine(torch.ones(1, 400, dtype=torch.bfloat16)).float().sum()
    engine.backward(loss)
    engine.step()
del loss
gc.collect()
tensors = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
print("\\nBYTES", sum(storages.values()) / (5 * 400 * 400))
"""
ENTROPY = """
import runpy
import torch
from flash_loss import FlashCrossEntropy
from lib.allocated import allocated

entropy_of = runpy.run_path(UTILS)["compute_entropy"]
hidden, weight = (torch.randn(size, 8, dtype=torch.bfloat16, requires_grad=True) for size in (2048, 1024))
labels = torch.randint(0, 1024, (2048,))


def train():
    output = {"logits": torch.nn.functional.linear(hidden, weight)[None]}
    output["logits"] = output["logits"].to(torch.float32)
    entropy = entropy_of(output["logits"])
    (FlashCrossEntropy.apply(output["logits"].reshape(-1, 1024), labels).sum() - 0.01 * entropy[:, :-1].sum()).backward()


train()  # compiles
print("\\nBYTES", allocated(train)[0] / (2048 * 1024))
"""


def test_states_of_a_parameter(run_in_tree, tmp_path):
    """DeepSpeed's, after two optimizer steps under ZeRO 3: all tensors that the process has."""
    output = run_in_tree("cpu-patched", "-c", f"STORE = {str(tmp_path / 'store')!r}\n" + STATES)
    assert float(output.split("BYTES ")[1]) == pytest.approx(MEMORY["STATE_BYTES"], rel=0.01)


def test_a_logit_with_the_compiled_entropy(tmp_path):
    """Compiled as on a GPU, where the tests else switch compilation off; beside a loss that takes 10 bytes by itself."""
    environment = deepspeed_environment(ROOT / "tests/helpers", ROOT / "eval") | {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)
    }
    environment.pop("TORCHDYNAMO_DISABLE", None)
    script = f"UTILS = {str(ROOT / 'build/patched/openrlhf/models/utils.py')!r}\n" + ENTROPY
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert float(ran.stdout.split("BYTES ")[1]) == pytest.approx(MEMORY["ENTROPY_LOGIT_BYTES"], abs=0.1)
