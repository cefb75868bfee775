"""readme_commands.py finds blocks, honours skips, leaves out what has run, and takes no skip for a pass."""
import os
import sys
import tempfile
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
```python
import tamis
```
    ```text
    ```
"""


class ReadmeCommands(unittest.TestCase):
    def test_blocks(self):
        blocks = list(readme_commands.blocks_of(DOCUMENT))
        self.assertEqual([block[:3] for block in blocks],
                         [(2, "sh", None), (6, "sh", "needs a GPU"), (12, "sh", None), (16, "python", None)])
        with self.assertRaises(SystemExit):
            list(readme_commands.blocks_of("```python\n"))

    def test_done_commands_are_left_out(self):
        scripts = [readme_commands.left_to_run(block[-1], ["./dev test"])
                   for block in readme_commands.blocks_of(DOCUMENT)]
        self.assertEqual(scripts, ["", "./dev bench", "false", "import tamis"])

    def test_failure_is_seen(self):
        self.assertEqual(readme_commands.run_shell("true")[0], "passed")
        verdict, said = readme_commands.run_shell("false; true")
        self.assertEqual((verdict, said[:6]), ("failed", "exit 1"))

    def test_what_python_blocks_need(self):
        for script, name in (("import tamis\nimport numpy as np", "python"), ("import torch", "torch"),
                             ("import tamis, tamis.torch", "torch"), ("import numpy  # no torch", "python"),
                             ("x = 1\nif x:\n    from transformers import LlamaConfig", "torch"),
                             ("import torchless", "python"), ("import numpy\nprint('import torch')", "python")):
            self.assertEqual(readme_commands.environment_of(script), name, script)

    def test_python_blocks(self):
        with tempfile.TemporaryDirectory() as venvs:
            def run(script):
                return readme_commands.run_python(script, venvs)

            os.makedirs(os.path.join(venvs, "python", "bin"))
            os.symlink(sys.executable, os.path.join(venvs, "python", "bin", "python"))
            self.assertEqual(run("1 / 0"), ("skipped", "nothing to run it with: ./dev test python"))
            open(os.path.join(venvs, "python", "ready"), "w", encoding="utf-8").close()
            self.assertEqual(run("print('device')")[0], "passed")
            self.assertEqual(run("import torch"), ("skipped", "nothing to run it with: ./dev test torch"))
            self.assertEqual(run("print('so')\nprint('no device: none here')"), ("skipped", "no device: none here"))
            self.assertEqual(run("print('there is no device')")[0], "passed")
            verdict, said = run("print('no device', flush=True)\n1 / 0")  # it must end well, too
            self.assertEqual(verdict, "failed")
            self.assertIn("ZeroDivisionError", said)


if __name__ == "__main__":
    unittest.main()
