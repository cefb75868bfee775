#!/usr/bin/env python3
"""tamis run --backend cuda, as far as it goes where no device is visible. The binary is named by TAMIS_BINARY."""
import json
import os
import unittest

import cli_test
from cli_test import BACKENDS, CliTest, tamis

HIDDEN = dict(os.environ, CUDA_VISIBLE_DEVICES="-1")  # a machine whose devices are hidden has none


class WithoutDevice(CliTest):
    def hidden(self, *arguments):
        return tamis(*arguments, env=HIDDEN)

    def error(self, exit_code, *arguments):
        done = self.hidden(*arguments)
        self.assertEqual((done.returncode, done.stdout), (exit_code, ""), done.stderr)
        return json.loads(done.stderr.splitlines()[-1])

    def test_a_named_backend_is_never_left(self):
        out = self.folder / "out"
        for options in ((), ("--fallback", "allow"), ("--load", "tokens"), ("--ring", "short"), ("--engine", "prefill"),
                        ("--block", "128"), ("--path", "dense")):
            report = self.error(5, "run", self.case, "--backend", "cuda", "--out", out, *options)
            self.assertEqual(report["error"], "device_error", options)
            self.assertNotEqual(report["message"], "")
            self.assertFalse(out.exists())

    def test_arguments_go_before_devices(self):
        bad = self.write_case("bad", q=None)
        self.assertEqual(self.error(3, "run", bad, "--backend", "cuda")["error"], "invalid_argument")

    def test_auto_says_that_there_is_none(self):
        done = self.hidden("run", self.case, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(report["backend"], "cpu")
        self.assertTrue(report["reason"].startswith("auto: no CUDA device"), report["reason"])
        self.assertNotIn("kernel", report)
        self.assertNotIn("load", report)
        self.assertNotIn("ring", report)

    def test_kernels_of_the_device_are_refused(self):
        done = self.hidden("kernels", "--json")
        for kernel in json.loads(done.stdout)["kernels"]:
            if kernel["backend"] == "cuda":
                self.assertEqual([s["state"] for s in kernel["on"]], ["refused"], kernel["name"])
                self.assertFalse(kernel["here"])


class Load(CliTest):
    def test_only_a_device_has_a_choice(self):
        for backend in BACKENDS:
            for load in ("blocks", "tokens"):
                report = self.good_json("run", self.case, "--backend", backend, "--load", load)
                self.assertIn(load, report["reason"])
                error = self.refused(4, "unsupported", "run", self.case, "--backend", backend, "--load", load,
                                     "--fallback", "refuse")
                self.assertTrue(error["message"].startswith("load"), error)
            report = self.good_json("run", self.case, "--backend", backend, "--load", "auto", "--fallback", "refuse")
            self.assertNotIn("load", report["reason"])

    def test_nothing_else_has_rings(self):
        for backend in BACKENDS:
            ring = self.good_json("run", self.case, "--backend", backend, "--ring", "short")
            self.assertIn("no rings", ring["reason"])
            both = self.good_json("run", self.case, "--backend", backend, "--ring", "full", "--load", "blocks")
            self.assertIn("not by blocks; ", both["reason"])
            error = self.refused(4, "unsupported", "run", self.case, "--backend", backend, "--ring", "short",
                                 "--fallback", "refuse")
            self.assertTrue(error["message"].startswith("ring"), error)

    def test_nothing_else_has_engines(self):
        for backend in BACKENDS:
            engine = self.good_json("run", self.case, "--backend", backend, "--engine", "prefill")
            self.assertIn("not engine prefill", engine["reason"])
            both = self.good_json("run", self.case, "--backend", backend, "--engine", "decode", "--ring", "full")
            self.assertIn("no rings, full or other; ", both["reason"])
            error = self.refused(4, "unsupported", "run", self.case, "--backend", backend, "--engine", "prefill",
                                 "--fallback", "refuse")
            self.assertTrue(error["message"].startswith("engine"), error)

    def test_wrong_usage(self):
        for option, value in (("--load", "pages"), ("--ring", "long"), ("--engine", "gather")):
            done = tamis("run", self.case, option, value)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(option, self.good("run", "--help"))

    def test_refusals_stay_what_they_are(self):
        bad = self.write_case("bad", **cli_test.Refusals.BAD_INDEX)
        self.refused(3, "index_out_of_range", "run", bad, "--backend", "cpu", "--load", "blocks")


if __name__ == "__main__":
    unittest.main()
