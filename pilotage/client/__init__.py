"""What programs and commands on any machine do with a service: connect, submit, wait, fetch output.

`client` has the classes for Python programs; commands use the functions below them. Nothing here prints, or
needs other packages than Python's own: this is what the distribution `pilotage-client` has of the program.
"""
