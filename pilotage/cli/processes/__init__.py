"""The commands that run for long (up, serve, worker, agent, director, gateway) and what only they need."""
