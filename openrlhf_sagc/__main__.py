"""`python -m openrlhf_sagc`: OpenRLHF's train_ppo_ray with the flags of this package, which does nothing without them."""

from openrlhf.cli import train_ppo_ray
from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError

from openrlhf_sagc.arguments import add_arguments, check_arguments, enabled
from openrlhf_sagc.config.upstream_checks import validated
from openrlhf_sagc.redaction import redact_output, without_secrets
from openrlhf_sagc.run.checkpoints import choose_checkpoint
from openrlhf_sagc.run.data import check_data
from openrlhf_sagc.run.earlier_outputs import set_earlier_outputs_aside
from openrlhf_sagc.run.output_folders import held_folders


def main() -> None:
    if not hasattr(train_ppo_ray, "build_parser"):
        raise SystemExit(
            f"openrlhf_sagc: {train_ppo_ray.__file__} is not of the patched OpenRLHF: install build/dist/openrlhf-*.whl"
        )
    parser = train_ppo_ray.build_parser()
    add_arguments(parser)
    args = validated(train_ppo_ray.validate_args, parser.parse_args())
    check_arguments(args)
    if not enabled(args):
        return train_ppo_ray.train(args)
    from openrlhf_sagc.driver import trainers
    from openrlhf_sagc.driver.trace import held_trace

    # In this order: nothing is moved before it is held, and no folder is held for flags that cannot work.
    with held_folders(args) as held, held_trace(args):
        check_data(args, choose_checkpoint(args))
        set_earlier_outputs_aside(args, held)
        try:
            train_ppo_ray.train(args, trainers.GroupTrainerAsync if args.train.async_enable else trainers.GroupTrainer)
        except (RayActorError, NodeDiedError, ObjectLostError) as error:
            died = getattr(error, "cause", error)  # Ray wraps what its trainer met in that trainer's traceback
            raise SystemExit(
                f"openrlhf_sagc: a process of the run has died: {without_secrets(' '.join(str(died).split())):.300}; its log says why, start "
                "again with --ckpt.load_enable"
            ) from error


if __name__ == "__main__":
    redact_output()
    main()
