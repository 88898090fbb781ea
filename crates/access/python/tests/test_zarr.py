"""zarr: arrays in chunks, by the fsspec file system."""

import pytest

zarr = pytest.importorskip("zarr")

import numpy  # noqa: E402


def test_arrays(served):
    url = f"{served.url}/zarr"
    data = numpy.arange(300 * 200, dtype="f4").reshape(300, 200)
    # zarr makes no directories.
    group = zarr.open_group(url, mode="w", storage_options={"auto_mkdir": True})
    array = group.create_array("a", shape=data.shape, chunks=(64, 64), dtype="f4")
    array[:] = data
    array.attrs["unit"] = "m"
    read = zarr.open_group(url, mode="r")["a"]
    assert numpy.array_equal(read[:], data) and read.attrs["unit"] == "m"
    assert numpy.array_equal(read[70:130, 10], data[70:130, 10])
    array[0, 0] = -1
    assert zarr.open_group(url, mode="r")["a"][0, 0] == -1
