"""PyTorch: data sets, loaders and checkpoints."""

import pytest

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import kestrelfs  # noqa: E402
from kestrelfs.torch import (
    FileDataset,
    FileStream,
    StorageReader,
    StorageWriter,
    list_files,
    load,
    save,
)  # noqa: E402


def decode(path, content):
    return torch.tensor(sum(content))


@pytest.fixture
def files(served, request):
    """A directory with files of a known sum."""
    root = f"/torch-{request.node.name}"
    with kestrelfs.open_volume(served.url) as volume:
        volume.makedirs(f"{root}/a/b", exist_ok=True)
        for number in range(200):
            volume.write_bytes(
                f"{root}/{'a/b/' if number % 2 else ''}{number:03d}", bytes([1]) * number
            )
    return root


@pytest.mark.parametrize("workers, context", [(0, None), (2, "fork"), (2, "spawn")])
def test_loader_of_batches(served, files, workers, context):
    dataset = FileDataset(served.url, root=files, transform=decode)
    assert len(dataset) == 200 and dataset[0] == sum(dataset[index] for index in [0])
    loader = DataLoader(
        dataset, batch_size=32, shuffle=True, num_workers=workers, multiprocessing_context=context
    )
    assert sum(int(batch.sum()) for batch in loader) == sum(range(200))


@pytest.mark.parametrize("workers", [0, 3])
def test_stream(served, files, workers):
    with kestrelfs.open_volume(served.url) as volume:
        stream = FileStream(volume, list_files(volume, files), transform=decode, batch_files=16)
        loader = DataLoader(stream, batch_size=10, num_workers=workers)
        assert sum(int(batch.sum()) for batch in loader) == sum(range(200))


def test_distributed_checkpoint(served):
    state = {"weights": torch.randn(300, 300), "step": torch.tensor(7)}
    dcp.save(state, storage_writer=StorageWriter(served.url, "/checkpoints/1"), no_dist=True)
    read = {"weights": torch.zeros(300, 300), "step": torch.tensor(0)}
    dcp.load(read, storage_reader=StorageReader(served.url, "/checkpoints/1"), no_dist=True)
    assert torch.equal(read["weights"], state["weights"]) and read["step"] == 7


def test_save_and_load(served):
    with kestrelfs.open_volume(served.url) as volume:
        save({"a": torch.ones(3)}, volume, "/saved.pt")
        assert torch.equal(load(volume, "/saved.pt")["a"], torch.ones(3))
