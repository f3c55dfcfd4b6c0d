"""`python -m openrlhf_sagc`: OpenRLHF's train_ppo_ray with the flags of this package, which does nothing without them."""

from openrlhf.cli import train_ppo_ray

from openrlhf_sagc.arguments import add_arguments, check_arguments, enabled


def main() -> None:
    if not hasattr(train_ppo_ray, "build_parser"):
        raise SystemExit(
            f"openrlhf_sagc: {train_ppo_ray.__file__} is not of the patched OpenRLHF: install build/dist/openrlhf-*.whl"
        )
    parser = train_ppo_ray.build_parser()
    add_arguments(parser)
    args = train_ppo_ray.validate_args(parser.parse_args())
    check_arguments(args)
    trainer_cls = None
    if enabled(args):
        from openrlhf_sagc.driver import trainers

        trainer_cls = trainers.GroupTrainerAsync if args.train.async_enable else trainers.GroupTrainer
    train_ppo_ray.train(args, trainer_cls)


if __name__ == "__main__":
    main()
