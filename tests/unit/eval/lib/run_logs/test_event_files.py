"""TensorBoard's event files."""

from comparison_runs import write_events
from lib.run_logs.event_files import event_files, read_event_file


def test_scalars_are_rows(tmp_path):
    file = write_events(
        tmp_path, [(1, 10.0, {"train/reward": 0.5, "eval/eval_a_pass1": 0.25}), (2, 13.0, {"train/reward": 0.75})]
    )
    start = read_event_file(file)
    assert start.table["tag"].tolist() == ["train/reward", "eval/eval_a_pass1", "train/reward"]
    assert start.table["value"].tolist() == [0.5, 0.25, 0.75] and start.table["wall_time"].tolist() == [10, 10, 13]
    assert not start.cut


def test_a_file_that_is_being_written_ends_in_the_middle_of_a_record(tmp_path):
    file = write_events(tmp_path, [(step, float(step), {"train/reward": 0.5}) for step in range(1, 6)])
    file.write_bytes(file.read_bytes()[:-3])
    start = read_event_file(file)
    assert start.cut and start.table["step"].tolist() == [1, 2, 3, 4]


def test_files_are_found_below_a_folder_without_those_put_aside(tmp_path):
    wanted = write_events(tmp_path / "tensorboard/run", [(1, 1.0, {"train/reward": 0.5})])
    write_events(tmp_path / "tensorboard/run/earlier-1", [(1, 1.0, {"train/reward": 0.5})])
    assert event_files(tmp_path) == [wanted]
