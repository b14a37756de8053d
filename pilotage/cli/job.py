"""`pilotage job`: submit jobs and follow them."""

import typer

from pilotage.cli import job_control, job_output, job_show, job_submit, job_wait


def register(app: typer.Typer) -> None:
    """Add the commands."""
    jobs = typer.Typer(help="Submit jobs, follow them, end them.")
    jobs.command("submit")(job_submit.submit)
    jobs.command("list")(job_show.list_jobs)
    jobs.command("show")(job_show.show)
    jobs.command("log")(job_show.log)
    jobs.command("explain")(job_show.explain)
    jobs.command("kill")(job_control.kill)
    jobs.command("reschedule")(job_control.reschedule)
    jobs.command("output")(job_output.fetch)
    jobs.command("wait")(job_wait.wait)
    app.add_typer(jobs, name="job")
