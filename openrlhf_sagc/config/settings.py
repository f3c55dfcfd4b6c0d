"""A run's settings: its flags with what follows from them, made once and changed by nobody; secrets in them are not printed."""

import copy
import operator
import os
from types import SimpleNamespace
from typing import Any

from openrlhf_sagc.redaction import shown

METHODS = ("auto", "sort", "stop")  # of tail batching
# vLLM's speculative_config of --rollout.drafts siblings
SIBLINGS = {"method": "custom_class", "model": "openrlhf_sagc.engine.drafts.Drafts", "num_speculative_tokens": 8}


OLDEST = 4  # updates, the default of --rollout.max_age


class NotGiven(str):
    """A flag's default, which another flag may change."""


class Secret(str):
    """A flag's value, whole wherever it is used, of which printed arguments have what may be shown."""

    def __repr__(self) -> str:
        return repr(shown(str(self), "--reward.remote_url" if "://" in self else ""))


class Settings(SimpleNamespace):
    """OpenRLHF's arguments, nested by the dots in the flags' names, none of which can be set.

    `settled` makes them of the flags before they are checked. Processes of the run make them anew of OpenRLHF's arguments.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} of a run's settings stays as it is: make others with `with_values`")

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    @classmethod
    def of(cls, args: SimpleNamespace) -> "Settings":
        """A copy of OpenRLHF's arguments."""
        return _nested(cls, args)

    def with_values(self, values: dict[str, Any]) -> "Settings":
        """A copy with other values, by the flags' names without their dashes."""
        args = self.openrlhf_args()
        for name, value in values.items():
            section, _, flag = name.rpartition(".")
            setattr(operator.attrgetter(section)(args), flag, value)
        return Settings.of(args)

    def openrlhf_args(self) -> SimpleNamespace:
        """A copy for OpenRLHF, which changes some of its arguments while it trains."""
        return _nested(SimpleNamespace, self)


def settled(args: SimpleNamespace) -> Settings:
    """What OpenRLHF's arguments come to; they stay as they are."""
    args = with_hidden_key(args)
    sagc, algo = args.rollout.sagc, args.algo
    if not sagc.enable:
        sagc.group_sizes, sagc.policy = [args.rollout.n_samples_per_prompt], None
    # Ray's processes have another working folder.
    sagc.policy = sagc.policy and os.path.abspath(sagc.policy)
    own_filter = algo.dynamic_filtering_policy if algo.dynamic_filtering_enable else None
    algo.dynamic_filtering_policy = own_filter and os.path.abspath(own_filter)
    if args.rollout.drafts != "off":
        args.vllm.engine_args = {**args.vllm.engine_args, "speculative_config": SIBLINGS}
    if args.rollout.trace is not None:
        ending = os.sep * args.rollout.trace.endswith(os.sep)  # of a folder
        path = os.path.abspath(args.rollout.trace)
        args.rollout.trace = path + ending * (path != os.sep)
    for name in ("rollouts_to", "rollouts_from"):
        if folder := getattr(args.train, name):
            setattr(args.train, name, os.path.abspath(folder))
    if args.train.rollouts_from:  # nothing is rolled out
        args.vllm.num_engines, args.vllm.enable_sleep = 0, False
        args.train.async_enable = args.train.partial_rollout_enable = False
        args.rollout.pool, args.rollout.vllm_generate_batch_size = None, args.rollout.batch_size
        args.eval.dataset = args.rollout.trace = None
        args.ckpt.save_steps = -1  # no run goes on from a step of these
    if args.rollout.length_history is not None:
        args.rollout.length_history = os.path.abspath(args.rollout.length_history)
    # A file stays a plain string: Python could not write the bytecode of a module whose path is of another type.
    urls = args.reward.remote_url
    args.reward.remote_url = urls and [url if url.endswith(".py") else Secret(url) for url in urls]
    return Settings.of(args)


def prompt_ratio(args: SimpleNamespace) -> float:
    """Prompts that a step of tail batching requests over those it needs, as given or as its method has it."""
    tail = args.rollout.tail_batching
    return (1.25 if tail.method == "stop" else 1.0) if tail.prompt_ratio is None else tail.prompt_ratio


def predicts_lengths(args: SimpleNamespace) -> bool:
    """Whether the run goes by what each prompt's responses are expected to be long."""
    tail = args.rollout.tail_batching
    return args.rollout.length_aware_dispatch or tail.enable and tail.method != "stop"


def with_hidden_key(args: SimpleNamespace) -> SimpleNamespace:
    """A copy of the arguments whose W&B key is not printed, as OpenRLHF prints all of them."""
    args = copy.deepcopy(args)
    args.logger.wandb.key = args.logger.wandb.key and Secret(args.logger.wandb.key)
    return args


def _nested(cls: type, args: SimpleNamespace) -> Any:
    """A copy whose sections are of this class."""
    values = vars(args).items()
    return cls(
        **{
            name: _nested(cls, value) if isinstance(value, SimpleNamespace) else copy.deepcopy(value)
            for name, value in values
        }
    )
