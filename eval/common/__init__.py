"""What several commands of eval/ need: paths, runs of the trainer, logs, policies, tables and plots."""
