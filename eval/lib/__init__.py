"""What the commands and the studies are made of."""
