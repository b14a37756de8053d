"""Job managers: a grid job of the service becomes local jobs of a batch system, and one result again."""
