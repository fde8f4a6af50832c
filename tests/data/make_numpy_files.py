"""Writes numpy_*.npy and numpy_*.npz here, the files of NumPy that npy_test.cpp reads (made by 1.24.2)."""
from pathlib import Path

import numpy as np

here = Path(__file__).parent
grid = np.arange(6).reshape(2, 3) - 1.5
arrays = {dtype: (grid if dtype[0] == "f" else grid > 0 if dtype == "b1" else np.arange(6).reshape(2, 3)).astype(dtype)
          for dtype in ["f8", "f4", "f2", "i8", "i4", "u1", "b1"]}
arrays["scalar"] = np.array(-7, "i8")
arrays["empty"] = np.zeros((0, 3), "f4")
arrays["line"] = np.array([0.5], "f4")
arrays["fortran"] = np.asfortranarray(np.arange(24, dtype="i4").reshape(2, 3, 4))

np.save(here / "numpy_f4.npy", arrays["f4"])
np.save(here / "numpy_big_endian_fortran.npy", np.asfortranarray(grid.astype(">f4")))
with open(here / "numpy_version_3.npy", "wb") as file:
    np.lib.format.write_array(file, arrays["i4"], version=(3, 0))
np.savez(here / "numpy_stored.npz", **arrays)
np.savez_compressed(here / "numpy_deflated.npz", **arrays, zeros=np.zeros((50, 100), "f4"))
