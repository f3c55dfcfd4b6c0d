"""A part of a run is killed at a random moment, and the next run goes on; the last one ends by itself.

No line and no checkpoint has the secrets of the reward's URL. Two faults are drawn, or as many as DRILLS says, each at another
moment of a step. DRILL_SEED repeats their order and their moments.
"""

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter

import psutil
import pytest
from real_runs import AGENTS, actor_process, process_ids, why_it_ended

pytestmark = pytest.mark.stack
PROMPTS, BATCH, SIZE, EPISODES = 48, 8, 4, 2
SECRET = "open-sesame"  # in the reward's URL
DIED = r"^openrlhf_sagc: {} \(process \d+ on [\d.]+\) has died: .*; its log says why, start again {}$"
FAULTS = {  # what is killed: its Ray actor, and the line that the run ends with
    **{actor: (actor, DIED.format(actor, "{}")) for actor in ("RolloutRayActor", "PolicyModelActor", "GroupTrainer")},
    "reward server": (
        None,
        r"RuntimeError: --reward.remote_url \*\*\*: .* samples lack a reward after at most 1 ",
    ),
}
# When: what has been printed after a step, or begun to be saved.
MOMENTS = {
    "rollouts": "Generate samples",
    "streaming": "the actors get",  # the first bucket of a step, while its other groups are rolled out
    "a sync": "update weight:",
    "an evaluation": "Evaluation start",
    "a save": None,
}


def test_runs_that_lose_a_part_go_on_and_train_every_prompt_once(train, tmp_path):
    drills = int(os.environ.get("DRILLS", 2))
    seed = int(os.environ.get("DRILL_SEED", random.SystemRandom().randrange(10**6)))
    print(f"DRILL_SEED={seed}")
    rng = random.Random(seed)
    latest = tmp_path / "checkpoints" / "_actor" / "latest"
    evaluation = tmp_path / "evaluation.jsonl"
    evaluation.write_text(json.dumps({"prompt": "1 + 1 =", "label": "evaluation"}) + "\n")
    episodes = max(EPISODES, -(-(2 * drills + 6) * BATCH // PROMPTS))  # a step or two for each run
    flags = {
        "rollout__n_samples_per_prompt": SIZE,
        "rollout__batch_size": BATCH,
        "rollout__max_new_tokens": 16,
        "train__batch_size": BATCH * SIZE // rng.choice([1, 2]),
        "train__micro_batch_size": BATCH,
        "train__num_episodes": episodes,
        "eval__dataset": evaluation,
        "eval__steps": 1,
        "eval__n_samples_per_prompt": 1,
        "train__stream": "auto",  # so that some are killed while a step's gradients are half there
        "reward__retries": 0,
        "ckpt__path": tmp_path / "checkpoints",
        "ckpt__save_steps": 1,
        "ckpt__load_enable": True,
    }
    rewarded, saved = [], 0  # checksums of the prompts whose steps are in a checkpoint, in order; the last one's step
    faults = [fault for _ in range(-(-drills // len(FAULTS))) for fault in rng.sample(sorted(FAULTS), len(FAULTS))]
    moments = [moment for _ in faults for moment in rng.sample(sorted(MOMENTS), len(MOMENTS))]
    for number, (fault, at) in enumerate([*zip(faults[:drills], moments), (None, None)]):
        log = tmp_path / f"{number}.prompts"
        server, port = start_server(log)
        url = f"http://user:{SECRET}@127.0.0.1:{port}/reward?token={SECRET}"
        moment = {}
        if fault:
            actor, line = FAULTS[fault]
            victim = (lambda output: actor_process(output, actor)) if actor else (lambda output: server)
            moment = {"kill_at": begun(at, saved + 1, latest.parent), "grace": rng.uniform(0, 1), "victim": victim}
        try:
            run = train("cpu-patched", **flags, **moment, reward__remote_url=url)
        finally:
            server.kill()
            server.wait()
        assert not run.scalars.size or run.scalars.index[0] == saved + 1, (fault, at)
        assert SECRET not in run.output
        cores = [psutil.Process(pid) for pid in process_ids(run.output, "EngineCore") if psutil.pid_exists(pid)]
        assert not psutil.wait_procs(cores, timeout=60)[1], (fault, at)
        if fault:  # which a busy machine may meet before the first save
            advice = "with --ckpt.load_enable" if latest.exists() else r"\(there is no checkpoint to go on from\)"
            assert re.search(line.replace("{}", advice), run.output, re.MULTILINE), (
                fault,
                at,
                why_it_ended(run.output),
            )
        # That of the best evaluation is saved first, so a kill may leave it the latest.
        name = latest.read_text() if latest.exists() else "global_step0"
        before, saved = saved, int(name.removeprefix("best_").removeprefix("global_step"))
        rewarded += log.read_text().split()[: (saved - before) * BATCH * SIZE]
    assert saved == episodes * PROMPTS // BATCH
    assert (run.scalars["stream/sample_share"] > 0).all()
    kept = [file for file in latest.parent.rglob("*") if file.is_file()]
    assert len(kept) > 6 and not any(SECRET.encode() in file.read_bytes() for file in kept)
    for episode in range(episodes):
        prompts = Counter(rewarded[episode * PROMPTS * SIZE : (episode + 1) * PROMPTS * SIZE])
        assert len(prompts) == PROMPTS and set(prompts.values()) == {SIZE}, seed


def begun(at: str, step: int, folder):
    """Whether this moment after a step has come, by the run's output so far or the folder of its checkpoints."""
    if text := MOMENTS[at]:
        return lambda output: text in output.partition(f"Global step {step}:")[2]
    return lambda _: any(folder.glob(f"global_step{step + 1}/*.pt"))


def start_server(log) -> tuple[psutil.Popen, int]:
    """A reward server and its port."""
    log.touch()
    command = [sys.executable, AGENTS / "logging_reward_server.py", log]
    server = psutil.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    return server, int(server.stdout.readline())
