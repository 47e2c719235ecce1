"""What each network is made of: functions from its size and its classes or words to layers, and nothing else."""
