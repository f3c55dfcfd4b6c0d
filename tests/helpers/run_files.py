"""The arguments of a run as far as its files go, and code that runs as a user who owns nothing."""

import os
import tempfile
from types import SimpleNamespace

import pytest

NOBODY = 12345  # a user who exists nowhere


def args_for(folder, output="trained", save_steps=1, load=True, best="none"):
    return SimpleNamespace(
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=2, model_name_or_path="none"),
        rollout=SimpleNamespace(trace=None),
        logger=SimpleNamespace(tensorboard_dir=None, wandb=SimpleNamespace(run_name="run")),
        ref=SimpleNamespace(model_name_or_path=None),
        critic=SimpleNamespace(model_name_or_path=None),
        reward=SimpleNamespace(model_name_or_path=None),
        ckpt=SimpleNamespace(
            path=str(folder),
            output_dir=str(folder / output),
            save_steps=save_steps,
            load_enable=load,
            best_metric_key=best,
        ),
        eval=SimpleNamespace(dataset="prompts.jsonl", steps=5),
        ds=SimpleNamespace(use_universal_ckpt=False, zero_stage=2, param_dtype="fp32", tensor_parallel_size=1),
    )


def reachable(folder):
    """Let other users into this folder, and nowhere beside it."""
    for path in (folder, *folder.parents):
        if str(path) == tempfile.gettempdir():
            return
        path.chmod(path.stat().st_mode | 0o005)


def as_nobody(call) -> str:
    """What `call` ends with, in a process of another user: the line of its SystemExit, or "" without one."""
    if os.getuid():
        pytest.skip("only root can become another user")
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            call()
        except SystemExit as ended:
            os.write(writer, str(ended).encode())
        except BaseException as error:
            os.write(writer, f"a traceback: {error!r}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as line:
        said = line.read()
    os.waitpid(process, 0)
    return said
