"""Tokens and sign-in of other issuers: OpenID Connect, and the WLCG token profile."""
