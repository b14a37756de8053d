"""What tests share: servers, processes, what they put into databases, and stand-ins."""
