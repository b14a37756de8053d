"""Database access: connections, transactions, SQL helpers, notifications and agent leases.

Imports only schema of taskqueue.
"""
