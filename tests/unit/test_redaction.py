"""What stays of a text with secrets, and where the URL of a reward server is printed."""

import json
import pickle

import pytest

from openrlhf_sagc.redaction import RewardUrl, Secret, without_secrets


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
    ],
    ids=range(15),
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
