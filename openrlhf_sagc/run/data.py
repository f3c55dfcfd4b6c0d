"""The data that a run trains on, as a checkpoint remembers them, and what a resumed run has that is different."""

import hashlib
import json
import operator
from pathlib import Path
from typing import Any

from openrlhf_sagc.config.datasets import load_prompts
from openrlhf_sagc.config.refusal import RESUME_DATA, refuse
from openrlhf_sagc.config.settings import Settings
from openrlhf_sagc.run.notes import read_note, shown
from openrlhf_sagc.run.output_folders import needs_checkpoints

BATCH = 10_000  # rows that are digested at a time
# A checkpoint's place in the data is the place of these rows in this order, and these make the prompts of them.
TEMPLATE = ("data.input_template", "data.apply_chat_template", "data.keep_order")
# These may change, and the run says so.
FLAGS = (
    *("rollout.batch_size", "rollout.n_samples_per_prompt", "rollout.sagc.group_sizes", "train.batch_size"),
    *("train.num_episodes", "train.seed", "actor.lr_scheduler", "actor.lr_warmup_ratio", "actor.min_lr_ratio"),
)
# These are the optimizer's, which DeepSpeed loads from the checkpoint.
HELD = (
    "actor.adam.lr",
    "actor.adam.betas",
    "actor.adam.eps",
    "actor.adam.weight_decay",
    "actor.muon.lr",
    "actor.muon.momentum",
)


def check_data(args: Settings, checkpoint: Path | None) -> dict[str, Any]:
    """Describe the data of a run that saves or loads checkpoints, and compare them with the checkpoint's.

    Args:
        args: OpenRLHF's.
        checkpoint: from which the run goes on; None if it begins anew.

    Returns:
        What `describe_data` gives, for `data.described` of the run's processes; {} if it needs no checkpoints.

    Raises:
        SystemExit: the data are others, and --rollout.resume_data is not anew; the message is one line.
    """
    described = describe_data(args) if needs_checkpoints(args) else {}
    if checkpoint is None:
        return described
    note = read_note(checkpoint)
    if not is_described(note):
        goes_on = "they are taken for the same" if args.rollout.resume_data == "same" else "the episode begins anew"
        print(f"openrlhf_sagc: {checkpoint.name} does not say on which data it was trained: {goes_on}")
        return described
    difference = other_data(note, described)
    refuse(difference and args.rollout.resume_data != "anew", refusal_of(difference))
    if difference:
        print(f"openrlhf_sagc: {difference}: the episode begins anew with these")
    if changed := other_flags(note, described):
        print(f"openrlhf_sagc: {checkpoint.name} was saved with other flags, the run goes on with {changed}")
    held = note.get("held")
    held = {name: held[name] for name in described["held"] if name in held} if isinstance(held, dict) else {}
    if kept := [
        f"--{name} {_words(value)} (not {_words(described['held'][name])})"
        for name, value in held.items()
        if value != described["held"][name]
    ]:
        print(
            f"openrlhf_sagc: the optimizer of {checkpoint.name} goes on with {', '.join(kept)}: for the new values begin a run "
            "from its model (--actor.model_name_or_path; --ckpt.save_hf saves one beside each checkpoint)"
        )
    return {**described, "held": described["held"] | held}


def describe_data(args: Settings) -> dict[str, Any]:
    """{"rows", "blended", "digest", "template", "flags", "held"}: what a resumed run is compared with; plain data.

    The digest is of prompts and labels in their order, wherever they are read from. Images are not read.
    """
    rows = load_prompts(args)
    keys = [field for field in (args.data.input_key, args.data.label_key) if field is not None]
    return {
        "rows": len(rows),
        "blended": bool(args.data.prompt_probs),
        "digest": _digest(rows, keys),
        "template": {name: _flag(args, name) for name in TEMPLATE},
        "flags": {name: _flag(args, name) for name in FLAGS},
        "held": {name: _flag(args, name) for name in HELD},
    }


def _flag(args: Settings, name: str) -> Any:
    value = operator.attrgetter(name)(args)
    return list(value) if isinstance(value, tuple) else value  # as a note has it


def _digest(rows, keys: list[str]) -> str:
    """Of these fields of all rows, in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for table in rows.select_columns(list(dict.fromkeys(keys))).with_format("arrow").iter(BATCH):
        for key in keys:
            digest.update(json.dumps(table.column(key).to_pylist(), default=str, sort_keys=True).encode())
    return digest.hexdigest()


def other_data(saved: dict[str, Any], now: dict[str, Any]) -> str:
    """How the data of this run differ from those of the checkpoint, for a message; empty if they do not.

    Unknown ones, of an older checkpoint, do not differ.
    """
    if not (is_described(saved) and is_described(now)):
        return ""
    by_seed = _by_seed(saved, now)
    if saved["rows"] != now["rows"]:
        return (
            f"the checkpoint's run had {_words(saved['rows'])} prompts, and --data.prompt_dataset has {now['rows']}"
            + by_seed
        )
    if saved["digest"] != now["digest"]:
        return (
            f"the {now['rows']} prompts and labels of --data.prompt_dataset are others than those of the checkpoint's run, "
            f"or in another order{by_seed}"
        )
    templates = saved.get("template")
    for name, value in now["template"].items():
        if isinstance(templates, dict) and name in templates and templates[name] != value:
            return f"the checkpoint's run had --{name} {_words(templates[name])}, and this one has {_words(value)}"
    return ""


def _by_seed(saved: dict[str, Any], now: dict[str, Any]) -> str:
    """What another seed does to data that are drawn from several sets; empty if it is the same seed, or one set."""
    before, seed = (
        flags.get("train.seed") if isinstance(flags := data.get("flags"), dict) else None for data in (saved, now)
    )
    if not now.get("blended") or before in (None, seed):
        return ""
    return f", which --data.prompt_probs draws by --train.seed {seed} (was {_words(before)})"


def is_described(data: dict[str, Any]) -> bool:
    """Whether it says which data these are; checkpoints before format 4 do not."""
    return isinstance(data.get("rows"), int) and isinstance(data.get("digest"), str)


def refusal_of(difference: str) -> str:
    """The line that ends a run whose data differ so."""
    return (
        f"{difference}: resume with that data, or give {RESUME_DATA} anew to begin the episode anew with these, "
        "or start from the checkpoint's model"
    )


def other_flags(saved: dict[str, Any], now: dict[str, Any]) -> str:
    """Flags with which this run goes on otherwise than the checkpoint's; empty if there are none."""
    flags = saved.get("flags")
    if not isinstance(flags, dict):
        return ""
    return ", ".join(
        f"--{name} {_words(value)} (was {_words(flags[name])})"
        for name, value in now["flags"].items()
        if name in flags and flags[name] != value
    )


def _words(value: Any) -> str:
    """As it stands on a command line, in one line."""
    words = " ".join(map(str, value)) if isinstance(value, list) else value
    return shown(f"{repr(words) if isinstance(value, str) else words}")
