"""The model that stands for the 7B script's, what is predicted of it, and the peaks of a run's phases."""

import json

import pytest
from lib.gpu_checks import sizes
from lib.gpu_checks.figures import of_script
from lib.gpu_checks.outcomes import FAIL, PASS, Node, NotHere
from lib.gpu_checks.runs import Ended

WHOLE, SIZES = of_script()
ONE = SIZES._replace(gpus=1, ranks=1)
LAYERS = WHOLE["num_hidden_layers"]


def test_the_whole_model_is_the_scripts_and_fits_its_gpus():
    assert sizes.largest(WHOLE, SIZES, 85.5) == WHOLE


def test_one_gpu_gets_as_many_layers_as_fit():
    shapes = [sizes.largest(WHOLE, ONE, gb) for gb in (45, 85.5, 151)]
    layers = [shape and shape["num_hidden_layers"] for shape in shapes]
    assert layers[0] is None and 0 < layers[1] < layers[2] < LAYERS


def test_weights_of_zeros_load_and_take_no_disk(tmp_path, tokenizer):
    import torch
    from transformers import AutoModelForCausalLM

    small = {"vocab_size": 50_000, "hidden_size": 56, "num_hidden_layers": 2, "intermediate_size": 64}
    config = sizes.config_of(WHOLE | small)
    sizes.write_zeros(tmp_path / "model", config, tokenizer)
    file = tmp_path / "model/model.safetensors"
    assert file.stat().st_size > 10**7 > 1000 * file.stat().st_blocks
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.bfloat16)
    assert all((weight == 0).all() for weight in model.parameters())
    logits = model(torch.tensor([[1, 2, 3]])).logits
    assert logits.shape == (1, 3, 50_000) and (logits == 0).all()


@pytest.fixture
def tokenizer(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({"<unk>": 0, "one": 1, "two": 2}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def test_prompts_nearly_fill_a_pack(tmp_path):
    sizes.write_prompts(tmp_path / "p.jsonl", ["one two", "three"], 1000, 3)
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [len(row["prompt"].split()) for row in rows] == [936] * 3


def test_each_phase_has_its_own_peak():
    used = iter([30.0, 70.0, 66.0, 5.0, 60.0, 10.0])
    peaks = sizes.Peaks(lambda: next(used))
    assert not peaks.watch("engines start", "")
    said = ""
    for line in ("It took 3.1 seconds to fall asleep.\n", "It took 1 seconds to wake up tags ['weights'].\n", "", ""):
        said += line
        assert not peaks.watch(said, "")
    said += "It took 1 seconds to fall asleep.\n"
    assert not peaks.watch(said, "") and peaks.gb == {"training": 60, "generation": 70}
    assert peaks.watch(said + "Global step 1: {}", "")


def test_a_phase_that_takes_more_than_predicted_fails():
    expected, run = {"training": 65.0, "generation": 70.0}, Ended(None, "", [], 0.0)
    right = sizes.compare({"training": 66.0, "generation": 60.0}, run, expected, 28, 8)
    assert right.status == PASS and right.number == pytest.approx(66 / 65) and "28 layers, 8 GPUs" in right.reason
    assert sizes.compare({"training": 60.0, "generation": 75.0}, run, expected, 28, 8).status == FAIL
    died = sizes.compare({}, Ended(1, "OutOfMemoryError: of CUDA", [], 0.0), expected, 28, 8)
    assert died.status == FAIL and died.reason.endswith("OutOfMemoryError: of CUDA")


def test_a_cpu_and_a_small_card_are_no_place_for_it(monkeypatch, tmp_path):
    monkeypatch.setattr(sizes, "need_stack", lambda node: None)
    with pytest.raises(NotHere, match="a CPU"):
        sizes.check(Node(tmp_path, dry_run=True))
    monkeypatch.setattr(sizes, "_memory_gb", lambda: [(0.0, 24.0)])
    with pytest.raises(NotHere, match="a card of 24 GB"):
        sizes.check(Node(tmp_path))


def test_the_script_gets_real_sizes(monkeypatch, tmp_path, tokenizer):
    given = {}

    def train(node, name, script, watch, **variables):
        given.update(variables, script=script)
        return Ended(1, "", [], 0.0)

    monkeypatch.setattr(sizes, "need_stack", lambda node: None)
    monkeypatch.setattr(sizes, "_memory_gb", lambda: [(0.0, 85.5)])
    monkeypatch.setattr(sizes, "model", lambda node, name: tokenizer)
    monkeypatch.setattr(sizes, "texts", lambda node: ["one two"])
    monkeypatch.setattr(sizes, "train", train)
    assert sizes.check(Node(tmp_path)).status == FAIL
    assert given["MAX_NEW_TOKENS"] + given["PROMPT_TOKENS"] == SIZES.tokens and given["script"] == sizes.SCRIPT
    assert given["ACTOR_GPUS"] == given["ENGINES"] == given["TENSOR_PARALLEL"] == 1
    assert json.loads((given["MODEL"] / "config.json").read_text())["vocab_size"] == WHOLE["vocab_size"]
