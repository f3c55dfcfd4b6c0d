"""Ranks and batches, by the flags."""

from flags import arguments_with

from openrlhf_sagc.config.layout import data_parallel_actors, fewest_samples, forward_ranks, samples_per_step


def args_of(**flags):
    usual = {"actor__num_nodes": 2, "actor__num_gpus_per_node": 4, "ref__num_nodes": 1, "ref__num_gpus_per_node": 2}
    usual |= {"reward__num_nodes": 1, "reward__num_gpus_per_node": 1, "reward__remote_url": ["reward.py"]}
    usual |= {"ds__ring_attn_size": 1, "ds__tensor_parallel_size": 1, "ds__zero_stage": 2}
    usual |= {"algo__kl__init_coef": 0.0, "train__agent_func_path": None, "train__dynamic_batch_enable": False}
    usual |= {"rollout__batch_size": 4, "rollout__n_samples_per_prompt": 8, "rollout__micro_batch_size": 3}
    return arguments_with({name.replace("__", "."): value for name, value in (usual | flags).items()})


def test_ranks_share_samples_unless_they_share_a_sample():
    assert data_parallel_actors(args_of()) == 8
    assert data_parallel_actors(args_of(ds__ring_attn_size=2, ds__tensor_parallel_size=2)) == 2
    assert forward_ranks(args_of()) == {"actor": 8}
    assert forward_ranks(args_of(algo__kl__init_coef=0.1, reward__remote_url=None)) == {
        "actor": 8,
        "ref": 2,
        "reward": 1,
    }


def test_a_step_has_samples_and_needs_an_even_share_for_every_rank_of_every_model():
    assert samples_per_step(args_of()) == (32, "--rollout.batch_size 4 x --rollout.n_samples_per_prompt 8")
    assert fewest_samples(args_of()) == 8
    models = {"algo__kl__init_coef": 0.1, "reward__remote_url": None}
    assert fewest_samples(args_of(**models)) == 8
    assert fewest_samples(args_of(**models, ref__num_nodes=8)) == 16
    assert fewest_samples(args_of(**models, ref__num_nodes=3, reward__num_gpus_per_node=5)) == 120
    assert fewest_samples(args_of(**models, reward__num_gpus_per_node=6, ds__ring_attn_size=2)) == 12
