"""What a run is told, looked at before Ray starts."""
