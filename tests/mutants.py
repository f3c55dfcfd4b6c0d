"""Mistakes in the package's arithmetic, each of which the tests named beside it must see; on the release's checklist.

    .venv/bin/python tests/mutants.py [NAME...]

ends with exit code 1 if a mistake is not seen. It is made in a copy of the package, beside which the tests run as they are.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import warm_python
from cpu_stack import ROOT, cpu_environment

SAVINGS, STREAMED = "tests/deepspeed/test_step_savings.py", "tests/deepspeed/test_streamed_training.py"
WEIGHTS, PACKED = "tests/deepspeed/test_token_weights.py", "tests/deepspeed/test_packed_steps.py"
CLOSED_FORM, TRAINING = "openrlhf_sagc/advantages/closed_form.py", "openrlhf_sagc/training/training.py"
ADVANTAGES = "        experience.advantages = rollout_advantages(self._rewards, experience)\n"
CUT = "        return ByLength(batches.sampler, lengths_N, count, per_step)"
MUTANTS = {  # name: (file, what is replaced, by what, tests)
    "a sample's weight is off by a thousandth": (
        TRAINING,
        ADVANTAGES,
        ADVANTAGES + "        if self._by_length and step == 0:\n            experience.advantages[0] *= 1.001\n",
        SAVINGS,
    ),
    "samples of a group are exchanged": (
        "openrlhf_sagc/training/rollout_rewards.py",
        "torch.stack(experience.info.pop(SAMPLE))",
        "torch.stack(experience.info.pop(SAMPLE)).flip(0)",
        SAVINGS,
    ),
    "a micro-batch loses a sample": (
        "openrlhf_sagc/training/micro_batches.py",
        CUT,
        f"{CUT.replace('return', 'cut =')}\n        return [(cut := list(cut))[0][:-1] or cut[0], *cut[1:]]",
        SAVINGS,
    ),
    "the logged loss is one rank's share": (
        TRAINING,
        '/ loss_batch_info["dp_size"] / max',
        "/ max",
        SAVINGS,
    ),
    "a rollout's second step has no old log-probabilities": (
        "openrlhf_sagc/training/micro_batches.py",
        "log_probs_T[: len(samples[place].action_mask)].clone()",
        "None",
        SAVINGS,
    ),
    "packed samples get each other's advantages": (
        "openrlhf_sagc/training/rollout_rewards.py",
        "advantages_N[samples_B]",
        "advantages_N[samples_B.roll(1)]",
        PACKED,
    ),
    "a streamed step's scale is off by a thousandth": (
        TRAINING,
        "loss_scale = tokens / step.divisor",
        "loss_scale = tokens / step.divisor * 1.001",
        STREAMED,
    ),
    "a streamed step counts its first micro-batch twice": (
        TRAINING,
        "            self._counts.add(experience)\n",
        "            for _ in range(2 if step == 0 else 1):\n                self._counts.add(experience)\n",
        STREAMED,
    ),
    "a bucket's loss has its own divisor": (
        TRAINING,
        '{**loss_batch_info, "batch_num_tokens": tokens}',
        "loss_batch_info",
        STREAMED,
    ),
    "a long round counts as one step": (
        TRAINING,
        "as_plain_steps(engine, weight)",
        "as_plain_steps(engine, 1.0)",
        WEIGHTS,
    ),
    "a long round's weight is off by a thousandth": (
        TRAINING,
        "weight = step_weight(tokens, samples, step.plain)",
        "weight = step_weight(tokens, samples, step.plain) * 1.001",
        WEIGHTS,
    ),
    "a long round's norm is clipped as a plain step's": (
        "openrlhf_sagc/training/step_weights.py",
        "count**BOUND_POWER if has_noise",
        "1.0 if has_noise",
        WEIGHTS,
    ),
    "a long round's epsilon is a plain step's": (
        "openrlhf_sagc/training/step_weights.py",
        'old["eps"] / second**0.5',
        'old["eps"]',
        "tests/unit/training/test_step_weights.py",
    ),
    "rloo's divisor counts the sample": (
        "openrlhf_sagc/advantages/estimators.py",
        "(sizes_G.double() / (sizes_G - 1).clamp(min=1))",
        "(sizes_G.double() / sizes_G)",
        "tests/unit/advantages",
    ),
    "the last token has no advantage": (
        CLOSED_FORM,
        "torch.where(ends <= last_end",
        "torch.where(ends < last_end",
        "tests/unit/advantages tests/unit/driver/test_experience.py",
    ),
    "a step begins while its engines sleep": (
        "openrlhf_sagc/driver/rollout.py",
        "        self.engines.wake()\n",
        "",
        "tests/unit/driver/test_rollout_tail.py",
    ),
    "engines fall asleep with rollouts": (
        "openrlhf_sagc/driver/rollout.py",
        """        if not self._keep_surplus:
            stop(step, self.engines, self)  # counted in this step
        step.end()
        self.engines.pause()
        self.engines.sleep()
""",
        """        self.engines.sleep()
        if not self._keep_surplus:
            stop(step, self.engines, self)  # counted in this step
        step.end()
        self.engines.pause()
""",
        "tests/unit/driver/test_rollout_tail.py",
    ),
    "advantages are not clipped": (
        "openrlhf_sagc/training/rollout_rewards.py",
        "advantages_N.clamp(*self.clip_range)",
        "advantages_N",
        "tests/unit/training/test_rollout_rewards.py tests/unit/driver/test_experience.py",
    ),
}


def see(name: str, environment: dict[str, str]) -> str:
    """What the first test to fail on a mistake says, or "" if none fails.

    Raises:
        ValueError: the file does not have what is to be replaced, once.
    """
    file, right, wrong, tests = MUTANTS[name]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in ("openrlhf_sagc", "tests"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        for part in ROOT.iterdir():
            if part.name not in ("openrlhf_sagc", "tests", ".git"):
                (copy / part.name).symlink_to(part)
        text = (copy / file).read_text()
        if text.count(right) != 1:
            raise ValueError(f"{file} has {text.count(right)} times: {right}")
        (copy / file).write_text(text.replace(right, wrong))
        command = [
            environment["WARM_PYTHON"],
            "-m",
            "pytest",
            *"-x -q -rfE -p no:cacheprovider".split(),
            *tests.split(),
        ]
        ended = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    if ended.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (.*)", ended.stdout, re.MULTILINE)
    return failed[1] if failed else f"exit code {ended.returncode}: {ended.stdout[-300:]}"


def main(names: list[str]) -> int:
    environment = cpu_environment("cpu-patched")
    environment["WARM_PYTHON"] = str(warm_python.start(environment, os.getpid()))
    missed = 0
    for name in names or MUTANTS:
        start = time.monotonic()
        seen = see(name, environment)
        missed += not seen
        print(f"{name}: {f'seen by {seen}' if seen else 'NOT SEEN'} ({time.monotonic() - start:.0f} s)", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
