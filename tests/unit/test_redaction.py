"""What stays of a text with secrets, and where the URL of a reward server is printed."""

import json
import os
import pickle
import shlex
import string
import subprocess
import sys
from unittest import mock

import pytest
from cpu_stack import ROOT
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.redaction import RewardUrl, Secret, command_line, without_secrets


@pytest.mark.parametrize(
    "text, printed",
    [
        ("http://host:5000/get_reward", "http://host:5000/get_reward"),
        ("http://user:secret@host/get?token=secret#secret", "http://host/get"),
        ("HTTPS://user:se@cret@host", "HTTPS://host"),
        ("http://user:se/cret@host/get", "http://host/get"),
        ("http://secret@host?secret", "http://host"),
        ("url='http://host/a?secret', then (ftp://secret@b/c)", "url='http://host/a', then (ftp://b/c)"),
        ("http://user:se'cr\"et@host/get", "http://host/get"),
        ("http://host/get?token=se'cret&b", "http://host/get"),
        ("reward.py", "reward.py"),
        ("no url: a@b?c", "no url: a@b?c"),
        ("x" * 30 + "http://user:secret@host", "x" * 30 + "http://host"),
        ("a." * 2**19, "a." * 2**19),  # an answer of 1 MiB: in quadratic time this test would take most of an hour
        ("a://'" * 2**18, "a://'" * 2**18),
        ("?" * 2**20, "?" * 2**20),
        ("a://?" + "'" * 2**20, "a://" + "'" * 2**20),
        ("'a://" * 2**18, "'a://" * 2**18),
        ("a://b: " * 2**17, "a://b: " * 2**17),
        ("a://b:@" + "[" * 2**20, "a://" + "[" * 2**20),
        ("authorization" * 2**16, "authorization" * 2**16),
        ("http://user:se cret@host:80/get is down", "http://host:80/get is down"),
        ("'http://user:se cr@et@host/get' is down", "'http://host/get' is down"),
        ("http://user:se?cret@host/get is down", "http://*** is down"),
        ("http://user:se#cret@host/get is down", "http://*** is down"),
        ("http://host/get?mail=a@secret is down", "http://host/get is down"),
        ("http://user:a@se:cret x@y is down", "http://y is down"),
        ("http://host:80 is down, mail a@b", "http://host:80 is down, mail a@b"),
        ("http://[::1]:80 is down, mail a@b", "http://[::1]:80 is down, mail a@b"),
        ("http://u:secret@h1/a,http://u:secret@h2/b", "http://h1/a,http://h2/b"),
        ("s3://AKIA:se/cr+et@bucket/key, hf://user:secret@datasets/x", "s3://bucket/key, hf://datasets/x"),
        ("http://a," * 2**17 + "?", "http://a," * 2**17),
        ("postgresql+psycopg2://u:secret@h/db", "postgresql+psycopg2://h/db"),
        ("{'url': 'http://u:secret@h/a', 'mail': 'b'}", "{'url': 'http://h/a', 'mail': 'b'}"),
    ],
    ids=range(32),
)
def test_a_url_keeps_scheme_host_and_path(text, printed):
    assert without_secrets(text) == printed


def test_values_of_secret_variables_are_named_instead(monkeypatch):
    for name, value in {
        "A_TOKEN": "tok-12345",
        "A_TOKEN_TOO": "tok-12345678",
        "SSHPASS": "pass-12345",
        "MYSQL_PWD": "mysql-12345",
        "BASIC_AUTH": "basic-12345",
        "PWD": "working-folder",
        "SHORT_KEY": "true",
        "HOME_DIR": "somewhere",
    }.items():
        monkeypatch.setenv(name, value)
    assert without_secrets("tok-12345678 tok-12345 true somewhere") == "$A_TOKEN_TOO $A_TOKEN true somewhere"
    printed = "$SSHPASS $MYSQL_PWD $BASIC_AUTH working-folder"
    assert without_secrets("pass-12345 mysql-12345 basic-12345 working-folder") == printed


def test_a_secret_flag_is_whole_but_for_its_repr():
    key = pickle.loads(pickle.dumps(Secret("key-12345")))
    assert key == "key-12345" and json.dumps(key) == '"key-12345"' and f"{[key]}" == "['***']"


def test_a_reward_url_is_whole_but_for_its_repr():
    whole = "http://user:secret@host/get?token=secret"
    url = pickle.loads(pickle.dumps(RewardUrl(whole)))
    assert url == whole and str(url) == whole and url.endswith("secret") and json.dumps(url) == f'"{whole}"'
    assert f"{[url]} {({'url': url})}" == "['http://host/get'] {'url': 'http://host/get'}"


@pytest.mark.parametrize(
    "text, printed",
    [
        ("Authorization: Bearer abc.def-1 was refused", "Authorization: *** was refused"),
        ("{'authorization': 'Basic dXNlcjpwYXNz', 'a': 1}", "{'authorization': '***', 'a': 1}"),
        ("(b'Proxy-Authorization', b'Basic dXNlcjpwYXNz')", "(b'Proxy-Authorization', b'***')"),
        ('Authorization: Digest username="u", response="x"', "Authorization: ***"),
        ("401 for Bearer abc.def-1, again", "401 for Bearer ***, again"),
        ("Set-Cookie: session=abc; Path=/", "Set-Cookie: ***"),
        ("x-api-key: abcdef", "x-api-key: ***"),
        ("token hf_abcdefghijKLMNOPqrst12 is wrong", "token *** is wrong"),
        ("run_options -e WANDB_API_KEY=abc", "run_options -e WANDB_API_KEY=***"),
        ("MAX_NEW_TOKENS=200 key=1 no authorization", "MAX_NEW_TOKENS=200 key=1 no authorization"),
    ],
)
def test_headers_and_keys(text, printed):
    assert without_secrets(text) == printed


@pytest.mark.parametrize(
    "text",
    [
        "tcp://10.0.0.1:6379: failed; ask admin@site.org",
        "Connection to http://host:8000: refused for prompt 'mail me@x.com'",
        "hf://datasets/a/b@main/x.jsonl and s3://bucket/run@2024/x",
        "/data/hf_datasets_cached_2024/x.jsonl",
        "hf_hub_download_with_retries in ckpt/sk-learn-experiments-2024-11",
        "the bearer token is missing",
        "EOS_TOKEN=<eos> PAD_TOKEN=0",
        "--logger.wandb.key is needed; invalid password: check it",
    ],
)
def test_ordinary_lines_stay(text):
    assert without_secrets(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "Cookie: a=b; session=s3cret",
        "Authorization: AWS4-HMAC-SHA256 Credential=a/b, Signature=s3cret",
        'Bearer "s3cret"',
        "Bearer: s3cret",
        "Bearer    s3cret",
        "--logger.wandb.key s3cret",
        "unrecognized arguments: --logger.wandb.ky s3cret",
        '{"HF_TOKEN": "s3cret"}',
        "{'WANDB_API_KEY': 's3cret'}",
        "HF_TOKEN='s3cret'",
        "password=s3cret",
        "api-key: s3cret",
        "glpat-abcdefs3cretABCDEF1234",
        "xoxb-1234-s3cret-abc",
    ],
)
def test_forms_of_secrets_that_go(text):
    assert "s3cret" not in without_secrets(text)


def test_values_of_other_variables_stay(monkeypatch):
    variables = {
        "TOKENIZER": "/models/qwen",
        "KEY_FOLDER": "/home/jane",
        "MAX_TOKENS": "10000000",
        "GIT_AUTHOR_NAME": "Jane Miller",
        "MONKEY": "chimpanzee",
        "API_KEY": "1234567890",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    text = " ".join(variables.values())
    assert without_secrets(text) == text


def test_loggers_of_imports_and_closed_streams():
    code = """
import logging, sys
handler = logging.StreamHandler()
logging.getLogger("ray").addHandler(handler)
from openrlhf_sagc.redaction import redact_output
redact_output()
logging.getLogger("ray").error("http://user:s3cret@host")
print("x")
"""
    command = f'exec "{sys.executable}" -c "$0" >&-'
    ran = subprocess.run(["bash", "-c", command, code], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stderr == "http://host\n"


SECRET = st.text(string.ascii_letters + string.digits + string.punctuation + " ", min_size=1, max_size=12).map(
    lambda text: f"s3cret{text}s3cret"
)
SCHEMES = st.sampled_from(["http://", "HTTP://", "https://", "hf://", "s3://", "grpc+tls://", "rediss://"])
FORMS = st.sampled_from(
    [
        "{0}user:{1}@host/get",
        "{0}{1}@host:5000",
        "{0}host/get?token={1}",
        "{0}host#{1}",
        "{0}:{1}@host",
        "{0}u:x@h/?{1}",
    ]
)
AROUND = st.sampled_from(["{}", "'{}'", "cannot reach {}: down", "[{}]", "--flag={}", "({}) and more"])


@given(SCHEMES, FORMS, SECRET, AROUND)
def test_no_secret_of_a_url_survives(scheme, form, secret, around):
    """As the value of a flag, whatever it is made of; in the middle of a text, unless a space or a quote ends the URL."""
    if form == "{0}{1}@host:5000":
        secret = secret.replace("/", "-")  # without `user:` before it, a `/` begins the path
    url = form.format(scheme, secret)
    value = without_secrets(url, whole=True)
    assert "s3cret" not in value and value.startswith(scheme)
    assert "s3cret" not in command_line(["--reward.remote_url", url]) + command_line([f"--reward.remote_url={url}"])
    printed = without_secrets(around.format(url))
    if not set(secret) & set(" '\""):
        assert "s3cret" not in printed
    assert without_secrets(printed) == printed and without_secrets(value, whole=True) == value


@given(st.text(string.ascii_letters + string.digits + " .,:;!?'\"()[]{}<>/@#=+-_&%$\n"))
def test_ordinary_text_stays_and_a_second_time_changes_nothing(text):
    with mock.patch.dict(os.environ, clear=True):
        printed = without_secrets(text)
        assert without_secrets(printed) == printed
        words = ("://", "uthorization", "earer", "ookie", "api", "token", "hf_", "sk-", "gh", "AKIA", "=")
        assert printed == text or any(word.lower() in text.lower() for word in words)


@pytest.mark.parametrize(
    "words",
    [
        ["--logger.wandb.key", "s3cret"],
        ["--logger.wandb.key=s3cret"],
        ["--logger.wandb.k", "s3cret"],
        ["--runtime-env-json", json.dumps({"env_vars": {"A": "s3cret", "B": "http://s3cret"}})],
        ["--runtime-env-json=" + json.dumps({"working_dir": "https://u:s3cret x@host/a.zip"})],
        ["--runtime-env-json", '{"env_vars": {"A": "s3cret"'],  # no JSON
        ["--runtime-env-json", "[" * 10**5 + "s3cret"],
        ["--runtime-env-json", json.dumps({"container": {"run_options": ["-e", "HF_TOKEN=s3cret"]}})],
        ["--reward.remote_url", "user:s3cret@host/get?s3cret"],
        ["--data.prompt_dataset", "http://a/b,hf://u:s3cret@c/d"],
    ],
)
def test_a_command_is_printed_without_the_secrets_of_its_flags(words):
    printed = command_line(["ray", *words, "--end", "a b"])
    assert "s3cret" not in printed and printed.endswith(" --end 'a b'") and shlex.split(printed)[1].startswith("--")


def test_what_is_no_secret_of_a_command_is_printed():
    words = [
        "--logger.wandb.key",
        "from-WANDB_API_KEY",
        "--runtime-env-json",
        '{"py_modules": ["x y"]}',
        "--data",
        "a/b",
    ]
    assert shlex.split(command_line(words)) == words


def test_output_has_no_secrets():
    """Errors and tracebacks neither."""
    code = """
import sys
from openrlhf_sagc.redaction import redact_output
redact_output(); redact_output()
url = "http://user:s3cret@host/get"
print(url, [url]); sys.stderr.writelines([url]); print(sys.stdout.isatty(), file=sys.stdout)
if len(sys.argv) == 2:
    raise ValueError(url)
sys.exit(f"no {url}")
"""
    for words, last in ([], "no http://host/get"), (["x"], "ValueError: http://host/get"):
        ran = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True)
        assert ran.returncode == 1 and "s3cret" not in ran.stdout + ran.stderr
        assert ran.stdout.startswith("http://host/get ['http://host/get']") and ran.stderr.splitlines()[-1].endswith(
            last
        )
