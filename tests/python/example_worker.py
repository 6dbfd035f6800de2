"""A model without a GPU library for the examples: its bytes lie in a Torpor device.

    example_worker.py NAME MODEL_MIB OTHER_TAG OTHER_MIB [--engine]

Answers calls as docs/examples/python/rl_loop.py makes them. With --engine it only puts itself to
sleep, when it is asked over HTTP.
"""

import hashlib
import http.server
import json
import sys
import tempfile
import threading

import torpor

MIB = 1 << 20


def serve_endpoints(session):
    """Sleeps and wakes when asked as vLLM is, and says so to the daemon."""

    class Endpoints(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            {"/sleep": session.sleep, "/wake_up": session.wake_up}[self.path]()
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoints)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    session.set_sleep_endpoint(f"POST http://127.0.0.1:{server.server_port}/sleep")


def answer_calls(model):
    """A line of JSON for each, to the end of the input."""
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        arguments = json.loads(line)
        print(json.dumps(getattr(model, arguments.pop("call"))(**arguments)), flush=True)


class Model:
    def __init__(self, name, model_mib, other_tag, other_mib, engine):
        quiesce = torpor.Quiesce.NONE if engine else torpor.Quiesce.GUARD
        self.session = torpor.connect(name=name, driver="host", quiesce=quiesce)
        self.size = int(model_mib) * MIB
        self.weights = self.session.allocate("weights", self.size, timeout=None)
        self.other = self.session.allocate(other_tag, int(other_mib) * MIB, timeout=None)
        digest = hashlib.sha256(name.encode()).digest()
        self.session.write(self.weights, digest * (self.size // len(digest)))
        if engine:
            serve_endpoints(self.session)

    def generate(self):
        with self.session.work():
            tokens = list(hashlib.sha256(self.session.read(self.weights, self.size)).digest()[:8])
            self.session.write(self.other, bytes(tokens))
        return {"tokens": tokens}

    def train(self, rollouts):
        """Each byte of the weights grows by a number that the optimizer counts."""
        assert rollouts["tokens"]
        with self.session.work():
            count = self.session.read(self.other, 1)[0] + 1
            self.session.write(self.other, bytes([count]))
            before = self.session.read(self.weights, self.size)
            after = before.translate(bytes((byte + count) % 256 for byte in range(256)))
            self.session.write(self.weights, after)
        return {"count": count, "tokens": list(hashlib.sha256(after).digest()[:8])}

    def save(self):
        with tempfile.NamedTemporaryFile(delete=False) as file:
            file.write(self.session.read(self.weights, self.size))
        return {"path": file.name}

    def load(self, path):
        with open(path, "rb") as file:
            self.session.write(self.weights, file.read())
        return {}


if __name__ == "__main__":
    answer_calls(Model(*sys.argv[1:5], engine="--engine" in sys.argv))
