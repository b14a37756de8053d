"""People and programs whose tokens another issuer signs: OpenID Connect, and the profile of WLCG."""
