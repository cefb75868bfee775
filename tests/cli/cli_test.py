#!/usr/bin/env python3
"""The command as its users meet it: exit codes, the error object, the JSON reports and the files it writes.

The binary is named by the environment variable TAMIS_BINARY. Needs nothing but Python."""
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

import case_files

BINARY = os.environ["TAMIS_BINARY"]
COMMANDS = ("run", "explain", "quantize", "tiers", "kernels", "version")
BACKENDS = ("reference", "cpu")  # those that run anywhere
WATCHDOG = 300  # seconds after which a hang is called one; sanitized builds are slow

RUN_KEYS = {"backend", "path", "reason", "rows", "candidates", "empty_rows", "blocks", "tiles", "tile_efficiency",
            "bytes", "splits", "workspace_bytes", "stale_rows", "time_us"}
EXPLAIN_KEYS = {"rows", "kv_heads", "selected_tokens", "touched_pages", "tiles_aligned", "tiles_packed",
                "tile_efficiency_aligned", "tile_efficiency_packed", "block_utilization", "bytes_logical", "bytes_pages",
                "bytes_aligned", "bytes_dense", "compression_logical", "compression_aligned", "flops_logical",
                "flops_aligned", "index_bytes", "index_bytes_normalized", "scale_bytes", "transaction_bytes",
                "transaction_efficiency", "workspace_bytes"}


def tamis(*arguments, **options):
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=WATCHDOG, **options)


class CliTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.case = self.write_case()

    def write_case(self, name="case", **changes):
        path = self.folder / f"{name}.safetensors"
        case_files.write(path, *case_files.case(**changes))
        return path

    def good(self, *arguments):
        done = tamis(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def good_json(self, *arguments):
        return json.loads(self.good(*arguments, "--json"))

    def refused(self, exit_code, error, *arguments):
        """Runs what must be refused; returns the error object. Nothing may come out on stdout."""
        done = tamis(*arguments)
        self.assertEqual(done.returncode, exit_code, done.stderr + done.stdout)
        self.assertEqual(done.stdout, "")
        report = json.loads(done.stderr.splitlines()[-1])
        self.assertEqual(report["error"], error, report)
        self.assertIsInstance(report["message"], str)
        return report


class Usage(CliTest):
    def test_help(self):
        listed = re.findall(r"^  (\w+)", self.good("--help").split("Subcommands:")[1], re.MULTILINE)
        self.assertLessEqual(set(COMMANDS), set(listed))
        for command in listed:
            self.assertIn("Usage", self.good(command, "--help"))
        for option in ("--out", "--map", "--backend", "--path", "--fallback", "--block", "--splits", "--threads",
                       "--backward", "--dump-index", "--check", "--compare-full", "--original", "--json"):
            self.assertIn(option, self.good("run", "--help"))
        for option in ("--tile", "--splits", "--bandwidth", "--json"):
            self.assertIn(option, self.good("explain", "--help"))
        for option in ("--of", "--price", "--row-cost", "--entry-cost", "--multiple-of", "--most", "--edges", "--json"):
            self.assertIn(option, self.good("tiers", "--help"))

    def test_wrong_usage_is_exit_2(self):
        for arguments in ((), ("fly",), ("run",), ("explain",), ("--json",), ("run", self.case, "more"),
                          ("run", self.case, "--backend", "tpu"), ("run", self.case, "--path", "fast"),
                          ("run", self.case, "--fallback", "maybe"), ("run", self.case, "--block", "x"),
                          ("run", self.case, "--splits", "0"), ("run", self.case, "--splits", "-1"),
                          ("run", self.case, "--splits", "1.5"),
                          ("run", self.case, "--threads", "0"), ("run", self.case, "--threads", "many"),
                          ("run", self.case, "--out"), ("run", self.case, "--wings"),
                          ("explain", self.case, "--tile", "0"), ("explain", self.case, "--tile", "x"),
                          ("explain", self.case, "--splits", "0"), ("explain", self.case, "--bandwidth", "-1"),
                          ("tiers",), ("tiers", self.case, "--of", "bytes"), ("tiers", self.case, "--most", "0"),
                          ("tiers", self.case, "--price", "-1"), ("tiers", self.case, "--multiple-of", "0"),
                          ("tiers", self.case, "--edges", "a,b"), ("tiers", self.case, "--edges", "4", "--most", "2"),
                          ("tiers", self.case, "--edges", "4", "--multiple-of", "2"),
                          ("kernels", "x"), ("version", "x")):
            with self.subTest(arguments=arguments[:1] + arguments[2:]):
                done = tamis(*arguments)
                self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
                self.assertNotEqual(done.stderr, "")
                self.assertEqual(done.stdout, "")

    def test_version(self):
        report = self.good_json("version")
        self.assertRegex(report["version"], r"^\d+\.\d+\.\d+$")
        self.assertIs(type(report["built_with_cuda"]), bool)
        self.assertIn("compiler", report)
        self.assertIn(report["version"], self.good("version"))

    def test_kernels(self):
        report = self.good_json("kernels")
        names = [kernel["name"] for kernel in report["kernels"]]
        self.assertIn("reference", names)
        self.assertEqual(len(names), len(set(names)))
        for kernel in report["kernels"]:
            self.assertLessEqual({"name", "op", "backend", "limits", "note"}, kernel.keys())
            self.assertIn(kernel["name"], self.good("kernels"))


class Run(CliTest):
    def test_report(self):
        for backend in BACKENDS:
            with self.subTest(backend=backend):
                report = self.good_json("run", self.case, "--backend", backend)
                self.assertLessEqual(RUN_KEYS, report.keys())
                self.assertEqual(report["backend"], backend)
                self.assertEqual(report["candidates"],
                                 {"raw": 5, "padding": 1, "invalid": 0, "duplicates": 1, "unique": 3})
                self.assertLessEqual({"logical", "loaded", "dense"}, report["bytes"].keys())
                self.assertLessEqual({"normalize", "plan", "attention", "merge", "clear", "total"},
                                     report["time_us"].keys())
                self.assertEqual(report["rows"], 2)
                self.assertEqual(report["empty_rows"], 0)
                self.assertEqual(report["stale_rows"], 0)
                self.assertEqual(report["bytes"]["logical"], 3 * 16)
                self.assertEqual(report["bytes"]["dense"], 2 * 8 * 16)
                self.assertNotIn("max_abs_error", report)
                self.assertIn(str(self.case), self.good("run", self.case, "--backend", backend))

    def test_empty_rows_are_counted_per_index_head(self):
        path = self.write_case(cand_indptr=("I32", [3], [0, 0, 1]), cand_indices=("I32", [1], [-1]))
        for backend in BACKENDS:
            self.assertEqual(self.good_json("run", path, "--backend", backend)["empty_rows"], 2, backend)

    def test_a_row_of_scores_minus_infinity_is_not_empty(self):
        path = self.write_case(k=("F32", [3, 4, 1, 2], [-math.inf] * 24))
        for backend in BACKENDS:
            self.assertEqual(self.good_json("run", path, "--backend", backend)["empty_rows"], 0, backend)

    def test_check(self):
        for backend in BACKENDS:
            report = self.good_json("run", self.case, "--backend", backend, "--check")
            self.assertLess(report["max_abs_error"], 1e-5)
            self.assertLess(report["max_rel_error"], 1e-5)
        self.assertIn("vs float64", self.good("run", self.case, "--check"))

    def test_compare_full(self):
        # K = 0: the kept mass is the share of tokens, 1/7 and 2/8; full attention has means 3 and 3.5.
        report = self.good_json("run", self.case, "--compare-full")["full"]
        self.assertAlmostEqual(report["kept_mass"]["mean"][0], (1 / 7 + 2 / 8) / 2)
        self.assertAlmostEqual(report["kept_mass"]["min"][0], 1 / 7)
        self.assertAlmostEqual(report["max_abs_error"], 0.5)
        self.assertIn("kept mass", self.good("run", self.case, "--compare-full"))

    def test_result_file(self):
        for backend in BACKENDS:
            out = self.folder / backend
            self.good("run", self.case, "--backend", backend, "--out", out)
            result = case_files.read(out)
            self.assertEqual(result.keys(), {"out", "lse"})
            self.assertEqual(result["out"], ([2, 1, 2], [3, 3, 4, 4]))
            self.assertEqual(result["lse"][0], [2, 1])
            self.assertAlmostEqual(result["lse"][1][1], math.log(2), places=6)

    def test_dump_index(self):
        for backend in BACKENDS:
            out = self.folder / backend
            self.good("run", self.case, "--backend", backend, "--out", out, "--dump-index")
            result = case_files.read(out)
            self.assertEqual(result["set_indptr"], ([3], [0, 1, 3]))
            self.assertEqual(result["set_tokens"], ([3], [3, 1, 7]))
            self.assertEqual(result["set_slots"], ([3], [11, 9, 3]))

    def test_the_same_run_writes_the_same_bytes(self):
        files = [self.folder / "a", self.folder / "b"]
        for file in files:
            self.good("run", self.case, "--out", file, "--dump-index")
        self.assertEqual(files[0].read_bytes(), files[1].read_bytes())

    def test_map(self):
        svg = self.folder / "map.svg"
        self.good("run", self.case, "--map", svg)
        self.assertTrue(xml.etree.ElementTree.parse(svg).getroot().tag.endswith("svg"))

    def test_a_map_replaces_a_file_and_writes_into_a_device(self):
        svg, link = self.folder / "map.svg", self.folder / "link.svg"
        svg.write_bytes(b"old")
        svg.chmod(0o640)
        link.symlink_to(svg)
        self.good("run", self.case, "--map", link)
        self.assertIn(b"</svg>", svg.read_bytes())
        self.assertEqual(svg.stat().st_mode & 0o777, 0o640)
        self.assertTrue(link.is_symlink())
        self.good("run", self.case, "--map", "/dev/null", "--out", "/dev/null")
        self.assertTrue(pathlib.Path("/dev/null").is_char_device())
        self.assertEqual({p.name for p in self.folder.iterdir()}, {"case.safetensors", "map.svg", "link.svg"})


class Refusals(CliTest):
    BAD_INDEX = {"cand_indices": ("I32", [5], [3, 3, -1, 1, 8])}

    def test_candidates(self):
        report = self.refused(3, "index_out_of_range", "run", self.write_case(**self.BAD_INDEX))
        self.assertEqual((report["request"], report["row"], report["value"]), (0, 1, 8))
        self.assertIn("cand_indices", report["message"])
        self.refused(3, "index_out_of_range", "explain", self.case)
        report = self.refused(3, "duplicate_index", "run", self.write_case(duplicates="reject"))
        self.assertEqual((report["row"], report["value"]), (0, 3))

    def test_pages(self):
        report = self.refused(3, "page_unmapped", "run", self.write_case(page_table=("I32", [1, 2], [2, -1])))
        self.assertEqual((report["request"], report["page"], report["value"]), (0, 1, -1))
        report = self.refused(3, "page_out_of_range", "run", self.write_case(page_table=("I32", [1, 2], [3, 0])))
        self.assertEqual((report["page"], report["value"]), (0, 3))
        stamped = self.write_case(page_stamps=("U64", [3], [5, 6, 7]), table_stamps=("U64", [1, 2], [7, 6]))
        report = self.refused(3, "foreign_page", "run", stamped)
        self.assertEqual((report["page"], report["value"]), (1, 0))
        self.good("explain", stamped)  # explain does not check pages

    def test_arguments(self):
        for changes, argument in (({"index_heads": None}, "index_heads"), ({"unit": "0"}, "unit"),
                                  ({"kv_len": None}, "kv_len"), ({"window": "-1"}, "window"),
                                  ({"q": None}, "q"), ({"causal": "yes"}, "causal"),
                                  ({"kv_len": ("I32", [1], [9])}, "kv_len"), ({"scale": "nan"}, "scale"),
                                  ({"cu_q": ("I32", [2], [0, 3])}, "cu_q"), ({"tamis.case": "2"}, "tamis.case")):
            with self.subTest(argument=argument):
                for command in ("run", "explain"):
                    report = self.refused(3, "invalid_argument", command, self.write_case("bad", **changes))
                    self.assertTrue(report["message"].startswith(argument), report)
        for kind in ("sequence", "multiset"):
            self.refused(3, "unsupported_semantics", "run", self.write_case("bad", semantics=kind))

    def test_a_problem_without_values_can_be_explained_only(self):
        path = self.write_case("index", q=None, k=None, v=None, q_heads="8", kv_heads="2", head_dim="64",
                               v_head_dim="64", page_size="4", kv_dtype="bf16")
        self.assertEqual(self.good_json("explain", path)["kv_heads"], 2)
        self.assertIn("q", self.refused(3, "invalid_argument", "run", path)["message"])

    def test_arguments_go_before_candidates(self):
        for option, exit_code, error, backends in ((("dropout_p", "1"), 3, "invalid_argument", BACKENDS),
                                                   (("softcap", "1e-60"), 4, "unsupported", ("cpu",))):
            path = self.write_case(**dict([option]), **self.BAD_INDEX)
            for backend in backends:
                self.refused(exit_code, error, "run", path, "--backend", backend)

    def test_unsupported(self):
        for arguments, word in ((("--path", "gather"), "gather"),
                                (("--block", "17"), "block"),
                                (("--backend", "reference", "--fallback", "refuse", "--splits", "8"), "8 splits"),
                                (("--backend", "reference", "--fallback", "refuse", "--path", "dense"), "dense")):
            with self.subTest(arguments=arguments):
                self.assertIn(word, self.refused(4, "unsupported", "run", self.case, *arguments)["message"])
        tiny = self.write_case("p", softcap="1e-60")
        self.assertIn("softcap", self.refused(4, "unsupported", "run", tiny)["message"])
        self.good("run", tiny, "--backend", "reference", "--check")

    def test_the_reference_says_what_it_stands_in_for(self):
        report = self.good_json("run", self.case, "--backend", "reference", "--splits", "8", "--path", "dense")
        self.assertIn("8 splits", report["reason"])
        self.assertIn("dense", report["reason"])
        self.assertEqual(report["splits"], 1)
        self.assertEqual(report["path"], "direct")

    def test_backends(self):
        self.assertNotEqual(self.good_json("run", self.case)["reason"], "", "auto says why")
        # A machine whose devices are hidden has none.
        environment = dict(os.environ, CUDA_VISIBLE_DEVICES="-1")
        done = tamis("run", self.case, "--backend", "cuda", env=environment)
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertEqual(json.loads(done.stderr.splitlines()[-1])["error"], "device_error")

    def test_files_that_are_none(self):
        junk = self.folder / "junk"
        for data in (b"", b"\0" * 7, b"{}", b"\xff" * 64, self.case.read_bytes()[:-1], self.case.read_bytes() + b"x"):
            with self.subTest(data=data[:8]):
                junk.write_bytes(data)
                self.refused(5, "io_error", "run", junk)
                self.refused(5, "io_error", "explain", junk)
        for path in (self.folder / "missing", self.folder, "", "/dev/null"):
            with self.subTest(path=str(path)):
                self.refused(5, "io_error", "run", path)

    def test_names_that_are_not_utf8(self):
        done = subprocess.run([BINARY, "run", os.fsencode(self.folder) + b"/\xff\xfe\x01\"\n"], capture_output=True,
                              timeout=WATCHDOG)
        self.assertEqual(done.returncode, 5)
        self.assertEqual(json.loads(done.stderr.splitlines()[-1].decode("utf-8"))["error"], "io_error")

    def test_results_that_cannot_be_written(self):
        for option in ("--out", "--map"):
            for place in (self.folder / "no" / "such" / "folder", self.folder):
                with self.subTest(option=option, place=place.name):
                    self.refused(5, "io_error", "run", self.case, option, place)

    def test_files_that_name_each_other(self):
        link, svg = self.folder / "link", self.folder / "map.svg"
        link.symlink_to(self.case)
        before = self.case.read_bytes()
        for option in ("--out", "--map"):
            for path in (self.case, link, self.folder / "." / self.case.name):
                with self.subTest(option=option, path=path.name):
                    report = self.refused(3, "invalid_argument", "run", self.case, option, path)
                    self.assertTrue(report["message"].startswith(option[2:]), report)
        for other in (svg, self.folder / "x" / ".." / svg.name):
            self.refused(3, "invalid_argument", "run", self.case, "--out", svg, "--map", other)
        self.assertEqual(self.case.read_bytes(), before)
        self.assertFalse(svg.exists())

    def test_the_map_waits_for_the_result(self):
        svg = self.folder / "map.svg"
        for before in (None, b"precious"):
            if before is not None:
                svg.write_bytes(before)
            self.refused(5, "io_error", "run", self.case, "--map", svg, "--out", self.folder / "no" / "folder")
            self.assertEqual(svg.read_bytes() if svg.exists() else None, before)
        # And the result for the map: a place where no map can be is found out before.
        out = self.folder / "out"
        self.refused(5, "io_error", "run", self.case, "--map", self.folder / "no" / "folder", "--out", out)
        self.assertFalse(out.exists())
        self.assertEqual({p.name for p in self.folder.iterdir()}, {"case.safetensors", "map.svg"}, "no scratch files")

    def test_a_refusal_writes_nothing(self):
        out, svg = self.folder / "out.safetensors", self.folder / "map.svg"
        bad = self.write_case("bad", **self.BAD_INDEX)
        unmapped = self.write_case("unmapped", page_table=("I32", [1, 2], [-1, 0]))
        for before in (None, b"precious"):
            for exit_code, error, path, options in ((3, "index_out_of_range", bad, ()),
                                                    (3, "page_unmapped", unmapped, ("--dump-index",)),
                                                    (4, "unsupported", self.case, ("--path", "gather")),
                                                    (5, "io_error", self.folder / "missing", ())):
                with self.subTest(error=error, before=before):
                    for file in (out, svg):
                        file.unlink(missing_ok=True)
                        if before is not None:
                            file.write_bytes(before)
                    self.refused(exit_code, error, "run", path, "--out", out, "--map", svg, *options)
                    for file in (out, svg):
                        self.assertEqual(file.read_bytes() if file.exists() else None, before)
        left = {p.name for p in self.folder.iterdir()} - {"out.safetensors", "map.svg"}
        self.assertEqual(left, {"case.safetensors", "bad.safetensors", "unmapped.safetensors"}, "no scratch files")


class Explain(CliTest):
    def test_report(self):
        report = self.good_json("explain", self.case, "--tile", "4", "--splits", "3")
        self.assertEqual(report.keys(), EXPLAIN_KEYS)
        self.assertEqual(report["selected_tokens"], 3)
        self.assertEqual(report["touched_pages"], 3)
        self.assertEqual(report["tiles_aligned"], 3)
        self.assertEqual(report["index_bytes"], 4 * (3 + 5))
        self.assertEqual(report["workspace_bytes"],
                         {"splits": 3, "partial_o": 3 * 2 * 2 * 4, "partial_ml": 3 * 2 * 8, "total": 96})
        self.assertIn("selected", self.good("explain", self.case))

    def test_bandwidth_adds_the_floor(self):
        report = self.good_json("explain", self.case, "--bandwidth", "2")
        self.assertEqual(report.keys(), EXPLAIN_KEYS | {"floor_us"})
        self.assertAlmostEqual(report["floor_us"], 48 / 2e12 * 1e6)

    def test_bad_options_of_the_right_form(self):
        self.refused(3, "invalid_argument", "explain", self.case, "--tile", str(2**40))
        self.refused(3, "invalid_argument", "explain", self.case, "--splits", str(2**40))
        self.refused(3, "invalid_argument", "explain", self.case, "--bandwidth", "nan")


class Output(CliTest):
    def reader_gone(self, *arguments, ignore_sigpipe):
        """Exit status of the command when nobody reads its output."""
        read_end, write_end = os.pipe()
        os.close(read_end)
        try:
            disposition = signal.SIG_IGN if ignore_sigpipe else signal.SIG_DFL
            return subprocess.run([BINARY, *map(str, arguments)], stdout=write_end, stderr=subprocess.PIPE,
                                  timeout=WATCHDOG, restore_signals=False,
                                  preexec_fn=lambda: signal.signal(signal.SIGPIPE, disposition))
        finally:
            os.close(write_end)

    def test_nobody_reads(self):
        # More heads than fit one buffer, so that writing fails in the middle and not at exit.
        large = self.write_case("large", heads=2048)
        for arguments in (("version",), ("kernels", "--json"), ("explain", self.case, "--json"), ("tiers", self.case),
                          ("run", large, "--json", "--compare-full")):
            for ignore in (False, True):
                with self.subTest(command=arguments[0], ignore_sigpipe=ignore):
                    done = self.reader_gone(*arguments, ignore_sigpipe=ignore)
                    # Killed by the pipe, or a code of the contract: never an abort.
                    allowed = {0, 5} if ignore else {0, 5, -signal.SIGPIPE}
                    self.assertIn(done.returncode, allowed, done.stderr)

    def test_no_stdout_at_all(self):
        done = subprocess.run(["sh", "-c", '"$0" version >&-', BINARY], capture_output=True, timeout=WATCHDOG)
        self.assertIn(done.returncode, (0, 5), done.stderr)


if __name__ == "__main__":
    unittest.main()
