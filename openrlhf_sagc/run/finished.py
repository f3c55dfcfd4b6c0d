"""A run that is started again when nothing is left to train: its model stays, or is saved from its last checkpoint."""

import json
import math
from pathlib import Path
from typing import Any

from openrlhf_sagc.config.settings import Settings
from openrlhf_sagc.run.checkpoints import WEIGHTS, file_problem, step_of
from openrlhf_sagc.run.notes import read_note

INDEX = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
LAST = "tokenizer_config.json"  # of the files that OpenRLHF saves a model with
LONGEST_HEADER = 1 << 27  # bytes, of a file of safetensors


def is_done(args: Settings, checkpoint: Path | None) -> bool:
    """Whether nothing is left to do, which is said: all episodes are over at the checkpoint, and its model is whole.

    Where only the model is missing that is said too: such a run trains nothing, and saves it.
    """
    if checkpoint is None or not _is_over(read_note(checkpoint), args):
        return False
    done = f"nothing is left to train after step {step_of(checkpoint)}: {args.train.num_episodes} episode(s) are over"
    if not is_whole(Path(args.ckpt.output_dir)):
        print(f"openrlhf_sagc: {done}: its model is now saved from there, in --ckpt.output_dir {args.ckpt.output_dir}")
        return False
    print(
        f"openrlhf_sagc: {done}: the model in --ckpt.output_dir {args.ckpt.output_dir} stays as it is; a higher "
        "--train.num_episodes trains on"
    )
    return True


def _is_over(note: dict[str, Any], args: Settings) -> bool:
    """Whether the episodes of the run are over, or just all their prompts, where it had not looked for the next one yet."""
    over, consumed = note.get("episodes"), note.get("prompts_consumed")
    if type(over) is int and over >= args.train.num_episodes:
        return True
    prompts = args.data.described.get("rows", math.inf) * args.train.num_episodes
    return note.get("prompts_waiting") == 0 and type(consumed) is int and consumed >= prompts


def is_whole(folder: Path) -> bool:
    """Whether the folder has a model that was saved to its end."""
    try:
        weights = {path.name: path for pattern in WEIGHTS for path in folder.glob(pattern) if path.name not in INDEX}
        indexes = [json.loads((folder / name).read_text()) for name in INDEX if (folder / name).exists()]
        named = {name for index in indexes for name in index["weight_map"].values()}
        files = {folder / name for name in named} or set(weights.values())
        return bool(files) and (folder / LAST).exists() and all(map(_is_whole_file, files))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _is_whole_file(path: Path) -> bool:
    if path.suffix != ".safetensors":
        return not file_problem(path)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(min(length, LONGEST_HEADER)))
    tensors = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    return path.stat().st_size >= 8 + length + max(tensors, default=math.inf)
