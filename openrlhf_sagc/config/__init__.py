"""What can be known before Ray starts: of flags, old and new, of the data, of the file of the reward or agent."""
