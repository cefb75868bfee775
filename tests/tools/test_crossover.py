"""bench/crossover.py over a record made by hand."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from xml.etree import ElementTree

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench")
sys.path.insert(0, BENCH)

import crossover  # noqa: E402


def reading(name, us, density=None):
    return {"name": f"prefill.cross.{name}.index_attend", "peer": "", "median_us": us, "case": {"density": density}}


def record():
    """Lists of 64 cost what dense does at a share of 0.5; those of 16 always less."""
    return {"gpu": "a GPU", "readings": [
        reading("L8k.dense", 100.0), reading("L8k.block64.d100.uniform", 200.0, 1.0),
        reading("L8k.block64.d25.uniform", 50.0, 0.25), reading("L8k.block16.d25.clustered", 20.0, 0.25),
        reading("L8k.block16.d50.clustered", 40.0, 0.5), reading("L16k.block16.d50.uniform", 40.0, 0.5),
        {"name": "prefill.dense.L16k", "peer": "", "median_us": 1.0, "case": {}}]}


class Crossover(unittest.TestCase):
    def test_ratios_are_to_dense_of_the_same_length(self):
        found = crossover.speedups(record())
        self.assertEqual(list(found), [8])  # of 16K there is no dense step
        self.assertEqual(found[8][64, "uniform"], [(0.25, 2.0), (1.0, 0.5)])

    def test_where_both_cost_the_same(self):
        found = crossover.speedups(record())[8]
        self.assertAlmostEqual(crossover.crossover(found[64, "uniform"]), 0.5)
        self.assertIsNone(crossover.crossover(found[16, "clustered"]))

    def test_picture(self):
        found = crossover.speedups(record())
        tree = ElementTree.fromstring(crossover.plot(found, record()))
        lines = [x for x in tree.iter() if x.tag.endswith("polyline")]
        self.assertEqual(len(lines), 2)
        uniform = next(x for x in lines if x.get("stroke") == crossover.COLORS[64])
        (x0, y0), (x1, y1) = (map(float, p.split(",")) for p in uniform.get("points").split())
        self.assertLess(x0, x1)
        self.assertLess(y0, y1)  # faster is higher

    def test_command(self):
        with tempfile.TemporaryDirectory() as folder:
            path, picture = os.path.join(folder, "r.json"), os.path.join(folder, "p.svg")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(record(), file)
            command = [sys.executable, os.path.join(BENCH, "crossover.py")]
            out = subprocess.run([*command, path, "--plot", picture], capture_output=True, text=True, check=True).stdout
            self.assertIn("50 %", out)
            self.assertTrue(os.path.exists(picture))
            longer = os.path.join(folder, "longer.json")
            with open(longer, "w", encoding="utf-8") as file:
                json.dump({"readings": [reading("L32k.dense", 400.0), reading("L32k.block64.d25.uniform", 50.0, 0.25)]}, file)
            both = subprocess.run([*command, longer, path], capture_output=True, text=True, check=True).stdout
            self.assertLess(both.index("8K"), both.index("32K"))
            twice = subprocess.run([*command, path, path], capture_output=True, text=True, check=False)
            self.assertEqual(twice.returncode, 1)
            self.assertIn("repeats", twice.stderr)
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"readings": []}, file)
            for bad in (path, picture, os.path.join(folder, "absent")):
                failed = subprocess.run([*command, bad], capture_output=True, text=True, check=False)
                self.assertEqual(failed.returncode, 1)
                self.assertIn("crossover.py: ", failed.stderr)


if __name__ == "__main__":
    unittest.main()
