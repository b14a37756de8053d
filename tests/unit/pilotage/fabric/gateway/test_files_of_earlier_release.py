"""Files of directors and gateways as the documents of release 1.0.0 have them, also with the former names."""

from pathlib import Path

import yaml

from pilotage.fabric.batch.batch_system import Evidence
from pilotage.fabric.batch.htcondor import HTCondorSettings
from pilotage.fabric.batch.settings import CommandSettings
from pilotage.fabric.director import configuration as director_configuration
from pilotage.fabric.gateway import configuration as gateway_configuration
from requirements.nodes import lrms_vocabulary
from tests.support.left_out import needs

DIRECTOR = """
url: https://pilotage.example.org
name: north
every: 30
gone: {listings: 4, seconds: 400}
at_once: 20
soon: 300
task: 45
vos:
  biomed: {token_file: /etc/pilotage/biomed.token}
  lhcb:   {token_file: /etc/pilotage/lhcb.token}
systems:
  farm:
    kind: slurm
    directory: /shared/pilots
    environment: {SLURM_CONF: /etc/slurm/slurm.conf}
    flags: [--account=grid]
    ssh: {host: head.example.org, user: pilots, key: /etc/pilotage/id, known_hosts: /etc/pilotage/known_hosts}
  HTCondorCE:
    kind: htcondor
    directory: "/var/lib/pilotage/{ce}"
    schedd: {name: "{ce}", collector: "{endpoint}", token_file: /etc/pilotage/ce.token}
  AREX:
    kind: arc
    ce: {url: "https://{endpoint}/arex", token_file: /etc/pilotage/ce.token}
    flags: [ENV/PROXY]
  here: {kind: local, directory: /var/lib/here, cores: 4, memory: 8000}
queues:
  from_tree: {site: [LCG.Example.org, OSG.Example.us]}
  listed:
    - queue: LCG.Example.org/ce01/long
      system: farm
      batch_queue: long
      memory: 8000
"""

GATEWAY = """
url: https://pilotage.example.org
name: gate
token_file: /etc/pilotage/gateway.token
vos: [biomed, lhcb]
directory: /var/lib/pilotage-gateway
every: 15
work_every: 3
gone: {listings: 4, seconds: 400}
at_once: 70
systems:
  farm:
    kind: slurm
    directory: /shared/gate
  other-grid:
    kind: arc
    ce: {url: https://arc.example.org/arex, token_file: /etc/pilotage/arc.token}
queues:
  - queue: LCG.Example.org/ce01/long
    system: farm
    batch_queue: long
    max_grid_jobs: 20
    memory: 4000
  - {queue: GRID.Example.org/arc.example.org/grid, system: other-grid, batch_queue: grid}
job_types:
  montecarlo: {max_cpu_per_job: 86400, cpu_per_event: 120}
"""


@needs("arc")
def test_a_director_of_the_earlier_release_has_what_its_file_states() -> None:
    told = director_configuration.read_file(yaml.safe_load(DIRECTOR), "director.yaml")

    assert (told.polling_time, told.max_pilots_per_cycle, told.short_job, told.system_timeout) == (
        30,
        20,
        300,
        45,
    )
    assert told.lost_after == Evidence(listings=4, seconds=400)
    farm = told.systems["farm"]
    assert isinstance(farm, CommandSettings)
    assert (farm.flags, farm.job_directory) == (("--account=grid",), Path("/shared/pilots"))
    assert farm.secret_files == (Path("/etc/pilotage/id"),)
    assert told.systems["AREX"].languages == (lrms_vocabulary.ARC,)
    assert told.systems["here"].languages == ()

    parameters = {"CEType": "HTCondorCE", "Endpoint": "ce1.example.us:9619"}
    whole = director_configuration.add_tree_queues(
        told, {"OSG.Example.us/ce1/one": parameters}, "director.yaml"
    )
    filled = whole.systems["ce1"]
    assert isinstance(filled, HTCondorSettings)
    assert filled.job_directory == Path("/var/lib/pilotage/ce1")
    assert filled.schedd is not None
    assert filled.schedd.pool == "ce1.example.us:9619"
    assert [(each.queue, each.system, each.batch_queue) for each in whole.queues] == [
        ("LCG.Example.org/ce01/long", "farm", "long"),
        ("OSG.Example.us/ce1/one", "ce1", "htcondor"),
    ]


@needs("arc")
def test_a_gateway_of_the_earlier_release_has_what_its_file_states() -> None:
    told = gateway_configuration.read_file(yaml.safe_load(GATEWAY), "gateway.yaml")

    assert (told.polling_time, told.job_polling_time, told.max_jobs_per_cycle) == (15, 3, 70)
    assert told.lost_after == Evidence(listings=4, seconds=400)
    assert told.systems["other-grid"].job_directory is None
    assert told.systems["other-grid"].secret_files == (Path("/etc/pilotage/arc.token"),)
    assert [(each.max_grid_jobs, each.to_target().batch_queue) for each in told.queues] == [
        (20, "long"),
        (10, "grid"),
    ]
