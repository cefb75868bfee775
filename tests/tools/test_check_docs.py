"""check_docs.py finds dead links and paths of one machine."""
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import check_docs  # noqa: E402

README = "# T\n\n[here](README.md), [there](#t), [far](https://example.org/x)\n\n```sh\ntrue\n```\n"


def check(text, others=()):
    with tempfile.TemporaryDirectory() as root:
        for name, content in {"README.md": text, **dict(others)}.items():
            os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
            with open(os.path.join(root, name), "w", encoding="utf-8") as f:
                f.write(content)
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

    def test_what_is_built_is_not_read(self):
        planted = "/" + "home" + "/me/file\n"
        self.assertEqual(check(README, {"build/x.txt": planted, "build-python/x.txt": planted}), [])
        self.assertEqual(len(check(README, {"builder/x.txt": planted, "a/build.txt": planted})), 2)

    def test_no_command(self):
        self.assertEqual(check("# T\n"), ["README.md:1: shows no command (a block marked sh)"])


if __name__ == "__main__":
    unittest.main()
