"""Under ZeRO 3 every rank trains with whole parameters, however late gloo ends a gather."""

import pytest

GATHER = """
import os
import deepspeed
import torch
import torch.distributed as torch_dist
from deepspeed import comm as dist
from openrlhf.utils.deepspeed.deepspeed_utils import get_eval_ds_config, get_train_ds_config

PARAMETERS = 8


class Late:
    def __init__(self, output, gathered):
        self.output, self.gathered = output, gathered

    def wait(self):
        self.output.copy_(self.gathered)


def gather(output, tensor, group=None, async_op=False, **_):
    late = Late(output.fill_(-1), torch.empty_like(output))
    torch_dist.all_gather_into_tensor(late.gathered, tensor)
    return late if async_op else late.wait()


rank = int(os.fork() == 0)
os.environ.update(RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT="0")
deepspeed.init_distributed("gloo", init_method="file://" + STORE, rank=rank, world_size=2)
dist.all_gather_into_tensor = gather  # a gather that ends when it is waited for, as gloo's may
wrong = []
for make in (get_train_ds_config, get_eval_ds_config):
    config = make(False, stage=3) | {"train_micro_batch_size_per_gpu": 1, "train_batch_size": 2}
    config["zero_optimization"] |= CHANGED
    with deepspeed.zero.Init(config_dict_or_path=config):
        layers = [torch.nn.Linear(6, 4, bias=False) for _ in range(PARAMETERS)]
    parameters = [layer.weight for layer in layers]
    for number, parameter in enumerate(parameters):
        parameter.ds_tensor.fill_(number)
    parameters[0].all_gather(parameters)  # as after an optimizer step
    wrong.append(sum(not bool((parameter == number).all()) for number, parameter in enumerate(parameters)))
os.write(1, f"WRONG {wrong}\\n".encode())
torch_dist.barrier()
if rank:
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize(
    "tree, changed, wrong",
    [("cpu-base", {}, 0), ("cpu-patched", {}, 0), ("cpu-base", {"stage3_allgather_sequential": False}, 7)],
    ids=["unpatched", "patched", "DeepSpeed's default"],
)
def test_every_parameter_is_whole_on_both_ranks(tmp_path, run_in_tree, tree, changed, wrong):
    """Of eight gathers DeepSpeed 0.19.6 waits by default for the last. A release that waits for all needs no patch."""
    output = run_in_tree(tree, "-c", f"STORE, CHANGED = {str(tmp_path / 'store')!r}, {changed}\n" + GATHER)
    assert [line for line in output.splitlines() if line.startswith("WRONG")] == [f"WRONG {[wrong, wrong]}"] * 2
