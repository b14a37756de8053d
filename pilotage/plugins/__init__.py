"""Plug-ins: what not everybody needs, found by entry points; nothing of the core imports them."""
