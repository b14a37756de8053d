"""Jobs, reports of pilots, archives and scenarios for tests."""
