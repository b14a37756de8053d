"""The long-running commands (up, serve, worker, agent, director, gateway) and their parts."""
