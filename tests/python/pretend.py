"""Host memory that says it lies on a CUDA device: how far arguments come where there is none."""
import ctypes

import numpy as np

CODES = {"f": 2, "i": 0, "u": 1}


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class DLManagedTensor(ctypes.Structure):
    pass


Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(DLManagedTensor))
DLManagedTensor._fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", Deleter)]

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Pretend:
    """`array` as an exporter from before DLPack 1.0 would give it; `dense` leaves the strides out."""

    def __init__(self, array, device=(2, 0), lanes=1, dense=False, offset=0, code=None):
        self.array, self.device, self.streams, self.deleted = array, device, [], 0
        n = array.ndim
        self.shape = (ctypes.c_int64 * max(1, n))(*array.shape)
        self.stride = (ctypes.c_int64 * max(1, n))(*(s // array.itemsize for s in array.strides))
        self.managed = DLManagedTensor(
            DLTensor(array.ctypes.data - offset, (ctypes.c_int32 * 2)(*device), n,
                     CODES[array.dtype.kind] if code is None else code, array.itemsize * 8, lanes, self.shape,
                     None if dense else self.stride, offset), None, Deleter(self._delete))

    def _delete(self, _):
        self.deleted += 1

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        return new_capsule(ctypes.addressof(self.managed), b"dltensor", None)


def bits(array):
    """bfloat16 that a device array could hold, from float32."""
    return Pretend((array.view(np.uint32) >> 16).astype(np.uint16), code=4)
