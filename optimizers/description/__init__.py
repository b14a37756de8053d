"""Job descriptions: JDL and YAML, keywords, parametric jobs, templates."""
