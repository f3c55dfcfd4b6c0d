"""In a policy's actor: the moving average of the weights is saved with a checkpoint, and loaded with it.

OpenRLHF's checkpoints do not have it, so that a resumed run would begin it anew from the untrained model.
"""

from pathlib import Path
from typing import Any

import torch

FILE = "average_rank_{}.pt"  # in a checkpoint; ZeRO 3 has a part in each rank, otherwise rank 0 writes all of it


def save_average(model_actor: Any, tag: str) -> None:
    """Run in every policy's actor before it saves a checkpoint of this name."""
    strategy = model_actor.strategy
    if strategy.args.ckpt.disable_ds or (strategy.stage != 3 and not strategy.is_rank_0()):
        return
    file = _file(strategy, tag)
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save({name: tensor.cpu().clone() for name, tensor in _held(model_actor.ema_model).items()}, file)


def load_average(model_actor: Any) -> bool:
    """Run in every policy's actor that has loaded a checkpoint: whether the checkpoint has an average.

    Otherwise the average begins with the checkpoint's weights.
    """
    strategy, average = model_actor.strategy, _held(model_actor.ema_model)
    name = "latest_universal" if strategy.args.ds.use_universal_ckpt else "latest"
    file = _file(strategy, Path(strategy.args.ckpt.path, "_actor", name).read_text().strip())
    found = file.is_file()
    saved = torch.load(file, map_location="cpu", weights_only=True) if found else _held(model_actor.actor)
    for name, tensor in average.items():
        tensor.copy_(saved[name])
    return found


def _file(strategy: Any, tag: str) -> Path:
    rank = torch.distributed.get_rank() if strategy.stage == 3 else 0
    return Path(strategy.args.ckpt.path, "_actor", tag, FILE.format(rank))


def _held(model: Any) -> dict[str, torch.Tensor]:
    """What this rank has of each parameter, by name: all of it, or its part under ZeRO 3."""
    return {
        name: parameter.data if parameter.data.numel() else parameter.ds_tensor.data
        for name, parameter in model.named_parameters()
    }
