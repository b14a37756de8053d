"""Conditions of a place at the moment of a claim: admission by queues, bans, limits, delays and throttles."""
