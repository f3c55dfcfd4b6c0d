"""Whatever is in a file that others give, it costs a line that names it, and nothing of other files is lost."""

import os

import pytest
from comparison_runs import write_events
from lib.given import MEMORY, check_plain, json_of, reading, text_lines
from lib.run_logs.read import read
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.summary.writer.event_file_writer import EventFileWriter

CSV = "train/global_step,train/reward\n"


def write_tensor(folder, shape):
    """An event file whose one number claims a shape."""
    writer = EventFileWriter(str(folder), filename_suffix="odd")
    tensor = TensorProto(dtype=1, float_val=[1.0])
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
    value = Summary.Value(tag="train/x", tensor=tensor, metadata=metadata)
    writer.add_event(Event(step=9, wall_time=9.0, summary=Summary(value=[value])))
    writer.close()


@pytest.mark.parametrize("shape", [[10**9], [2**40, 2**40], [-1], [0], [1] * 70], ids=str)
def test_a_shape_is_not_believed(tmp_path, shape):
    write_tensor(tmp_path / "alone", shape)
    with pytest.raises(ValueError, match="alone/.*odd: train/x in record .* has the shape") as raised:
        read(str(tmp_path / "alone"))
    assert "\n" not in str(raised.value)
    write_events(tmp_path / "both", [(step, float(step), {"train/reward": 0.5}) for step in (1, 2)])
    write_tensor(tmp_path / "both", shape)
    run = read(str(tmp_path / "both"))
    assert run.steps["reward"].tolist() == [0.5, 0.5] and "odd: train/x" in run.notes[0]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("deep.json", "[" * 10_000 + "]" * 10_000),
        ("deep.jsonl", '{"a":' * 10_000),
        ("number.json", '[{"train/global_step": ' + "9" * 5000 + "}]"),
        ("columns.json", '{"data": [[1]], "columns": 5}'),
        ("kinds.json", '{"train/global_step": {"0": []}, "train/reward": 3}'),
        ("line.csv", CSV + "1," + "a" * 5_000_000),
        ("cell.csv", CSV + '1,"' + "a\n" * 3_000_000),
        ("line.log", "x" * 5_000_000),
        ("steps.log", "INFO 11-27 08:59:15 ppo_trainer.py:555] Global step " + "9" * 5000 + ": {'reward': 0.5}\n"),
    ],
)
def test_an_export_costs_one_line_that_names_it(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=name) as raised:
        read(str(tmp_path / name))
    assert len(str(raised.value)) < 600 and "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["pipe.csv", "device.json", "device.log", "tfevents", "loop.csv", "large.json"])
def test_what_is_no_file_or_too_long_is_not_opened(tmp_path, name):
    path = tmp_path / name
    if name == "pipe.csv":
        os.mkfifo(path)
    elif name == "large.json":
        path.touch()
        os.truncate(path, 1 << 40)
    else:
        path.symlink_to(name if name == "loop.csv" else "/dev/zero")
    with pytest.raises(ValueError, match=name):
        read(str(path))


def test_a_line_that_does_not_end_costs_a_log_that_line(tmp_path):
    line = "INFO 11-27 08:59:1{0} ppo_trainer.py:555] Global step {0}: {{'reward': 0.5}}\n"
    (tmp_path / "run.log").write_text(line.format(1) + "x" * 9_000_000 + "\n" + line.format(2))
    assert read(str(tmp_path / "run.log")).steps.index.tolist() == [1, 2]
    with pytest.raises(ValueError, match="run.log line 2 has more than"):
        list(text_lines(tmp_path / "run.log"))


def test_memory_is_bounded_and_given_back():
    with pytest.raises(ValueError, match="run takes more than 100 MB"):
        with reading("run"):
            bytearray(2 * MEMORY)
    assert len(bytearray(2 * MEMORY)) == 2 * MEMORY


def test_other_faults_name_the_source_too(tmp_path):
    with pytest.raises(ValueError, match="^run cannot be read: KeyError: 'a'$"), reading("run"):
        {}["a"]
    with pytest.raises(ValueError, match="nested too deeply"):
        (tmp_path / "a.json").write_text("[" * 10_000)
        json_of(tmp_path / "a.json")
    with pytest.raises(ValueError, match="is a folder, a pipe or a device"):
        check_plain(tmp_path)
