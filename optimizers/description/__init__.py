"""From the text of a job description to checked jobs: JDL and YAML, keywords, parametric jobs."""
