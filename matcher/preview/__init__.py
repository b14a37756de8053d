"""Effects of a proposed configuration: outlook, guards, and the jobs that a value excludes."""
