"""When waiting jobs will probably start, and groups be done: intervals, and how often such held."""
