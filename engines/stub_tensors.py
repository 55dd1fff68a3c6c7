"""Arrays across Triton's Python stub, whichever NumPy is on its path.

In: tensors and arrays. Out: arrays and tensors. A stub made before NumPy 2 (that of Triton 2.51) reads an array's item
size where NumPy 2 keeps its flags, and finds 0: `as_numpy` repeats the first element, `Tensor(name, array)` sends no
bytes, and a string ends the process. DLPack avoids all this, but carries no strings.
"""

import ctypes
from math import prod
from typing import Any

import numpy as np

from engines.reference.trtllm_contract import Array, ContractError

# pb_utils is the module triton_python_backend_utils as the stub makes it, and Tensor its class: neither has types.
Tensor = Any
_set_destructor = ctypes.pythonapi.PyCapsule_SetDestructor
_set_destructor.argtypes = [ctypes.py_object, ctypes.c_void_p]


class TensorCodec:
    """Reads and writes tensors as the Python backend documents it."""

    def __init__(self, pb_utils: Any) -> None:
        self._tensor = pb_utils.Tensor

    def read(self, tensor: Tensor) -> Array:
        """Returns the tensor's array. Raises ContractError for a tensor that cannot be read here."""
        array: Array = tensor.as_numpy()
        return array

    def write(self, name: str, array: Array) -> Tensor:
        return self._tensor(name, array)


class DlpackCodec(TensorCodec):
    """Uses DLPack and refuses strings: the stub is made to pass empty ones here instead of ending its process."""

    def __init__(self, pb_utils: Any) -> None:
        super().__init__(pb_utils)
        self._error = pb_utils.TritonModelException
        # The stub looks this function up after it has imported the model. Its own reads lengths from one repeated byte.
        pb_utils.deserialize_bytes_tensor = lambda _: np.array([b""], np.object_)

    def read(self, tensor: Tensor) -> Array:
        try:
            return np.from_dlpack(tensor)
        except self._error as exc:
            raise ContractError(
                f"{tensor.name()}: strings cannot be read here, for this Triton's Python stub does not know NumPy "
                f"{np.__version__}; numpy<2 first on the stub's path, or a newer Triton, puts it right"
            ) from exc

    def write(self, name: str, array: Array) -> Tensor:
        return self._tensor.from_dlpack(name, Exported(array))


class Exported:
    """An array for a consumer that takes over its capsule and renames it in its own way.

    Triton's stub frees the capsule's content with its tensor. NumPy's own destructor does not know the new name, and
    prints a complaint for every tensor.
    """

    def __init__(self, array: Array) -> None:
        self._array = array if array.size else empty_as_the_stub_counts(array)

    def __dlpack__(self, stream: object = None) -> object:
        capsule = self._array.__dlpack__()
        _set_destructor(capsule, None)
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def empty_as_the_stub_counts(array: Array) -> Array:
    """An empty array with the strides that the stub expects: products of the later lengths, where
    NumPy writes zeros.
    """
    strides = [array.itemsize * prod(array.shape[place + 1 :]) for place in range(array.ndim)]
    return np.lib.stride_tricks.as_strided(np.zeros(1, array.dtype), array.shape, strides)


def choose_codec(pb_utils: Any) -> TensorCodec:
    """Returns the codec by which an array survives the way in and out, after a trial."""
    trial = np.arange(5, 9, dtype=np.int32)
    returned = pb_utils.Tensor.from_dlpack("trial", Exported(trial)).as_numpy()
    return TensorCodec(pb_utils) if np.array_equal(returned, trial) else DlpackCodec(pb_utils)
