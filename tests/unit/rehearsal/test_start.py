"""A launch on a GPU node, rehearsed without a GPU: launch.sh, its checks, and the policy's model up to the first kernels.

PyTorch is made to say that it has CUDA, the kernels' hub is a list of published builds, nvidia-smi and the compilers are stubs
(tests/helpers/gpu_node). The rest is the code of the packages that pyproject.toml pins.
"""

import csv
import json
import subprocess
import sys
import tomllib

import pytest
from cpu_stack import ROOT
from launched import GPUS

NODE = ROOT / "tests/helpers/gpu_node"
KERNEL = "kernels-community/flash-attn2@v2"
AGENT = """
from openrlhf.utils.agent import AgentExecutorBase
class AgentExecutor(AgentExecutorBase):
    async def execute(self, prompt, label, **kwargs): ...
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder of a random Qwen2 whose keys have fewer heads than its queries, with a tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("model")
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 32}
    Qwen2ForCausalLM(Qwen2Config(**sizes, num_attention_heads=4, num_key_value_heads=2)).save_pretrained(folder)
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(["</s>", "1", "2", "3"])}, "</s>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="</s>")
    fast.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def launches(flags_of, model, tmp_path_factory):
    """launches(script, *flags): module and flags of what a launch script starts, with a small model."""
    folder = tmp_path_factory.mktemp("launches")
    (folder / "data.jsonl").write_text('{"prompt": "1 2 3", "label": "6"}\n' * 1000)
    data = str(folder / "data.jsonl")
    (folder / "reward.py").write_text("def reward_func(queries, prompts, labels): ...")
    (folder / "agent.py").write_text(AGENT)

    def run(script, *flags):
        given = {"MODEL": str(model), "DATA": data, "EVAL_DATA": data, "OUTPUT": str(folder / "out")}
        given |= {"REWARD": str(folder / "reward.py")} | (
            {"AGENT": str(folder / "agent.py")} if "agent" in script else {}
        )
        return ["openrlhf_sagc", *flags_of(script, *flags, **given)]

    return run


@pytest.fixture(scope="module")
def start(node, model):
    """start({name: command}, **as `node`): what each comes to, by name."""

    def run(commands, **where):
        process = subprocess.run(
            [sys.executable, NODE / "start.py", model],
            input=json.dumps(commands),
            env=node(**where),
            capture_output=True,
            text=True,
        )
        assert process.returncode == 0, process.stderr[-3000:]
        return json.loads(process.stdout.splitlines()[-1])

    return run


def test_every_recipe_starts_up_to_its_first_kernels(start, launches):
    """One node's eight GPUs are enough for the checks, so the multi-node script has one node here."""
    more = {"dapo_qwen2.5_32b_multinode.sh": ["--actor.num_nodes", "1", "--vllm.num_engines", "2"]}
    found = start({script: launches(script, *more.get(script, [])) for script in GPUS})
    assert "FlashAttention2 has been toggled on, but it cannot be used" in found.pop("transformers by itself")
    assert list(found) == list(GPUS)
    for script, came_to in found.items():
        assert came_to["problems"] == [], script
        assert came_to["attention"] == KERNEL and came_to["said"].endswith(f"attention: {KERNEL}, which loads here")
        assert came_to["bounds"] == [0, 5, 14, 16]  # the kernel keeps the samples of a pack apart
        assert max(came_to["differences"]) < 0.02, script  # bfloat16


def published():
    with open(NODE / "published_builds.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_the_kernels_branch_has_a_build_for_the_torch_that_is_pinned():
    """transformers' own default has none, so the scripts name a branch. A new pin of torch needs a look at the hub's builds."""
    pins = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["gpu"]
    (torch,) = (pin.split("==")[1] for pin in pins if pin.startswith("torch=="))
    build = f"torch{''.join(torch.split('.')[:2])}-cxx11-cu130-x86_64-linux"
    branches = {row["branch"] for row in published() if row["build"] == build}
    assert KERNEL.split("@")[1] in branches and "v1" not in branches
