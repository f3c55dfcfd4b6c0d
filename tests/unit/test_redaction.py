"""Which values of flags are printed, and what other texts lose."""

import os
import shlex
import subprocess
import sys
import time
from unittest import mock

import pytest
from cpu_stack import ROOT
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.arguments import add_arguments
from openrlhf_sagc.config.flags import CommandParser, openrlhf_parser
from openrlhf_sagc.redaction import command_line, hide, shown, visible, without_secrets

KEY = "s3cretKEY"


@pytest.mark.parametrize(
    "flag, value",
    [
        ("--train.batch_size", "128"),
        ("--actor.adam.lr", "-1e-6"),
        ("--data.prompt_probs", "0.5,0.5"),
        ("--algo.advantage.estimator", "group_norm"),
        ("--algo.advantage.estimator", "group_nrom"),  # so that the line about it names it
        ("--x", "true"),
        ("--logger.wandb.key", "from-WANDB_API_KEY"),
        ("--ds.attn_implementation", "kernels-community/flash-attn2@v2"),
        ("--actor.model_name_or_path", "Qwen/Qwen2.5-7B"),
        ("--data.prompt_dataset", "OpenRLHF/dapo-math-17k,a/b"),
        ("--ckpt.output_dir", str(ROOT)),
        ("--train.agent_func_path", "/not/there/agent.py"),
        ("--reward.remote_url", "http://10.0.0.1:5000/reward,https://host/get_reward"),
        ("--vllm.engine_args", '{"max_num_seqs": 512, "a": {"b": [true, null, 0.5]}}'),
        ("--eval.dataset", ""),
    ],
)
def test_values_on_a_list_are_printed(flag, value):
    assert shown(value, flag) == value
    assert shlex.split(command_line([flag, value, f"{flag}={value}"])) == [flag, value, f"{flag}={value}"]


@pytest.mark.parametrize(
    "words",
    [
        ["--reward.remote_url", f"http://user:{KEY}@host"],
        ["--reward.remote_url", f"//user:{KEY}@host"],
        ["--reward.remote_url", f"http%3A//user:{KEY}@host"],
        ["--reward.remote_url", f"http%3A%2F%2Fuser%3A{KEY}%40host"],
        ["--reward.remote_url", f"http://host/get;token={KEY}"],
        ["--reward.remote_url", f"http://host/get&token={KEY}"],
        ["--reward.remote_url", f"http://a/b,http://host?{KEY}"],
        ["--reward.remote_url", f"http://user:se {KEY}'\"@host/get#{KEY}"],
        ["--data.prompt_dataset", f"s3://AKIA:{KEY}/+@bucket/x"],
        ["--my_token", KEY],
        [f"--my_token={KEY}"],
        [f"--{KEY}/1"],
        ["--my_token", "73313370"],
        ["--train.batch_size", "7331337073313370"],  # no number of that length is a flag's
        ["--vllm.engine_args", '{"7331337073313370": 1}'],
        ["--vllm.engine_args", '{"secretKEY": 1}'],
        ["--pin", "73313370"],
        ["--logger.wandb.key", "73313370"],
        ["--logger.wandb.k", KEY],
        ["--train.batch_size", "8", KEY],
        ["--actor.model_name_or_path", "hf_abc123"],
        ["--actor.model_name_or_path", "sk-abc12345"],
        ["--data.prompt_dataset", 8 * "0a1b2"],
        ["--data.prompt_dataset", "org/" + 8 * "0a1b2"],
        ["--reward.remote_url", "Qwen/Qwen2.5-7B"],  # a name by its form, for a flag that takes none
        ["--vllm.engine_args", f'{{"config": {{"token": "{KEY}"}}}}'],
        ["--vllm.engine_args", '{"config": {"token": 73313370}}'],
        ["--vllm.engine_args", f'{{"max_num_seqs": "{KEY}", "max_num_seqs": 1}}'],
        ["--vllm.engine_args", f'{{"{KEY}": 1}}'],
        ["--vllm.engine_args", f'{{"a": "{KEY}"'],
        ["--vllm.engine_args", "[" * 10**5 + KEY],
        ["--runtime-env-json", f'{{"env_vars": {{"A": "{KEY}", "B": "73313370"}}}}'],
        ["--logger.wandb.run_name", "\x1b]0;name\x07"],
        ["--ckpt.output_dir", f"{ROOT}/\u202e"],
    ],
)
def test_all_else_is_hidden(words):
    printed = command_line(["python3", "-m", "openrlhf_sagc", *words, "--end"])
    given = {words[-1].partition("=")[2] or words[-1], KEY, "73313370", "\x1b", "\u202e"}
    assert not [text for text in given if text in printed]
    assert printed.startswith("python3 -m openrlhf_sagc ") and "***" in printed and printed.endswith(" --end")
    assert shlex.split(printed)[3].startswith(words[0].partition("=")[0]) or "/" in words[0]


def test_the_parsers_flags_and_choices_are_known(monkeypatch):
    monkeypatch.chdir("/")
    actions = CommandParser(openrlhf_parser(), add_arguments)._actions
    for action in actions:
        flag = action.option_strings[-1]
        assert command_line([flag]) == flag, flag
        for choice in map(str, action.choices or ()):
            assert shown(choice, flag) == choice, (flag, choice)
        if action.type in (int, float) and flag != "--local_rank":
            assert shown("3", flag) == "3", flag


@pytest.mark.parametrize(
    "text",
    [
        f"http://user:{KEY}@host/get is down",
        f"no //user:{KEY}@host",
        f"'http%3A//user:{KEY}@host'",
        f"http://host/get?{KEY}",
        f"url='http://host/a#{KEY}', more",
        f"GET /get;id={KEY}",
        f"GET /get&id={KEY}",
        f"--my_token {KEY}",
        f"--my_token={KEY}",
        f"token {KEY} is wrong",
        f'{{"config": {{"token": "{KEY}"}}}}',
        rf'"{{\"api_key\": \"{KEY}\"}}"',
        f"Namespace(key='{KEY}', a=1)",
        f"HF_TOKEN={KEY} python",
        f"password: {KEY}",
        f"Authorization: Basic {KEY}",
        f"(b'Proxy-Authorization', b'Bearer {KEY}')",
        f"401 for Bearer {KEY}, again",
        f"Set-Cookie: session={KEY}; Path=/",
        "hf_s3cretKEY1 sk-s3cretKEY1 glpat-s3cretKEY1",
        "was s3cretKEY1ab2cd3ef4gh5",
        f"url: /services/T00000000/B00000000/{KEY} is gone",
        f"POST /api/webhooks/1234567890/{KEY} HTTP/1.1",
    ],
)
def test_forms_of_secrets_in_a_text_are_hidden(text):
    printed = without_secrets(text)
    assert KEY not in printed and "***" in printed and without_secrets(printed) == printed


@pytest.mark.parametrize(
    "text",
    [
        "tcp://10.0.0.1:6379: failed; http://host:8000/get, (hf://datasets/a/b) 'file:///a.b'",
        "Epoch:  50%|█████     | 5/10 [00:01<00:01, 4.9it/s, loss=0.5]",
        "KeyError: 'prompt' in a @ b; x=1 if y else 2",
        "the bearer token is missing: give one",
        "a cluster needs a token: read docs/clusters.md#with-a-token",
        "kernels-community/flash-attn2@v2 loads; MAX_NEW_TOKENS=200 monkeys: 1",
        "--rollout.sagc.group_sizes 4 8 16 32: step 5 of 100\n\tat line 7\n",
    ],
)
def test_ordinary_lines_stay(text):
    assert without_secrets(text) == text


def test_a_key_of_letters_is_hidden():
    assert without_secrets("401 for hf_AbCdEfGhIjKlMnOp") == "401 for ***"
    assert without_secrets("hf_overrides, hf_config_path and sk-learn") == "hf_overrides, hf_config_path and sk-learn"


def test_control_characters_are_shown():
    text = "a\x1b[31mb\rc\x9bd\u202ee\u2066f\x7f\x00\ud800\n\té█"
    assert without_secrets(text) == "a\\x1b[31mb\\rc\\x9bd\\u202ee\\u2066f\\x7f\\x00\\ud800\n\té█"
    assert visible("a\x1b[31m\r\x9b\u202eb\u2028c\td\né\u3000█") == "a\\x1b[31m\\r\\x9b\\u202eb\\u2028c\td\né\u3000█"


def test_values_of_secret_variables_are_hidden(monkeypatch):
    secret = {"A_TOKEN": "tok-a1", "SSHPASS": "hunter", "MYSQL_PWD": "mysql-1234", "API_KEY": "1234567890"}
    plain = {"PWD": str(ROOT), "RAY_AUTH_MODE": "disabled", "TOKENIZERS": "parallel", "KEY_SWITCH": "true"}
    for name, value in (secret | plain).items():
        monkeypatch.setenv(name, value)
    assert without_secrets(" ".join(secret.values())) == "*** *** *** ***"
    assert without_secrets(" ".join(plain.values())) == " ".join(plain.values())
    assert without_secrets("hunters") == "hunters" and without_secrets("xmysql-1234x") == "x***x"


def test_values_that_a_command_hides_are_left_out_of_every_text():
    hide(["--my_token", "abcde", "--reward.remote_url", "http://user:pass-word@h/get?secretary", "--pin=12345"])
    hide(
        ["--vllm.engine_args", '{"hf_token": "letters"}', "--data.prompt_dataset", "wrong;", "--train.batch_size", "8"]
    )
    assert without_secrets("abcde pass-word secretary 12345 letters wrong;") == "*** *** *** *** *** ***"
    text = "'abcdef' 123456, hf_token, 8, user"
    assert without_secrets(text) == text
    hide(["--header", "Authorization: Bearer beareristoken", "--auth", "user:ofthreewords", "--x", "api_key=queried"])
    hide(["--reward.remote_url", "http://user:firstone@h/get,http://user:secondone@other/get"])
    text = "beareristoken ofthreewords queried firstone secondone"
    assert without_secrets(text) == "*** *** *** *** ***" and without_secrets("user other/get") == "user other/get"
    hide(["--ckpt.output_dir", "ckpt/mine", "--logger.wandb.run_name", "mine"])  # which the run's lines name
    assert without_secrets("ckpt/mine") == "ckpt/mine"


@pytest.mark.parametrize(
    "part",
    ["a.", "a://'", "?", "'a://", "a://b: ", "a://b:@[", "authorization", "key=", "token '", "hf_sk-", "a1", "&=%"],
)
def test_the_time_is_linear_in_the_text(part):
    """In quadratic time a text of 64 KiB takes minutes."""
    begin = time.process_time()
    without_secrets(part * (2**16 // len(part)))
    assert time.process_time() - begin < 20


@given(st.text("aB1 .,:;'\"()[]{}<>/@#=+_&%$\n"))
def test_a_second_time_changes_nothing(text):
    with mock.patch.dict(os.environ, clear=True):
        printed = without_secrets(text)
        assert without_secrets(printed) == printed


def test_output_has_no_secrets():
    """Errors, tracebacks and loggers of imports neither; a closed stream stays so, and a bar's return of the carriage."""
    code = """
import logging, sys
handler = logging.StreamHandler()
logging.getLogger("ray").addHandler(handler)
from openrlhf_sagc.run.output import redact_output
redact_output(); redact_output()
logging.getLogger("ray").error("http://user:s3cret@host")
sys.stderr.writelines(["\\rbar\\x1b[A\\rbar", "\\n"])
print("letters", file=sys.stderr)
raise ValueError("http://user:s3cret@host")
"""
    command = f'exec "{sys.executable}" -c "$0" --my_token letters >&-'
    ran = subprocess.run(["bash", "-c", command, code], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 1 and "s3cret" not in ran.stderr
    assert ran.stderr.startswith("***\n\nbar bar\n***\nTraceback") and ran.stderr.endswith("\nValueError: ***\n")
