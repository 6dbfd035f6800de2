"""Which daemon connect() finds: CUDA_VISIBLE_DEVICES, abbreviated names, several daemons."""

import os
import shutil
import tempfile
import unittest
import unittest.mock

import torpor
from fixture import PROGRAMS, DaemonTest, main
from torpor import devices
from torpor_daemon import Daemon

FIRST = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
SECOND = "GPU-8932f988-0000-4106-c12f-20bd9faed9f6"
MIG = "MIG-a1b2c3d4-1111-5222-8333-444455556666"


def visible_devices(value):
    if value is None:
        return unittest.mock.patch.dict(os.environ, clear=False)
    return unittest.mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": value})


class VisibleTest(unittest.TestCase):
    """What CUDA makes of CUDA_VISIBLE_DEVICES."""

    def test_lists(self):
        for value, expected in {
            "0": ["0"],
            "1,0": ["1", "0"],
            " 2 , 3": ["2", "3"],
            "": [],
            "-1": [],
            "0,-1,1": ["0"],
            "NoDevFiles": [],
            "0,x,1": ["0"],
            "0,0": [],
            f"{FIRST},{SECOND}": [FIRST, SECOND],
            f"{FIRST},{FIRST}": [],
            "GPU-8932f9,GPU-1": ["GPU-8932f9", "GPU-1"],
            f"{FIRST},0": [FIRST],
            f"0,{FIRST}": ["0"],
            f"{MIG},MIG-GPU-8932f937/1/2": [MIG, "MIG-GPU-8932f937/1/2"],
            f"{MIG},{FIRST}": [MIG],
        }.items():
            with self.subTest(value=value):
                self.assertEqual(devices.visible(value), expected)

    def test_resolve(self):
        for value, device, expected in (
            (None, 5, None),
            ("1,0", 1, None),
            (FIRST, 0, FIRST),
            (f"{FIRST},{MIG}", 0, FIRST),
            (f"{MIG},MIG-GPU-8932f937/1/2", 1, None),
            (f"MIG-{MIG[4:].upper()}", 0, MIG),
        ):
            with self.subTest(value=value), visible_devices(value):
                self.assertEqual(devices.resolve(device, "/nonexistent"), expected)

    def test_devices_that_are_not_listed(self):
        for value, device, count in (("", 0, 0), ("0,1", 2, 2), (FIRST, 1, 1), ("0", -1, 1)):
            with self.subTest(value=value), visible_devices(value):
                with self.assertRaises(torpor.errors.NotFound) as caught:
                    devices.resolve(device, "/nonexistent")
                self.assertEqual(caught.exception.reason, "NO_SUCH_DEVICE")
                self.assertEqual(caught.exception.number("device_count"), count)
                self.assertIn(f"CUDA_VISIBLE_DEVICES={value} ", str(caught.exception))

    def test_runtime_dir(self):
        with unittest.mock.patch.dict(os.environ, {"TORPOR_RUNTIME_DIR": "/given"}):
            self.assertEqual(devices.runtime_dir(), "/given")
        with unittest.mock.patch.object(os, "geteuid", return_value=0):
            self.assertEqual(devices.runtime_dir(), "/run/torpor")
        with unittest.mock.patch.object(os, "geteuid", return_value=1000):
            with unittest.mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": "/run/user/1000"}):
                self.assertEqual(devices.runtime_dir(), "/run/user/1000/torpor")
            os.environ.pop("XDG_RUNTIME_DIR", None)
            with self.assertRaises(torpor.errors.FailedPrecondition) as caught:
                devices.runtime_dir()
            self.assertEqual(caught.exception.reason, "NO_RUNTIME_DIR")


@unittest.skipIf(os.path.exists("/dev/nvidiactl"), "a GPU: the C library asks CUDA")
class FindTest(DaemonTest):
    """Daemons of host devices with GPUs' names in one runtime directory."""

    FLAGS = ("--host_device_memory=64MiB", "--host_pool=64MiB")

    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="torpor-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.directory)
        self.daemons = {}
        for uuid in (FIRST, SECOND, MIG):
            self.daemons[uuid] = self.start_daemon(
                f"--device={uuid}", runtime_dir=self.directory
            )

    def find(self, value, device=0, **options):
        options.setdefault("runtime_dir", self.directory)
        with visible_devices(value), torpor.connect(device=device, **options) as session:
            self.assertEqual(session.device, device)
            session.free(session.allocate("weights", 1))
            return session.info.device_uuid

    def test_by_uuid(self):
        self.assertEqual(self.find(f"{FIRST},{SECOND}"), FIRST)
        self.assertEqual(self.find(f"{FIRST},{SECOND}", 1), SECOND)
        self.assertEqual(self.find(MIG), MIG)

    def test_by_abbreviated_uuid(self):
        self.assertEqual(self.find("GPU-8932f98"), SECOND)
        self.assertEqual(self.find("GPU-8932F937,GPU-8932f9"), FIRST)
        self.assertEqual(self.find("MIG-a"), MIG)

    def test_an_abbreviation_of_several(self):
        error = self.assert_fails("AMBIGUOUS_DAEMON", self.find, "GPU-8932f9")
        self.assertEqual(error.details["candidates"], f"{FIRST},{SECOND}")

    def test_nobody_serves_it(self):
        for value in ("GPU-99", "MIG-99", FIRST.replace("8932", "9999")):
            error = self.assert_fails("DAEMON_NOT_RUNNING", self.find, value)
            self.assertIn(SECOND, error.details["candidates"])

    def test_not_listed(self):
        self.assert_fails("NO_SUCH_DEVICE", self.find, "")
        self.assert_fails("NO_SUCH_DEVICE", self.find, FIRST, 1)
        self.assert_fails("NO_SUCH_DEVICE", self.find, None, 1 << 40)

    def test_by_the_option_whatever_the_environment(self):
        self.assertEqual(self.find(SECOND, device_uuid=FIRST), FIRST)
        self.assertEqual(self.find("", device_uuid=MIG), MIG)

    def test_the_host_driver_does_not_look(self):
        self.assert_fails("AMBIGUOUS_DAEMON", self.find, "", driver="host")
        self.daemons[FIRST].close()
        self.daemons[MIG].close()
        self.assertEqual(self.find("", driver="host"), SECOND)

    def test_wrong_gpu(self):
        """A worker that sees GPU 1 as its device 0 connects to the daemon of GPU 0."""
        error = self.assert_fails(
            "WRONG_DEVICE", self.find, SECOND, socket_path=self.daemons[FIRST].worker_socket,
            runtime_dir=None,
        )
        self.assertIsInstance(error, torpor.errors.FailedPrecondition)
        self.assertEqual(error.details["daemon_device"], FIRST)
        self.assertEqual(error.details["worker_device"], SECOND)

    def test_a_daemon_that_was_killed_counts(self):
        """Its socket is still there; its name stays taken."""
        self.daemons[SECOND].process.kill()
        self.daemons[SECOND].process.wait()
        self.assert_fails("AMBIGUOUS_DAEMON", self.find, "GPU-8932f9")
        self.assertEqual(self.find("GPU-8932f937"), FIRST)
        self.assert_fails("DAEMON_NOT_RUNNING", self.find, "GPU-8932f988")
        again = Daemon(
            PROGRAMS, "--driver=host", *self.FLAGS, f"--device={SECOND}",
            runtime_dir=self.directory,
        )
        self.addCleanup(again.close)
        self.assertEqual(self.find("GPU-8932f988"), SECOND)


if __name__ == "__main__":
    main()
