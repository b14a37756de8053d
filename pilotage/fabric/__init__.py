"""The site side: the pilot and the API client. It knows HTTP, never the database."""
