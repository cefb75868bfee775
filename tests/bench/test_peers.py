#!/usr/bin/env python3
"""Tests of the peer benches' own code: statistics, loop, record; with TAMIS_LIBRARY set, also the C interface."""
import array
import contextlib
import io
import json
import math
import os
import re
import sys
import tempfile
import unittest
import unittest.mock

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "bench"))
import peer_ceilings  # noqa: E402
import peer_record as rec  # noqa: E402
import peers_cpu  # noqa: E402
import tamis_cuda_ctypes  # noqa: E402
import tamis_ctypes as t  # noqa: E402

RECORD_KEYS = ("schema date gpu driver cuda compiler commit clocks power_limit ecc other_processes ceilings "
               "readings").split()
READING_KEYS = ("name case samples median_us p95_us p99_us wall_us bytes flops tb_s tflop_s fraction_of_ceiling "
                "max_error peer").split()


class Statistics(unittest.TestCase):
    def test_nearest_rank_as_in_protocol_cpp(self):
        hundred = list(range(1, 101))
        self.assertEqual([rec.percentile(hundred, s) for s in (0.25, 0.5, 0.95, 0.99)], [25, 50, 95, 99])
        self.assertEqual(rec.percentile([3], 0.99), 3)
        self.assertEqual(rec.percentile(list(range(1, 8)), 0.5), 4)

    def test_reading_has_the_schema(self):
        r = rec.reading("x", "torch", {}, [4, 2, 3, 1], 0, work_bytes=4_000_000, flops=8_000_000)
        self.assertTrue(set(READING_KEYS) <= set(r))
        self.assertEqual((r["median_us"], r["tb_s"], r["tflop_s"], r["wall_us"]), (2, 2.0, 4.0, 2.5))
        self.assertIsNone(r["fraction_of_ceiling"])


class Cuda(unittest.TestCase):
    def test_structs_are_those_of_the_header(self):
        with open(os.path.join(ROOT, "include", "tamis", "tamis_c_step.h"), encoding="utf-8") as f:
            header = f.read()
        for name, struct in (("sizes", tamis_cuda_ctypes.Sizes), ("buffers", tamis_cuda_ctypes.Buffers)):
            body = header.split(f"typedef struct tamis_cuda_{name} {{")[1].split("}")[0]
            fields = re.findall(r"(\w+)(?=[,;])", re.sub(r"/\*.*?\*/", "", body, flags=re.S))
            self.assertEqual([field for field, _ in struct._fields_], fields)


class Loop(unittest.TestCase):
    def test_rounds_are_complete_and_turns_are_used_once(self):
        events = []
        contenders = {name: (lambda turn, name=name: events.append((name, turn))) for name in "abc"}
        times, warmup, note = rec.measure(contenders, warmup=4, samples=20, long_us=math.inf)
        self.assertEqual([len(us) for us in times.values()], [20] * 3)
        self.assertEqual((warmup, note), (4, ""))
        self.assertEqual([turn for _, turn in events], list(range(3 * 24)))
        rounds = ["".join(name for name, _ in events[i:i + 3]) for i in range(0, len(events), 3)]
        self.assertEqual({"".join(sorted(one)) for one in rounds}, {"abc"})
        self.assertGreater(len(set(rounds)), 1)

    def test_long_events_are_fewer_and_say_so(self):
        times, warmup, note = rec.measure({"a": lambda _: None}, samples=1000, long_us=-1, budget_s=0, least=5)
        self.assertEqual((len(times["a"]), warmup), (5, 3))
        self.assertIn("fewer samples", note)


class Ceilings(unittest.TestCase):
    def test_rates_are_medians_over_all_visits(self):
        taken = {"read": iter([[1, 2, 3], [9, 9, 10]]), "gemm_f32": iter([[4, 4, 4], [8, 8, 8]])}
        asked = []

        def measured(calls, **_):
            asked.append(sorted(calls))
            return {name: next(taken[name]) for name in calls}, 0, ""
        ceilings = peer_ceilings.Ceilings(dict.fromkeys(taken), {"read": 9_000_000, "gemm_f32": 16_000_000})
        with unittest.mock.patch.object(rec, "measure", measured):
            ceilings.visit()
            around = ceilings.visit("gemm_f32")["gemm_f32"] + ceilings.us["gemm_f32"][:3]
            ceilings.visit("read")
        self.assertEqual(asked, [["gemm_f32", "read"], ["gemm_f32"], ["read"]])
        self.assertEqual(sorted(around), [4, 4, 4, 8, 8, 8])
        self.assertEqual(ceilings.record(), {"read_tb_s": 9 / 3, "gemm_f32_tflop_s": 16 / 4})
        self.assertEqual(ceilings.time_of(32_000_000, "gemm_f32", [8, 8, 8]), 16)

    def test_fraction_is_the_time_at_the_ceiling_over_the_median(self):
        r = rec.reading("x", "", {}, [10, 20, 30], 0, flops=1, ceiling="gemm_bf16", ceiling_us=5)
        self.assertEqual((r["ceiling"], r["fraction_of_ceiling"]), ("gemm_bf16", 0.25))


class Case(unittest.TestCase):
    """A case whose contenders partly refuse."""

    class Work:
        turns, case, bytes, flops, bound_by_arithmetic = [0, 1], {"head_dim": 2}, 0, 100, True

        def __init__(self, torch, dtype):
            pass

        def contender(self, library, context):
            raise t.Failure("no such function")

        def reference(self, library):
            return [0.0] * 8

    def test_who_refuses_is_named_and_the_others_run(self):
        def broken(turn):
            raise ValueError("not here\nnor there")
        peers = {"good": lambda: lambda turn: turn, "broken": lambda: broken}
        ceilings = peer_ceilings.Ceilings({"gemm_f32": lambda _: None}, {"gemm_f32": 50})
        record = {"readings": [], "skipped": []}
        options = unittest.mock.Mock(samples=2, threads=1)
        with unittest.mock.patch.object(peers_cpu, "largest_error", lambda torch, got, want: 0.5):
            peers_cpu.measure_case(None, None, None, ceilings, "cpu.x.f32", (self.Work, "f32", lambda *_: peers),
                                   options, record)
        self.assertEqual([(s["peer"], s["why"]) for s in record["skipped"]],
                         [("", "Failure: no such function"), ("broken", "ValueError: not here")])
        (reading,) = record["readings"]
        self.assertEqual((reading["peer"], reading["ceiling"], reading["max_error"], reading["checked_rows"]),
                         ("good", "gemm_f32", 0.5, 4))
        self.assertEqual(len(ceilings.us["gemm_f32"]), 2 * peer_ceilings.SAMPLES, "before and after")
        with contextlib.redirect_stdout(io.StringIO()) as table:
            peers_cpu.print_table(record)
        self.assertIn("tamis: Failure: no such function", table.getvalue())


try:
    import torch
except ImportError:
    torch = None


@unittest.skipUnless(torch, "torch is not installed")
class Backward(unittest.TestCase):
    def test_the_peer_computes_the_gradients(self):
        import peer_backward

        class Small(peer_backward.Backward):
            length, block, blocks = 256, 16, 16
        with torch.no_grad():
            for dtype, most in (("f32", 1e-5), ("bf16", 0.1)):
                work = Small(torch, dtype)
                error = peers_cpu.largest_error(torch, peer_backward.gather_bmm(torch, work)(0), work.reference(None))
                self.assertLess(error, most, dtype)


class Record(unittest.TestCase):
    def test_survives_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "r.json")
            rec.write(path, rec.environment(2, {"torch": "absent"}))
            with open(path, encoding="utf-8") as f:
                back = json.load(f)
        self.assertTrue(set(RECORD_KEYS) <= set(back))
        self.assertIn("load_average_after", back["other_processes"])
        self.assertEqual(back["peers"], {"torch": "absent"})


@unittest.skipUnless(os.environ.get("TAMIS_LIBRARY"), "TAMIS_LIBRARY names no libtamis.so")
class Library(unittest.TestCase):
    def setUp(self):
        self.library = t.Library(os.environ["TAMIS_LIBRARY"])
        self.arrays = []

    def tensor(self, code, dtype, values, shape):
        self.arrays.append(array.array(code, values))
        return t.Tensor(self.arrays[-1].buffer_info()[0], dtype, shape)

    def problem(self, entries):
        """One query of two heads on a KV head of 32 tokens in two pages, one list of pages."""
        p, noise = self.library.filled(t.Problem), [math.sin(i) for i in range(32 * 8)]
        tensors = {
            "q": self.tensor("f", t.F32, noise[:16], [1, 2, 8]), "cu_q": self.tensor("i", t.I32, [0, 1], [2]),
            "k": self.tensor("f", t.F32, noise, [2, 16, 1, 8]), "v": self.tensor("f", t.F32, noise[::-1], [2, 16, 1, 8]),
            "kv_len": self.tensor("i", t.I32, [32], [1]), "page_table": self.tensor("i", t.I32, [1, 0], [1, 2]),
            "indptr": self.tensor("i", t.I32, [0, len(entries)], [2]),
            "indices": self.tensor("i", t.I32, entries, [len(entries)])}
        for name, x in tensors.items():
            group = p.query if name in ("q", "cu_q") else p.candidates if name in ("indptr", "indices") else p.cache
            setattr(group, name, t.c.pointer(x))
        p.candidates.form, p.candidates.unit = t.FORM_CSR, 16
        return p, tensors

    def test_runs_as_the_reference_says(self):
        out = array.array("f", [math.nan] * 16)
        view = t.Tensor(out.buffer_info()[0], t.F32, [1, 2, 8])
        for path in (t.PATH_DIRECT, t.PATH_DENSE):
            p, keep = self.problem([1])
            planned = t.Planned(self.library, p, view, path, keep)
            planned.run(self.library.context(2))
            for got, want in zip(out, planned.reference()):
                self.assertAlmostEqual(got, want, places=5)

    def test_refusals_have_words(self):
        p, keep = self.problem([7])
        view = t.Tensor(array.array("f", [0] * 16).buffer_info()[0], t.F32, [1, 2, 8])
        with self.assertRaisesRegex(t.Failure, "index_out_of_range"):
            t.Planned(self.library, p, view, t.PATH_DIRECT, keep)


class Command(unittest.TestCase):
    @unittest.skipUnless(os.environ.get("TAMIS_LIBRARY"), "TAMIS_LIBRARY names no libtamis.so")
    def test_absent_torch_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            path, saved = os.path.join(folder, "r.json"), sys.modules.get("torch")
            sys.modules["torch"] = None  # an import of it fails
            arguments, sys.argv = sys.argv, ["peers_cpu.py", "--library", os.environ["TAMIS_LIBRARY"], "--out", path]
            try:
                with contextlib.redirect_stderr(io.StringIO()):
                    self.assertEqual(peers_cpu.main(), 0)
            finally:
                sys.argv = arguments
                if saved is None:
                    del sys.modules["torch"]
                else:
                    sys.modules["torch"] = saved
            with open(path, encoding="utf-8") as f:
                record = json.load(f)
        self.assertTrue(record["peers"]["torch"].startswith("absent"))
        self.assertEqual(record["readings"], [])


if __name__ == "__main__":
    unittest.main()
