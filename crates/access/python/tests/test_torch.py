"""PyTorch: data sets, loaders and checkpoints."""

import signal
import socket
import subprocess
import sys
import time

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


@pytest.mark.parametrize(
    "workers, context",
    [(0, None)] + [(n, how) for n in (2, 4) for how in ("fork", "spawn", "forkserver")],
)
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


RANK = """
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from kestrelfs.torch import StorageReader, StorageWriter

url, path, rank, port, todo = sys.argv[1:]
dist.init_process_group(
    "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=2
)
ours = f"rank{rank}"
state = {ours: torch.full((200, 200), float(rank)), "both": torch.arange(100)}
if todo == "save":
    dcp.save(state, storage_writer=StorageWriter(url, path))
else:
    read = {ours: torch.zeros(200, 200), "both": torch.zeros(100, dtype=torch.int64)}
    dcp.load(read, storage_reader=StorageReader(url, path))
    assert all(torch.equal(read[name], state[name]) for name in state), read
dist.destroy_process_group()
"""

SAVER = """
import sys
import torch
import torch.distributed.checkpoint as dcp
from kestrelfs.torch import StorageWriter

url, root = sys.argv[1:]
step = 0
while True:
    step += 1
    state = {"weights": torch.full((700, 700), float(step)), "step": torch.tensor(step)}
    dcp.save(state, storage_writer=StorageWriter(url, f"{root}/{step}"), no_dist=True)
    print(step, flush=True)
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_checkpoint_of_two_processes(served):
    for todo in ("save", "load"):
        port = free_port()
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, served.url, "/two", str(rank), str(port), todo]
            )
            for rank in range(2)
        ]
        assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]


@pytest.mark.parametrize("wait", [0.0, 0.005, 0.02, 0.05])
def test_kill_in_a_checkpoint(served, wait):
    """A process that is killed while it saves leaves the checkpoints of before as they were, and no
    half one that looks whole."""
    root = f"/checkpoints/killed-{wait}"
    saver = subprocess.Popen(
        [sys.executable, "-c", SAVER, served.url, root], stdout=subprocess.PIPE, text=True
    )
    try:
        for _ in range(3):
            saved = int(saver.stdout.readline())
        time.sleep(wait)
    finally:
        saver.send_signal(signal.SIGKILL)
        saver.wait()
    with kestrelfs.open_volume(served.url) as volume:
        there = sorted(int(entry.name) for entry in volume.scandir(root))
        for step in there:
            whole = volume.exists(f"{root}/{step}/.metadata")
            assert whole or step > saved, f"checkpoint {step} of {saved}"
            if not whole:
                continue
            read = {"weights": torch.zeros(700, 700), "step": torch.tensor(0)}
            reader = StorageReader(served.url, f"{root}/{step}")
            dcp.load(read, storage_reader=reader, no_dist=True)
            assert int(read["step"]) == step
            assert torch.equal(read["weights"], torch.full((700, 700), float(step)))
        assert there[: saved] == list(range(1, saved + 1))


def test_safetensors(served):
    safetensors = pytest.importorskip("safetensors.torch")
    state = {"weights": torch.randn(64, 64), "bias": torch.arange(9)}
    with kestrelfs.open_volume(served.url) as volume:
        volume.write_bytes("/model.safetensors", safetensors.save(state))
        read = safetensors.load(volume.read_bytes("/model.safetensors"))
    assert all(torch.equal(read[name], state[name]) for name in state)
