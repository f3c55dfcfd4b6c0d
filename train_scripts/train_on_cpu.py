"""OpenRLHF's train_ppo_ray in a Ray cluster without a dashboard, whose ten processes take longer to start than Ray."""

import functools
import runpy

import ray

ray.init = functools.partial(ray.init, include_dashboard=False)
runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)
