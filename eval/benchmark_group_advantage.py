"""Tokens' advantages: OpenRLHF's loop against the closed form on a CPU, and the Triton kernel if there is a GPU.

PYTHONPATH=build/cpu-base .venv/bin/python eval/benchmark_group_advantage.py
"""

import argparse
import inspect
import sys

from benchmarks import cpu
from common.paths import RESULTS, output_folder
from common.tables import show
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

TOLERANCE = 1e-5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4096, help="of a step, on the CPU")
    parser.add_argument("--tokens", type=int, default=8192, help="of a row, on the CPU")
    parser.add_argument("--micro-batch", type=int, default=16, help="rows at a time, on the CPU")
    parser.add_argument("--results", type=output_folder, default=RESULTS / "group_advantage", help="folder for CSVs")
    arguments = parser.parse_args()
    if "cumsum" in inspect.getsource(RemoteExperienceMaker.get_cumulative_returns):
        sys.exit("benchmark_group_advantage: the patched OpenRLHF has no loop: set PYTHONPATH=build/cpu-base")

    arguments.results.mkdir(parents=True, exist_ok=True)
    shape = arguments.samples, arguments.tokens, arguments.micro_batch
    times = cpu.time_paths(*shape)
    if (times.max_difference > TOLERANCE).any():
        show("Differences from OpenRLHF's loop", times[["kl", "path", "max_difference"]])
        sys.exit("benchmark_group_advantage: parity is red: no speed-up is reported")
    where = f"{times.processor[0]}, {times.threads[0]} threads"
    show(f"Tokens' advantages of a step on a CPU ({where})", times.drop(columns=["processor", "threads"]))
    times.to_csv(arguments.results / "cpu.csv", index=False, float_format="%.6g")
    sent = cpu.sent_bytes(*shape)
    show("From the driver to the training actors", sent)
    sent.to_csv(arguments.results / "bytes.csv", index=False, float_format="%.6g")

    from benchmarks import gpu  # which imports Triton

    gpu.run(arguments.results, show)


if __name__ == "__main__":
    main()
