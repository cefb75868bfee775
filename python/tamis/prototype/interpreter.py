"""Triton's interpreter with NumPy 2.4 and later.

The interpreter keeps scalars as arrays of one element and turns loop bounds into numbers with int(), which NumPy 2.4
refuses for anything but arrays without axes. Kernels whose bounds are loaded, as all of these, need the element itself.
"""
from triton.runtime import interpreter


def repair_loop_bounds():
    patch = getattr(interpreter, "_patch_lang_tensor", None)
    if patch is None or getattr(patch, "repaired", False):
        return

    def patch_and_repair(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    patch_and_repair.repaired = True
    interpreter._patch_lang_tensor = patch_and_repair
