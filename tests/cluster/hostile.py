#!/usr/bin/env python3
"""Speaks the protocol badly to a real server (docs/protocol.md), and sees that it answers and goes
on.

    hostile.py --host H --port P --volume NAME --log FILE --probe FILE [--seed N] [--mutations N]

LOG is the server's log file, PROBE a file on a mount of the volume that must stay readable and
writable. Prints a line for each test and "N passed, N failed".
"""

import argparse
import os
import random
import socket
import struct
import time

from suite import TESTS, run_all, test

HELLO, CALL, PING, CANCEL, BYE = 1, 2, 3, 4, 5
PEER_HELLO, PEER = 6, 7
WELCOME, REFUSED, REPLY, EVENT, PONG = 0x81, 0x82, 0x83, 0x84, 0x85
# Version of the protocol that the server speaks.
VERSION = 14
FRAME_MAX = 4 << 20

CRC_TABLE = []
for _byte in range(256):
    for _ in range(8):
        _byte = (_byte >> 1) ^ (0x82F63B78 if _byte & 1 else 0)
    CRC_TABLE.append(_byte)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string(data):
    return varint(len(data)) + data


def frame(kind, payload, checksum=True, length=None, flags=None, reserved=0, tail=0, crc=None):
    head = struct.pack(
        ">IBBH",
        len(payload) if length is None else length,
        kind,
        checksum if flags is None else flags,
        reserved,
    )
    if crc is None:
        crc = crc32c(head + payload) if checksum else 0
    return head + struct.pack(">II", crc, tail) + payload


class Server:
    def __init__(self, arguments):
        self.arguments = arguments
        self.random = random.Random(arguments.seed)

    def hello(
        self,
        client=None,
        incarnation=1,
        versions=(VERSION, VERSION),
        volume=None,
        established=0,
        who=b"hostile.py",
    ):
        client = client or self.random.randbytes(16)
        volume = self.arguments.volume.encode() if volume is None else volume
        fixed = (
            b"KSTL"
            + struct.pack(">HH", *versions)
            + client
            + struct.pack(">QB", incarnation, established)
        )
        return frame(HELLO, fixed + string(volume) + string(who) + b"\0")

    def connect(self):
        return Peer(socket.create_connection((self.arguments.host, self.arguments.port), 30))

    def session(self, **how):
        peer = self.connect()
        peer.send(self.hello(**how))
        kind, _ = peer.frame()
        assert kind == WELCOME, hex(kind)
        return peer

    def log(self):
        with open(self.arguments.log, errors="replace") as log:
            return log.read()

    def works(self):
        """The mount of an honest client does, and a new client is served."""
        text = f"{time.time()}"
        with open(self.arguments.probe, "w") as file:
            file.write(text)
        with open(self.arguments.probe) as file:
            assert file.read() == text
        peer = self.session()
        peer.send(frame(PING, varint(2**64 - 1)))
        assert peer.frame()[0] == PONG
        peer.send(frame(BYE, b""))
        peer.socket.close()


class Peer:
    def __init__(self, connected):
        self.socket = connected
        self.socket.settimeout(60)

    def send(self, data):
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has closed on us, as it may

    def exactly(self, count):
        data = b""
        while len(data) < count:
            try:
                more = self.socket.recv(count - len(data))
            except ConnectionResetError:
                more = b""
            if not more:
                raise EOFError
            data += more
        return data

    def frame(self):
        length, kind, _, _, _, _ = struct.unpack(">IBBHII", self.exactly(16))
        assert length <= FRAME_MAX
        return kind, self.exactly(length)

    def refused(self):
        """Reads on until the server refuses or closes; the reason, or None if it just closed."""
        try:
            while True:
                kind, payload = self.frame()
                if kind == REFUSED:
                    return payload.decode("utf-8", "replace")
        except EOFError:
            return None
        finally:
            self.socket.close()


def closes(server, data, *, after_hello, says=None):
    """Sends bytes; the server closes, and says why if it can be said."""
    peer = server.session() if after_hello else server.connect()
    before = len(server.log())
    peer.send(data)
    peer.socket.shutdown(socket.SHUT_WR)
    reason = peer.refused()
    if says is not None:
        assert reason is not None and says in reason, f"refused with {reason!r}, wanted {says!r}"
        new = server.log()[before:]
        end = time.monotonic() + 10
        while "connection refused" not in new and time.monotonic() < end:
            time.sleep(0.05)
            new = server.log()[before:]
        assert "connection refused" in new, "nothing in the log"


@test
def not_our_protocol(s):
    """strangers: HTTP, TLS, SSH, noise, nothing at all"""
    for data in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n" + bytes(64),
        s.random.randbytes(5000),
        bytes(64),
    ):
        closes(s, data, after_hello=False, says="")
    # A client that wants to encrypt where that is switched off, or wrongly, is counted
    # (server_not_encrypted), not logged one by one.
    closes(s, bytes.fromhex("16030100fa010000f60303") + bytes(240), after_hello=False)
    closes(s, b"", after_hello=False)


@test
def truncated(s):
    """frames that end early, before and after the Hello"""
    hello, ping = s.hello(), frame(PING, varint(7))
    for cut in (1, 8, 15, 16, 17, len(hello) - 1):
        closes(s, hello[:cut], after_hello=False)
    for cut in (1, 15, len(ping) - 1):
        closes(s, ping[:cut], after_hello=True)


@test
def oversized(s):
    """lengths above the limits: 1 KiB before the Hello, 4 MiB after it"""
    closes(s, frame(HELLO, b"", length=1025), after_hello=False, says="")
    closes(s, frame(HELLO, b"", length=2**32 - 1), after_hello=False, says="")
    closes(s, frame(CALL, b"", length=FRAME_MAX + 1), after_hello=True, says="limit")
    closes(s, frame(CALL, b"", length=2**32 - 1), after_hello=True, says="limit")


@test
def corrupt(s):
    """a bit turned over anywhere in a frame with a checksum"""
    good = frame(PING, varint(123456789))
    for at in range(len(good) * 8):
        bad = bytearray(good)
        bad[at // 8] ^= 1 << at % 8
        peer = s.session()
        peer.send(bytes(bad))
        peer.socket.shutdown(socket.SHUT_WR)
        try:
            kind, _ = peer.frame()
        except EOFError:
            kind = None
        # A turned bit of the length makes it wait for more, which does not come. Without the
        # checksum's flag the field must be 0.
        assert kind in (None, REFUSED), f"bit {at}: answered {kind:#x}"
        peer.socket.close()


@test
def unknown(s):
    """unknown kinds, flags, reserved bytes, and what only a server may send"""
    for kind in (0, 10, 99, WELCOME, REPLY, 255):
        closes(s, frame(kind, b""), after_hello=True, says="kind")
    closes(s, frame(PING, varint(1), flags=3), after_hello=True, says="flags")
    closes(s, frame(PING, varint(1), flags=128), after_hello=True, says="flags")
    closes(s, frame(PING, varint(1), reserved=1), after_hello=True, says="flags")
    closes(s, frame(PING, varint(1), tail=1), after_hello=True, says="flags")


@test
def nodes(s):
    """messages of nodes from a client, and from a stranger"""
    closes(s, frame(PEER, b"an envelope"), after_hello=True, says="node")
    closes(s, frame(PEER, b"an envelope"), after_hello=False, says="KestrelFS protocol")
    for text in (b"", b"KSTL", b"KSTL" + struct.pack(">HH", VERSION, VERSION), os.urandom(200)):
        closes(s, frame(PEER_HELLO, text), after_hello=False)


@test
def versions(s):
    """clients of another version are told which versions there are"""
    for offered in ((VERSION + 1, 9), (VERSION - 1, VERSION - 1), (0, 0), (65535, 65535)):
        closes(s, s.hello(versions=offered), after_hello=False, says="version")
    peer = s.session(versions=(1, 900))
    peer.socket.close()


@test
def wrong_hello(s):
    """a volume that is not served here, names and clients that cannot be"""
    closes(s, s.hello(volume=b"no-such-volume"), after_hello=False, says="no-such-volume")
    closes(s, s.hello(volume=b""), after_hello=False, says="")
    closes(s, s.hello(volume=b"\xff\xfe"), after_hello=False, says="")
    closes(s, s.hello(client=bytes(16)), after_hello=False, says="")
    closes(s, s.hello(who=b"x" * 257), after_hello=False, says="")


@test
def out_of_order(s):
    """calls before the Hello, a second Hello, calls after Bye"""
    call = frame(CALL, bytes([1, 0]) + varint(1) + varint(0) + varint(0))
    closes(s, call, after_hello=False, says="")
    closes(s, frame(PING, varint(1)), after_hello=False, says="")
    closes(s, s.hello(), after_hello=True, says="")
    closes(s, frame(BYE, b"") + frame(PING, varint(1)), after_hello=True)


@test
def malformed(s):
    """calls of no known kind, with too little or too much in them, with impossible counts"""
    head = varint(1) + varint(0) + varint(0)
    for payload in (
        b"",
        bytes([9, 0]) + head,
        bytes([1, 8]) + head,
        bytes([1, 0]) + head,
        bytes([1, 0]) + head + varint(0) * 2 + varint(2**63),
        bytes([2, 0]) + head + b"\xff" * 20,
        bytes([3, 0]) + head + b"\x01" + varint(0) + varint(2**40),
        bytes([4, 0]) + head + varint(2**62) + b"{}",
        b"\x80" * 40,
    ):
        closes(s, frame(CALL, payload), after_hello=True, says="")
    closes(s, frame(PING, varint(1) + b"more"), after_hello=True, says="")


@test
def replayed(s):
    """a connection that was recorded and is played again: an incarnation counts once"""
    client = s.random.randbytes(16)
    peer = s.connect()
    peer.send(s.hello(client=client, incarnation=5))
    assert peer.frame()[0] == WELCOME
    peer.send(frame(PING, varint(9)))
    assert peer.frame()[0] == PONG
    for incarnation in (5, 4, 1):
        again = s.connect()
        again.send(s.hello(client=client, incarnation=incarnation) + frame(PING, varint(9)))
        reason = again.refused()
        assert reason is not None, f"incarnation {incarnation} was served again"
    peer.send(frame(PING, varint(10)))
    assert peer.frame()[0] == PONG, "the replay has cut off the real one"
    newer = s.connect()
    newer.send(s.hello(client=client, incarnation=6, established=1))
    assert newer.frame()[0] == WELCOME
    newer.send(frame(BYE, b""))
    newer.socket.close()
    peer.socket.close()


@test
def half_open(s):
    """two hundred connections that say nothing, or half a Hello, keep nobody out"""
    idle = [s.connect() for _ in range(200)]
    for peer in idle[::2]:
        peer.send(s.hello()[:20])
    s.works()
    for peer in idle:
        peer.socket.close()


@test
def admin_nonsense(s):
    """questions of the control protocol that are none: an answer each, and the connection goes
    on"""
    peer = s.session()
    for number, question in enumerate(
        (b"{}", b"[]", b"null", b'{"verb":"no-such"}', b"{" * 1000, b"\xff", b"")
    ):
        peer.send(
            frame(
                CALL, bytes([4, 0]) + varint(number + 1) + varint(0) + varint(0) + string(question)
            )
        )
        kind, _ = peer.frame()
        assert kind == REPLY, f"{question!r}: {kind:#x}"
    peer.send(frame(BYE, b""))
    peer.socket.close()


@test
def mutations(s):
    """recorded conversations with random damage, without checksums so that it gets through"""
    creds = varint(0) + varint(0) + varint(0)
    place = varint(1) + varint(0)

    def call(number, seq, op, *operands):
        body = bytes([1, 0]) + varint(number) + varint(seq) + varint(0)
        return frame(CALL, body + creds + bytes([op]) + b"".join(operands), checksum=False)

    for turn in range(s.arguments.mutations):
        name = b"m%d" % turn
        calls = [
            call(1, 0, 1, place, bytes([len(name)]) + name),
            call(2, 1, 12, place, bytes([len(name)]) + name, b"\x01\xed"),
            call(3, 0, 18, varint(1), varint(100), b"\x00"),
            call(4, 0, 3, varint(1), b"\x00"),
            frame(PING, varint(2**64 - 1), checksum=False),
            frame(CANCEL, varint(3), checksum=False),
        ]
        s.random.shuffle(calls)
        data = bytearray(b"".join(calls))
        for _ in range(s.random.randrange(1, 6)):
            at = s.random.randrange(len(data))
            kind = s.random.randrange(4)
            if kind == 0:
                data[at] = s.random.randrange(256)
            elif kind == 1:
                data[at] ^= 1 << s.random.randrange(8)
            elif kind == 2:
                del data[at : at + s.random.randrange(1, 9)]
            else:
                data[at:at] = s.random.randbytes(s.random.randrange(1, 9))
            if not data:
                break
        peer = s.session()
        peer.send(bytes(data))
        peer.send(frame(BYE, b""))
        peer.socket.shutdown(socket.SHUT_WR)
        peer.refused()


def main():
    parser = argparse.ArgumentParser()
    for name in ("host", "volume", "log", "probe"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mutations", type=int, default=1000)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    server = Server(arguments)

    def call(_, run):
        run(server)
        server.works()

    run_all(TESTS, call)


if __name__ == "__main__":
    main()
