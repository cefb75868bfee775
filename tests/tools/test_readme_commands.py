"""readme_commands.py finds blocks, honours skips and leaves out what has run."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import readme_commands  # noqa: E402

DOCUMENT = """# Title
```sh
./dev test   # all of it
```
<!-- skip: needs a GPU -->
```sh
./dev bench
```
```cpp
int x;
```
```sh
./dev test
false
```
"""


class ReadmeCommands(unittest.TestCase):
    def test_blocks(self):
        blocks = list(readme_commands.blocks_of(DOCUMENT))
        self.assertEqual([(line, reason) for line, reason, _ in blocks], [(2, None), (6, "needs a GPU"), (12, None)])

    def test_done_commands_are_left_out(self):
        scripts = [readme_commands.left_to_run(lines, ["./dev test"])
                   for _, _, lines in readme_commands.blocks_of(DOCUMENT)]
        self.assertEqual(scripts, ["", "./dev bench", "false"])

    def test_failure_is_seen(self):
        self.assertIsNone(readme_commands.run("true"))
        self.assertTrue(readme_commands.run("false; true").startswith("exit 1"))


if __name__ == "__main__":
    unittest.main()
