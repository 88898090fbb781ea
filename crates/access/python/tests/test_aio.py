"""asyncio."""

import asyncio

import pytest

from kestrelfs import aio


def test_calls_at_the_same_time(url, top):
    """Calls run beside each other, and the event loop runs on meanwhile."""

    async def main():
        async with await aio.open_volume(url) as volume:
            await asyncio.gather(
                *(volume.write_bytes(f"{top}/{number}", b"%d" % number) for number in range(100))
            )
            assert len(await volume.listdir(top)) == 100
            read = await asyncio.gather(
                *(volume.read_bytes(f"{top}/{number}") for number in range(100))
            )
            assert read == [b"%d" % number for number in range(100)]
            assert await volume.read_many([f"{top}/1", f"{top}/2"]) == [b"1", b"2"]
            async with await volume.open(f"{top}/text", "w") as file:
                await file.write("text")
            async with await volume.open(f"{top}/text") as file:
                assert await file.read() == "text"
            with pytest.raises(FileNotFoundError):
                await volume.stat(f"{top}/no")
            with pytest.raises(AttributeError):
                volume.nothing
        with pytest.raises((ValueError, RuntimeError)):
            await volume.stat("/")

    asyncio.run(main())
