"""What preflight.py learns of a cluster; tests/stack/test_nodes.py asks two real nodes."""

import json
import runpy
from types import SimpleNamespace
from unittest import mock

import pytest
from cpu_stack import ROOT
from ray.job_submission import JobStatus

ADDRESS = "http://head:8265"
NODE = {
    "node": "gpu-1 (10.0.0.1)",
    "cards": "8 x NVIDIA H100 80GB HBM3, 86 GB",
    "driver": "CUDA 13.0",
    "toolchain": "nvcc 13.0",
    "attention": "sdpa",
    "problems": [],
    "notes": [],
}


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.delenv("RUNTIME_ENV_JSON", raising=False)
    return SimpleNamespace(**runpy.run_path(str(ROOT / "train_scripts" / "cluster.py")))


def test_gpus_are_waited_for(cluster):
    """The cluster is asked until it has them, or the time is over."""
    nodes = [SimpleNamespace(resources_total={"GPU": 8.0, "CPU": 4.0}), SimpleNamespace(resources_total={"CPU": 4.0})]
    problems = lambda needed, minutes: " / ".join(cluster.gpu_count_problems(ADDRESS, needed, minutes))  # noqa: E731
    with mock.patch("time.sleep"):
        with mock.patch("ray.util.state.list_nodes", side_effect=[ConnectionError("not yet"), nodes[1:], nodes]):
            assert not problems(8, 1)
        with mock.patch("ray.util.state.list_nodes", return_value=nodes):
            assert "has 8 of 16 GPUs on 2 nodes" in problems(16, 0)
        with mock.patch("ray.util.state.list_nodes", side_effect=ConnectionError("refused")):
            assert "does not answer: refused" in problems(16, 0)


@pytest.fixture
def asked(cluster, monkeypatch):
    """asked(*log lines, ends=STATUS, ...): the problems that node_problems finds, with what the job was."""
    jobs = []

    def run(
        *said, ends=JobStatus.SUCCEEDED, message=None, minutes=1, module="openrlhf_sagc", refuses=None, **settings
    ):
        client = mock.Mock()
        client.submit_job.side_effect = refuses or (lambda **job: jobs.append(job) or "raysubmit_1")
        client.get_job_status.side_effect = [JobStatus.PENDING] * 3 + [ends] * 9
        client.get_job_info.return_value = SimpleNamespace(message=message)
        client.get_job_logs.return_value = "\n".join(said)
        monkeypatch.setattr("ray.job_submission.JobSubmissionClient", lambda address: client)
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        return list(cluster.node_problems(ADDRESS, module, settings, minutes)), client

    run.jobs = jobs
    return run


def line(*answers):
    return f"GPU nodes: {json.dumps(answers)}"


def test_nodes_stand_in_a_table_and_problems_have_their_names(asked, capsys):
    second = NODE | {"node": "gpu-2 (10.0.0.2)", "toolchain": "no nvcc", "problems": ["no Python.h", "GPU 0 has"]}
    third = {"node": "gpu-3 (10.0.0.3)", "error": "no answer in 60 s"}
    fourth = NODE | {"node": "gpu-4 (10.0.0.4)", "problems": ["no Python.h"], "notes": ["another AdamW"]}
    problems, _ = asked("what Ray says", line(NODE, second, third, fourth), "and later")
    assert problems == [
        "gpu-2 (10.0.0.2), gpu-4 (10.0.0.4): no Python.h",
        "gpu-2 (10.0.0.2): GPU 0 has",
        "gpu-3 (10.0.0.3): it does not say what it has: no answer in 60 s",
    ]
    printed = [text.removeprefix("train_scripts/preflight.py: ") for text in capsys.readouterr().out.splitlines()]
    assert printed[:2] == [
        "node              GPUs                              driver     compilers  attention",
        "gpu-1 (10.0.0.1)  8 x NVIDIA H100 80GB HBM3, 86 GB  CUDA 13.0  nvcc 13.0  sdpa",
    ]
    assert len(printed) == 6 and printed[-1] == "gpu-4 (10.0.0.4): another AdamW"


def test_the_job_has_the_runtime_environment_of_the_training_and_the_flags_that_matter(asked, cluster, monkeypatch):
    given = {"env_vars": {"NCCL_DEBUG": "INFO"}, "working_dir": "/mine", "py_modules": ["dist/a.whl"]}
    monkeypatch.setenv("RUNTIME_ENV_JSON", json.dumps(given))
    settings = {
        "--ds.attn_implementation": ["a b; touch x"],
        "--ds.packing_samples": [],
        "--logger.wandb.key": ["s3cret"],
    }
    assert asked(line(NODE), module="openrlhf_sagc.unpatched", minutes=0.5, **settings)[0] == []
    (job,) = asked.jobs
    environment = job["runtime_env"]
    assert environment["py_modules"][0] == "dist/a.whl" and environment["py_modules"][1].endswith("/asked_of_nodes")
    assert environment | {"py_modules": []} == given | {"py_modules": []}
    command = "python3 -m asked_of_nodes.train_scripts.nodes 30 openrlhf_sagc.unpatched"
    assert job["entrypoint"] == f"{command} --ds.attn_implementation 'a b; touch x' --ds.packing_samples"


@pytest.mark.parametrize(
    ("said", "more", "why"),
    [
        ([], {"refuses": RuntimeError("403")}, "403"),
        (
            ["Traceback", "No module named ray"],
            {"ends": JobStatus.FAILED, "message": "exit 1"},
            "job raysubmit_1 failed: exit 1 No",
        ),
        ([], {"ends": JobStatus.STOPPED}, "job raysubmit_1 stopped"),
        (["GPU nodes: [{"], {}, "Expecting property name"),
    ],
)
def test_a_cluster_that_does_not_answer_is_named_in_one_line(asked, said, more, why):
    (problem,), client = asked(*said, **more)
    assert problem.startswith(f"the Ray cluster at {ADDRESS} does not say what its nodes have: ") and why in problem
    assert "\n" not in problem and not client.stop_job.called


def test_a_job_that_does_not_end_is_stopped(asked):
    (problem,), client = asked(minutes=0, ends=JobStatus.RUNNING)
    assert "job raysubmit_1 has not ended in 0 minutes: a larger WAIT_MINUTES" in problem
    client.stop_job.assert_called_once_with("raysubmit_1")


@pytest.mark.parametrize("given", ["{", "[]", "1", '{"env_vars": ["A"]}'])
def test_a_runtime_environment_that_is_none_is_named(asked, monkeypatch, given):
    monkeypatch.setenv("RUNTIME_ENV_JSON", given)
    assert asked()[0][0].endswith(
        "does not say what its nodes have: RUNTIME_ENV_JSON is no JSON object, or its env_vars is none"
    )


@pytest.mark.parametrize(
    "answer",
    [
        "text",
        None,
        {},
        {"node": ["a"], "problems": "text", "notes": None},
        {"node": "a\x1b[31m\nb", "cards": {"a": 1}, "problems": ["x\ny" * 1000] * 1000, "error": 5},
    ],
)
def test_answers_are_data(asked, capsys, answer):
    """Whatever they are, each line is short and printable."""
    problems, _ = asked(line(answer))
    printed = [*problems, *capsys.readouterr().out.splitlines()]
    assert printed and len(printed) < 30
    assert all(text.isprintable() and len(text) < 2000 for text in printed)


def test_nothing_secret_is_printed(asked, monkeypatch, capsys):
    secrets = {"HF_TOKEN": "hf-s3cret-1", "PLAIN": "s3cret-two", "SWITCH": "1"}
    monkeypatch.setenv("RUNTIME_ENV_JSON", json.dumps({"env_vars": secrets}))
    text = "hf-s3cret-1 s3cret-two https://user:s3cret@host/x 1 of 2"
    problems, _ = asked(line(NODE | {"attention": text, "problems": [text], "notes": [text]}))
    failed, _ = asked(text, ends=JobStatus.FAILED, message=text)
    printed = capsys.readouterr().out + str(problems) + str(failed)
    assert "s3cret" not in printed and printed.count("*** 1 of 2") >= 5
