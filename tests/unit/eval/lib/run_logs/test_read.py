"""What a folder or a file of a user is."""

import pytest
from comparison_runs import write_events, write_run
from lib.run_logs.read import read, read_run


def test_scalars_are_a_row_a_step(tmp_path):
    write_run(
        tmp_path,
        [],
        [(10.0, {"reward": 0.5, "timing/generation": 2.0}), (13.0, {"reward": 0.75, "timing/generation": 2.5})],
    )
    run = read_run(tmp_path)  # below the folder
    assert run.index.tolist() == [1, 2] and run["reward"].tolist() == [0.5, 0.75]
    assert run["wall_time"].tolist() == [10.0, 13.0] and run["timing/generation"].tolist() == [2.0, 2.5]


def test_one_file_of_a_folder_with_two_runs(tmp_path):
    for name, value in (("a", 0.5), ("b", 0.75)):
        write_events(tmp_path, [(step, float(step), {"train/reward": value}) for step in (1, 2)], name)
    with pytest.raises(ValueError, match="has two runs that wrote at the same time"):
        read(str(tmp_path))
    (file,) = tmp_path.glob("*b")
    assert read(str(file)).steps["reward"].tolist() == [0.75, 0.75]


def test_a_folder_that_kept_its_output_alone_is_read(tmp_path):
    (tmp_path / "run.log").write_text("INFO 11-27 08:59:15 ppo_trainer.py:555] Global step 1: {'reward': 0.5}\n")
    assert read(str(tmp_path)).steps["reward"].tolist() == [0.5]


def test_what_has_no_run_is_named(tmp_path):
    with pytest.raises(ValueError, match="there is no .*/none"):
        read(str(tmp_path / "none"))
    with pytest.raises(ValueError, match="no event files in .*: give a folder with TensorBoard's event files"):
        read(str(tmp_path))
    (tmp_path / "history.csv").touch()
    with pytest.raises(ValueError, match="no event files in .*: give one of its files, such as history.csv"):
        read(str(tmp_path))
    write_events(tmp_path / "run", [])
    with pytest.raises(ValueError, match="no training steps in .*: its 1 event file.s. have no scalars"):
        read(str(tmp_path))
    (tmp_path / "picture").write_bytes(b"\x89PNG\xff")
    with pytest.raises(ValueError, match="picture is no text"):
        read(str(tmp_path / "picture"))


@pytest.mark.parametrize(
    "name, advice",
    [
        ("history.parquet", "write it as CSV, by pandas.read_parquet"),
        ("history.csv.gz", "unpack it first"),
        ("history.pkl", "may run a program when it is read: export the run's history"),
        ("run-1.wandb", "bring it to a server by wandb sync"),
        ("history.xlsx", "save its sheet as CSV"),
    ],
)
def test_a_file_of_another_kind_is_told_what_would_do(tmp_path, name, advice):
    (tmp_path / name).write_bytes(b"\x80\x00")
    with pytest.raises(ValueError, match=f"{name} is .*{advice}|{name} {advice}"):
        read(str(tmp_path / name))


def test_a_local_folder_of_wandb_has_the_output_of_its_process(tmp_path):
    folder = tmp_path / "wandb/offline-run-1"
    (folder / "files").mkdir(parents=True)
    (folder / "run-1.wandb").write_bytes(b"\x80\x00")
    with pytest.raises(ValueError, match="run-1.wandb is W&B's own file: .* wandb sync"):
        read(str(tmp_path))
    printed = folder / "files/output.log"
    printed.write_text("INFO 11-27 08:59:15 ppo_trainer.py:555] Global step 1: {'reward': 0.5}\n")
    with pytest.raises(ValueError, match=f"or give what it printed, {printed}"):
        read(str(tmp_path))
    assert read(str(printed)).steps["reward"].tolist() == [0.5]
