"""What tests of the package share: a daemon on the host driver, sessions with it, processes.

A test is started by package_test.sh, which has the built package in PYTHONPATH and in the
environment TEST_TORPORD, TEST_TORPORCTL, TEST_WHEEL and TEST_MODEL. It ends with main().
"""

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
import unittest
import xml.etree.ElementTree

import torpor
from torpor_daemon import Daemon, Programs, number

MIB = 1 << 20
PROGRAMS = Programs(torpord=os.environ["TEST_TORPORD"], torporctl=os.environ["TEST_TORPORCTL"])
WHEEL = pathlib.Path(os.environ["TEST_WHEEL"]).resolve()
MODEL = pathlib.Path(os.environ["TEST_MODEL"])


def fill_queue(daemon):
    """Stops the daemon (until SIGCONT), and lets nobody in at its control socket any more."""
    daemon.process.send_signal(signal.SIGSTOP)
    tasks = pathlib.Path(f"/proc/{daemon.process.pid}/task")
    while any(") T " not in (task / "stat").read_text() for task in tasks.iterdir()):
        time.sleep(0.01)
    while True:
        # Who has hung up keeps its place.
        with socket.socket(socket.AF_UNIX) as connection:
            connection.setblocking(False)
            try:
                connection.connect(str(daemon.control_socket))
            except BlockingIOError:
                return


class DaemonTest(unittest.TestCase):
    """Each test has a daemon of its own, self.daemon, with a device of 640 MiB."""

    FLAGS = ("--host_device_memory=640MiB", "--host_pool=512MiB")

    def setUp(self):
        self.daemon = self.start_daemon()

    def start_daemon(self, *flags, **named):
        """Another one, in a runtime directory of its own; it has to end well unless killed."""
        daemon = Daemon(
            PROGRAMS, "--driver=host", "--safety_reserve=0", *self.FLAGS, *flags, **named
        )

        def stop():
            killed = daemon.process.poll() is not None
            status = daemon.close()
            if not killed:
                self.assertEqual(status, 0, "torpord")

        self.addCleanup(stop)
        return daemon

    def connect(self, name="w", **options):
        """A session with self.daemon that is closed at the end of the test."""
        options.setdefault("runtime_dir", self.daemon.runtime_dir)
        options.setdefault("quiesce", torpor.Quiesce.GUARD)
        options.setdefault("driver", "host")
        session = torpor.connect(name=name, **options)
        self.addCleanup(session.close)
        return session

    def assert_fails(self, reason, function, *arguments, **named):
        """That the call raises a TorporError with `reason`; returns it."""
        with self.assertRaises(torpor.TorporError) as caught:
            function(*arguments, **named)
        self.assertEqual(caught.exception.reason, reason, caught.exception)
        return caught.exception

    def free_bytes(self):
        return number(self.daemon.ctl("usage")["device"], "free_bytes")

    def workers(self):
        """{name: what Usage says of the worker}"""
        return {worker["name"]: worker for worker in self.daemon.ctl("usage").get("workers", [])}

    def wait_for(self, condition, timeout=30):
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                self.fail("it does not come about")
            time.sleep(0.01)

    def start_python(self, program, *arguments, **environment):
        """Starts `program` (text) with the daemon's runtime directory in its environment."""
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={
                **os.environ,
                "TORPOR_RUNTIME_DIR": str(self.daemon.runtime_dir),
                "TORPOR_DRIVER": "host",
                **environment,
            },
        )

        def end():
            if process.poll() is None:
                process.kill()
            process.communicate()

        self.addCleanup(end)
        return process

    def run_python(self, program, *arguments, **environment):
        """Runs it to a good end; gives what it has printed."""
        process = self.start_python(program, *arguments, **environment)
        said, errors = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, errors)
        return said


class _Result(unittest.TextTestResult):
    """Also keeps [(test, kind, text)] for Bazel."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.cases = []

    def addSuccess(self, test):
        super().addSuccess(test)
        self.cases.append((test, None, ""))

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.cases.append((test, "skipped", reason))

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.cases.append((test, "failure", self.failures[-1][1]))

    def addError(self, test, err):
        super().addError(test, err)
        self.cases.append((test, "error", self.errors[-1][1]))

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.cases.append((subtest, "failure", str(err[1])))


def _write_xml(path, cases):
    suite = xml.etree.ElementTree.Element("testsuite", name=pathlib.Path(sys.argv[0]).stem)
    for test, kind, text in cases:
        folder, _, name = test.id().rpartition(".")
        case = xml.etree.ElementTree.SubElement(suite, "testcase", classname=folder, name=name)
        if kind is not None:
            printable = re.sub(r"[^\n\t -~]", "?", text)
            xml.etree.ElementTree.SubElement(case, kind, message=printable)
    xml.etree.ElementTree.ElementTree(suite).write(path)


def main():
    """Runs the tests of the program; Bazel gets to know each."""
    runner = unittest.TextTestRunner(verbosity=2, resultclass=_Result)
    program = unittest.main(testRunner=runner, exit=False)
    if os.environ.get("XML_OUTPUT_FILE"):
        _write_xml(os.environ["XML_OUTPUT_FILE"], program.result.cases)
    sys.exit(not program.result.wasSuccessful())
