"""Records rollouts of a Countdown model with vLLM: token counts and rewards of whole groups, for the parity tests."""

import argparse
import json
import sys
from pathlib import Path

from vllm import LLM, SamplingParams

sys.path.append(str(Path(__file__).parents[2] / "train_scripts" / "countdown"))
from task import solved  # noqa: E402

GROUPS, GROUP_SIZE = 16, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="HF model folder")
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL file with a `prompt` a line")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("rollouts.json"))
    arguments = parser.parse_args()
    prompts = [json.loads(line)["prompt"] for line in arguments.prompts.read_text().splitlines()[:GROUPS]]
    engine = LLM(arguments.model, dtype="bfloat16", enforce_eager=True, max_model_len=256, seed=0)
    outputs = engine.generate(prompts, SamplingParams(n=GROUP_SIZE, temperature=1.0, max_tokens=200))
    rollouts = [
        {
            "prompt_tokens": len(output.prompt_token_ids),
            "response_tokens": len(answer.token_ids),
            "truncated": answer.finish_reason == "length",
            "reward": float(solved(output.prompt, answer.text)),
        }
        for output in outputs
        for answer in output.outputs
    ]
    arguments.output.write_text("[\n" + ",\n".join(map(json.dumps, rollouts)) + "\n]\n")


if __name__ == "__main__":
    main()
