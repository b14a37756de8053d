"""Requirements of jobs and their evaluation: values, rules, canonical form, ClassAds, reasons.

Also the values that matching compares (requirement classes, resources) and the states of jobs and pilots.
Pure: no access to files, clocks or databases.
"""
