"""Schema: the tables of the database and their column types.

Imports only states of taskqueue.
"""
