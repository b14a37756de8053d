"""What a pilot finds out about its node and its processes; standard library only."""
