"""The wheel: what is in it, that pip installs it, and that the installed package works."""

import base64
import csv
import email
import hashlib
import importlib.metadata
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import venv
import zipfile

import torpor
from fixture import WHEEL, DaemonTest, main


class ContentsTest(unittest.TestCase):
    def setUp(self):
        self.archive = zipfile.ZipFile(WHEEL)
        self.addCleanup(self.archive.close)
        self.info = f"torpor-{torpor.__version__}.dist-info"

    def text(self, name):
        return self.archive.read(f"{self.info}/{name}").decode()

    def test_the_record_lists_every_file_with_its_hash(self):
        listed = {}
        for name, digest, size in csv.reader(io.StringIO(self.text("RECORD"))):
            listed[name] = (digest, size)
        self.assertEqual(set(listed), set(self.archive.namelist()))
        self.assertEqual(listed.pop(f"{self.info}/RECORD"), ("", ""))
        for name, (digest, size) in listed.items():
            data = self.archive.read(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
            with self.subTest(file=name):
                self.assertEqual(digest, f"sha256={expected.decode()}")
                self.assertEqual(int(size), len(data))

    def test_what_it_is_called(self):
        tag = "py3-none-manylinux_2_36_x86_64"
        self.assertEqual(WHEEL.name, f"torpor-{torpor.__version__}-{tag}.whl")
        about = email.message_from_string(self.text("WHEEL"))
        self.assertEqual(about["Tag"], tag)
        self.assertEqual(about["Root-Is-Purelib"], "false")

    def test_metadata(self):
        about = email.message_from_string(self.text("METADATA"))
        self.assertEqual((about["Name"], about["Version"]), ("torpor", torpor.__version__))
        self.assertEqual(about["Version"], torpor._abi.library().version())
        self.assertEqual(about["Requires-Python"], ">=3.10")
        for requirement in about.get_all("Requires-Dist"):
            self.assertIn('; extra == "control"', requirement)
        self.assertIn("Apache License", self.text("LICENSE"))

    def test_entry_points(self):
        point, = importlib.metadata.PathDistribution(
            zipfile.Path(self.archive, f"{self.info}/")
        ).entry_points
        self.assertEqual(
            (point.group, point.name, point.value),
            ("vllm.general_plugins", "torpor", "torpor.vllm:register"),
        )

    def test_files(self):
        names = set(self.archive.namelist())
        for name in (
            "torpor/py.typed", "torpor/libtorpor.so", "torpor/libtorpor_tms.so",
            "torpor/control/memory_service_pb2.py",
        ):
            self.assertIn(name, names)
        for entry in self.archive.infolist():
            self.assertEqual(entry.date_time, (1980, 1, 1, 0, 0, 0), entry.filename)
            self.assertNotIn("__pycache__", entry.filename)
        with tempfile.TemporaryDirectory() as folder:
            for name in names:
                if name.endswith(".so"):
                    file = self.archive.extract(name, folder)
                    found = subprocess.run(
                        ["readelf", "-SW", file], capture_output=True, text=True, check=True
                    )
                    self.assertNotIn(".symtab", found.stdout, name)

    def test_every_module_is_python_of_3_10(self):
        """As far as its grammar goes."""
        import ast

        for name in self.archive.namelist():
            if name.endswith(".py"):
                with self.subTest(module=name):
                    ast.parse(self.archive.read(name), name, feature_version=(3, 10))


class InstalledTest(DaemonTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name)
        venv.create(cls.root, with_pip=True)
        cls.python = cls.root / "bin/python"
        subprocess.run(
            [
                cls.python, "-m", "pip", "--disable-pip-version-check", "install", "-q",
                "--no-index", "--no-deps", WHEEL,
            ],
            check=True, env=cls.environment(),
        )

    @staticmethod
    def environment(**more):
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return {**kept, **more}

    def run_installed(self, program):
        done = subprocess.run(
            [self.python, "-c", program], capture_output=True, text=True, check=False,
            env=self.environment(TORPOR_RUNTIME_DIR=str(self.daemon.runtime_dir)),
            cwd=self.root,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_import_does_nothing(self):
        said = self.run_installed(
            "import sys, torpor\n"
            "found = [n for n in ('torch', 'grpc', 'google') if n in sys.modules]\n"
            "print(torpor.__file__, found, 'libtorpor' in open('/proc/self/maps').read())"
        )
        self.assertTrue(said.startswith(str(self.root)), said)
        self.assertTrue(said.endswith("[] False\n"), said)

    def test_it_connects(self):
        said = self.run_installed(
            "import torpor\n"
            "with torpor.connect(name='installed', driver='host') as session:\n"
            "    address = session.allocate('weights', 1)\n"
            "    session.write(address, b'bytes')\n"
            "    session.sleep(); session.wake_up()\n"
            "    print(session.read(address, 5), torpor._abi.library().path)"
        )
        where, = self.root.glob("lib/python*/site-packages/torpor/libtorpor.so")
        self.assertEqual(said, f"b'bytes' {where}\n")

    def test_pip_knows_its_files(self):
        done = subprocess.run(
            [self.python, "-m", "pip", "--disable-pip-version-check", "show", "-f", "torpor"],
            capture_output=True, text=True, check=True, env=self.environment(),
        )
        self.assertIn(f"Version: {torpor.__version__}\n", done.stdout)
        self.assertIn("torpor/libtorpor.so", done.stdout)


class BuildTest(unittest.TestCase):
    def test_the_same_files_give_the_same_wheel(self):
        """Whatever their order and times."""
        root = pathlib.Path(__file__).resolve().parents[2]
        with tempfile.TemporaryDirectory() as folder:
            files = []
            with zipfile.ZipFile(WHEEL) as archive:
                for name in archive.namelist():
                    if not name.startswith(("torpor-", "torpor/control/bundled/")):
                        archive.extract(name, f"{folder}/client/python")
                        files.append(f"{folder}/client/python/{name}")
            packed = len(files)
            files += [
                root / name
                for name in (
                    "LICENSE", "client/python/METADATA.in", "client/python/entry_points.txt",
                    "proto/torpor/v1/memory_service.proto",
                    "third_party/googleapis/google/rpc/error_details.proto",
                    "third_party/googleapis/google/rpc/status.proto",
                )
            ]
            built = []
            for turn, order in enumerate((files, files[::-1])):
                for file in files[:packed]:
                    os.utime(file, (turn * 1e8, turn * 1e8))
                out = pathlib.Path(folder) / str(turn) / WHEEL.name
                out.parent.mkdir()
                subprocess.run(
                    [
                        sys.executable, root / "client/python/build_wheel.py", "--out", out,
                        "--version", torpor.__version__, *order,
                    ],
                    check=True,
                )
                built.append(out.read_bytes())
            self.assertEqual(*built)


if __name__ == "__main__":
    main()
