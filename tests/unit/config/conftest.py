"""Arguments as OpenRLHF's own checks give them, a small tokenizer, and files of data."""

import json

import pytest
from up_to_ray import reward_file

FLAGS = {
    "--actor.model_name_or_path": "none",
    "--actor.num_gpus_per_node": "1",
    "--ref.num_gpus_per_node": "1",
    "--vllm.num_engines": "1",
    "--rollout.batch_size": "8",
    "--rollout.n_samples_per_prompt": "8",
    "--train.batch_size": "64",
    "--algo.advantage.estimator": "group_norm",
    "--data.input_key": "prompt",
}


@pytest.fixture
def parsed(tmp_path):
    """parsed(*flags): what OpenRLHF's parser, with the package's flags, makes of flags that fit and these after them."""
    from openrlhf.cli.train_ppo_ray import build_parser

    from openrlhf_sagc.arguments import add_arguments

    parser = build_parser()
    add_arguments(parser)
    words = [word for pair in FLAGS.items() for word in pair] + ["--reward.remote_url", str(reward_file(tmp_path))]
    return lambda *flags: parser.parse_args([*words, *map(str, flags)])


@pytest.fixture
def arguments(parsed):
    """arguments(*flags): the same after OpenRLHF's own checks."""
    from openrlhf.cli.train_ppo_ray import validate_args

    from openrlhf_sagc.config.upstream_checks import validated

    return lambda *flags: validated(validate_args, parsed(*flags))


@pytest.fixture
def data(tmp_path):
    """data(rows or text, name="data.jsonl"): the path of such a file."""

    def write(rows, name="data.jsonl"):
        path = tmp_path / name
        path.write_text(rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


@pytest.fixture
def refused():
    """refused(function, *arguments): the one line with which it ends the run; empty if it does not."""

    def run(function, *arguments):
        try:
            result = function(*arguments)
            list(result if hasattr(result, "__next__") else [])
        except SystemExit as end:
            line = str(end.code)
            assert line.startswith("openrlhf_sagc: ") and "\n" not in line and len(line) < 1000
            return line.removeprefix("openrlhf_sagc: ")
        return ""

    return run


@pytest.fixture(scope="session")
def tokenizer():
    """A token for each word; `chat_template` is a small one."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    made.chat_template = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
        "{{ m.role + ' : ' + m.content + ' ' }}{% endfor %}assistant :"
    )
    return made


@pytest.fixture
def model(tmp_path, tokenizer):
    """The folder of a model, with this tokenizer."""
    folder = tmp_path / "model"
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "opt"}))
    return folder
