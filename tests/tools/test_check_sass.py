"""check_sass.py reads what cuobjdump prints, and planted spills and missing instructions turn it red."""
import contextlib
import io
import os
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import check_sass  # noqa: E402

DECODE = ("_ZN5tamis4cuda13decode_kernelINS0_12DecodeConfigINS0_4BF16ELi128ELi2ELb0ELNS0_7FeedingE1EEEEE"
          "vNS0_10DecodeArgsE")
NORMALIZE = "_ZN5tamis5index45_GLOBAL__N__9749d1dd_12_normalize_cu_3c17618d16normalize_kernelILb1EEEvNS0_13NormalizeArgsE"
SCHEDULE = "_ZN5tamis42_GLOBAL__N__86d6baa1_11_schedule_cu_3c17618d15schedule_kernelENS_12ScheduleArgsE"

USAGE = """
Fatbin elf code:
================
arch = sm_90a
code version = [1,8]
compile_size = 64bit

Resource usage:
 Common:
  GLOBAL:0
 Function {name}:
  REG:{reg} STACK:{stack} SHARED:1024 LOCAL:{local} CONSTANT[0]:824 TEXTURE:0 SURFACE:0 SAMPLER:0

Fatbin ptx code:
================
arch = sm_80
"""
SASS = """
Fatbin elf code:
================
arch = sm_90a
code version = [1,8]

\tcode for sm_90a
\t.target\tsm_90a

\t\tFunction : {name}
\t.headerflags\t@"EF_CUDA_ACCELERATORS EF_CUDA_SM90 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM90)"
{lines}\t\t..........
"""
LINE = ("        /*{place:04x}*/                   {text} ;   /* 0x00000a00ff017b82 */\n"
        "                                                     /* 0x000fe20000000800 */\n")
PRODUCTS = ("@P0 LDGSTS.E.BYPASS.LTC128B.128 [R4], desc[UR6][R2.64]", "LDSM.16.M88.4 R8, [R24]",
            "HMMA.16816.F32.BF16 R8, R4, R12, R8")
PLAIN = ("LDC R1, c[0x0][0x28]", "@!P0 BRA 0x150", "@!UP0 ULDC.64 UR8, c[0x0][0x208]", "EXIT")


def usage(name, stack=0, local=0):
    return USAGE.format(name=name, reg=96, stack=stack, local=local)


def sass(name, instructions):
    return SASS.format(name=name, lines="".join(LINE.format(place=16 * i, text=text)
                                                for i, text in enumerate(instructions)))


def good():
    """{name: [usage, instructions]}: a library with nothing wrong."""
    return {DECODE: [usage(DECODE), PLAIN + PRODUCTS], NORMALIZE: [usage(NORMALIZE), PLAIN],
            SCHEDULE: [usage(SCHEDULE), PLAIN]}


def check(library):
    """(exit status, output) of the check over a library, by way of a program that plays cuobjdump."""
    with tempfile.TemporaryDirectory() as folder:
        for option, text in (("-res-usage", "".join(u for u, _ in library.values())),
                             ("-sass", "".join(sass(name, i) for name, (_, i) in library.items() if i is not None))):
            with open(os.path.join(folder, option), "w", encoding="utf-8") as f:
                f.write(text)
        tool = os.path.join(folder, "cuobjdump")
        with open(tool, "w", encoding="utf-8") as f:
            f.write('#!/bin/sh\n[ "$2" = a.o ] && exec cat "$(dirname "$0")/$1"\n')
        os.chmod(tool, 0o755)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            status = check_sass.main(["--cuobjdump", tool, "a.o"])
        return status, out.getvalue()


class Sass(unittest.TestCase):
    def setUp(self):
        """Three kernels stand for all."""
        for patch in (mock.patch.object(check_sass, "EXPECTED", ("decode_kernel", "normalize_kernel", "schedule_kernel")),
                      mock.patch.object(check_sass, "MAY_USE_STACK", {})):
            patch.start()
            self.addCleanup(patch.stop)

    def refused(self, library, *words):
        status, out = check(library)
        self.assertEqual(status, 1, out)
        violations = [line for line in out.splitlines() if ": " in line and not line.startswith("SASS")]
        self.assertEqual(len(violations), len(words), out)
        for violation, word in zip(violations, words):
            self.assertIn(word, violation)

    def test_a_good_library(self):
        status, out = check(good())
        self.assertEqual(status, 0, out)
        self.assertIn("SASS: 3 kernels, 0 violations", out)
        row = next(line for line in out.splitlines() if "decode_kernel" in line)
        self.assertEqual(row.split()[-5:], ["sm_90a", "96", "1024", "0", "7"])

    def test_a_stack(self):
        library = good()
        library[NORMALIZE][0] = usage(NORMALIZE, stack=16)
        self.refused(library, "16 bytes of stack")
        library[NORMALIZE][0] = usage(NORMALIZE, local=8)
        self.refused(library, "8 bytes of local")

    def test_spills(self):
        for name in (DECODE, NORMALIZE, SCHEDULE):
            library = good()
            library[name][1] += ("@P3 STL.128 [R1+0x10], R4",)
            self.refused(library, "1 STL")
            library[name][1] += ("LDL R4, [R1]", "LDL.LU.64 R6, [R1+0x8]")
            self.refused(library, "2 LDL", "1 STL")

    def test_a_listed_stack(self):
        library = good()
        library[SCHEDULE] = [usage(SCHEDULE, stack=8), PLAIN + ("STL [R1], R4",)]
        name = check_sass.rename(list(check_sass.read(usage(SCHEDULE), "").values()))[0].name
        with mock.patch.dict(check_sass.MAY_USE_STACK, {name: "of the test"}):
            self.assertEqual(check(library)[0], 0)
            del library[SCHEDULE]
            self.refused(library, "schedule_kernel: not found", "may use a stack (of the test)")

    def test_missing_instructions(self):
        for i, opcode in enumerate(("LDGSTS", "LDSM", "HMMA")):
            library = good()
            library[DECODE][1] = PLAIN + PRODUCTS[:i] + PRODUCTS[i + 1:]
            self.refused(library, f"no {opcode}")

    def test_products_that_wait_for_each_other(self):
        product = "HGMMA.64x128x16.F32.BF16 R88, gdesc[UR8], R88"
        group = ("WARPGROUP.ARRIVE", "WARPGROUP.DEPBAR.LE gsb0, 0x0")
        library = good()
        library[DECODE][1] += group + 8 * (product,)
        self.assertEqual(check(library)[0], 0)
        library[DECODE][1] = PLAIN + PRODUCTS + 8 * (group[0], product, group[1])
        self.refused(library, "each product waits for the one before")

    def test_what_was_not_seen_is_not_passed(self):
        library = good()
        del library[DECODE]
        self.refused(library, "decode_kernel: not found")
        library = good()
        library[SCHEDULE][1] = None
        self.refused(library, "what it consists of")
        library = good()
        library[SCHEDULE][0] = ""
        self.refused(library, "what it uses")
        self.refused({}, *(f"{kind}: not found" for kind in check_sass.EXPECTED))

    def test_another_architecture_is_judged_too(self):
        library = good()
        text = (usage(NORMALIZE, stack=24).replace("sm_90a", "sm_80"), sass(NORMALIZE, PLAIN).replace("sm_90a", "sm_80"))
        kernels = check_sass.read(usage(NORMALIZE) + text[0], sass(NORMALIZE, PLAIN) + text[1])
        self.assertEqual([arch for arch, _ in kernels], ["sm_90a", "sm_80"])
        found = [reason for kernel in kernels.values() for reason in check_sass.problems_of(kernel)]
        self.assertEqual(found, ["24 bytes of stack memory"])

    def test_skipped_without_cuobjdump(self):
        with mock.patch.object(check_sass, "find_cuobjdump", lambda: None), \
                contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(check_sass.main(["a.o"]), 77)
        self.assertIn("SKIPPED", out.getvalue())

    def test_names(self):
        self.assertEqual(
            check_sass.shortened("void tamis::cuda::decode_kernel<tamis::cuda::DecodeConfig<tamis::cuda::BF16, 128, 2, false, "
                                 "(tamis::cuda::Feeding)1> >(tamis::cuda::DecodeArgs)"),
            "decode_kernel<DecodeConfig<BF16, 128, 2, false, (Feeding)1>>")
        self.assertEqual(check_sass.shortened("tamis::(anonymous namespace)::schedule_kernel(tamis::ScheduleArgs)"),
                         "schedule_kernel")
        for name in (DECODE, "decode_kernel<DecodeConfig<BF16>>"):
            self.assertTrue(check_sass.Kernel(name, "sm_80").is_a("decode_kernel"))
        for name in ("_ZN5tamis15encode_decode_kernelE", "decode_kernels", "redecode_kernel<1>"):
            self.assertFalse(check_sass.Kernel(name, "sm_80").is_a("decode_kernel"))


if __name__ == "__main__":
    unittest.main()
