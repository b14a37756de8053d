"""The service as a pilot sees it: HTTP, requests, token, heartbeats; standard library only."""
