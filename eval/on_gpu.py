"""Whether a GPU node can train, in at most 15 minutes: ten checks, each with a number, and a report that says no more than that.

    python eval/on_gpu.py                    # on the node, after bash install.sh
    python eval/on_gpu.py --checks recipe    # some of them, and what they need
    python eval/on_gpu.py --dry-run          # what applies, in small on a CPU, after bash train_scripts/setup.sh

 1. driver, compiler   PyTorch computes on each GPU; nvcc of its CUDA, g++, ninja and Python.h are there.
 2. attention          The launch scripts' attention: gradients of a pack of two samples, against sdpa.
 3. adam               DeepSpeed's Adam against torch's; a second start loads what the first has compiled.
 4. log_probs          Memory of a full pack's log-probabilities, forward and backward, against the 7B script's figure.
 5. recipe             The 7B script in small: engines have the trained weights, sleep frees memory, the kernel is taken.
 6. resume_and_kill    It goes on from its checkpoint, loses its engine, ends in a line and leaves nothing.
 7. two_ranks          Two GPUs: tensor parallelism of 2, and ranks with unequal numbers of samples.
 8. asynchronous, one_call   Two GPUs, one trains and one generates: weights that come while rollouts run, and in one call.
 9. stops              An engine whose rollouts are stopped again and again has nothing left, and decodes as before.
10. sizes              The 7B script's sizes with weights of zeros: GPUs' memory against the prediction.

With what is left of the time: the kernel's tests, a step of packed samples, a step in buckets and the kernel's times, for which torch,
triton, numpy, pandas, rich and pytest will do. Their tables are written to eval/studies/overhead with the GPU's name.

A check that fails skips those that say nothing without it. One that does not apply to the node is skipped, with the reason. Each check
is a process of its own and leaves none behind. The report is OUTPUT/report.json; the checks' output is beside it.
Exit code: 0 if nothing fails, else 1.
"""

import argparse
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from lib.gpu_checks.outcomes import FAIL, Node  # noqa: E402
from lib.gpu_checks.report import all_pass, line_of, write  # noqa: E402
from lib.gpu_checks.table import CHECKS, run_all, run_here, run_in_a_process, with_needs  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [check.name for check in CHECKS]
    parser.add_argument("--checks", nargs="+", choices=names, default=[], metavar="NAME", help="some of the checks")
    parser.add_argument("--dry-run", action="store_true", help="in small, on a CPU")
    parser.add_argument("--output", type=Path, default=ROOT / "build/on_gpu", help="folder of the report")
    parser.add_argument("--child", choices=names, help=argparse.SUPPRESS)  # in a check's own process
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that what was started ends as well
        signal.signal(number, lambda *_: sys.exit(1))
    arguments.output.mkdir(parents=True, exist_ok=True)
    node = Node(arguments.output.resolve(), arguments.dry_run)
    if arguments.child:
        run_here(arguments.child, node)
        return
    found = []
    for check, outcome in run_all(with_needs(arguments.checks), node, run_in_a_process):
        print(line_of(check, outcome), flush=True)
        if outcome.status == FAIL:
            print(f"{'':7}    see {node.folder / check.name}.check.log", flush=True)
        found.append((check, outcome))
        write(node.folder / "report.json", found, node.dry_run)  # what there is, should the rest be interrupted
    print(f"eval/on_gpu.py: the report is {node.folder / 'report.json'}; a new issue has a form for it")
    if not all_pass(found):
        sys.exit(1)


if __name__ == "__main__":
    main()
