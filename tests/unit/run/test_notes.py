"""The note in a checkpoint: what it says of the run that saved it, and notes that say nothing."""

import json
import os

import pytest

from openrlhf_sagc.run.notes import NOTE, files_of, read_note, shown, write_notes


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "_actor" / "global_step3"
    folder.mkdir(parents=True)
    (folder / "mp_rank_00_model_states.pt").write_text("")
    return folder


def test_both_checkpoints_of_a_step_get_a_note_and_no_other(tmp_path, checkpoint):
    best, earlier = (checkpoint.parent / name for name in ("best_global_step3", "global_step2"))
    for folder in (best, earlier):
        folder.mkdir()
        (folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt").write_text("")
    write_notes(str(tmp_path), 3, {"rows": 5})
    assert read_note(checkpoint) == {"format": 1, "files": ["mp_rank_00_model_states.pt"], "rows": 5}
    assert files_of(best) == {"zero_pp_rank_0_mp_rank_00_optim_states.pt"}
    assert not read_note(earlier) and sorted(os.listdir(checkpoint)) == ["mp_rank_00_model_states.pt", NOTE]


def test_a_folder_that_is_not_there_or_cannot_be_written_to_costs_the_note_alone(tmp_path, checkpoint):
    write_notes(str(tmp_path), 4, {})
    assert not (tmp_path / "_actor" / "global_step4").exists()
    (checkpoint / f"{NOTE}.new").mkdir()
    write_notes(str(tmp_path), 3, {})
    assert read_note(checkpoint) == {}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[",
        b"[" * 60_000,
        b"[]",
        b"7",
        b"\xff\xfe",
        json.dumps({"format": 2, "files": []}).encode(),
        json.dumps({"format": 1, "files": "x" * 70_000}).encode(),
        "pipe",
        "folder",
        "dangling",
    ],
)
def test_a_note_that_is_odd_says_nothing(checkpoint, content):
    note = checkpoint / NOTE
    match content:
        case "pipe":
            os.mkfifo(note)
        case "folder":
            note.mkdir()
        case "dangling":
            note.symlink_to("nothing")
        case _:
            note.write_bytes(content)
    assert read_note(checkpoint) == {} and files_of(checkpoint) == set()


@pytest.mark.parametrize("files", [None, 7, {"a": 1}, [1, 2], [["a"]], "abc"])
def test_files_of_another_type_are_none(checkpoint, files):
    (checkpoint / NOTE).write_text(json.dumps({"format": 1, "files": files}))
    assert files_of(checkpoint) == set()


@pytest.mark.parametrize("words", ["\ud800.pt", "\x1b[31m", 60_000 * "x", 60_000 * "\n"])
def test_what_anyone_may_have_written_is_shown_in_one_short_line(words):
    assert shown(words).isprintable() and len(shown(words)) <= 80 and shown(words).encode()
    assert shown("mp_rank_00_model_states.pt") == "mp_rank_00_model_states.pt"
