"""Models that take turns on one GPU: the one that is asked for is awake, the others sleep.

    orchestrator.py

Reads the name of a model, as its worker calls itself, from each line of standard input, and says
when that model can serve, or why it cannot.
"""

import sys
import time
import urllib.parse
import urllib.request

from torpor.control import Client
from torpor.errors import Aborted, TorporError

# An engine that puts itself to sleep wakes itself as well: where, by where it sleeps.
WAKES = {"/sleep": "/wake_up", "/release_memory_occupation": "/resume_memory_occupation"}


def post(endpoint, wake=False):
    """Asks an engine at its own endpoint, "POST http://host:port/path"."""
    method, _, address = endpoint.partition(" ")
    if not address.startswith("http"):
        raise LookupError(f"the engine does not say where it can be asked, but: {endpoint}")
    url = urllib.parse.urlsplit(address)
    if wake:
        url = url._replace(path=WAKES[url.path])
    urllib.request.urlopen(urllib.request.Request(url.geturl(), method=method)).close()


def persistently(call, *arguments, **named):
    """Calls again while another operation on the same worker is in the way."""
    while True:
        try:
            return call(*arguments, **named)
        except Aborted:
            time.sleep(0.05)


class Turns:
    def __init__(self, client):
        self.client = client

    def take(self, model):
        """Puts all other models to sleep, their weights in host memory, and wakes `model`."""
        workers = {worker.name: worker for worker in self.client.usage().workers}
        if model not in workers:
            raise LookupError(f"there is no worker of this name, but {', '.join(workers)}")
        wanted = workers.pop(model)
        for worker in workers.values():
            if not any(tag.resident_bytes for tag in worker.tags):
                continue
            if worker.sleep_endpoint:
                post(worker.sleep_endpoint)
            else:
                persistently(self.client.sleep, worker.id, level=1)
        if wanted.sleep_endpoint:
            post(wanted.sleep_endpoint, wake=True)
        else:
            persistently(self.client.wake_up, wanted.id, order=["weights"])


def main():
    with Client() as client:  # the only daemon of this machine
        turns = Turns(client)
        for line in sys.stdin:
            model, start = line.strip(), time.monotonic()
            try:
                turns.take(model)
                print(f"{model}: awake after {time.monotonic() - start:.3f} s", flush=True)
            except (LookupError, OSError, TorporError) as error:
                print(f"{model}: {error}", flush=True)


if __name__ == "__main__":
    main()
