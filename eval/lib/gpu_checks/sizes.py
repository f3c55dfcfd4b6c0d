"""Check 10: the memory of the 7B script's real sizes, with weights of zeros, against what train_scripts/memory.py predicts.

Where there are fewer GPUs than the script is for, one of them takes a model of fewer layers, so that its states fit. A pack, its
logits and the width of a layer are the script's. Weights of zeros are a file with a hole, and end no rollout.
"""

import json
import math
import struct
from pathlib import Path

from lib.gpu_checks.figures import SCRIPT, Sizes, of_script, predicted
from lib.gpu_checks.outcomes import FAIL, NotHere, Outcome, measured
from lib.gpu_checks.processes import ROOT
from lib.gpu_checks.runs import Ended, model, need_stack, texts, train

SLACK = 1.05  # of what is predicted
ROOM = 0.95  # of a card, for what is predicted
NEW_TOKENS = 256  # the prompt fills the rest of a pack: to read it takes a second, to generate it would take minutes
SAMPLES = 4  # packs of each GPU in the step
GB = 1e9
PHASES = {"to fall asleep": "training", "to wake up tags": "generation"}  # that begin with these lines of vLLM
SHAPE = {"max_position_embeddings": 32768, "tie_word_embeddings": False}  # Qwen2.5-7B's, besides its sizes


def check(node) -> Outcome:
    """A step of full packs: the peaks of training and of all else, such as wake and sync, over what is predicted."""
    need_stack(node)
    if node.dry_run:
        raise NotHere("a CPU has no GPU's memory to measure")
    whole, sizes = of_script()
    cards_gb = [total for _, total in _memory_gb()]
    gpus, card_gb = sizes.gpus if len(cards_gb) >= sizes.gpus else 1, min(cards_gb)
    sizes = sizes if gpus > 1 else sizes._replace(gpus=1, ranks=1)
    shape = largest(whole, sizes, card_gb)
    if not shape:
        raise NotHere(f"a card of {card_gb:.0f} GB holds no layer of the script with a full pack")
    tokenizer = model(node, "words")  # whose prompts fill the packs
    folder = node.folder / "sizes_model"
    write_zeros(folder, config_of(shape), tokenizer)
    data = node.folder / "long_prompts.jsonl"
    write_prompts(data, texts(node), sizes.tokens - NEW_TOKENS, 4 * gpus)
    peaks = Peaks(lambda: max(used for used, _ in _memory_gb()))
    given = {"MODEL": folder, "DATA": data, "EVAL_DATA": "", "REWARD": ROOT / "train_scripts/smoke_reward.py"}
    given |= {"PROMPTS": gpus, "SAMPLES": SAMPLES, "TRAIN_BATCH": SAMPLES * gpus, "ACTOR_GPUS": gpus}
    given |= {
        "MAX_NEW_TOKENS": NEW_TOKENS,
        "PROMPT_TOKENS": sizes.tokens - NEW_TOKENS,
        "SAVE_HOURS": 1000,
        "DISK_GB": 1,
    }
    given |= {"MEMORY_GB": 1} | ({"ENGINES": 1, "TENSOR_PARALLEL": 1} if gpus == 1 else {})
    run = train(node, "sizes", SCRIPT, watch=peaks.watch, **given)
    return compare(peaks.gb, run, predicted(shape, sizes, card_gb), shape["num_hidden_layers"], gpus)


def compare(found: dict[str, float], run: Ended, expected: dict[str, float], layers: int, gpus: int) -> Outcome:
    """The worst of the phases, each in GB of the fullest GPU."""
    if run.code is not None:
        return Outcome(FAIL, reason=f"the launch script ended with code {run.code} before it had trained: {run.why}")
    parts = ", ".join(f"{phase} {found[phase]:.0f} GB of {expected[phase]:.0f}" for phase in expected)
    worst = max(found[phase] / expected[phase] for phase in expected)
    return measured(worst, "of the predicted GB", most=SLACK, reason=f"{layers} layers, {gpus} GPUs: {parts}", **found)


def _memory_gb() -> list[tuple[float, float]]:
    """In use and in all, of each GPU."""
    from gpus import visible_gpus

    return [(gpu.used * 2**20 / GB, gpu.total * 2**20 / GB) for gpu in visible_gpus()]


class Peaks:
    """The most GB in use in each phase of a run, as vLLM's lines tell them.

    Args:
        used_gb: asks for it.
    """

    def __init__(self, used_gb) -> None:
        self.gb = dict.fromkeys(PHASES.values(), 0.0)
        self._used_gb = used_gb

    def watch(self, output: str, mark: str) -> bool:
        """Look once more; whether the run has trained a step and synced its weights."""
        said = {output.rfind(line): phase for line, phase in PHASES.items()}
        if (last := max(said)) >= 0:
            self.gb[said[last]] = max(self.gb[said[last]], self._used_gb())
        return "Global step 1: " in output


def config_of(shape: dict[str, int]):
    from transformers import Qwen2Config

    return Qwen2Config(**shape | SHAPE, torch_dtype="bfloat16")


def tensors_of(config) -> dict[str, list[int]]:
    """Names and shapes of a model's weights."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config)
    return {name: list(weight.shape) for name, weight in built.named_parameters()}


def largest(whole: dict[str, int], sizes: Sizes, card_gb: float) -> dict[str, int] | None:
    """The sizes of the script's model, or of one with as many layers as fit; None if not even one does."""
    for layers in range(whole["num_hidden_layers"], 0, -1):
        shape = whole | {"num_hidden_layers": layers}
        if predicted(shape, sizes, card_gb)["training"] <= ROOM * card_gb:
            return shape
    return None


def write_zeros(folder: Path, config, tokenizer: Path) -> None:
    """A model's folder with the tokenizer of another one, and bfloat16 weights of zeros that take no disk."""
    from transformers import AutoTokenizer

    config.architectures = ["Qwen2ForCausalLM"]
    config.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    entries, end = {}, 0
    for name, shape in tensors_of(config).items():
        start, end = end, end + 2 * math.prod(shape)
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    head = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    head += b" " * (-len(head) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + end)


def write_prompts(file: Path, prompts: list[str], tokens: int, count: int) -> None:
    """So many prompts of nearly so many tokens, of which the task's tokenizer makes one of each word."""
    rows = []
    for number in range(count):
        words = prompts[number % len(prompts)].split()
        repeated = (words * (tokens // len(words)))[: tokens - 64]  # room for a chat template
        rows.append(json.dumps({"prompt": " ".join(repeated), "label": ""}) + "\n")
    file.write_text("".join(rows))
