"""libtorpor_tms.so, the C interface of torch_memory_saver's hook library, on the host driver."""

import ctypes
import os
import pathlib
import threading

import torpor
from fixture import MIB, DaemonTest, main
from torpor import _abi

LIBRARY = pathlib.Path(torpor.__file__).with_name("libtorpor_tms.so")


def load():
    c = ctypes.CDLL(str(LIBRARY))
    pointer, size, text = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_char_p
    for name, result, arguments in (
        ("tms_torch_malloc", pointer, [size, ctypes.c_int, pointer]),
        ("tms_torch_free", None, [pointer, size, ctypes.c_int, pointer]),
        ("tms_pause", ctypes.c_int, [text]),
        ("tms_resume", ctypes.c_int, [text]),
        ("tms_set_interesting_region", None, [ctypes.c_bool]),
        ("tms_get_interesting_region", ctypes.c_bool, []),
        ("tms_set_current_tag", None, [text]),
        ("tms_get_current_tag", text, []),
        ("tms_set_enable_cpu_backup", None, [ctypes.c_bool]),
        ("tms_get_enable_cpu_backup", ctypes.c_bool, []),
        ("tms_set_cpu_backup_backend", None, [text]),
        ("tms_get_cpu_backup_backend", text, []),
        ("tms_set_enable_disk_backup", None, [ctypes.c_bool]),
        ("tms_get_enable_disk_backup", ctypes.c_bool, []),
        ("tms_set_disk_backup_dir", None, [text]),
        ("tms_set_retain_cpu_backup", None, [ctypes.c_bool]),
        ("tms_get_retain_cpu_backup", ctypes.c_bool, []),
        ("tms_get_cpu_backup_pointer", pointer, [pointer, ctypes.c_uint64]),
        ("set_memory_margin_bytes", None, [ctypes.c_uint64]),
    ):
        function = getattr(c, name)
        function.restype, function.argtypes = result, arguments
    return c


class TmsTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.session = self.connect()
        self.session.call("torpor_torch_use")
        self.c = load()
        self.region("default", False)
        self.addCleanup(self.c.tms_set_interesting_region, False)

    def region(self, tag, backup):
        self.c.tms_set_interesting_region(True)
        self.c.tms_set_current_tag(tag.encode())
        self.c.tms_set_enable_cpu_backup(backup)

    def allocate(self, tag, backup, size):
        self.region(tag, backup)
        address = self.c.tms_torch_malloc(size, 0, None)
        self.assertIsNotNone(address, _abi.library().last_error())
        return address

    def test_one_libtorpor_serves_both(self):
        address = self.allocate("one", True, MIB)
        self.assertEqual(self.session.segment(address).tag, "one")
        maps = pathlib.Path("/proc/self/maps").read_text(encoding="utf-8")
        files = {line.split()[-1] for line in maps.splitlines() if "/libtorpor.so" in line}
        self.assertEqual(files, {str(LIBRARY.with_name("libtorpor.so"))})

    def test_pause_and_resume(self):
        free = self.free_bytes()
        kept = self.allocate("weights", True, 7 * MIB - 5)
        dropped = self.allocate("kv_cache", False, 4 * MIB)
        data = os.urandom(7 * MIB - 5)
        self.session.write(kept, data)
        self.session.write(dropped, b"x" * (4 * MIB))

        self.assertEqual(self.c.tms_pause(None), 0)
        self.assertEqual(self.free_bytes(), free)
        tags = self.session.usage().tags
        self.assertEqual(tags["weights"].offloaded_bytes, 8 * MIB)
        self.assertEqual(tags["kv_cache"].discarded_bytes, 4 * MIB)
        self.assertIsNone(self.c.tms_get_cpu_backup_pointer(kept, 8))

        self.assertEqual(self.c.tms_resume(b""), 0)
        self.assertEqual(self.session.read(kept, len(data)), data)
        self.assertEqual(self.session.read(dropped, 4 * MIB), bytes(4 * MIB))

    def test_tags_are_paused_one_by_one(self):
        one = self.allocate("one", True, 2 * MIB)
        two = self.allocate("two", True, 2 * MIB)
        self.session.write(one, b"one")
        self.session.write(two, b"two")
        self.assertEqual(self.c.tms_pause(b"one"), 0)
        self.assertEqual(self.session.read(two, 3), b"two")
        self.assertEqual(self.c.tms_pause(b"one"), 0)  # again: nothing changes
        self.assertEqual(self.c.tms_pause(b"two"), 0)
        self.assertEqual(self.c.tms_resume(b"two"), 0)
        self.assertEqual(self.session.usage().tags["one"].offloaded_bytes, 2 * MIB)
        self.assertEqual(self.c.tms_resume(b"nobody"), 0)
        self.assertEqual(self.c.tms_resume(b"one"), 0)
        self.assertEqual(self.c.tms_resume(b"one"), 0)
        self.assertEqual(self.session.read(one, 3), b"one")

    def test_a_tag_of_both_kinds(self):
        kept = self.allocate("both", True, 2 * MIB)
        dropped = self.allocate("both", False, 2 * MIB)
        self.session.write(kept, b"kept")
        self.session.write(dropped, b"dropped")
        self.assertEqual(self.session.segment(kept).tag, "both")
        self.assertEqual(self.session.segment(dropped).tag, "both.scratch")
        self.assertEqual(self.c.tms_pause(b"both"), 0)
        self.assertEqual(self.c.tms_resume(b"both"), 0)
        self.assertEqual(self.session.read(kept, 4), b"kept")
        self.assertEqual(self.session.read(dropped, 7), bytes(7))

    def test_free_while_paused(self):
        address = self.allocate("weights", True, 2 * MIB)
        self.assertEqual(self.c.tms_pause(None), 0)
        self.c.tms_set_interesting_region(False)
        self.c.tms_torch_free(address, 2 * MIB, 0, None)
        self.assertEqual(self.c.tms_resume(None), 0)
        self.assert_fails("UNKNOWN_ADDRESS", self.session.segment, address)

    def test_resume_without_room(self):
        self.allocate("weights", True, 400 * MIB)
        self.assertEqual(self.c.tms_pause(None), 0)
        other = self.session.allocate("other", 400 * MIB)
        error = self.c.tms_resume(None)
        self.assertEqual(error, torpor.errors.ResourceExhausted.code)
        self.assertEqual(_abi.library().last_error().number("requested_bytes"), 400 * MIB)
        self.session.free(other)
        self.assertEqual(self.c.tms_resume(None), 0)

    def test_pause_inside_the_guard_fails(self):
        self.allocate("weights", True, 2 * MIB)
        with self.session.work():
            self.assertEqual(self.c.tms_pause(None), torpor.errors.FailedPrecondition.code)
            self.assertEqual(_abi.library().last_error().reason, "WORK_GUARD_HELD")
        self.assertEqual(self.session.usage().tags["weights"].resident_bytes, 2 * MIB)

    def test_what_is_no_region_is_refused(self):
        self.c.tms_set_interesting_region(False)
        self.assertIsNone(self.c.tms_torch_malloc(MIB, 0, None))
        self.c.tms_set_interesting_region(True)
        self.c.tms_set_enable_disk_backup(True)
        self.assertIsNone(self.c.tms_torch_malloc(MIB, 0, None))
        self.c.tms_set_enable_disk_backup(False)
        self.assertIsNone(self.c.tms_torch_malloc(0, 0, None))
        self.c.tms_set_current_tag(b"no tag")
        self.assertIsNone(self.c.tms_torch_malloc(MIB, 0, None))
        self.assertEqual(_abi.library().last_error().reason, "BAD_TAG")
        self.allocate("good", False, MIB)

    def test_a_tag_that_was_refused_is_forgotten(self):
        long = "w" * 60  # there is no room for ".scratch"
        kept = self.allocate(long, True, 2 * MIB)
        for tag in (long, "bad tag"):
            self.region(tag, False)
            self.assertIsNone(self.c.tms_torch_malloc(MIB, 0, None))
            self.assertEqual(_abi.library().last_error().reason, "BAD_TAG")
        self.assertEqual(self.c.tms_pause(b"bad tag"), 0)
        self.assertEqual(self.c.tms_pause(None), 0)
        self.assertEqual(self.c.tms_resume(b"bad tag"), 0)
        self.assertEqual(self.session.usage().tags[long].offloaded_bytes, 2 * MIB)
        self.assertEqual(self.c.tms_resume(None), 0)
        self.session.free(kept)

    def test_settings_are_of_the_thread(self):
        c = self.c
        self.region("mine", True)
        c.tms_set_cpu_backup_backend(b"pinned")
        seen = []

        def other():
            seen.append((c.tms_get_interesting_region(), c.tms_get_current_tag(),
                         c.tms_get_enable_cpu_backup(), c.tms_get_cpu_backup_backend()))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        self.assertEqual(seen, [(False, b"default", False, b"")])
        c.tms_set_current_tag(None)
        c.tms_set_cpu_backup_backend(None)
        other()
        self.assertEqual(seen[1], (True, b"mine", True, b"pinned"))
        self.assertFalse(c.tms_get_enable_disk_backup())
        c.tms_set_disk_backup_dir(b"/tmp")
        c.set_memory_margin_bytes(1)
        c.tms_set_retain_cpu_backup(True)
        self.assertTrue(c.tms_get_retain_cpu_backup())

    def test_the_environment_sets_what_a_thread_begins_with(self):
        said = self.run_python(
            """
            import ctypes, sys
            c = ctypes.CDLL(sys.argv[1])
            for name in ("interesting_region", "enable_cpu_backup", "enable_disk_backup",
                         "retain_cpu_backup"):
                function = getattr(c, "tms_get_" + name)
                function.restype = ctypes.c_bool
                print(function())
            """,
            LIBRARY, TMS_INIT_ENABLE="1", TMS_INIT_ENABLE_CPU_BACKUP="true",
            TMS_RETAIN_CPU_BACKUP="1",
        )
        self.assertEqual(said.split(), ["True", "True", "False", "True"])


if __name__ == "__main__":
    main()
