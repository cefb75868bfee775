#!/usr/bin/env python3
"""tamis tiers. The binary is named by TAMIS_BINARY."""
import unittest

import cli_test
from cli_test import CliTest


class Tiers(CliTest):
    KEYS = {"of", "rows", "edges", "given", "tiers", "expected_cost", "total_cost", "utilization", "fixed"}

    def histogram(self, text, name="lengths.txt"):
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def test_worked_numbers(self):
        # docs/semantics.md section 14.
        path = self.histogram("64 1\n100 1\n129 1\n")
        report = self.good_json("tiers", path, "--edges", "64,128,256")
        self.assertEqual(report.keys(), self.KEYS)
        self.assertEqual((report["edges"], report["given"], report["rows"]), ([64, 128, 256], True, 3))
        self.assertEqual([t["rows"] for t in report["tiers"]], [1, 1, 1])
        self.assertAlmostEqual(report["utilization"], 293 / 448)
        self.assertAlmostEqual(report["fixed"]["utilization"], 293 / 768)
        self.assertAlmostEqual(report["expected_cost"], 448 / 3)
        text = self.good("tiers", path, "--edges", "64,128,256")
        for words in ("64,128,256", "65.40 %", "38.15 %"):
            self.assertIn(words, text)
        one = self.good_json("tiers", self.histogram("129 1"), "--edges", "128,256")
        self.assertEqual([(t["edge"], t["rows"], t["allocated"] - t["used"]) for t in one["tiers"]],
                         [(128, 0, 0), (256, 1, 127)])
        error = self.refused(3, "capacity_exceeded", "tiers", path, "--edges", "64,128")
        self.assertEqual((error["value"], error["limit"]), (129, 129))

    def test_choice(self):
        path = self.histogram("# recorded\n\n129\t1\r\n64 1 # short\n100 1")
        for arguments, edges in (((), [64, 100, 129]), (("--price", 10), [64, 129]), (("--price", 22), [129]),
                                 (("--price", 22, "--entry-cost", 3), [64, 100, 129]),
                                 (("--price", 10, "--row-cost", 5), [64, 129]), (("--most", 2), [64, 129]),
                                 (("--multiple-of", 64), [64, 128, 192])):
            with self.subTest(arguments=arguments):
                report = self.good_json("tiers", path, *arguments)
                self.assertEqual((report["edges"], report["given"]), (edges, False))
                self.assertIn(",".join(map(str, edges)), self.good("tiers", path, *arguments))
        report = self.good_json("tiers", path, "--price", 10, "--row-cost", 5)
        self.assertAlmostEqual(report["expected_cost"], 5 + 322 / 3)
        self.assertAlmostEqual(report["total_cost"], 5 + 322 / 3 + 20)
        self.assertAlmostEqual(report["fixed"]["total_cost"], 5 + 129 + 10)

    def test_rows_of_cases(self):
        # Rows {3, 3, -1} and {1, 7} in pages of 4.
        for of, lengths in (("entries", [2]), ("tokens", [1, 2]), ("pages", [1, 2])):
            report = self.good_json("tiers", self.case, "--of", of)
            self.assertEqual((report["of"], report["edges"], report["rows"]), (of, lengths, 2))
        self.assertEqual(self.good_json("tiers", self.case)["of"], "entries")
        both = self.good_json("tiers", self.case, self.write_case("other"), self.histogram('{"2": 5, "7": 1}'))
        self.assertEqual([(t["edge"], t["rows"]) for t in both["tiers"]], [(2, 9), (7, 1)])

    def test_weights_of_zero_are_absent(self):
        report = self.good_json("tiers", self.histogram("4 0\n900 0"))
        self.assertEqual((report["rows"], report["edges"], report["utilization"]), (0, [], 0))
        self.assertIn("none", self.good("tiers", self.histogram("4 0")))

    def test_files_that_are_none(self):
        for text in ("", "\n# nothing\n", "64\n", "64 1 1\n", "64 x", "6.5 1", "64 1\nsixty 2", "{", '{"a": 1}',
                     '{"4": 1.5}', '{"4": "1"}', '{"4": 18446744073709551615}', "{} {}", "64 99999999999999999999",
                     '{"4": 1, "5": ' + "[" * 100_000 + "]" * 100_000 + "}", b'{"4": 1}\0', b'{"4": 1}\0{"5": 1}',
                     b"\xff\xfe 1", b"\0" * 20, self.case.read_bytes()[:-1]):
            with self.subTest(text=text[:20]):
                self.refused(5, "io_error", "tiers", self.histogram(text))
        for path in (self.folder / "missing", self.folder, ""):
            self.refused(5, "io_error", "tiers", self.case, path)
        self.assertIn("line 2", self.refused(5, "io_error", "tiers", self.histogram("4 1\n4"))["message"])

    def test_refusals(self):
        good = self.histogram("64 1", "good")
        for text, word in (("-1 1", "length"), ("4 -1", "weight"), ("2000000000 1", "length"),
                           ('{"4": -1}', "weight"), (f"4 {2**62}", "weight")):
            with self.subTest(text=text):
                report = self.refused(3, "invalid_argument", "tiers", self.histogram(text))
                self.assertTrue(report["message"].startswith(word), report)
        self.refused(3, "invalid_argument", "tiers", good, "--price", "nan")
        self.refused(3, "invalid_argument", "tiers", good, "--edges", "128,64")
        self.refused(3, "invalid_argument", "tiers", good, "--multiple-of", str(2**40))
        bad = self.write_case("bad", **cli_test.Refusals.BAD_INDEX)
        self.good("tiers", bad)  # entries are not judged
        self.refused(3, "index_out_of_range", "tiers", bad, "--of", "tokens")
        many = self.histogram("".join(f"{i} 1\n" for i in range(16385)))
        self.assertIn("multiple_of", self.refused(3, "capacity_exceeded", "tiers", many)["message"])


if __name__ == "__main__":
    unittest.main()
