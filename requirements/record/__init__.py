"""Requirements as a record of named values: declarations, rules, the attributes of a job."""
