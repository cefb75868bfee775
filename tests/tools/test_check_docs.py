"""check_docs.py finds dead links and paths of one machine."""
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import check_docs  # noqa: E402

README = "# T\n\n[here](README.md), [there](#t), [far](https://example.org/x)\n\n```sh\ntrue\n```\n"


def check(text):
    with tempfile.TemporaryDirectory() as root:
        with open(os.path.join(root, "README.md"), "w", encoding="utf-8") as f:
            f.write(text)
        return check_docs.check_tree(root)


class Documents(unittest.TestCase):
    def test_good(self):
        self.assertEqual(check(README), [])

    def test_dead_link(self):
        self.assertEqual(check(README + "[gone](docs/gone.md)\n"), ["README.md:8: the link leads nowhere: docs/gone.md"])

    def test_path_of_one_machine(self):
        planted = "/" + "home" + "/me/file"  # in pieces, since this file is checked, too
        self.assertEqual(len(check(README + planted + "\n")), 1)
        self.assertEqual(check(README + "usr" + planted + "\n"), [])

    def test_no_command(self):
        self.assertEqual(check("# T\n"), ["README.md:1: shows no command (a block marked sh)"])


if __name__ == "__main__":
    unittest.main()
