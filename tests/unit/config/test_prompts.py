"""Templates and tokens, on drawn rows."""

import pytest

from openrlhf_sagc.config.datasets import load_sets, training_source
from openrlhf_sagc.config.prompts import check_chat_template, check_prompts, check_template, load_tokenizer

CHAT = "--data.apply_chat_template"


@pytest.mark.parametrize("template", ["{}", "Question: {}\nAnswer:", "{} Put it in \\boxed{{}}.", "{{x}}: {}"])
def test_templates_that_take_the_prompt_once(arguments, refused, template):
    args = arguments("--data.input_template", template)
    assert not refused(check_template, args) and "a" in args.data.input_template.format("a")


@pytest.mark.parametrize(
    "template",
    [
        "{} Put it in \\boxed{}.",
        "{question} {}",
        "{}{",
        "{0} {}",
        "no place",
        "{{}}",
        "{prompt}",
        "{input}: \\boxed{{}}",
        "{:d} {}",
    ],
)
def test_templates_that_fail_or_drop_the_prompt(arguments, refused, template):
    said = refused(check_template, arguments("--data.input_template", template))
    assert said.startswith("--data.input_template ") and "write {} once, where the prompt goes" in said


def test_a_template_beside_that_of_the_chat_is_said(arguments, capsys):
    check_template(arguments("--data.input_template", "{}", CHAT))
    assert "--data.input_template has no effect with --data.apply_chat_template" in capsys.readouterr().out


@pytest.fixture
def look(arguments, data, refused, tokenizer):
    """look(prompts, *flags): the line with which prompts are refused, or empty."""

    def run(prompts, *flags):
        args = arguments("--data.prompt_dataset", data([{"prompt": prompt} for prompt in prompts]), *flags)

        def check():
            for name, rows in load_sets(args, training_source(args)):
                check_prompts(args, training_source(args), name, rows, tokenizer)

        return refused(check)

    return run


def test_prompts_that_are_cut_are_counted(look, capsys):
    prompts = [" ".join(["word"] * (50 if i % 4 == 0 else 5)) for i in range(100)]
    assert not look(prompts, "--data.max_len", "40", "--rollout.max_new_tokens", "30")
    assert (
        "25 of 100 prompts (25 %) are longer than the 10 tokens that --data.max_len 40 less --rollout.max_new_tokens 30 leaves "
        "(the longest has 50), and lose their beginning: use --data.max_len 80, or drop them"
    ) in capsys.readouterr().out
    assert not look(prompts, "--data.max_len", "80", "--rollout.max_new_tokens", "30")
    assert not look(prompts, "--data.max_len", "51") and "longer" not in capsys.readouterr().out
    assert (
        not look(prompts, "--data.max_len", "50")
        and "the 49 tokens that --data.max_len 50 less one" in capsys.readouterr().out
    )
    said = look(prompts, "--data.max_len", "31", "--rollout.max_new_tokens", "30")
    assert "100 of 100 prompts (100 %) are longer than the 1 tokens" in said


def test_rows_are_drawn_or_all_are_looked_at(look, capsys):
    prompts = ["short"] * 3000 + ["a b c d e f g h"]
    limits = ["--data.max_len", "10", "--rollout.max_new_tokens", "5"]
    assert not look(prompts[:3000] * 2, *limits) and "checking the prompts" not in capsys.readouterr().err
    assert not look(prompts, *limits, "--data.check_rows", "all")
    said = capsys.readouterr()
    assert "1 of 3001 prompts (0.0333 %)" in said.out and "checking the prompts: 100%" in said.err
    long = ["a b c d e f g h"] * 500 + ["short"] * 500
    assert not look(long, *limits, "--data.check_rows", "100")
    assert " of 100 drawn prompts (" in capsys.readouterr().out


def test_a_prompt_that_the_chat_template_refuses(look):
    good = [{"role": "user", "content": "a"}]
    bad = [{"role": "tool", "content": "a"}]
    said = look([good, good, bad], CHAT)
    assert (
        "row 3 (counted from 1): the chat template of none does not take the prompt: TemplateError: no tools here"
        in said
    )
    assert not look([good, good], CHAT) and not look(["a", "b"], CHAT)


def test_a_prompt_without_tokens(look):
    assert "row 2 (counted from 1): the tokenizer makes no token of the prompt" in look(["a", "\u2003"])


def test_a_tokenizer_without_a_chat_template(arguments, refused, tokenizer, monkeypatch):
    assert not refused(check_chat_template, arguments(CHAT), tokenizer)
    monkeypatch.setattr(tokenizer, "chat_template", None)
    said = refused(check_chat_template, arguments(CHAT), tokenizer)
    assert "--data.apply_chat_template: the tokenizer of --actor.model_name_or_path none has no chat template" in said
    assert not refused(check_chat_template, arguments(), tokenizer)


def test_tokenizers(arguments, refused, model, tmp_path, capsys):
    flag = "--actor.model_name_or_path"
    assert load_tokenizer(arguments(flag, model))("a b")["input_ids"] == [0, 0]
    assert load_tokenizer(arguments(flag, "no/such-model")) is None
    assert "are not checked, without the tokenizer of no/such-model" in capsys.readouterr().out


@pytest.mark.parametrize("value, line", [("0", "use 1 or more, or all"), ("some", "use 1 or more, or all")])
def test_rows_to_check(arguments, capsys, value, line):
    with pytest.raises(SystemExit):
        arguments("--data.check_rows", value)
    assert f"argument --data.check_rows: {value} is not a number of rows: {line}" in capsys.readouterr().err
