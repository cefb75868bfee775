"""check_includes.py finds planted violations and names file and line."""
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import check_includes  # noqa: E402


def check(files):
    """Violations of a tree given as {path: text}."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                f.write(text)
        return check_includes.check_tree(root)[0]


class Includes(unittest.TestCase):
    def refused(self, path, text, line, word):
        found = check({path: text})
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(f"{path}:{line}: "), found[0])
        self.assertIn(word, found[0])

    def allowed(self, path, text):
        self.assertEqual(check({path: text}), [])

    def test_arrow_that_points_back(self):
        self.refused("src/core/a.cpp", '#include <vector>\n\n#include "kernels/registry.h"\n', 3, "room kernels")
        self.refused("src/plan/a.cpp", '#include "merge/state.h"\n', 1, "room merge")

    def test_neighbours_do_not_know_each_other(self):
        self.refused("src/io/a.cpp", '#include "index/index_set.h"\n', 1, "room index")

    def test_arrow_that_points_forward(self):
        self.allowed("src/attention/a.cpp", '#include "core/checks.h"\n#include "kernels/registry.h"\n')

    def test_diagnose_is_read_by_none(self):
        self.refused("src/attention/a.cpp", '#include "diagnose/tiles.h"\n', 1, "diagnose")
        self.allowed("cli/a.cpp", '#include "diagnose/tiles.h"\n')
        self.allowed("src/capi/a.cpp", '#include "diagnose/tiles.h"\n')
        self.allowed("src/diagnose/a.cpp", '#include "kernels/registry.h"\n')

    def test_public_headers(self):
        self.refused("include/tamis/a.h", "#include <cuda_runtime.h>\n", 1, "cuda_runtime.h")
        self.refused("include/tamis/a.h", "#include <nlohmann/json.hpp>\n", 1, "nlohmann")
        self.refused("include/tamis/a.h", '#include "core/checks.h"\n', 1, "core/checks.h")
        self.allowed("include/tamis/a.h", '#include <vector>\n\n#include "tamis/status.h"\n')

    def test_closed_folders(self):
        self.refused("src/kernels/cuda/device/a.cuh", '#include "tamis/tensor.h"\n', 1, "device")
        self.refused("src/kernels/reference/a.cpp", '#include "merge/state.h"\n', 1, "reference")
        self.refused("src/kernels/reference/a.cpp", '#include "core/philox.h"\n', 1, "reference")
        self.allowed("src/kernels/reference/a.cpp", '#include "core/checks.h"\n')

    def test_groups(self):
        self.refused("src/core/a.cpp", '#include <vector>\n\n#include "core/a.h"\n', 3, "comes first")
        self.refused("src/core/a.cpp", '#include <set>\n#include "tamis/b.h"\n#include <vector>\n', 3, "comes before")
        self.allowed("cli/a.cpp", '#include "cli.h"\n\n#include <vector>\n')
        self.allowed("src/core/a.cpp", '#include "core/a.h"\n\n#include <vector>\n\n#include "tamis/b.h"\n')


if __name__ == "__main__":
    unittest.main()
