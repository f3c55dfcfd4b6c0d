"""--reward.remote_url: what the line advises works."""

import os
import re

import pytest

from openrlhf_sagc.config.reward_addresses import check_addresses

WRONG = {
    "localhost:5000/get": "http://localhost:5000/get",
    "rule:http://h/get": "http://h/get",
    "htp://h/get": "http://h/get",
    "http:/h/get": "http://h/get",
    "grpc://h:1": "http://h:1",
    "http://a/get, http://b/get": "http://a/get,http://b/get",
    "http://a/get,": "http://a/get",
    " http://a/get": "http://a/get",
    "http://a/get,,b:5": "http://a/get,http://b:5",
    "'http://a/get'": "http://a/get",
}


@pytest.mark.parametrize("given, right", WRONG.items())
def test_the_advice_works(arguments, refused, given, right):
    said = refused(check_addresses, arguments("--reward.remote_url", given))
    assert said.startswith("--reward.remote_url ") and re.search(
        rf": use {re.escape(right)}( or https?://\S+)?$", said
    )
    assert not refused(check_addresses, arguments("--reward.remote_url", right))


def test_files(arguments, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "F.PY").write_text("")
    (tmp_path / "data.txt").write_text("")
    (tmp_path / "f.py").write_text("")
    look = lambda url: refused(check_addresses, arguments("--reward.remote_url", url))  # noqa: E731
    assert "use f.py, in which OpenRLHF calls reward_func" in look("f.py:score")
    assert "rename the file to F.py" in look("F.PY")
    os.rename("F.PY", "F.py")
    assert not look("F.py") and not look("f.py")
    assert look("f.py ").endswith("use f.py")
    assert "data.txt is not a .py file: give a Python file" in look("data.txt")
    assert "has a .py file and something else: use only one file, f.py" in look("http://h/get,f.py")
    assert "has a .py file and something else" in look("f.py,F.py")
    assert not look("http://h/scripts/f.py")


def test_an_address_without_a_host(arguments, refused):
    for url in ("http://", "http://:5000/get", "http://h:port/get", "http://h h/get"):
        assert "has no host and port that can be asked: use http://HOST:PORT/PATH" in refused(
            check_addresses, arguments("--reward.remote_url", url)
        )


def test_no_secret_is_shown(arguments, refused):
    said = refused(
        check_addresses, arguments("--reward.remote_url", "user:secret@h/get?secret, http://a:secret@b/get")
    )
    assert "use ***,***" in said and "secret" not in said


def test_an_agent_or_a_reward_model_has_none(arguments, refused):
    assert not refused(check_addresses, arguments("--train.agent_func_path", "agent.py"))
    assert not refused(check_addresses, arguments("--reward.remote_url", "", "--reward.model_name_or_path", "m"))


def test_several_addresses_are_said_to_share_the_samples(arguments, capsys):
    check_addresses(arguments("--reward.remote_url", "http://a/x,http://b/x"))
    assert (
        "--reward.remote_url: 2 addresses share the samples, so all have to give the same" in capsys.readouterr().out
    )
    check_addresses(arguments("--reward.remote_url", "http://a/x"))
    assert not capsys.readouterr().out
