"""Who calls and what a caller may see: tokens, keys, roles, rate limits, visibility, sign-in."""
