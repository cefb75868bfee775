#!/usr/bin/env python3
"""tamis kernels: standings of kernels, plans for a model, and docs/support.md. The binary is named by TAMIS_BINARY."""
import json
import pathlib
import subprocess
import sys
import unittest

from cli_test import BINARY, CliTest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tools" / "support_table.py"

CONFIG = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "torch_dtype": "bfloat16",
          "max_position_embeddings": 131072, "sliding_window": None, "rope_theta": 500000.0}
PLAN_KEYS = {"unit", "index_heads", "backend", "kernel", "path", "block", "load", "columns", "column_tiles",
             "workspace_bytes", "reason", "refused"}


class Standings(CliTest):
    def test_every_kernel_stands_somewhere(self):
        report = self.good_json("kernels")
        for kernel in report["kernels"]:
            self.assertTrue(kernel["on"], kernel["name"])
            for standing in kernel["on"]:
                self.assertEqual(standing.keys(), {"device", "state", "reason"})
                self.assertIn(standing["state"], ("supported", "falls_back", "refused"))
                self.assertEqual(standing["state"] == "supported", standing["reason"] == "", standing)
            self.assertEqual(kernel["here"], any(s["state"] == "supported" for s in kernel["on"]))
            self.assertEqual(kernel["arch"] is None, kernel["backend"] != "cuda")
        always = {kernel["name"]: kernel["on"][0]["state"] for kernel in report["kernels"]}
        self.assertEqual((always["reference"], always["cpu_plain"]), ("supported", "supported"))


class Model(CliTest):
    def config(self, text=None, **changes):
        path = self.folder / "config.json"
        numbers = {key: value for key, value in (CONFIG | changes).items() if value != "absent"}
        path.write_bytes(text if text is not None else json.dumps(numbers).encode())
        return path

    def shape(self, text=None, **changes):
        return self.good_json("kernels", "--model", self.config(text, **changes))["model"]

    def test_shapes(self):
        self.assertEqual(self.shape(), {"q_heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "BF16", "window": 0,
                                        "context": 131072})
        self.assertEqual(self.shape(head_dim=64)["head_dim"], 64)
        self.assertEqual(self.shape(head_dim=64, hidden_size="absent")["head_dim"], 64)
        self.assertEqual(self.shape(num_key_value_heads="absent")["kv_heads"], 32)
        self.assertEqual(self.shape(torch_dtype="absent", dtype="float16")["dtype"], "F16")
        self.assertEqual(self.shape(torch_dtype="float32")["dtype"], "F32")
        self.assertEqual(self.shape(sliding_window=4096)["window"], 4096)
        self.assertEqual(self.shape(sliding_window=4096, use_sliding_window=False)["window"], 0)
        outer = json.dumps({"torch_dtype": "float16",
                            "text_config": {k: v for k, v in CONFIG.items() if k != "torch_dtype"}})
        nested = self.shape(outer.encode())
        self.assertEqual((nested["q_heads"], nested["dtype"]), (32, "F16"))

    def test_null_is_missing(self):
        self.assertEqual(self.shape(torch_dtype=None, dtype="float16")["dtype"], "F16")
        inner = {**CONFIG, "torch_dtype": None}
        outer = {"num_attention_heads": None, "torch_dtype": "float16", "text_config": inner}
        self.assertEqual(self.shape(json.dumps(outer).encode())["dtype"], "F16")
        report = self.refused(3, "invalid_argument", "kernels", "--model", self.config(torch_dtype=None))
        self.assertIn("torch_dtype: is missing", report["message"])

    def test_dtypes(self):
        self.assertEqual(self.shape(torch_dtype="torch.bfloat16")["dtype"], "BF16")
        for inner, outer in (("torch_dtype", "dtype"), ("dtype", "torch_dtype")):
            config = {k: v for k, v in CONFIG.items() if k != "torch_dtype"} | {inner: "float16"}
            text = json.dumps({outer: "bfloat16", "text_config": config}).encode()
            self.assertEqual(self.shape(text)["dtype"], "F16")

    def test_windows_that_are_none(self):
        for changes in ({"sliding_window": 0}, {"sliding_window": None, "use_sliding_window": True},
                        {"sliding_window": -1, "use_sliding_window": False},
                        {"sliding_window": "wide", "use_sliding_window": False},
                        {"sliding_window": 4096, "layer_types": ["full_attention"] * 3}):
            with self.subTest(changes=changes):
                self.assertEqual(self.shape(**changes)["window"], 0)

    def test_windows_of_some_layers(self):
        some = ["sliding_attention", "full_attention"]
        for key, value in (("layer_types", some), ("sliding_window_pattern", 6), ("max_window_layers", 28),
                           ("sliding_window_pattern", "LLLG")):
            with self.subTest(key=key):
                path = self.config(sliding_window=4096, **{key: value})
                report = self.good_json("kernels", "--model", path)
                self.assertEqual(report["model"]["window"], 4096)
                self.assertIn(f"only some layers have the window ({key})", report["note"])
                self.assertIn(f"only some layers have the window ({key})", self.good("kernels", "--model", path))
        for changes in ({}, {"sliding_window": 4096}, {"layer_types": some},
                        {"sliding_window": 4096, "layer_types": ["sliding_attention"] * 2}):
            with self.subTest(changes=changes):
                self.assertIsNone(self.good_json("kernels", "--model", self.config(**changes))["note"])

    def test_heads_of_another_kind(self):
        self.assertEqual(self.shape(num_key_value_heads="absent", num_kv_heads=4)["kv_heads"], 4)
        self.assertEqual(self.shape(num_kv_heads=4)["kv_heads"], 8)
        self.assertEqual(self.shape(kv_lora_rank=None)["kv_heads"], 8)
        for changes in ({"kv_lora_rank": 512}, {"num_key_value_heads_per_layer": [8, 4]}, {"head_dim_per_layer": [64]}):
            with self.subTest(changes=changes):
                report = self.refused(4, "unsupported", "kernels", "--model", self.config(**changes))
                self.assertIn(next(iter(changes)), report["message"])
        self.assertIn("multi-head latent attention",
                      self.refused(4, "unsupported", "kernels", "--model", self.config(kv_lora_rank=1))["message"])

    def test_where_a_missing_key_was_looked_for(self):
        for key in ("num_attention_heads", "max_position_embeddings", "torch_dtype"):
            inner = {k: v for k, v in CONFIG.items() if k != key}
            report = self.refused(3, "invalid_argument", "kernels", "--model",
                                  self.config(json.dumps({"text_config": inner}).encode()))
            self.assertIn(f"{key}: is missing in text_config", report["message"])

    def test_plans(self):
        report = self.good_json("kernels", "--model", self.config())
        asked = {(p["unit"], p["index_heads"], p["backend"]) for p in report["plans"]}
        self.assertEqual(asked, {(unit, heads, backend) for unit in (16, 1) for heads in (8, 32)
                                 for backend in ("cuda", "cpu", "reference")})
        self.assertEqual(len(asked), len(report["plans"]))
        self.assertNotEqual(report["planned_for"], "")
        for plan in report["plans"]:
            self.assertEqual(plan.keys(), PLAN_KEYS)
            if plan["backend"] != "cuda":
                self.assertIsNone(plan["refused"])
                self.assertTrue(plan["kernel"].startswith(plan["backend"]))
            # A plan or a reason why not.
            self.assertTrue(plan["kernel"] or plan["refused"], plan)
            if plan["refused"]:
                self.assertNotEqual(plan["refused"]["message"], "")
        text = self.good("kernels", "--model", self.config())
        for words in ("32 query and 8 KV heads", "query head", "KV head", "reference"):
            self.assertIn(words, text)

    def test_a_plan_without_a_device(self):
        built = self.good_json("version")["built_with_cuda"]
        for plan in self.good_json("kernels", "--model", self.config())["plans"]:
            if plan["backend"] != "cuda":
                continue
            if built:
                self.assertGreater(plan["workspace_bytes"], 0)
                self.assertIn(plan["block"], (16, 32, 64))
                self.assertIn(plan["load"], ("blocks", "tokens"))
            else:
                self.assertEqual(plan["refused"]["error"], "device_error")

    def test_refusals_name_the_property(self):
        plans = self.good_json("kernels", "--model", self.config(head_dim=1024))["plans"]
        for plan in plans:
            if plan["backend"] == "cpu":
                self.assertEqual((plan["kernel"], plan["refused"]["error"]), (None, "unsupported"))
                self.assertIn("head_dim: 1024", plan["refused"]["message"])
            if plan["backend"] == "reference":
                self.assertIsNone(plan["refused"])
        self.assertIn("refused: head_dim: 1024", self.good("kernels", "--model", self.config(head_dim=1024)))

    def test_one_list_a_head_where_no_heads_share(self):
        plans = self.good_json("kernels", "--model", self.config(num_key_value_heads=32))["plans"]
        self.assertEqual(len(plans), 6)

    def test_files_that_are_none(self):
        good = self.config().read_bytes()
        deep = [b'{"a":' * n + b"1" + b"}" * n for n in (200, 100_000)]
        deep += [good[:-1] + b', "num_attention_heads": ' + b"[" * n + b"]" * n + b"}" for n in (200, 100_000)]
        for text in (b"", b"{", b"[]", b"7", b"\xff\xfe{}", b"{} {}", b"\0" * 100, self.case.read_bytes(),
                     good + b"\0", good + b"\0\0{", *deep):
            with self.subTest(text=text[:10]):
                self.refused(5, "io_error", "kernels", "--model", self.config(text))
        for path in (self.folder / "missing", self.folder, ""):
            with self.subTest(path=str(path)):
                self.refused(5, "io_error", "kernels", "--model", path)

    def test_numbers_that_cannot_be_meant(self):
        for changes in ({"num_attention_heads": "absent"}, {"num_attention_heads": 0}, {"num_attention_heads": -8},
                        {"num_attention_heads": "32"}, {"num_attention_heads": 32.5}, {"num_attention_heads": True},
                        {"num_attention_heads": 2**70}, {"num_attention_heads": 2**63}, {"num_attention_heads": 65537},
                        {"num_key_value_heads": 7}, {"num_key_value_heads": 64}, {"num_key_value_heads": [8]},
                        {"head_dim": 0}, {"head_dim": 2**40}, {"hidden_size": 4095}, {"hidden_size": "absent"},
                        {"hidden_size": 2**50}, {"torch_dtype": "absent"}, {"torch_dtype": "int4"},
                        {"torch_dtype": 16}, {"sliding_window": -1}, {"sliding_window": "wide"},
                        {"max_position_embeddings": "absent"}, {"max_position_embeddings": 0},
                        {"max_position_embeddings": 2**31}):
            with self.subTest(changes=changes):
                key = next(iter(changes))
                report = self.refused(3, "invalid_argument", "kernels", "--model", self.config(**changes))
                self.assertIn(key, report["message"])
        # The largest of each still count.
        self.shape(num_attention_heads=65536, num_key_value_heads=1, head_dim=65536, max_position_embeddings=2**30)


class Support(CliTest):
    def table(self, *arguments):
        return subprocess.run([sys.executable, "-B", SUPPORT, *map(str, arguments)], capture_output=True, text=True,
                              timeout=300)

    def test_the_document_is_up_to_date(self):
        done = self.table("--check", BINARY)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_another_document_is_noticed(self):
        document = self.folder / "support.md"
        text = (ROOT / "docs" / "support.md").read_text()
        for changed in (text.replace("cpu_avx2", "cpu_avx3", 1), text.replace("1 to 512", "1 to 513", 1),
                        text + "\n## tpu\n", text.replace("# Support", "# Supported"), ""):
            document.write_text(changed)
            self.assertEqual(self.table("--check", BINARY, document).returncode, 1)
        document.unlink()
        self.assertEqual(self.table("--check", BINARY, document).returncode, 1)

    def test_what_is_written_is_what_is_checked(self):
        document = self.folder / "support.md"
        done = self.table(BINARY, document)
        if self.good_json("version")["built_with_cuda"]:
            self.assertEqual(document.read_text(), (ROOT / "docs" / "support.md").read_text())
        else:  # would leave the device's kernels out
            self.assertNotEqual(done.returncode, 0)
            self.assertFalse(document.exists())


if __name__ == "__main__":
    unittest.main()
