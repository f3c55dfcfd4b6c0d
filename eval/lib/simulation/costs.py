"""What a training step costs, in seconds; a file of eval/engines holds the numbers."""

from pathlib import Path
from typing import Annotated

from lib.given import json_of
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
OTHERS = (
    "about",
    "calibration",
)  # where the numbers are from, and the file of what they predict against measured steps
Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class CostModel:
    """Costs of generation on engines of `gpus_per_engine` each, and of training.

    Experience and training are linear in the tokens that a GPU processes, prompts, responses and padding; actors.py says
    how many these are. `experience_per_token` is of a forward pass of the actor.

    Raises:
        pydantic.ValidationError: a field is missing or out of its range.
    """

    decode_base: Annotated[float, Field(gt=0, allow_inf_nan=False)]  # of a step of an engine, as the next three
    decode_per_request: Seconds
    decode_per_kv_token: Seconds
    prefill_per_token: Seconds
    max_running: Count  # vLLM's max_num_seqs
    kv_limit: Count  # tokens in the KV cache of an engine
    gpus_per_engine: Count
    generation_base: Seconds  # of a training step, as the next ones
    experience_base: Seconds
    experience_per_token: Seconds
    train_base: Seconds
    train_per_token: Seconds
    sync: Seconds  # of the weights to the engines
    launch: Seconds = (
        0.0  # that a step of an engine takes at least: without CUDA graphs its kernels are launched one by one
    )
    # With drafts: tokens that a request gets in a step that verifies `drafted` besides, and what each step takes longer.
    tokens_per_iteration: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    drafted: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    drafting: Seconds = 0.0

    @classmethod
    def load(cls, path: Path) -> "CostModel":
        """Read a JSON object with these fields; what it says besides (OTHERS) is for readers.

        Raises:
            ValueError: it is no such file; the message is one line and begins with the path.
        """
        fields = json_of(path)
        if not isinstance(fields, dict):
            raise ValueError(f"{path} holds no JSON object; see eval/engines")
        try:
            return cls(**{name: value for name, value in fields.items() if name not in OTHERS})
        except ValidationError as error:
            faults = [(fault["loc"][0], fault["msg"], fields.get(fault["loc"][0])) for fault in error.errors()]
            wrong = "; ".join(f"{name}: {message}, got {value}" for name, message, value in faults)
            raise ValueError(f"{path}: {wrong}; see eval/engines") from None
