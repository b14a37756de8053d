"""From a request to claimed jobs: the claim thread, its snapshot, the claim and its consequences."""
