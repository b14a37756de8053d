"""Requirements of jobs and their evaluation: values, rules, canonical form, ClassAds, reasons.

Pure: no access to files, clocks or databases.
"""
