"""bench/peers.py without a device: table and picture of a record, who is absent, how samples fit a budget, errors."""
import collections
import contextlib
import io
import json
import os
import random
import sys
import tempfile
import types
import unittest
from unittest import mock
from xml.etree import ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
import peer_contenders  # noqa: E402
import peer_decode  # noqa: E402
import peer_device as dev  # noqa: E402
import peer_plot  # noqa: E402
import peer_prefill  # noqa: E402
import peer_record as rec  # noqa: E402
import peers  # noqa: E402


def small_record():
    def one(name, peer, us, **others):
        return rec.reading(name, peer, {}, [us] * 3, 1, work_bytes=1000000, **others)
    return {"gpu": "a <device> & more", "date": "2026-01-01", "peers": {"flashinfer": "absent: no module"},
            "readings": [one("b1.attend", "", 10.0, max_error=1e-3),
                         one("b1.attend", "other & co", 25.0, max_error=2e-3),
                         one("b1.prepare", "other & co", 900.0, note="launches, not a graph")],
            "skipped": [{"name": "b1.dense", "peer": "", "why": "no such kernel"}]}


class Table(unittest.TestCase):
    def test_rows_ratios_and_who_is_missing(self):
        lines = peers.table(small_record())
        self.assertIn("tamis", lines[0])
        self.assertIn("1.00 x", lines[0])
        self.assertIn("2.50 x", lines[1])
        self.assertNotIn(" x ", lines[2])  # nobody to compare with
        self.assertIn("launches, not a graph", lines[2])
        self.assertIn("skipped: b1.dense tamis: no such kernel", lines)
        self.assertEqual(lines[-1], "flashinfer: absent: no module")


class Plot(unittest.TestCase):
    SVG = "{http://www.w3.org/2000/svg}"

    def test_a_bar_for_each_reading_on_a_log_axis(self):
        tree = ElementTree.fromstring(peer_plot.plot(small_record()))
        bars = [x for x in tree.iter(self.SVG + "rect") if x.find(self.SVG + "title") is not None]
        widths = [float(x.get("width")) for x in bars]
        self.assertEqual(len(bars), 3)
        self.assertEqual([x.get("fill") for x in bars], [peer_plot.MINE, peer_plot.THEIRS, peer_plot.THEIRS])
        decade = peer_plot.PLOT / 2  # from 10 to 1000
        self.assertAlmostEqual(widths[1] - 0, decade * 0.39794, delta=0.1)
        self.assertAlmostEqual(widths[2], decade * 1.95424, delta=0.1)
        words = [x.text for x in tree.iter(self.SVG + "text")]
        for word in ("b1.attend", "other & co", "25.0", "1000", "a <device> & more · 2026-01-01"):
            self.assertIn(word, words)

    def test_axis_has_width_for_equal_values(self):
        self.assertEqual(peer_plot.axis([10.0]), (1, 2))
        self.assertEqual(peer_plot.axis([3, 4000]), (0, 4))

    def test_from_a_file_without_a_device(self):
        with tempfile.TemporaryDirectory() as folder:
            record, picture = (os.path.join(folder, name) for name in ("r.json", "p.svg"))
            with open(record, "w", encoding="utf-8") as f:
                json.dump(small_record(), f)
            self.assertEqual(peers.main(["--plot-only", record, "--plot", picture]), 0)
            self.assertTrue(os.path.getsize(picture))


class Absent(unittest.TestCase):
    def test_absent_and_present_are_told_apart(self):
        found = peer_contenders.others({
            "gone": ("no_such_module_here", "x", "reason"), "inside": ("no_such_package.part", "x", ""),
            "here": ("json", "no-such-distribution", "not this work"), "measured": ("json", "none-such", "")})
        self.assertEqual(found, {
            "gone": "absent: No module named 'no_such_module_here'",
            "inside": "absent: No module named 'no_such_package'",
            "here": "version unknown, not measured: not this work", "measured": "version unknown"})

    def test_everybody_promised_is_looked_for(self):
        names = " ".join(peer_contenders.others())
        for name in ("flashinfer", "cudnn", "flash-attention 4", "mdy666", "XunhaoLai", "fla "):
            self.assertIn(name, names)


class Refusal(unittest.TestCase):
    def test_who_raises_is_on_record_and_the_others_are_set_up(self):
        def broken(work):
            raise RuntimeError("no kernel\nat all")
        listed = [("attend", "bad", broken), ("attend", "good", lambda work: peer_contenders.Made(lambda turn: None))]
        record, budget = {"skipped": []}, dev.Budget(None)
        work, torch = mock.Mock(turns=1, b=1, nodes=lambda: 1), mock.MagicMock()
        torch.cuda.CUDAGraph.side_effect = RuntimeError("no capture")
        ready = peers.set_up(torch, work, "x", listed, record, budget)
        self.assertEqual(record["skipped"], [{"name": "x.attend", "peer": "bad", "why": "RuntimeError: no kernel"}])
        self.assertEqual(list(ready), [("x.attend", "good")])
        self.assertIn("launches, not a graph: RuntimeError: no capture", ready["x.attend", "good"][1].note)
        torch.cuda.set_stream.assert_called_with(torch.cuda.current_stream())
        spent = dev.Budget(1, clock=iter([0, 5, 5]).__next__)
        self.assertEqual(peers.set_up(torch, work, "x", listed, record, spent), {})
        self.assertIn("budget", record["skipped"][-1]["why"])


class Samples(unittest.TestCase):
    def test_all_when_there_is_time(self):
        self.assertEqual(dev.allot(1000, 0.01), (100, 1000, ""))
        self.assertEqual(dev.allot(1000, 0.01, seconds=11.5), (100, 1000, ""))

    def test_a_budget_lowers_warm_up_and_samples(self):
        warmup, samples, note = dev.allot(1000, 0.01, seconds=5.5)
        self.assertEqual((warmup, samples), (50, 500))
        self.assertIn("budget", note)
        self.assertEqual(dev.allot(1000, 1.0, seconds=0)[:2], (3, dev.LEAST))
        self.assertEqual(dev.allot(3, 1.0, seconds=0)[:2], (3, 3))

    def test_long_events(self):
        warmup, samples, note = dev.allot(1000, 0.1, longest_us=100000)
        self.assertEqual((warmup, samples), (20, 200))
        self.assertIn("100.0 ms", note)
        self.assertEqual(dev.allot(1000, 9.0, longest_us=9e6)[:2], (3, 30))

    def test_shares_leave_room_for_the_set_up_of_others(self):
        times = iter([0.0, 20.0, 50.0, 70.0])
        budget = dev.Budget(60, clock=times.__next__)
        self.assertEqual(budget.share(2, 5), (40 - 10) / 3)
        self.assertEqual(budget.share(1, 20), 0)
        self.assertTrue(budget.spent())
        self.assertIsNone(dev.Budget().share(2, 5))
        self.assertFalse(dev.Budget().spent())


class Loop(unittest.TestCase):
    """Events of the host need no device: each is called once a round, whatever the order."""

    def measured(self, samples, seconds=None, round_s=0.0):
        clock, calls = [0.0], []

        def event(key):
            def run():
                calls.append(key)
                clock[0] += round_s / 2
            return mock.Mock(host=True, nodes=2, run=run)
        found, warmup, note = dev.measure(mock.Mock(), {key: event(key) for key in "ab"}, samples, seconds,
                                          clock=lambda: clock[0])
        return found, warmup, note, calls

    def test_rounds_are_complete(self):
        found, warmup, note, calls = self.measured(120)
        self.assertEqual(([len(us) for us, _ in found.values()], warmup, note), ([120, 120], 100, ""))
        rounds = ["".join(calls[i:i + 2]) for i in range(0, len(calls), 2)]
        self.assertEqual((len(rounds), set(rounds)), (220, {"ab", "ba"}))

    def test_a_budget_is_kept_evenly(self):
        found, warmup, note, calls = self.measured(1000, seconds=10, round_s=0.5)
        counts = [len(us) for us, _ in found.values()]
        self.assertEqual(counts[0], counts[1])
        self.assertTrue(dev.LEAST <= counts[0] < 20)
        self.assertLessEqual(len(calls) / 2 * 0.5, 10.5)
        self.assertIn("budget", note)


class Lists(unittest.TestCase):
    def test_list_and_window_are_264_pages(self):
        sizes = peer_decode.Sizes()
        pages = peer_decode.some_pages(random.Random(3), sizes)
        window = range(sizes.pages - sizes.window_pages, sizes.pages)
        self.assertEqual((len(set(pages)), len({*pages, *window}), sizes.selected), (256, 264, 264))


class Prefill(unittest.TestCase):
    def test_names_and_contenders(self):
        listed = [(name, peer) for name, peer, _ in peer_prefill.contenders()]
        self.assertEqual(len(listed), len(set(listed)))
        for name in ("dense.L16k", *(f"block{b}.L32k.d{d}" for b in (16, 64, 128) for d in (6, 25)),
                     "block16.L32k.d6.paged", "block16.L32k.d25.paged"):
            self.assertIn((name, ""), listed)
        for peer in ("torch sdpa cudnn enable_gqa", "torch sdpa cudnn expanded", "torch sdpa flash enable_gqa"):
            self.assertIn(("dense.L16k", peer), listed)
        self.assertIn(("block128.L32k.d25", "torch flex_attention"), listed)
        for peer in ("flash-attention 4", "cudnn block-sparse attention", "flashinfer"):
            self.assertIn(("block64.L32k.d6", peer), listed)
            self.assertNotIn(("block16.L32k.d6", peer), listed)

    def test_shares_and_counts(self):
        kind = peer_prefill.KINDS["block64.L32k.d25"]
        self.assertEqual((kind.listed, kind.tokens, kind.query_block), (128, 8192, 64))
        work = mock.Mock(kinds=peer_prefill.KINDS)
        size, flops = peer_prefill.Prefill.counted(work, "block64.L32k.d25")
        self.assertEqual((size, flops), (512 * 8 * 8192 * 512, 4 * 128 * 32 * 32768 * 8192))
        self.assertEqual(peer_prefill.Prefill.counted(work, "dense.L16k")[1], 4 * 128 * 32 * 16384 ** 2)
        case = peer_prefill.Prefill.case(work, "block16.L32k.d6.paged")
        self.assertEqual((case["block"], case["query_block"], case["density"], case["page_size"], case["layout"]),
                         (16, 128, 0.0625, 16, "nhd"))

    def test_ratios_are_to_the_fastest_cudnn_of_the_loop(self):
        def one(name, peer, rate):
            return {"name": f"prefill.{name}", "peer": peer, "tflop_s": rate}
        found = [one("dense.L16k", "torch sdpa cudnn enable_gqa", 500.0), one("dense.L16k", "torch sdpa cudnn expanded", 600.0),
                 one("dense.L16k", "torch sdpa flash expanded", 900.0), one("block128.L32k.d6", "", 660.0)]
        peer_prefill.Prefill.finish(None, found)
        self.assertAlmostEqual(found[3]["ratio_to_cudnn_dense"], 1.1)
        peer_prefill.Prefill.finish(None, found[3:])
        self.assertIsNone(found[3]["ratio_to_cudnn_dense"])

    def test_the_table_shows_rates_and_ratios(self):
        one = rec.reading("prefill.block128.L32k.d6", "", {}, [1000.0] * 3, 1, work_bytes=1, flops=700 * 10 ** 9)
        one["ratio_to_cudnn_dense"] = 1.125
        lines = peers.table({"readings": [one], "skipped": [], "peers": {}})
        self.assertIn("700 TFLOP/s", lines[0])
        self.assertIn("1.12 c", lines[0])


try:
    import torch
except ImportError:
    torch = None


@unittest.skipUnless(torch, "torch is not installed")
class PrefillWork(unittest.TestCase):
    """On the CPU, at a small size: what contenders compute is what the reference says."""

    def work(self):
        kinds = {"dense.L16k": peer_prefill.Kind(512),
                 "block128.L32k.d25": peer_prefill.Kind(1024, 128, 128, 4),
                 "block16.L32k.d6": peer_prefill.Kind(1024, 16, 128, 1),
                 "block16.L32k.d6.paged": peer_prefill.Kind(1024, 16, 128, 1, 16)}
        return peer_prefill.Prefill(torch, None, kinds, "cpu")

    def test_lists(self):
        work = self.work()
        for name, lists in work.lists.items():
            kind = work.kinds[name]
            self.assertEqual(tuple(lists.shape), (kind.length // kind.query_block, 8, kind.listed))
            for row in lists.view(-1, kind.listed):
                self.assertEqual(len(set(row.tolist())), kind.listed)
                self.assertLess(int(row.max()), kind.length // kind.block)
        self.assertTrue(torch.equal(work.lists["block16.L32k.d6"], work.lists["block16.L32k.d6.paged"]))

    def test_masks_and_references(self):
        work = self.work()
        for name, kind in work.kinds.items():
            keep = torch.ones(32, kind.length, kind.length, dtype=torch.bool)
            if kind.block:
                rows, columns = (torch.arange(kind.length) // size for size in (kind.query_block, kind.block))
                listed = torch.zeros(len(work.lists[name]), 8, kind.length // kind.block, dtype=torch.bool)
                listed.scatter_(2, work.lists[name].long(), True)
                keep = listed.repeat_interleave(4, 1).transpose(0, 1)[:, rows][:, :, columns]
                mask = peer_prefill.block_mask(torch, work.lists[name], kind)
                self.assertEqual(int(mask.full_kv_num_blocks.sum()), 32 * len(work.lists[name]) * kind.listed)
                self.assertEqual(int(mask.kv_num_blocks.sum()), 0)
            k, v = (x[kind.length].repeat_interleave(4, 0).double() for x in (work.k, work.v))
            q = work.q[kind.length].transpose(0, 1).double()
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep).transpose(0, 1)
            self.assertLess(float((work.results(out, name) - work.reference(0, name)).abs().max()), 1e-9)

    def test_dense_contender(self):
        work = self.work()
        for expand in (False, True):
            with mock.patch("torch.nn.attention.sdpa_kernel", lambda backend: contextlib.nullcontext()):
                made = peer_prefill.sdpa(work, "dense.L16k", "MATH", expand)
                made.call(0)
            error = (work.results(made.outs[0], "dense.L16k") - work.reference(0, "dense.L16k")).abs().max()
            self.assertLess(float(error), 0.02)

    def check(self, make, modules):
        """With packages of their signatures, which compute the plain way."""
        work, name = self.work(), "block128.L32k.d25"
        with mock.patch.dict(sys.modules, modules):
            made = make(work, name)
            made.call(0)
        self.assertLess(float((work.results(made.outs[0], name) - work.reference(0, name)).abs().max()), 0.02)

    @staticmethod
    def plain(q, k, v, rows, columns, blocks):
        """Heads first; blocks: [query or KV heads, rows, listed]."""
        listed = torch.zeros(*blocks.shape[:2], k.shape[1] // columns, dtype=torch.bool)
        listed.scatter_(2, blocks.long(), True)
        listed = listed.repeat_interleave(len(q) // len(listed), 0)
        keep = listed.repeat_interleave(rows, 1).repeat_interleave(columns, 2)
        k, v = (x.repeat_interleave(len(q) // len(x), 0) for x in (k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)

    def test_flash_attention_4(self):
        tensors = collections.namedtuple("BlockSparseTensorsTorch", "mask_block_cnt mask_block_idx full_block_cnt "
                                         "full_block_idx block_size")

        def flash_attn_func(q, k, v, *, pack_gqa, block_sparse_tensors):
            s = block_sparse_tensors
            self.assertEqual((int(s.mask_block_cnt.sum()), pack_gqa), (0, False))
            self.assertEqual(s.full_block_idx.shape[3], k.shape[1] // 128)
            counts = set(s.full_block_cnt.flatten().tolist())
            self.assertEqual(len(counts), 1)
            out = self.plain(*(x[0].transpose(0, 1) for x in (q, k, v)), *s.block_size, s.full_block_idx[0, ..., :counts.pop()])
            return out.transpose(0, 1)[None], None
        cute = types.ModuleType("flash_attn.cute")
        cute.flash_attn_func = flash_attn_func
        sparsity = types.ModuleType("flash_attn.cute.block_sparsity")
        sparsity.BlockSparseTensorsTorch = tensors
        self.check(peer_prefill.flash4, {"flash_attn": types.ModuleType("flash_attn"), "flash_attn.cute": cute,
                                         "flash_attn.cute.block_sparsity": sparsity})

    def test_cudnn_block_sparse_attention(self):
        def forward(q, k, v, q2k_block_index, *, sparse_block_size):
            size = sparse_block_size
            self.assertEqual((tuple(q.shape[:2]), tuple(k.shape[:2])), ((1, 32), (1, 8)))
            self.assertEqual(q2k_block_index.dtype, torch.int32)
            return {"o_tensor": self.plain(q[0], k[0], v[0], size, size, q2k_block_index[0])[None]}
        blocks = types.ModuleType("cudnn.block_sparse_attention")
        blocks.block_sparse_attention_forward = forward
        self.check(peer_prefill.cudnn_blocks, {"cudnn": types.ModuleType("cudnn"), "cudnn.block_sparse_attention": blocks})

    def test_flashinfer(self):
        test = self

        class Wrapper:
            def __init__(self, buffer):
                test.assertEqual(buffer.dtype, torch.uint8)

            def plan(self, block_mask_map, block_row_sz, block_col_sz, num_qo_heads, num_kv_heads, head_dim, *, q_data_type):
                test.assertEqual((num_qo_heads, num_kv_heads, head_dim, q_data_type), (32, 8, 128, torch.bfloat16))
                self.keep, self.rows, self.columns = block_mask_map, block_row_sz, block_col_sz

            def run(self, q, k, v):
                keep = self.keep.repeat_interleave(4, 0)
                keep = keep.repeat_interleave(int(self.rows[0, 0]), 1).repeat_interleave(int(self.columns[0, 0]), 2)
                k, v = (x.repeat_interleave(4, 0) for x in (k, v))
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        package = types.ModuleType("flashinfer")
        package.VariableBlockSparseAttentionWrapper = Wrapper
        self.check(peer_prefill.flashinfer_blocks, {"flashinfer": package})


class Errors(unittest.TestCase):
    def complaint(self, *arguments):
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            try:
                code = peers.main(list(arguments))
            except SystemExit as stop:
                code = stop.code
        self.assertTrue(code)
        return errors.getvalue()

    def test_no_library_says_what_is_missing(self):
        with mock.patch.object(rec, "ROOT", "/no/such/folder"), mock.patch("importlib.util.find_spec", lambda _: None):
            self.assertIn("--library", self.complaint())
        self.assertIn("no library of Tamis with its C interface: /no/such/libtamis.so",
                      self.complaint("--library", "/no/such/libtamis.so"))

    def test_no_torch(self):
        with mock.patch.object(peers.t, "Library", lambda path: None), mock.patch.dict(sys.modules, {"torch": None}):
            self.assertIn("torch is absent", self.complaint("--library", "x"))

    def test_no_device(self):
        torch = mock.Mock()
        torch.cuda.is_available.return_value = False
        with mock.patch.object(peers.t, "Library", lambda path: None), mock.patch.dict(sys.modules, {"torch": torch}):
            self.assertIn("no CUDA device", self.complaint("--library", "x"))

    def test_arguments(self):
        self.assertIn("--plot", self.complaint("--plot-only", "r.json"))
        self.assertIn("more than 0", self.complaint("--budget", "0"))

    def test_records_that_are_none(self):
        with tempfile.TemporaryDirectory() as folder:
            path, picture = os.path.join(folder, "r.json"), os.path.join(folder, "p.svg")
            for text, word in (("{", "not JSON"), ("{}", "no record"), ('{"readings": []}', "nothing to plot")):
                with open(path, "w", encoding="utf-8") as f:
                    f.write(text)
                self.assertIn(word, self.complaint("--plot-only", path, "--plot", picture))
                self.assertFalse(os.path.exists(picture))


if __name__ == "__main__":
    unittest.main()
