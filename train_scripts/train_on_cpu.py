"""Runs a training module in a Ray cluster without a dashboard, whose ten processes take longer to start than Ray.

train_on_cpu.py MODULE [FLAG...]: MODULE is openrlhf_sagc, or openrlhf.cli.train_ppo_ray, which is OpenRLHF alone.
"""

import functools
import runpy
import sys

import ray

ray.init = functools.partial(ray.init, include_dashboard=False)
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
