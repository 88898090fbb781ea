#!/usr/bin/env python3
"""Everything that this network namespace hears or says, into a file, until it is killed.

    sniff.py FILE
"""

import socket
import sys

ETH_P_ALL = 3

with open(sys.argv[1], "wb", buffering=0) as out, socket.socket(
    socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)
) as wire:
    wire.bind(("eth0", 0))
    print("listening", flush=True)
    while True:
        out.write(wire.recv(1 << 16))
