"""What can be known before Ray starts: flags that would fail in a step, the data, the reward's or agent's file."""
