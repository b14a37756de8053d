"""Stores of archives by content digest: a directory, a bucket of S3, and two of them during a move."""
