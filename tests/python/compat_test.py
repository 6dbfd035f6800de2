"""torpor.compat.torch_memory_saver over a stand-in for PyTorch, on the host driver."""

import gc
import importlib
import inspect
import os
import sys
import unittest

import torch_stub

torch = torch_stub.install()

import torpor
import torpor.compat.torch_memory_saver as compat
import torpor.torch
from fixture import MIB, PROGRAMS, main
from torpor_daemon import Daemon


class CompatTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        daemon = Daemon(
            PROGRAMS, "--driver=host", "--host_device_memory=640MiB", "--host_pool=512MiB",
            "--safety_reserve=0",
        )
        cls.addClassCleanup(daemon.close)
        # One for all tests: PyTorch keeps memory in it.
        cls.session = torpor.connect(name="w", runtime_dir=daemon.runtime_dir, driver="host")
        torpor.torch.use(cls.session)

    def setUp(self):
        self.saver = compat.TorchMemorySaver()
        self.tensors = []
        self.addCleanup(self.give_back)

    def give_back(self):
        self.session.wake_up()
        self.tensors.clear()
        gc.collect()  # exceptions keep the frames that they passed
        torch.cuda.empty_cache()

    def free_bytes(self):
        return self.session.usage().device_free_bytes

    def tensor(self, size, fill=None):
        tensor = torch.empty_bytes(size)
        self.tensors.append(tensor)
        if fill is not None:
            self.session.write(tensor.data_ptr(), fill * size)
        return tensor

    def bytes_of(self, tensor, size):
        return self.session.read(tensor.data_ptr(), size)

    def tag_of(self, tensor):
        return self.session.segment(tensor.data_ptr()).tag

    # ---- Regions

    def test_pause_and_resume(self):
        with self.saver.region("weights", enable_cpu_backup=True):
            weights = self.tensor(30 * MIB - 7, b"w")
        with self.saver.region("kv_cache"):
            cache = self.tensor(30 * MIB, b"k")
        free = self.free_bytes()
        self.saver.pause()
        self.assertEqual(self.free_bytes(), free + 60 * MIB)
        self.saver.pause()  # what sleeps already stays as it is
        self.saver.resume()
        self.saver.resume()
        self.assertEqual(self.free_bytes(), free)
        self.assertEqual(self.bytes_of(weights, 30 * MIB - 7), b"w" * (30 * MIB - 7))
        self.assertEqual(self.bytes_of(cache, 30 * MIB), bytes(30 * MIB))

    def test_one_tag_at_a_time(self):
        with self.saver.region(tag="weights", enable_cpu_backup=True):
            weights = self.tensor(MIB, b"w")
        with self.saver.region(tag="kv_cache"):
            self.tensor(MIB, b"k")
        self.saver.pause("kv_cache")
        self.assertEqual(self.bytes_of(weights, 1), b"w")
        self.saver.pause("weights")
        self.saver.resume("weights")
        self.assertEqual(self.bytes_of(weights, 1), b"w")
        self.assertEqual(self.session.usage().tags["kv_cache"].discarded_bytes, 2 * MIB)
        self.saver.pause("nobody's")
        self.saver.resume("nobody's")
        self.saver.resume("kv_cache")

    def test_both_kinds_under_the_default_tag(self):
        with self.saver.region(enable_cpu_backup=True):
            kept = self.tensor(MIB, b"k")
        with self.saver.region(enable_cpu_backup=False):
            dropped = self.tensor(MIB, b"d")
        self.assertEqual(self.tag_of(kept), "default")
        self.assertEqual(self.tag_of(dropped), "default.scratch")
        with self.saver.region():
            self.assertEqual(self.tag_of(self.tensor(MIB)), "default.scratch")
        self.saver.pause()
        self.saver.resume()
        self.assertEqual(self.bytes_of(kept, 2), b"kk")
        self.assertEqual(self.bytes_of(dropped, 2), bytes(2))

    def test_the_kind_that_comes_first_has_the_name(self):
        with self.saver.region("kv_cache"):
            self.assertEqual(self.tag_of(self.tensor(MIB)), "kv_cache")
        with self.saver.region("kv_cache", enable_cpu_backup=True):
            self.assertEqual(self.tag_of(self.tensor(MIB)), "kv_cache.backup")

    def test_a_tag_that_was_refused_is_forgotten(self):
        with self.saver.region("outer"):
            for tag in ("w" * 64, "bad tag", "n\0l"):
                with self.assertRaises(torpor.errors.InvalidArgument):
                    with self.saver.region(tag):
                        self.fail("it has no such tag")
            kept = self.tensor(MIB)
        self.assertEqual(self.tag_of(kept), "outer")
        self.saver.pause()
        self.saver.pause("bad tag")
        self.saver.resume()

    def test_regions_nest(self):
        with self.saver.region("outer", enable_cpu_backup=True):
            first = self.tensor(MIB)
            with self.saver.region("inner"):
                second = self.tensor(MIB)
            third = self.tensor(MIB)
        self.assertEqual([self.tag_of(t) for t in (first, second, third)],
                         ["outer", "inner", "outer"])

    def test_free_while_paused(self):
        with self.saver.region("weights", enable_cpu_backup=True):
            self.tensor(30 * MIB)
        self.saver.pause()
        self.tensors.clear()
        torch.cuda.empty_cache()
        self.saver.resume()
        self.assertEqual(self.session.usage().tags["weights"].segments, 0)

    def test_disable(self):
        live = len(torch.state.ordinary.live)
        with self.saver.region("weights"):
            with self.saver.disable():
                tensor = torch.empty_bytes(30 * MIB)
                self.assertEqual(len(torch.state.ordinary.live), live + 1)
                del tensor
            self.assertEqual(len(torch.state.ordinary.live), live)
            self.assertEqual(self.tag_of(self.tensor(MIB)), "weights")
        with self.saver.disable():
            pass
        with self.assertRaises(NotImplementedError):
            with self.saver.disable(dispose_mem_pool_after_use=False):
                self.fail("entered")

    def test_cuda_graph(self):
        graphs = [torch.cuda.CUDAGraph() for _ in range(3)]
        with self.saver.cuda_graph(graphs[0], tag="graphs"):
            own = self.tensor(MIB)
        shared = []
        for graph in graphs[1:]:
            with self.saver.cuda_graph(graph, pool=(7, 0), tag="graphs"):
                shared.append(self.tensor(MIB))
        self.assertEqual({self.tag_of(tensor) for tensor in (own, *shared)}, {"graphs"})
        self.assertEqual(shared[0].data_ptr() + MIB, shared[1].data_ptr())
        self.assertEqual(self.session.usage().tags["graphs"].segments, 2)
        self.saver.pause("graphs")
        self.assertEqual(self.session.usage().tags["graphs"].discarded_bytes, 4 * MIB)
        self.saver.resume("graphs")

    def test_resume_without_room(self):
        with self.saver.region("weights", enable_cpu_backup=True):
            self.tensor(400 * MIB)
        self.saver.pause()
        other = self.session.allocate("other", 400 * MIB)
        with self.assertRaises(torpor.errors.ResourceExhausted) as caught:
            self.saver.resume()
        self.assertEqual(caught.exception.number("requested_bytes"), 400 * MIB)
        self.session.free(other)
        self.saver.resume()

    # ---- The surface

    def test_signatures_are_those_of_the_original(self):
        self.assertEqual(
            {
                name: list(inspect.signature(getattr(compat.TorchMemorySaver, name)).parameters)[1:]
                for name in ("region", "cuda_graph", "disable", "pause", "resume",
                             "get_cpu_backup", "set_disk_backup_dir")
            },
            {
                "region": ["tag", "enable_cpu_backup", "enable_disk_backup",
                           "cpu_backup_backend"],
                "cuda_graph": ["cuda_graph", "pool", "stream", "capture_error_mode", "tag",
                               "enable_cpu_backup", "cpu_backup_backend"],
                "disable": ["dispose_mem_pool_after_use"],
                "pause": ["tag"],
                "resume": ["tag"],
                "get_cpu_backup": ["x", "zero_copy"],
                "set_disk_backup_dir": ["path"],
            },
        )

    def test_what_there_is_not_says_so(self):
        saver = self.saver
        with self.assertRaisesRegex(NotImplementedError, "disk"):
            with saver.region(enable_disk_backup=True):
                self.fail("entered")
        with self.assertRaisesRegex(NotImplementedError, "disk"):
            saver.set_disk_backup_dir("/tmp")
        with self.assertRaisesRegex(NotImplementedError, "mmap"):
            with saver.region(enable_cpu_backup=True, cpu_backup_backend="mmap"):
                self.fail("entered")
        for arguments in ({"cpu_backup_backend": "pinned"},
                          {"enable_cpu_backup": True, "cpu_backup_backend": "tape"}):
            with self.assertRaises(ValueError):
                with saver.region(**arguments):
                    self.fail("entered")
        with saver.region(enable_cpu_backup=True, cpu_backup_backend="pinned"):
            pass
        saver.memory_margin_bytes = 0
        with self.assertRaisesRegex(NotImplementedError, "safety_reserve"):
            saver.memory_margin_bytes = 1 << 30
        with self.assertRaises(NotImplementedError):
            saver.memory_margin_bytes  # pylint: disable=pointless-statement

    def test_properties(self):
        self.assertTrue(self.saver.enabled)
        self.assertIsNone(self.saver._impl)
        for mode in ("preload", "torch"):
            self.saver.hook_mode = mode
            self.assertEqual(self.saver.hook_mode, mode)
        with self.assertRaises(ValueError):
            self.saver.hook_mode = "other"
        self.saver.retain_cpu_backup = True
        self.assertIs(self.saver.retain_cpu_backup, True)

    def test_get_cpu_backup(self):
        with self.saver.region("weights", enable_cpu_backup=True):
            weights = self.tensor(MIB)
        with self.saver.region("kv_cache"):
            cache = self.tensor(MIB)
        ordinary = self.tensor(MIB)
        self.assertIsNone(self.saver.get_cpu_backup(weights))
        self.saver.pause()
        self.assertIsNone(self.saver.get_cpu_backup(cache))
        self.assertIsNone(self.saver.get_cpu_backup(ordinary))
        with self.assertRaisesRegex(NotImplementedError, "daemon"):
            self.saver.get_cpu_backup(weights, zero_copy=True)
        self.saver.resume()

    def test_a_process_that_is_all_region_is_refused(self):
        os.environ["TMS_INIT_ENABLE"] = "1"
        self.addCleanup(os.environ.pop, "TMS_INIT_ENABLE")
        with self.assertRaisesRegex(NotImplementedError, "TMS_INIT_ENABLE"):
            with self.saver.region():
                self.fail("entered")

    def test_install(self):
        self.addCleanup(sys.modules.pop, "torch_memory_saver", None)
        compat.install()
        compat.install()
        module = importlib.import_module("torch_memory_saver")
        self.assertIs(module, compat)
        self.assertIs(module.torch_memory_saver, compat.torch_memory_saver)
        with module.configure_subprocess():
            self.assertNotIn("torch_memory_saver", os.environ.get("LD_PRELOAD", ""))
        sys.modules["torch_memory_saver"] = os
        with self.assertRaises(RuntimeError):
            compat.install()


if __name__ == "__main__":
    main()
