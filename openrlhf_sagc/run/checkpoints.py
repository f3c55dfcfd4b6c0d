"""Finds the checkpoint at which a resumed run begins: the one that `latest` names, or else the newest whole one."""

import contextlib
import json
import math
import os
import re
import stat
import tempfile
import zipfile
from collections.abc import Iterable
from itertools import product
from pathlib import Path

from openrlhf_sagc.config.refusal import refuse
from openrlhf_sagc.config.settings import Settings
from openrlhf_sagc.run.notes import files_of, shown, small_text

SAVED = "metric.json"  # what OpenRLHF writes into a checkpoint once every rank has saved
RANK = re.compile(r"(?<=_rank_)\d{1,6}(?!\d)")  # in the name of a shard
ZERO = re.compile("(bf16_)?zero_pp_rank_")  # begin the names of what ZeRO has cut
MODEL, OPTIMIZER = "model_states.pt", "optim_states.pt"  # ends of such names
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin", "adapter_model.*")  # of a model in --ckpt.output_dir
LEGACY_PICKLE = b"\x80"  # first byte of what PyTorch saved before 1.6, whose end cannot be checked


def choose_checkpoint(args: Settings) -> Path | None:
    """The checkpoint from which a resumed run goes on; None if the run begins anew, which then is said.

    Where `latest` does not name a whole one, the newest whole one is written there. Where none was ever saved to its end,
    the run begins anew: whoever starts it again after every fault need not look.

    Raises:
        SystemExit: there are checkpoints, but none is whole any more; or `latest` cannot be mended. The message is one line.
    """
    folder = Path(args.ckpt.path, "_actor")
    if not args.ckpt.load_enable:
        return None
    if not os.path.isdir(folder):
        _begin_anew(args, f"--ckpt.load_enable finds no checkpoint in --ckpt.path {args.ckpt.path}")
        return None
    if args.ds.use_universal_ckpt:
        return _universal(folder)
    latest = folder / "latest"
    named, problem = _named(latest)
    problem = problem or _problem(folder / named, args)
    if not problem:
        _refuse_other_layout(folder / named, args)
        return folder / named
    try:
        saved = [path for path in folder.iterdir() if os.path.exists(path / SAVED)]  # to their end
    except OSError as error:
        raise SystemExit(f"openrlhf_sagc: --ckpt.path {folder} cannot be read: {error.strerror}") from None
    if not saved:
        _begin_anew(args, f"no checkpoint in {folder} was saved to its end")
        return None
    newest = _newest_whole(saved, args)
    if newest is None:
        for path in sorted(saved, key=step_of, reverse=True):
            if not _problem(path, args, ranks=0):
                _refuse_other_layout(path, args)
        raise SystemExit(
            f"openrlhf_sagc: --ckpt.load_enable finds no complete checkpoint in {folder} (`latest`: {problem}): drop "
            "--ckpt.load_enable to begin anew, or give --ckpt.path of another one"
        )
    print(f"openrlhf_sagc: {latest} does not lead to a complete checkpoint ({problem}): going on from {newest.name}")
    _refuse_other_layout(newest, args)
    _write(latest, newest.name)
    return newest


def last_whole(args: Settings) -> Path | None:
    """The checkpoint from which a run that is resumed now would go on; None if there is none."""
    folder = Path(args.ckpt.path, "_actor")
    with contextlib.suppress(OSError):
        named, problem = _named(folder / "latest")
        if not (problem or _problem(folder / named, args)):
            return folder / named
        return _newest_whole([path for path in folder.iterdir() if os.path.exists(path / SAVED)], args)
    return None


def is_saved(args: Settings) -> bool:
    """Whether a checkpoint in --ckpt.path was saved to its end."""
    with contextlib.suppress(OSError):
        return any(os.path.exists(path / SAVED) for path in Path(args.ckpt.path, "_actor").iterdir())
    return False


def _newest_whole(saved: Iterable[Path], args: Settings) -> Path | None:
    whole = [path for path in saved if not _problem(path, args)]
    return max(whole, key=lambda path: (step_of(path), path.stat().st_mtime), default=None)


def _begin_anew(args: Settings, why: str) -> None:
    """Say so, unless a model is there that an earlier run has trained: whoever wants to go on from it does not want this."""
    refuse(
        has_weights(args.ckpt.output_dir),
        f"{why}, and --ckpt.output_dir {args.ckpt.output_dir} has the model of an earlier run: give the --ckpt.path of "
        "that run, or drop --ckpt.load_enable to begin anew, which moves the model aside",
    )
    print(f"openrlhf_sagc: {why}: the run begins anew")


def has_weights(folder: str) -> bool:
    """Whether a model's weights, or a part of them, are in the folder."""
    return any(next(Path(folder).glob(pattern), None) for pattern in WEIGHTS)


def _universal(folder: Path) -> Path:
    """The universal checkpoint that DeepSpeed loads. Its files are not checked."""
    named, problem = _named(folder / "latest_universal")
    refuse(
        problem or not (folder / named).is_dir(),
        f"--ds.use_universal_ckpt finds no universal checkpoint in {folder} (`latest_universal`: "
        f"{problem or named + ' is gone'}): make one with DeepSpeed's ds_to_universal.py, or drop the flag",
    )
    return folder / named


def _named(latest: Path) -> tuple[str, str]:
    """(the checkpoint that the file names, "") or ("", why it names none)."""
    if not os.path.isfile(latest):  # as DeepSpeed looks for it; unlike a Path it raises nothing
        return "", "it names none"
    text = small_text(latest)
    if text is None:
        return "", "it is not a short text"
    name = text.strip()
    if not name:
        return "", "it names none"
    if name in (".", "..") or "/" in name or not name.isprintable() or len(name.encode()) > 255:
        return "", f"it names no folder beside it: {name!r:.80}"
    return name, ""


def _write(latest: Path, name: str) -> None:
    """Let the file name this checkpoint, all at once."""
    try:
        descriptor, fresh = tempfile.mkstemp(prefix="latest.", dir=latest.parent)
        with open(descriptor, "w") as file:
            file.write(name)
        umask = os.umask(0o077)
        os.umask(umask)
        os.chmod(fresh, 0o666 & ~umask)
        os.replace(fresh, latest)
    except OSError as error:
        raise SystemExit(
            f"openrlhf_sagc: {latest} cannot be written to ({error.strerror}): let it be a file that holds {name}"
        ) from None


def step_of(checkpoint: Path) -> int:
    """The step in the checkpoint's name; -1 if it has none."""
    number = re.search(r"global_step(\d{1,18})$", checkpoint.name)
    return int(number[1]) if number else -1


def _problem(checkpoint: Path, args: Settings, ranks: int | None = None) -> str:
    """Why this is no complete checkpoint of so many ranks (else the run's), for a message; empty if it is one."""
    name = checkpoint.name
    try:
        if not checkpoint.is_dir():
            return f"{name} is gone"
        files = {path.name: file_problem(path) for path in sorted(checkpoint.rglob("*.pt"))}
        if missing := _missing(checkpoint, files, args, _ranks(args) if ranks is None else ranks):
            return f"{name} {missing}"
        for file, problem in files.items():
            if problem:
                return f"{name}/{file} {problem}"
        if not (checkpoint / SAVED).is_file():
            return f"{name} was not saved to its end"
        if _is_too_deep(checkpoint / SAVED):
            return f"{name}/{SAVED} cannot be read"
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"
    return ""


def file_problem(path: Path) -> str:
    """Why PyTorch cannot load this file; empty if it can.

    Its files are zip archives, whose directory is at the end. One that was cut short has none.
    """
    try:
        status = path.stat()
    except OSError:
        return "is a link to nothing"
    if not stat.S_ISREG(status.st_mode):
        return "is not a file"
    with path.open("rb") as file:
        start = file.read(1)
    return "" if start == LEGACY_PICKLE or zipfile.is_zipfile(path) else "was cut short"


def _missing(checkpoint: Path, names: Iterable[str], args: Settings, of_run: int) -> str:
    """Which of DeepSpeed's shards is not there, by the package's note in the checkpoint, their names and the run's ranks.

    Shards of a kind are named by their ranks, which begin with 0. Model and optimizer are cut into as many, where both are.
    ZeRO stage 0 may have its optimizer in the model's file.
    """
    noted = files_of(checkpoint)
    if gone := noted.difference(names):
        return f"lacks {shown(min(gone))}"
    if not any(name.endswith(MODEL) for name in names):
        return "has no model"
    kinds = _kinds(names)
    if args.ds.zero_stage > 0 and not any(ZERO.match(kind) and kind.endswith(OPTIMIZER) for kind in kinds):
        return "has no optimizer"
    saved_by = _saved_by(kinds)
    for kind, found in kinds.items():
        counts = [max(ranks) + 1 for ranks in zip(*found)]
        if ZERO.match(kind):
            counts[0] = saved_by if noted or kind.endswith(MODEL) else max(saved_by, of_run)
        if len(found) < math.prod(counts):
            first = next(ranks for ranks in product(*map(range, counts)) if ranks not in found)
            return f"lacks {_name(kind, first)}"
    return ""


def _refuse_other_layout(checkpoint: Path, args: Settings) -> None:
    """End the run where DeepSpeed would: it looks for files of the run's own stage and type, one for each of its ranks."""
    kinds = _kinds(path.name for path in checkpoint.glob("*.pt"))
    saved, ranks, stage, dtype = _saved_by(kinds), _ranks(args), args.ds.zero_stage, args.ds.param_dtype
    where = f"--ckpt.path {args.ckpt.path}: {checkpoint.name} was saved"
    was_3 = any(ZERO.match(kind) and kind.endswith(MODEL) for kind in kinds)
    refuse(
        was_3 != (stage == 3),
        f"{where} {'with' if was_3 else 'without'} --ds.zero_stage 3, and this run has {stage}: use the same stage, or "
        "start from its model",
    )
    optimizers = [kind for kind in kinds if ZERO.match(kind) and kind.endswith(OPTIMIZER)]
    was_bf16 = any(kind.startswith("bf16_") for kind in optimizers)
    refuse(
        optimizers and was_bf16 != (dtype == "bf16"),
        f"{where} {'with' if was_bf16 else 'without'} --ds.param_dtype bf16, and this run has {dtype}: use the same type, "
        "or start from its model",
    )
    refuse(
        saved and ranks and saved != ranks and stage > 0,
        f"{where} by {saved} ranks, and --actor.num_nodes {args.actor.num_nodes} x --actor.num_gpus_per_node "
        f"{args.actor.num_gpus_per_node} makes {ranks}: use the same number, or start from its model",
    )


def _kinds(names: Iterable[str]) -> dict[str, set[tuple[int, ...]]]:
    """Name of a shard with {} for each rank -> the ranks of those there are."""
    kinds: dict[str, set[tuple[int, ...]]] = {}
    for name in names:
        if ranks := RANK.findall(name):
            kinds.setdefault(RANK.sub("{}", name), set()).add(tuple(map(int, ranks)))
    return kinds


def _name(kind: str, ranks: tuple[int, ...]) -> str:
    """Of the shard of these ranks; the last one is the model's, which DeepSpeed writes with two digits."""
    for rank in ranks[:-1]:
        kind = kind.replace("{}", str(rank), 1)
    return kind.replace("{}", f"{ranks[-1]:02d}", 1)


def _saved_by(kinds: dict[str, set[tuple[int, ...]]]) -> int:
    """Ranks among which ZeRO had cut what was saved, as far as the names tell; 0 if it had not."""
    return max((ranks[0] + 1 for kind, found in kinds.items() if ZERO.match(kind) for ranks in found), default=0)


def _ranks(args: Settings) -> int:
    """Ranks among which this run shares the optimizer; 0 if tensor parallelism makes that DeepSpeed's decision."""
    return args.actor.num_nodes * args.actor.num_gpus_per_node if args.ds.tensor_parallel_size == 1 else 0


def _is_too_deep(path: Path) -> bool:
    """Whether OpenRLHF, which reads the metrics of all checkpoints, would end with this one."""
    text = small_text(path)
    try:
        json.loads("" if text is None else text)
    except ValueError:  # with which OpenRLHF goes on
        return text is None
    except RecursionError:
        return True
    return False
