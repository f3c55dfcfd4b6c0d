"""Where DeepSpeed's FusedAdam cannot be compiled, torch's kernel trains the same weights, from the same checkpoints."""

import json

import pytest

REASON = "OSError: CUDA_HOME environment variable is not set."
TRAIN = """
import json, os
from types import SimpleNamespace as N

import deepspeed
import torch
from deepspeed.ops.op_builder import FusedAdamBuilder
from deepspeed.utils import safe_get_full_fp32_param
from openrlhf.utils.deepspeed import DeepspeedStrategy

os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT="0")
deepspeed.init_distributed("gloo", init_method="file://" + FOLDER + "/store", rank=0, world_size=1)
compiled = FusedAdamBuilder.load


def missing(self, verbose=False):
    raise OSError("CUDA_HOME environment variable is not set. Please set it to your CUDA install root.")


def train(stage, optim, load, steps, save=None, resume=None):
    FusedAdamBuilder.load = load
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    args = N(ds=N(param_dtype="fp32"), train=N(dynamic_batch_enable=True))
    strategy = DeepspeedStrategy(args=args, zero_stage=stage)
    adam = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    muon = dict(lr=1e-2, momentum=0.95)
    cfg = dict(optim=optim, adam=adam, muon=muon, lr_scheduler="constant", scheduler_steps=10, max_norm=0)
    engine, optimizer, _ = strategy.prepare((model, cfg))
    if resume:
        assert strategy.load_ckpt(engine, resume)[0]
    for step in range(10)[steps]:
        generator = torch.Generator().manual_seed(step)
        loss = engine(torch.randn(4, 16, generator=generator)).square().mean()
        strategy.backward(loss, engine, optimizer)
        strategy.optimizer_step(optimizer, engine, None)
    if save:
        strategy.save_ckpt(engine, save, "tag")
    whole = [safe_get_full_fp32_param(p) if stage else p for p in model.parameters()]
    return torch.cat([p.detach().flatten() for p in whole]).tolist()


trained = {}
for stage, optim in CASES:
    weights = trained[f"{stage} {optim}"] = {"start": train(stage, optim, compiled, slice(0, 0))}
    for name, load, other in (("compiled", compiled, missing), ("torch's", missing, compiled)):
        weights[name] = train(stage, optim, load, slice(0, 10))
        checkpoint = f"{FOLDER}/{stage}{optim}{name}"
        train(stage, optim, load, slice(0, 5), save=checkpoint)
        weights[name + ", resumed in the other"] = train(stage, optim, other, slice(5, 10), resume=checkpoint)
print("TRAINED " + json.dumps(trained))
"""
CASES = [(0, "adam"), (2, "adam"), (3, "adam"), (2, "muon")]


@pytest.fixture(scope="module")
def output(tmp_path_factory, run_in_tree):
    folder = tmp_path_factory.mktemp("trained")
    return run_in_tree("cpu-patched", "-c", f"FOLDER, CASES = {str(folder)!r}, {CASES}\n" + TRAIN)


@pytest.mark.parametrize("stage, optim", CASES)
def test_the_weights_and_the_checkpoints_are_those_of_the_compiled_one(output, stage, optim):
    line = next(line for line in output.splitlines() if line.startswith("TRAINED "))
    trained = json.loads(line.removeprefix("TRAINED "))[f"{stage} {optim}"]
    start, expected = trained.pop("start"), trained.pop("compiled")
    assert max(abs(a - b) for a, b in zip(start, expected)) > 0.05
    assert len(trained) == 3
    for weights in trained.values():
        assert weights == pytest.approx(expected, abs=1e-6)


def test_one_line_says_so(output):
    said = [line for line in output.splitlines() if "FusedAdam" in line and REASON in line]
    assert said and all(line.startswith("torch's AdamW kernel replaces DeepSpeed's FusedAdam op") for line in said)
