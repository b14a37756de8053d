"""What a job asks and whether a resource has it: values, rules, canonical form, ClassAds, reasons.

Pure: nothing here reads a file, a clock or a database.
"""
