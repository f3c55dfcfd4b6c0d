"""What is read of an earlier run's trace."""

import math

import pytest

from openrlhf_sagc.config.length_history import MOST_ROLLOUTS, read_history

HEADER = "prompt_id,sample_id,tokens,correct,truncated,step,group_size,seconds,stopped\n"


def read(tmp_path, text):
    file = tmp_path / "trace.csv"
    file.write_text(text)
    return read_history(str(file))


def test_finished_rollouts_count_and_of_them_the_last_ones(tmp_path):
    assert read(tmp_path, HEADER + "a,0-0,100,1,0,1,8,1.5,0\na,0-1,900,,,1,8,1.5,1\nb,1-0,0,0,0,1,8,1.5,0\n") == {
        "a": [math.log(100)],
        "b": [0.0],
    }
    rows = "".join(f"a,{n},{n + 1}\n" for n in range(2 * MOST_ROLLOUTS))
    assert read(tmp_path, "prompt_id,sample_id,tokens\n" + rows)["a"][0] == math.log(MOST_ROLLOUTS + 1)


@pytest.mark.parametrize(
    "text, wrong",
    [
        ("", "line 1 has no column prompt_id, tokens: give the --rollout.trace of a run"),
        ("prompt_id,length\n", "line 1 has no column tokens"),
        (HEADER, "has no finished rollout"),
        (HEADER + "a,0,9\n", "line 2 has 3 fields, not 9 as line 1"),
        ("prompt_id,tokens\na,-5\n", "line 2: tokens must be a whole number below 10^9, got -5"),
        ("prompt_id,tokens\na,\n", "line 2: tokens must be a whole number below 10^9, got nothing"),
    ],
)
def test_what_is_no_trace_is_named(tmp_path, text, wrong):
    with pytest.raises(ValueError) as refused:
        read(tmp_path, text)
    assert str(refused.value).startswith(f"{tmp_path / 'trace.csv'} {wrong}")


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match="none.csv cannot be read as text: No such file"):
        read_history(str(tmp_path / "none.csv"))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="binary.csv cannot be read as text"):
        read_history(str(tmp_path / "binary.csv"))
