"""A pilot's request for work: its keywords, the resource that it describes and the facts of its node."""
