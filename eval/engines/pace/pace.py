"""Engines and training that take as long as a GPU's, on the real stack: where the work itself takes less, they wait.

On a GPU an iteration of an engine takes about as long for one request as for 64, so a step waits for its longest response;
on a CPU it takes its time by the token. It is the same for OpenRLHF as released and as patched, neither of which knows of it:
`train_scripts/on_cpu.sh` puts the folder that PACE_PATH names on the path of all processes of a run. Set in the environment:

PACE_BASE_MS, PACE_EACH_MS: of an iteration, and of each of its requests besides; PACE_SAMPLE_MS: of a sample's training.
PACE_LOG: the file of a run in which each process writes the seconds that were work, and those that it waited.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import time
from functools import wraps

WORKER, POLICY = "vllm.v1.worker.cpu_worker", "openrlhf.trainer.ray.ppo_actor"
WRITTEN_EVERY = 200  # times that something was paced


class Paced:
    """What takes a time at least: `begin`, then `end`, which waits."""

    def __init__(self, name: str) -> None:
        self._name, self._due = name, None
        self._count, self._worked, self._waited, self._late = 0, 0.0, 0.0, 0

    def begin(self, seconds: float) -> None:
        self._began = time.perf_counter()
        self._due = self._began + seconds

    def end(self) -> None:
        """Wait until it is due; nothing where nothing began."""
        if self._due is None:
            return
        now = time.perf_counter()
        left, self._due = max(self._due - now, 0.0), None
        time.sleep(left)
        self._count += 1
        self._late += not left
        self._worked, self._waited = self._worked + now - self._began, self._waited + left
        if self._count % WRITTEN_EVERY == 0 or self._name == "training":
            self._write()

    def _write(self) -> None:
        if log := os.environ.get("PACE_LOG"):
            with open(log, "a") as stream:
                stream.write(
                    f"{self._name} {os.getpid()} {self._count} {self._worked:.3f} {self._waited:.3f} {self._late}\n"
                )


def pace_worker(module) -> None:
    """An iteration ends where its tokens are sampled, which some of vLLM's models do in `execute_model`."""
    worker, paced = module.CPUWorker, Paced("engine")  # a process has one
    base, each = (float(os.environ[name]) / 1000 for name in ("PACE_BASE_MS", "PACE_EACH_MS"))

    execute, sample = worker.execute_model, worker.sample_tokens

    @wraps(execute)
    def execute_model(self, scheduler_output, *args, **kwargs):
        if scheduler_output.total_num_scheduled_tokens:
            paced.begin(base + each * len(scheduler_output.num_scheduled_tokens))
        output = execute(self, scheduler_output, *args, **kwargs)
        if output is not None:
            paced.end()
        return output

    @wraps(sample)
    def sample_tokens(self, *args, **kwargs):
        output = sample(self, *args, **kwargs)
        paced.end()
        return output

    worker.execute_model, worker.sample_tokens = execute_model, sample_tokens


def pace_training(module) -> None:
    """Of the policy, by its samples: a step may be trained in parts."""
    trainer, paced = module.ActorPPOTrainer, Paced("training")
    train, seconds = trainer.ppo_train, float(os.environ["PACE_SAMPLE_MS"]) / 1000

    @wraps(train)
    def ppo_train(self, *args, **kwargs):
        paced.begin(seconds * len(self.replay_buffer.items))
        status = train(self, *args, **kwargs)
        paced.end()
        return status

    trainer.ppo_train = ppo_train


CHANGES = {WORKER: pace_worker, POLICY: pace_training}


class Finder(importlib.abc.MetaPathFinder):
    """Changes a module of CHANGES as soon as it is imported."""

    def find_spec(self, name, path, target=None):
        if name not in CHANGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_change(module) -> None:
            execute(module)
            CHANGES[name](module)

        spec.loader.exec_module = execute_and_change
        return spec


def install() -> None:
    """Pace what this process imports from now on."""
    sys.meta_path.insert(0, Finder())
