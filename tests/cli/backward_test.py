#!/usr/bin/env python3
"""tamis run --backward. The binary is named by TAMIS_BINARY."""
import math
import unittest

import case_files
from cli_test import BACKENDS, CliTest


class Backward(CliTest):
    # Scores are 0, so the first row has the weight 1 on token 3 (slot 11) and the second 1/2 on tokens 1 and 7
    # (slots 9 and 3). V[t] = t in both dimensions, scale 1/sqrt(2): dS of token 7 is 1/2 (7 - 4) dO . 1.
    D_OUT = {"d_out": ("F32", [2, 1, 2], [1, 2, 4, -2])}

    def setUp(self):
        super().setUp()
        self.case = self.write_case(**self.D_OUT)

    def test_result_file(self):
        out = self.folder / "out"
        d_v = [0] * 24
        d_v[22:24], d_v[18:20], d_v[6:8] = [1, 2], [2, -1], [2, -1]
        for backend in BACKENDS:
            self.good("run", self.case, "--backend", backend, "--out", out, "--backward")
            result = case_files.read(out)
            self.assertEqual(result.keys(), {"out", "lse", "d_q", "d_k", "d_v"})
            self.assertEqual(result["d_q"], ([2, 1, 2], [0, 0, 0, 0]))
            shape, values = result["d_v"]
            self.assertEqual(shape, [3, 4, 1, 2])
            for value, want in zip(values, d_v):
                self.assertAlmostEqual(value, want, places=5)
            shape, d_k = result["d_k"]
            self.assertEqual(shape, [3, 4, 1, 2])
            for i, value in enumerate(d_k):
                want = 3 / math.sqrt(2) if i in (6, 7) else -3 / math.sqrt(2) if i in (18, 19) else 0
                self.assertAlmostEqual(value, want, places=5)
        self.good("run", self.case, "--backend", "reference", "--out", out)
        self.assertEqual(case_files.read(out).keys(), {"out", "lse"}, "only where they are asked for")

    def test_d_lse(self):
        case = self.write_case("d_lse", d_lse=("F32", [2, 1], [0, 2]), **self.D_OUT)
        out = self.folder / "out"
        self.good("run", case, "--backend", "reference", "--out", out, "--backward")
        d_k = case_files.read(out)["d_k"][1]
        self.assertAlmostEqual(d_k[6], (3 + 1) / math.sqrt(2), places=5)
        self.assertAlmostEqual(d_k[18], (-3 + 1) / math.sqrt(2), places=5)

    def test_report(self):
        plain = self.good_json("run", self.case, "--backend", "reference", "--check")
        self.assertNotIn("gradients", plain)
        self.assertNotIn("backward", plain["time_us"])
        report = self.good_json("run", self.case, "--backend", "reference", "--check", "--backward", "--compare-full")
        self.assertEqual(report["gradients"].keys(), {"d_q", "d_k", "d_v"})
        for error in report["gradients"].values():
            self.assertLess(error["max_abs_error"], 1e-6)
            self.assertLess(error["max_rel_error"], 1e-6)
        self.assertGreaterEqual(report["time_us"]["backward"], 0)
        self.assertIn("d_k", self.good("run", self.case, "--backend", "reference", "--check", "--backward"))

    def test_refusals(self):
        bare = self.write_case("bare")
        for backend in BACKENDS:
            report = self.refused(3, "invalid_argument", "run", bare, "--backend", backend, "--backward")
            self.assertIn("d_out", report["message"])


if __name__ == "__main__":
    unittest.main()
