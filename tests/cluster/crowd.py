#!/usr/bin/env python3
"""Strangers that crowd a server.

    crowd.py slow HOST:PORT COUNT      holds so many connections that send a byte and no more, and
                                       opens another for each that ends
    crowd.py refused HOST:PORT COUNT   makes so many connections, one after the other, that are
                                       refused for what they say

`slow` prints "ready" when all were opened, and goes on until its input ends. Then it prints how
many it has opened.
"""

import selectors
import socket
import sys


def connect(address):
    one = socket.socket()
    one.connect(address)
    return one


def slow(address, count):
    crowd = selectors.DefaultSelector()
    number = 0

    def add():
        nonlocal number
        one = connect(address)
        # The first byte of a handshake of TLS, or of a frame.
        try:
            one.send(b"\x16" if number % 2 else b"\0")
        except OSError:
            pass  # It was cut off already, which is read below.
        crowd.register(one, selectors.EVENT_READ, number)
        number += 1

    for _ in range(count):
        add()
    crowd.register(sys.stdin, selectors.EVENT_READ, None)
    print("ready", flush=True)
    while True:
        for key, _ in crowd.select():
            if key.data is None:
                print(number, flush=True)
                return
            try:
                closed = not key.fileobj.recv(4096)
            except OSError:
                closed = True
            if closed:
                crowd.unregister(key.fileobj)
                key.fileobj.close()
                add()


def refused(address, count):
    for _ in range(count):
        with connect(address) as one:
            try:
                one.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(64))
                one.shutdown(socket.SHUT_WR)
                while one.recv(4096):
                    pass
            except OSError:
                pass


if __name__ == "__main__":
    what, (host, port), count = sys.argv[1], sys.argv[2].rsplit(":", 1), int(sys.argv[3])
    {"slow": slow, "refused": refused}[what]((host, int(port)), count)
