#!/usr/bin/env python3
"""Says to a server that encrypts what is no handshake of a client's, and looks whether it bears
that.

    strangers.py HOST:PORT

Prints a line for each test and "N passed, N failed".
"""

import os
import socket
import ssl
import struct
import sys
import time

from suite import TESTS, run_all, test

# As `kestrel serve` has it: time for a first message.
GREETING = 10
TLS_HANDSHAKE = b"\x16\x03\x01"


def connect():
    stream = socket.create_connection(ADDRESS, timeout=GREETING + 20)
    return stream


def heard(stream):
    """All that the server says until it closes."""
    said = b""
    try:
        while more := stream.recv(4096):
            said += more
    except ConnectionResetError:
        pass
    return said


def frame(kind, payload):
    return struct.pack(">IBBHII", len(payload), kind, 0, 0, 0, 0) + payload


@test
def a_hello_in_clear_is_refused_with_what_to_do():
    """a hello in clear is refused with what to do"""
    for payload in (b"KSTL" + bytes(64), b""):
        with connect() as stream:
            stream.sendall(frame(1, payload))
            said = heard(stream)
            assert b"nothing in clear" in said and b"?ca=" in said, said


@test
def a_node_in_clear_is_refused():
    """a node in clear is refused"""
    with connect() as stream:
        stream.sendall(frame(6, b"KSTL" + struct.pack(">HH", 7, 7) + bytes(16 + 8 + 8 + 16 + 24)))
        assert b"nothing in clear" in heard(stream)


@test
def other_protocols_are_refused():
    """other protocols are refused"""
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"\0", b"SSH-2.0-x\r\n"):
        with connect() as stream:
            stream.sendall(said)
            stream.shutdown(socket.SHUT_WR)
            heard(stream)


@test
def damaged_and_cut_handshakes_end_the_connection():
    """damaged and cut handshakes end the connection"""
    hello = TLS_HANDSHAKE + struct.pack(">H", 512) + b"\x01\x00\x01\xfc\x03\x03" + os.urandom(506)
    for length in (1, 5, 6, 100, len(hello)):
        with connect() as stream:
            stream.sendall(hello[:length] + (b"" if length < len(hello) else os.urandom(2000)))
            stream.shutdown(socket.SHUT_WR)
            assert len(heard(stream)) < 4096


def context():
    what = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    what.check_hostname, what.verify_mode = False, ssl.CERT_NONE
    return what


@test
def older_versions_of_tls_are_refused():
    """older versions of tls are refused"""
    old = context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    try:
        with old.wrap_socket(connect()):
            raise AssertionError("TLS 1.2 was taken")
    except ssl.SSLError as error:
        assert "version" in str(error).lower() or "alert" in str(error).lower(), error


@test
def what_is_no_message_is_refused_within_tls_as_well():
    """what is no message is refused within tls as well"""
    with context().wrap_socket(connect()) as stream:
        assert stream.version() == "TLSv1.3", stream.version()
        stream.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b"does not speak the KestrelFS protocol" in heard(stream)


@test
def handshakes_that_trickle_are_cut_off_and_nobody_else_waits_for_them():
    """handshakes that trickle are cut off and nobody else waits for them"""
    slow = [connect() for _ in range(60)]
    for stream in slow:
        stream.sendall(TLS_HANDSHAKE)
    begun = time.monotonic()
    with context().wrap_socket(connect()) as stream:
        assert time.monotonic() - begun < 5, "who makes a handshake waits for those who do not"
        stream.close()
    for stream in slow:
        heard(stream)
        stream.close()
    assert time.monotonic() - begun < GREETING + 10


if __name__ == "__main__":
    host, port = sys.argv[1].rsplit(":", 1)
    ADDRESS = (host, int(port))
    run_all(TESTS, lambda _, one: one())
