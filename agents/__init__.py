"""Background agents: refresh pools and priorities, recover lost jobs, add up accounting, delete old data."""
