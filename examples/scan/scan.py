"""Scan the Z resonance: submit, give more memory to what failed, fetch the outputs, plot them."""

import sys
from pathlib import Path

from pilotage import Client

number = int(sys.argv[1]) if sys.argv[1:] else 200
energies = [round(81.2 + 20 * n / number, 3) for n in range(number)]
files = {"InputSandbox": ["point.py"], "StdOutput": "result.txt", "OutputSandbox": ["result.txt"]}
point = {"Executable": "point.py", "Arguments": "%(energy)s", "JobGroup": "scan", "MinRAM": 200, **files}

client = Client()
ended = client.wait(*client.submit(point, parameters={"energy": energies}))
failed = [job_id for job_id, status in ended.items() if status == "Failed"]
print(f"{len(ended)} points, {len(failed)} failed")
if failed:
    ended |= client.wait(*client.resubmit(*failed, set={"MinRAM": 600}))
done = [job_id for job_id, status in ended.items() if status == "Done"]
client.outputs(*done, directory="results")
texts = [Path("results", str(job_id), "result.txt").read_text() for job_id in done]
points = sorted(tuple(map(float, text.split())) for text in texts)
dots = "".join(f'<circle cx="{20 * (x - 80):.1f}" cy="{440 - 10 * y:.1f}" r="2"/>' for x, y in points)
Path("scan.svg").write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 440 450">{dots}</svg>')
print(f"{len(points)} points in scan.svg, the highest at {max(points, key=lambda each: each[1])[0]} GeV")
