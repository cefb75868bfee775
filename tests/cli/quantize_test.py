#!/usr/bin/env python3
"""tamis quantize, and tamis run --original. The binary is named by TAMIS_BINARY."""
import math
import unittest

import case_files
from cli_test import CliTest, tamis


class Quantize(CliTest):
    # V[t] = t: 7 is the largest value of the committed tokens; NaN lies in the slots of nobody.
    def quantized(self, *arguments, case=None):
        out = self.folder / "quantized.safetensors"
        report = self.good_json("quantize", case or self.case, "--out", out, *arguments)
        return out, report

    def test_v_as_int8(self):
        out, report = self.quantized("--v", "int8")
        tensors, options = case_files.read(out), case_files.metadata(out)
        self.assertEqual(options["v_format"], "int8")
        self.assertEqual(options["v_scale_kind"], "tensor")
        self.assertNotIn("k_format", options)
        shape, codes = tensors["v"]
        self.assertEqual(shape, [3, 4, 1, 2])
        for t in range(8):
            slot = (2, 0)[t // 4] * 4 + t % 4
            self.assertEqual(codes[2 * slot:2 * slot + 2], [round(t * 127 / 7)] * 2, t)
        self.assertEqual(codes[8:16], [0] * 8, "a page of nobody")
        self.assertEqual(tensors["v_scale"][0], [])
        self.assertAlmostEqual(tensors["v_scale"][1][0], 7 / 127, places=7)
        v = report["v"]
        self.assertEqual((v["format"], v["scale_kind"]), ("int8", "tensor"))
        self.assertEqual((v["bytes_before"], v["bytes_after"], v["scale_bytes"]), (96, 24 + 4, 4))
        self.assertEqual(v["saturated"], 0)
        worst = max(abs(round(t * 127 / 7) * 7 / 127 - t) for t in range(8))
        self.assertAlmostEqual(v["error"]["max_abs"], worst, places=6)
        # Rows {3} and {1, 7} of V[t] = t.
        exact = [round(3 * 127 / 7) * 7 / 127, (round(127 / 7) * 7 / 127 + 7) / 2]
        self.assertAlmostEqual(report["output"]["max_abs"], max(abs(exact[0] - 3), abs(exact[1] - 4)), places=6)
        self.assertNotIn("k", report)

    def test_every_format_and_kind(self):
        dtype_bytes = {"int8": 24, "fp8_e4m3": 24, "fp8_e5m2": 24, "int4": 12}
        scales = {"tensor": 1, "head": 1, "page": 3, "channel": 2, "page_channel": 6, "token": 12}
        for name, codes in dtype_bytes.items():
            for kind, count in scales.items():
                with self.subTest(format=name, kind=kind):
                    out, report = self.quantized("--k", f"{name}:{kind}", "--v", f"{name}:{kind}")
                    for side in ("k", "v"):
                        self.assertEqual(report[side]["bytes_after"], codes + 4 * count)
                        self.assertEqual(report[side]["scale_bytes"], 4 * count)
                        self.assertEqual(case_files.metadata(out)[f"{side}_scale_kind"], kind)
                    self.assertEqual(report["k"]["error"]["max_abs"], 0, "K is 0")
                    self.good("explain", out)

    def test_the_table(self):
        out = self.folder / "q.safetensors"
        text = self.good("quantize", self.case, "--out", out, "--k", "int4:head")
        for word in ("int4", "per head", "saturated", "committed tokens", str(out)):
            self.assertIn(word, text)

    def test_everything_else_is_kept(self):
        tensors, options = case_files.case(note="kept", softcap="3")
        tensors["extra"] = ("F64", [2], [1.5, 2.5])
        path = self.folder / "noted.safetensors"
        case_files.write(path, tensors, options)
        out, _ = self.quantized("--k", "fp8_e5m2:page", case=path)
        before, after = case_files.read(path), case_files.read(out)
        self.assertEqual(after.keys(), before.keys() | {"k_scale"})
        for name in before.keys() - {"k", "v"}:
            self.assertEqual(after[name], before[name], name)
        self.assertEqual(str(after["v"]), str(before["v"]), "NaN and all")
        self.assertEqual(case_files.metadata(out), {**options, "k_format": "fp8_e5m2", "k_scale_kind": "page"})

    def test_a_case_that_cannot_run_is_quantized_all_the_same(self):
        bad = self.write_case("bad", cand_indices=("I32", [5], [3, 3, -1, 1, 8]))
        out, report = self.quantized("--v", "int8", case=bad)
        self.assertIsNone(report["output"])
        self.assertIn("cand_indices", report["output_reason"])
        self.assertTrue(out.exists())

    def test_refusals(self):
        out, target = self.quantized("--v", "int8")[0], self.folder / "never"
        def refused(words, code, error, *arguments):
            self.assertIn(words, self.refused(code, error, "quantize", *arguments, "--out", target)["message"])
            self.assertFalse(target.exists())
        refused("v_format: is int8 already", 3, "invalid_argument", out, "--v", "int4")
        rows = self.write_case("rows", page_table=None, cu_kv=("I32", [2], [0, 8]),
                               k=("F32", [8, 1, 2], [0] * 16), v=("F32", [8, 1, 2], [1] * 16))
        refused("k: a scale per page", 3, "invalid_argument", rows, "--k", "int8:page")
        poisoned = self.write_case("nan", k=("F32", [3, 4, 1, 2], [math.nan] * 24))
        refused("k: nan in slot", 3, "invalid_argument", poisoned, "--k", "int8")
        index = self.write_case("index", q=None, k=None, v=None, q_heads="8", kv_heads="2", head_dim="64",
                                v_head_dim="64", page_size="4", kv_dtype="bf16")
        refused("k: tensor is missing", 3, "invalid_argument", index, "--k", "int8")
        refused("", 5, "io_error", self.folder / "missing", "--k", "int8")
        self.refused(5, "io_error", "quantize", self.case, "--k", "int8", "--out", self.folder)

    def test_wrong_usage_is_exit_2(self):
        for arguments in ((), ("--k", "int8"), ("--out", "x"), ("--out", "x", "--k", "int9"),
                          ("--out", "x", "--k", "int8:row"), ("--out", "x", "--k", ""), ("--out", "x", "--k", ":page"),
                          ("--out", "x", "--v", "int8:")):
            with self.subTest(arguments=arguments):
                self.assertEqual(tamis("quantize", self.case, *arguments).returncode, 2)


class Original(CliTest):
    def test_an_unquantized_case_has_no_quantization_error(self):
        copy = self.write_case("copy")
        report = self.good_json("run", self.case, "--original", copy)
        self.assertEqual(report["quantization_error"], {"max_abs": 0, "rel_rms": 0})
        self.assertLess(report["kernel_error"]["max_abs"], 1e-6)
        self.assertIn("kernel", self.good("run", self.case, "--original", copy))
        self.assertNotIn("kernel_error", self.good_json("run", self.case))

    def test_what_the_cache_lost_is_no_error_of_the_kernel(self):
        other = self.write_case("other", v=("F32", [3, 4, 1, 2], [1] * 24))
        report = self.good_json("run", other, "--original", self.case)
        self.assertLess(report["kernel_error"]["max_abs"], 1e-6)
        self.assertAlmostEqual(report["quantization_error"]["max_abs"], 3)

    def test_a_quantized_case(self):
        out = self.folder / "q.safetensors"
        loss = self.good_json("quantize", self.case, "--out", out, "--k", "int8", "--v", "int4:page")["output"]
        for backend in ("cpu", "reference"):
            report = self.good_json("run", out, "--original", self.case, "--backend", backend)
            self.assertAlmostEqual(report["quantization_error"]["max_abs"], loss["max_abs"], places=6)
            self.assertLess(report["kernel_error"]["max_abs"], 1e-5)

    def test_refusals(self):
        self.refused(5, "io_error", "run", self.case, "--original", self.folder / "missing")
        other = self.write_case("other", cand_indices=("I32", [5], [2, 2, -1, 1, 7]))
        report = self.refused(3, "invalid_argument", "run", self.case, "--original", other)
        self.assertIn("original: selects other tokens", report["message"])
        other = self.write_case("scaled", scale="3")
        report = self.refused(3, "invalid_argument", "run", self.case, "--original", other)
        self.assertIn("original: has other queries or scores", report["message"])
        out = self.folder / "q.safetensors"
        self.good("quantize", self.case, "--out", out, "--k", "int8")
        report = self.refused(3, "invalid_argument", "run", self.case, "--original", out)
        self.assertIn("original: is quantized", report["message"])

    def test_the_original_is_never_overwritten(self):
        copy, link = self.write_case("copy"), self.folder / "link"
        link.symlink_to(copy)
        before = copy.read_bytes()
        for name in (copy, link):
            report = self.refused(3, "invalid_argument", "run", self.case, "--original", copy, "--out", name)
            self.assertIn("is the original case", report["message"])
            report = self.refused(3, "invalid_argument", "quantize", copy, "--k", "int8", "--out", name)
            self.assertIn("is the case itself", report["message"])
        self.assertEqual(copy.read_bytes(), before)


if __name__ == "__main__":
    unittest.main()
