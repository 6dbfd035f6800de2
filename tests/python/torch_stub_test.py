"""torpor.torch over a stand-in for PyTorch and a real daemon on the host driver."""

import copy
import gc
import os
import pickle
import threading
import unittest

import torch_stub

torch = torch_stub.install()

import torpor
import torpor.torch as tt
from fixture import MIB, PROGRAMS, main
from torpor_daemon import Daemon, number


class Model(torch.nn.Module):
    """A module of the kind that is guarded."""

    def __init__(self):
        self.calls = []

    def forward(self, session):
        self.calls.append(session.usage().available_bytes)
        return "out"


class TorchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(
            PROGRAMS, "--driver=host", "--host_device_memory=640MiB", "--host_pool=512MiB",
            "--safety_reserve=0",
        )
        cls.addClassCleanup(cls.stop)
        cls.session = torpor.connect(
            name="w", runtime_dir=cls.daemon.runtime_dir, driver="host",
            quiesce=torpor.Quiesce.GUARD,
        )
        tt.use(cls.session)

    @classmethod
    def stop(cls):
        cls.session.close()
        if cls.daemon.close() != 0:
            raise AssertionError(cls.daemon.log_tail())

    def setUp(self):
        self.state = torch.state
        self.state.settings = ""
        self.state.writes.clear()
        torch.cuda.empty_cache()
        self.assertEqual(self.held(), {})
        self.addCleanup(self.check_end)

    def check_end(self):
        self.session.wake_up()
        gc.collect()  # exceptions keep the frames that they passed
        torch.cuda.empty_cache()
        self.assertEqual(self.state.underway, [])
        self.assertEqual(self.state.destroyed, 0)
        self.assertEqual(tt.segments(), [])

    def tag_of(self, tensor):
        return self.session.segment(tensor.data_ptr()).tag

    def held(self):
        return {tag: usage for tag, usage in self.session.usage().tags.items() if usage.segments}

    def resident(self, tag):
        usage = self.session.usage().tags.get(tag)
        return 0 if usage is None else usage.resident_bytes

    # ---- Sessions

    def test_use_finds_the_one_in_use(self):
        self.assertIs(tt.use(), self.session)
        self.assertIs(tt.use(self.session), self.session)
        self.assertIs(tt.session_of(0), self.session)
        self.assertIsNone(tt.session_of(1))

    def test_other_allocators_of_pytorch_are_refused(self):
        self.state.backend = "cudaMallocAsync"
        self.addCleanup(setattr, self.state, "backend", "native")
        with self.assertRaises(torpor.errors.FailedPrecondition) as caught:
            tt.use()
        self.assertEqual(caught.exception.reason, "PYTORCH_ALLOCATOR")
        self.assertEqual(caught.exception.details["backend"], "cudaMallocAsync")
        self.state.backend = "native"
        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        self.addCleanup(os.environ.pop, "PYTORCH_NO_CUDA_MEMORY_CACHING")
        with self.assertRaises(torpor.errors.FailedPrecondition):
            with tt.memory_pool("weights"):
                pass

    # ---- Scopes

    def test_allocations_inside_get_the_tag(self):
        before = torch.empty_bytes(MIB)
        with tt.memory_pool("weights") as pool:
            inside = torch.empty_bytes(30 * MIB)
            self.assertEqual(tt.pools("weights"), [pool])
        after = torch.empty_bytes(MIB)
        self.assertEqual(self.tag_of(inside), "weights")
        self.assertEqual(self.resident("weights"), 30 * MIB)
        for tensor in (before, after):
            with self.assertRaises(torpor.errors.NotFound):
                self.tag_of(tensor)
        (segment,) = tt.segments("weights")
        self.assertEqual(
            segment, tt.Segment("weights", 0, inside.data_ptr(), 30 * MIB, 30 * MIB)
        )
        self.assertEqual(tt.segments("other"), [])

    def test_scopes_nest(self):
        with tt.memory_pool("outer"):
            first = torch.empty_bytes(MIB)
            with tt.memory_pool("inner"):
                second = torch.empty_bytes(MIB)
                with tt.memory_pool("outer"):
                    third = torch.empty_bytes(MIB)
            fourth = torch.empty_bytes(30 * MIB)
        tags = [self.tag_of(tensor) for tensor in (first, second, third, fourth)]
        self.assertEqual(tags, ["outer", "inner", "outer", "outer"])

    def test_a_tag_is_entered_again_while_it_sleeps(self):
        with tt.memory_pool("weights"):
            one = torch.empty_bytes(30 * MIB)
        self.session.sleep(1, "weights")
        with tt.memory_pool("weights"):
            two = torch.empty_bytes(30 * MIB)
        self.assertEqual(self.resident("weights"), 30 * MIB)
        self.session.wake_up()
        self.assertEqual(self.resident("weights"), 60 * MIB)
        self.assertEqual(len(tt.pools("weights")), 2)
        del one, two

    def test_a_scope_is_of_its_thread(self):
        others = []
        with tt.memory_pool("weights"):
            thread = threading.Thread(target=lambda: others.append(torch.empty_bytes(MIB)))
            thread.start()
            thread.join()
        with self.assertRaises(torpor.errors.NotFound):
            self.tag_of(others[0])

    def test_threads_have_scopes_of_their_own(self):
        barrier = threading.Barrier(2)
        tensors = {}

        def allocate(tag):
            with tt.memory_pool(tag):
                barrier.wait(10)
                tensors[tag] = torch.empty_bytes(MIB)
                barrier.wait(10)

        threads = [threading.Thread(target=allocate, args=(tag,)) for tag in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        self.assertEqual(self.tag_of(tensors["one"]), "one")
        self.assertEqual(self.tag_of(tensors["two"]), "two")

    def test_a_bad_tag_is_refused(self):
        for tag in ("", "a b", "x" * 64):
            with self.assertRaises(torpor.errors.InvalidArgument) as caught:
                with tt.memory_pool(tag):
                    self.fail("entered")
            self.assertEqual(caught.exception.reason, "BAD_TAG")
        with tt.memory_pool("weights"):
            tensor = torch.empty_bytes(MIB)
        self.assertEqual(self.tag_of(tensor), "weights")

    def test_an_exception_leaves_the_scope(self):
        with self.assertRaises(KeyError):
            with tt.memory_pool("weights"):
                raise KeyError("x")
        self.assertEqual(self.state.underway, [])
        with self.assertRaises(torpor.errors.NotFound):
            self.tag_of(torch.empty_bytes(MIB))

    # ---- Giving memory back

    def test_empty_segments_go_back_at_the_end(self):
        with tt.memory_pool("weights"):
            scratch = torch.empty_bytes(40 * MIB)
            kept = torch.empty_bytes(30 * MIB)
            del scratch
            self.assertEqual(self.resident("weights"), 70 * MIB)
        self.assertEqual(self.resident("weights"), 30 * MIB)
        self.assertEqual(self.tag_of(kept), "weights")

    def test_later_ones_with_empty_cache(self):
        with tt.memory_pool("weights"):
            tensor = torch.empty_bytes(30 * MIB)
        self.session.sleep(1)
        del tensor
        torch.cuda.empty_cache()
        self.assertEqual(self.held(), {})
        self.assertEqual(tt.pools(), [])

    def test_within_other_scopes_too(self):
        with tt.memory_pool("outer"):
            with tt.memory_pool("inner"):
                torch.empty_bytes(30 * MIB)
            self.assertEqual(self.resident("inner"), 0)

    def test_ordinary_memory_within_a_scope(self):
        live = len(self.state.ordinary.live)
        with tt.memory_pool("weights"):
            with tt.ordinary_memory():
                tensor = torch.empty_bytes(30 * MIB)
                self.assertEqual(len(self.state.ordinary.live), live + 1)
                del tensor
            self.assertEqual(len(self.state.ordinary.live), live)
            inside = torch.empty_bytes(MIB)
        self.assertEqual(self.tag_of(inside), "weights")

    def test_usage_is_reported(self):
        with tt.memory_pool("weights"):
            tensor = torch.empty_bytes(MIB)
        self.assertEqual(tt.report_usage(), (MIB, 2 * MIB))
        del tensor
        (worker,) = self.daemon.ctl("usage")["workers"]
        self.assertIn(str(2 * MIB), str(worker))

    # ---- Out of memory

    def test_out_of_memory_tells_why(self):
        with self.assertRaises(tt.OutOfMemoryError) as caught:
            with tt.memory_pool("weights"):
                torch.empty_bytes(700 * MIB)
        error = caught.exception
        self.assertIsInstance(error, torch.OutOfMemoryError)
        self.assertIsInstance(error.torpor, torpor.errors.ResourceExhausted)
        self.assertEqual(error.torpor.number("requested_bytes"), 700 * MIB)
        self.assertIn(error.reason, str(error))
        self.assertIn("CUDA out of memory", str(error))
        with tt.memory_pool("weights"):
            tensor = torch.empty_bytes(600 * MIB)
        self.assertEqual(self.tag_of(tensor), "weights")

    def test_inside_the_scope_it_is_pytorchs(self):
        with tt.memory_pool("outer"):
            with tt.memory_pool("weights"):
                self.assertIsNone(tt.last_error())
                try:
                    torch.empty_bytes(700 * MIB)
                except torch.OutOfMemoryError as error:
                    self.assertNotIsInstance(error, tt.OutOfMemoryError)
                self.assertEqual(tt.last_error().number("requested_bytes"), 700 * MIB)

    def test_an_inner_scope_tells_it_once(self):
        with self.assertRaises(tt.OutOfMemoryError) as caught:
            with tt.memory_pool("outer"):
                with tt.memory_pool("weights"):
                    torch.empty_bytes(700 * MIB)
        self.assertEqual(str(caught.exception).count("CUDA out of memory"), 1)

    def test_pytorchs_own_is_left_alone(self):
        with self.assertRaises(torch.OutOfMemoryError) as caught:
            with tt.memory_pool("weights"):
                raise torch.OutOfMemoryError("of another device")
        self.assertEqual(str(caught.exception), "of another device")

    # ---- Expandable segments

    def test_expandable_segments_are_off_inside(self):
        self.state.settings = "max_split_size_mb:512,expandable_segments:True"
        with tt.memory_pool("weights"):
            self.assertEqual(
                self.state.settings, "max_split_size_mb:512,expandable_segments:False"
            )
            with tt.memory_pool("kv_cache"):
                tensor = torch.empty_bytes(MIB)
            self.assertFalse(self.state.expandable)
        self.assertEqual(self.state.settings, "max_split_size_mb:512,expandable_segments:True")
        self.assertEqual(len(self.state.writes), 2)
        del tensor

    def test_settings_that_fit_are_not_touched(self):
        self.state.settings = "max_split_size_mb:512"
        with tt.memory_pool("weights"):
            pass
        self.assertEqual(self.state.writes, [])

    def test_the_last_of_several_threads_restores_them(self):
        self.state.settings = "expandable_segments:True"
        inside, leave = threading.Event(), threading.Event()

        def other():
            with tt.memory_pool("other"):
                inside.set()
                leave.wait(10)

        thread = threading.Thread(target=other)
        with tt.memory_pool("weights"):
            thread.start()
            self.assertTrue(inside.wait(10))
        self.assertFalse(self.state.expandable)
        leave.set()
        thread.join(10)
        self.assertTrue(self.state.expandable)

    def test_they_have_to_be_off(self):
        self.state.settings = "expandable_segments:True"
        setter = torch._C._accelerator_setAllocatorSettings
        self.addCleanup(setattr, torch._C, "_accelerator_setAllocatorSettings", setter)

        def refuse(_):
            raise RuntimeError("cannot be changed")

        for setter in (refuse, lambda _: None):
            torch._C._accelerator_setAllocatorSettings = setter
            with self.assertRaises(torpor.errors.FailedPrecondition) as caught:
                with tt.memory_pool("weights"):
                    self.fail("entered")
            self.assertEqual(caught.exception.reason, "EXPANDABLE_SEGMENTS")
        with self.assertRaises(torpor.errors.NotFound):
            self.tag_of(torch.empty_bytes(MIB))

    # ---- Graphs

    def test_graph_pool(self):
        graph = torch.cuda.CUDAGraph()
        with tt.graph_pool("graphs") as pool, torch.cuda.graph(graph, pool=pool):
            output = torch.empty_bytes(30 * MIB)
        self.assertEqual(self.tag_of(output), "graphs")
        del output
        torch.cuda.empty_cache()
        self.assertEqual(self.resident("graphs"), 30 * MIB)  # the graph's
        graph.reset()
        torch.cuda.empty_cache()
        self.assertEqual(self.resident("graphs"), 0)

    def test_graphs_share_a_pool(self):
        graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
        outputs = []
        for graph in graphs:
            with tt.graph_pool("graphs", share=(7, 0)) as pool:
                with torch.cuda.graph(graph, pool=pool):
                    outputs.append(torch.empty_bytes(MIB // 2))
        (segment,) = tt.segments("graphs")
        self.assertEqual(segment.allocated, MIB)
        outputs.clear()
        for graph in graphs:
            graph.reset()
        # Kept; for the end of this test given back by hand.
        for pool in tt.pools("graphs"):
            torch._C._cuda_releasePool(0, pool.id)
        tt._shared.clear()
        for entry in tt._pools:
            entry.released = True

    def test_a_scope_within_a_capture_is_kept(self):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            with tt.memory_pool("weights") as pool:
                torch.empty_bytes(30 * MIB)
        torch.cuda.empty_cache()
        self.assertEqual(self.resident("weights"), 30 * MIB)
        graph.reset()
        torch._C._cuda_releasePool(0, pool.id)
        for entry in tt._pools:
            entry.released = True

    # ---- The guard

    def test_guard(self):
        model = Model()
        self.assertIs(tt.guard(model, "weights", timeout=0), model)
        self.assertIsInstance(model, Model)
        self.assertEqual(type(model).__name__, "Model")
        with tt.memory_pool("weights"):
            weights = torch.empty_bytes(MIB)
        with tt.memory_pool("kv_cache"):
            cache = torch.empty_bytes(MIB)
        self.assertEqual(model(self.session), "out")
        self.session.sleep(1, "kv_cache")
        self.assertEqual(model(self.session), "out")
        self.session.sleep(1, "weights")
        with self.assertRaises(torpor.errors.DeadlineExceeded) as caught:
            model(self.session)
        self.assertEqual(caught.exception.reason, "ASLEEP")
        self.assertEqual(len(model.calls), 2)

        tt.guard(model, "kv_cache", timeout=0)  # replaces the former
        self.assertEqual(type(model).__mro__[1], Model)
        self.assertIs(tt.unguard(model), model)
        self.assertIs(type(model), Model)
        self.assertEqual(model(self.session), "out")
        self.assertIs(tt.unguard(model), model)
        del weights, cache

    def test_a_call_waits_for_the_wake(self):
        model = tt.guard(Model())
        with tt.memory_pool("weights"):
            weights = torch.empty_bytes(MIB)
        self.daemon.ctl("sleep", "--worker=w", "--level=1")
        done = threading.Event()
        thread = threading.Thread(target=lambda: (model(self.session), done.set()))
        thread.start()
        self.assertFalse(done.wait(0.3))
        answer = self.daemon.ctl("wake", "--worker=w")
        self.assertEqual(number(answer, "device_bytes"), 2 * MIB)
        thread.join(20)
        self.assertTrue(done.is_set())
        del weights

    def test_an_exception_leaves_the_guard(self):
        class Broken(torch.nn.Module):
            def forward(self):
                raise ValueError("broken")

        with self.assertRaises(ValueError):
            tt.guard(Broken())()
        with tt.memory_pool("weights"):
            weights = torch.empty_bytes(MIB)
        self.session.sleep(1)  # not WORK_GUARD_HELD
        del weights

    def test_copies_are_not_guarded(self):
        model = tt.guard(Model(), timeout=0)
        for other in (copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))):
            self.assertIs(type(other), Model)
        self.assertIsNot(type(model), Model)


if __name__ == "__main__":
    main()
