"""A campaign on three nodes of PostgreSQL under Patroni: faults, players with ledgers, and checks.

`installation` is what runs, `players` use it over HTTP and keep ledgers, `faults` break parts of it, and
`checks` compare the ledgers with the tables. Players and checks use no code of the program.
"""
