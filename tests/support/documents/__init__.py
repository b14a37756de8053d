"""The documents as their readers follow them, and lists that documents have."""
