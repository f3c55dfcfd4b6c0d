"""OpenRLHF's whole training without Ray and vLLM, on the tree that PYTHONPATH names; run as a script, see `main`.

Real are the script's flags, PPOTrainer or PPOTrainerAsync and all it calls, the model actors and DeepSpeed on one or two ranks. Rollouts are
made up from the prompt and the sample's number. With two ranks, each runs the driver, which knows the other rank's forward
passes because both have the same weights.
"""

import contextlib
import hashlib
import io
import json
import os
import queue
import runpy
import sys
import threading
import traceback
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

os.environ.update(DS_ACCELERATOR="cpu", MASTER_ADDR="localhost", MASTER_PORT="0")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TORCHDYNAMO_DISABLE"] = "1"  # as train_scripts/on_cpu.sh has it
for name in (
    "vllm",
    "vllm.envs",
    "vllm.inputs",
    "vllm.platforms",
    "vllm.sampling_params",
    "vllm.utils",
    "openrlhf.datasets",
    "openrlhf.datasets.utils",
):
    sys.modules[name] = mock.MagicMock()  # seconds to import, and not used here
sys.modules["vllm"].AsyncEngineArgs = SimpleNamespace(__dataclass_fields__={})  # of which the flags' check asks names

import ray  # noqa: E402

ray.remote = lambda *args, **kwargs: args[0] if args else lambda cls: cls
ray.get = ray.put = lambda value: value
ray.wait = lambda refs, **_: (refs[:1], refs[1:])
ray.is_initialized = lambda: True

import deepspeed  # noqa: E402
import openrlhf  # noqa: E402
import torch  # noqa: E402
from made_up_prompts import VOCABULARY, Prompts, Tokenizer, roll_out  # noqa: E402
from openrlhf.trainer import ppo_trainer, ppo_trainer_async  # noqa: E402
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator  # noqa: E402
from openrlhf.trainer.ray import launcher, ppo_actor, ppo_critic  # noqa: E402
from openrlhf.utils import get_strategy  # noqa: E402
from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: E402

torch.cuda.current_device = lambda: "cpu"  # a line of setup_dynamic_batch that the CPU series leaves
TREE = Path(openrlhf.__file__).parents[1]
FLAGS = {
    "actor.adam.lr": 1e-2,
    "critic.adam.lr": 1e-2,
    "rollout.batch_size": 4,
    "rollout.n_samples_per_prompt": 4,
    "rollout.micro_batch_size": 4,
    "rollout.max_new_tokens": 24,
    "train.batch_size": 16,
    "train.micro_batch_size": 4,
    "data.max_len": 40,
    "algo.advantage.estimator": "group_norm",
    "algo.kl.init_coef": 0,
    "reward.remote_url": "reward.py",
    "vllm.num_engines": 1,
    "vllm.sync_backend": "gloo",
    "ds.attn_implementation": "eager",
    "ds.param_dtype": "fp32",
}


class Stopped(Exception):
    """A run ends here, to be resumed."""


class ModelActors(launcher.RayActorGroup):
    """The ranks of a model, of which this process holds one; the others have its weights and keep their data."""

    def __init__(self, model_actor, rank, world_size):
        self.model_actor, self.duplicate_actors = model_actor, 1
        self._actor_handlers = [self.handle(other == rank) for other in range(world_size)]

    def handle(self, mine):
        def call(method, *args):
            shared = method == "get_checkpoint_states" or method == "execute_batch" and args[0] == "forward"
            return getattr(self.model_actor, method)(*args) if mine or shared else {}

        def method(name):
            return SimpleNamespace(remote=lambda *args, **kwargs: call(name, *args, *kwargs.values()))

        return type("Handle", (), {"__getattr__": lambda _, name: method(name)})()


class AsyncActor:
    """An actor of the asynchronous trainer; the generator's loop is a thread, the training one's the caller's."""

    def __init__(self, cls, settings):
        self.actor, self.generates = cls(**settings), cls is ppo_trainer_async.GenerateSamplesActor

    def __getattr__(self, name):
        method = getattr(self.actor, name)

        def run(**arguments):
            try:
                method(**arguments)
            except Exception:
                traceback.print_exc()
                os._exit(1)  # the other one waits

        def call(*args, **arguments):
            if name == "fit" and self.generates:
                return threading.Thread(target=run, kwargs=arguments).start()
            return method(*args, **arguments)

        return SimpleNamespace(remote=call)


for actor in (ppo_trainer_async.GenerateSamplesActor, ppo_trainer_async.TrainingActor):
    actor.remote = classmethod(lambda cls, **settings: AsyncActor(cls, settings))
    actor.options = classmethod(lambda cls, **_: cls)
ppo_trainer_async.Queue = queue.Queue
ppo_trainer_async.VLLMLock = mock.MagicMock()


def parse(flags):
    """What the tree's script makes of the flags."""
    command = ["train_ppo_ray"]
    for name, value in flags.items():
        command += ["--" + name, *([] if value is True else map(str, value if isinstance(value, list) else [value]))]
    args = []
    stop = mock.Mock(side_effect=lambda parsed: args.append(parsed) or 1 / 0)
    with (
        mock.patch("sys.argv", command),
        mock.patch("openrlhf.utils.get_strategy", stop),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.suppress(ZeroDivisionError),
    ):
        runpy.run_path(str(TREE / "openrlhf/cli/train_ppo_ray.py"), run_name="__main__")
    return args[0]


def train_in_parts(model, rank, world_size, folder, flags, stop_at=None, **case):
    """Trains; with `stop_at` until that step, and then again from its checkpoint to the end, where the model is saved."""
    if stop_at is None:
        return train(model, rank, world_size, flags, **case)
    flags = {**flags, "ckpt.load_enable": True, "ckpt.save_steps": stop_at, "ckpt.path": folder / "checkpoints"}
    flags["ckpt.output_dir"] = folder / "model"
    first = train(model, rank, world_size, flags, stop_at=stop_at, **case)
    rest = train(model, rank, world_size, flags, **case)
    files = sorted(file for file in (folder / "model").iterdir() if file.is_file())
    saved = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    return {**rest, "steps": first["steps"] + rest["steps"], "saved": saved}


def train(model, rank, world_size, flags, prompts=12, rewards=(0.0, 0.5, 1.0), stop_at=None):
    """Trains once; returns every step's scalars, and what became of the weights."""
    flags = {**FLAGS, "actor.model_name_or_path": model, **flags}
    flags |= {f"{name}.num_gpus_per_node": world_size for name in ("actor", "critic", "ref")}
    args = parse(flags)
    strategy = get_strategy(args)
    make_config = strategy.get_ds_train_config

    def config(optim_dict=None, **kwargs):
        if optim_dict and optim_dict["type"] == "AdamW" and not args.ds.enable_sleep:
            optim_dict["params"]["torch_adam"] = True  # DeepSpeed's own, which sleep needs, has to be compiled
        return make_config(optim_dict=optim_dict, **kwargs)

    def make(cls, *arguments):
        model_actor = cls.__new__(cls)
        model_actor.init_model_from_pretrained(strategy, model, *arguments)
        return ModelActors(model_actor, rank, world_size)

    def dispatch(_, texts, labels, **__):
        count = args.rollout.n_samples_per_prompt
        return [[roll_out(text, number, rewards) for number in range(count)] for text in texts]

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(strategy, "get_ds_train_config", config))
        for module in (ppo_trainer, ppo_trainer_async, ppo_actor, ppo_critic):
            stack.enter_context(mock.patch.object(module, "get_tokenizer", lambda *_, **__: Tokenizer()))
        stack.enter_context(mock.patch.object(ppo_trainer, "PromptDataset", lambda *_, **__: Prompts(prompts)))
        stack.enter_context(mock.patch.object(strategy, "setup_dataloader", lambda dataset, *_, **__: dataset))
        *_, max_steps = ppo_trainer.prepare_datasets(strategy, None)
        stack.enter_context(mock.patch.object(SamplesGenerator, "_dispatch_prompts_to_vllm", dispatch))
        actors = make(ppo_actor.PolicyModelActor, max_steps, None)
        critics = make(ppo_critic.CriticModelActor, max_steps) if args.critic.model_name_or_path else None
        references = make(launcher.ReferenceModelActor) if args.algo.kl.init_coef > 0 else None
        if references:
            with torch.no_grad():
                for parameter in references.model_actor.model.parameters():
                    parameter *= 1.1  # another policy than the one that begins
        cls = ppo_trainer_async.PPOTrainerAsync if args.train.async_enable else ppo_trainer.PPOTrainer
        trainer = cls(model, strategy, actors, critics, None, references, None)
        steps = []
        logging = trainer.trainer_actor.actor if args.train.async_enable else trainer
        save, logging.broadcast_to_vllm = logging.save_logs_and_checkpoints, lambda: None  # to no engine

        def log(step, status, states):
            steps.append(status)
            if args.ckpt.load_enable:
                save(step, status, states)
            if step == stop_at:
                raise Stopped

        logging.save_logs_and_checkpoints = log
        torch.manual_seed(1)
        with contextlib.suppress(Stopped):
            trainer.fit()
        if args.ckpt.load_enable:
            actors.model_actor.save_model()
    scalars = [{k: v for k, v in step.items() if isinstance(v, (int, float)) and "timing" not in k} for step in steps]
    result = {"steps": scalars, "max_steps": max_steps, "actor": describe(actors.model_actor.actor.model, args)}
    if actors.model_actor.ema_model:
        result["ema"] = digest(actors.model_actor.ema_model.parameters())
    if critics:
        result["critic"] = describe(critics.model_actor.critic, args)
    return result


def describe(engine, args):
    parameters = list(engine.module.parameters())
    with deepspeed.zero.GatheredParameters(parameters, enabled=args.ds.zero_stage == 3):
        return {"weights": digest(parameters), "optimizer_steps": engine.global_steps, "rate": engine.get_lr()}


def digest(parameters):
    hashed = hashlib.sha256()
    for parameter in parameters:
        hashed.update(parameter.detach().float().numpy().tobytes())
    return hashed.hexdigest()


def make_model(folder):
    """A random model that every rank and run begins with."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=False,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return str(folder)


def run(cases, model, rank, world_size, folder):
    store = folder / f"store-{world_size}"
    os.environ.update(RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(world_size))
    deepspeed.init_distributed("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    with mock.patch.object(deepspeed, "init_distributed"):
        results = {
            name: train_in_parts(model, rank, world_size, folder / f"{world_size}-{number}", **case)
            for number, (name, case) in enumerate(cases.items())
        }
    if rank == 0:
        (folder / f"results-{world_size}.json").write_text(json.dumps(results))


def main():
    """Reads {"folder": scratch, "1": cases, "2": cases} by world size; writes scratch/results-SIZE.json, {name: result}."""
    request = json.load(sys.stdin)
    folder = Path(request["folder"])
    model = make_model(folder / "model")
    ranks = [(size, rank) for size in (1, 2) for rank in range(size)]
    children = []
    for size, rank in ranks:  # forked, so that what is imported is imported once
        child = os.fork()
        if not child:
            with open(folder / f"{size}-{rank}.log", "w") as log:
                os.dup2(log.fileno(), 2)
                run(request[str(size)], model, rank, size, folder)
            os._exit(0)
        children.append(child)
    sys.exit(any(os.waitpid(child, 0)[1] for child in children))


if __name__ == "__main__":
    main()
