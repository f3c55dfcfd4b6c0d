"""A part of a run is killed at a random moment, and the next run goes on; the last one ends by itself.

No line and no checkpoint has the secrets of the reward's URL. Two of the four faults are drawn, or as many as DRILLS says.
DRILL_SEED repeats their order and their moments.
"""

import os
import random
import re
import subprocess
import sys
from collections import Counter

import psutil
import pytest
from real_runs import AGENTS, actor_process, process_ids

pytestmark = pytest.mark.stack
PROMPTS, BATCH, SIZE, EPISODES = 48, 8, 4, 3
SECRET = "open-sesame"  # in the reward's URL
DIED = "^openrlhf_sagc: a process of the run has died: .*class_name: {}.* start again with --ckpt.load_enable$"
FAULTS = {  # what is killed: its Ray actor, and the line that the run ends with
    "engine": ("RolloutRayActor", rf"RuntimeError: a vLLM engine has died: |{DIED.format('RolloutRayActor')}"),
    "actor": ("PolicyModelActor", DIED.format("PolicyModelActor")),
    "trainer": ("GroupTrainer", DIED.format("GroupTrainer")),
    "reward server": (
        None,
        r"RuntimeError: --reward.remote_url http://127.0.0.1:\d+/reward: .* samples have no reward after 1 ",
    ),
}


def test_runs_that_lose_a_part_go_on_and_train_every_prompt_once(train, tmp_path):
    drills = int(os.environ.get("DRILLS", 2))
    seed = int(os.environ.get("DRILL_SEED", random.SystemRandom().randrange(10**6)))
    print(f"DRILL_SEED={seed}")
    rng = random.Random(seed)
    latest = tmp_path / "checkpoints" / "_actor" / "latest"
    flags = {
        "rollout__sagc__enable": True,
        "rollout__sagc__group_sizes": [SIZE],
        "rollout__n_samples_per_prompt": SIZE,
        "rollout__batch_size": BATCH,
        "rollout__max_new_tokens": 16,
        "train__batch_size": BATCH * SIZE // rng.choice([1, 2]),
        "train__micro_batch_size": BATCH,
        "train__num_episodes": EPISODES,
        "train__stream": "auto",  # so that some are killed while a step's gradients are half there
        "reward__retries": 0,
        "ckpt__path": tmp_path / "checkpoints",
        "ckpt__save_steps": 1,
        "ckpt__load_enable": True,
    }
    rewarded, saved = [], 0  # checksums of the prompts whose steps are in a checkpoint, in order; the last one's step
    for fault in [*rng.sample(sorted(FAULTS), drills), None]:
        log = tmp_path / f"{fault}.prompts"
        server, port = start_server(log)
        url = f"http://user:{SECRET}@127.0.0.1:{port}/reward?token={SECRET}"
        moment = {}
        if fault:
            actor, line = FAULTS[fault]
            victim = (lambda output: actor_process(output, actor)) if actor else (lambda output: server)
            moment = {"kill_at": f"Global step {saved + 1}:", "grace": rng.uniform(0, 1.5), "victim": victim}
        try:
            run = train("cpu-patched", **flags, **moment, reward__remote_url=url)
        finally:
            server.kill()
            server.wait()
        assert not run.scalars.size or run.scalars.index[0] == saved + 1, fault
        assert SECRET not in run.output
        cores = [psutil.Process(pid) for pid in process_ids(run.output, "EngineCore") if psutil.pid_exists(pid)]
        assert not psutil.wait_procs(cores, timeout=60)[1], fault
        if fault:
            assert re.search(line, run.output, re.MULTILINE), (fault, run.output[-5000:])
        before, saved = saved, int(latest.read_text().removeprefix("global_step"))
        rewarded += log.read_text().split()[: (saved - before) * BATCH * SIZE]
    assert saved == EPISODES * PROMPTS // BATCH
    assert (run.scalars["stream/sample_share"] > 0).all()
    kept = [file for file in latest.parent.rglob("*") if file.is_file()]
    assert len(kept) > 6 and not any(SECRET.encode() in file.read_bytes() for file in kept)
    for episode in range(EPISODES):
        prompts = Counter(rewarded[episode * PROMPTS * SIZE : (episode + 1) * PROMPTS * SIZE])
        assert len(prompts) == PROMPTS and set(prompts.values()) == {SIZE}, seed


def start_server(log) -> tuple[psutil.Popen, int]:
    """A reward server and its port."""
    log.touch()
    command = [sys.executable, AGENTS / "logging_reward_server.py", log]
    server = psutil.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    return server, int(server.stdout.readline())
