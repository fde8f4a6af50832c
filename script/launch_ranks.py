#!/usr/bin/env python3
"""Starts processes of this machine with torchrun's variables, where there is neither MPI nor torchrun, and waits for all. It ends
none of them: they do, where one breaks.

usage: script/launch_ranks.py -n RANKS PROGRAM [ARGUMENT...]"""
import os
import signal
import socket
import subprocess
import sys


def free_port() -> int:
    """A port such that the one after it is free: there rank 0 listens."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1] - 1


if len(sys.argv) < 4 or sys.argv[1] != "-n" or not sys.argv[2].isdigit() or int(sys.argv[2]) == 0:
    print(__doc__)
    sys.exit(0 if sys.argv[1:] == ["--help"] else 2)
ranks, command = int(sys.argv[2]), sys.argv[3:]
variables = {**os.environ, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost",
             "MASTER_PORT": str(free_port())}
started: list[subprocess.Popen] = []
signal.signal(signal.SIGTERM, lambda *_: [process.terminate() for process in started])
if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches the ranks, too, which end or save first
try:
    for rank in range(ranks):
        started.append(subprocess.Popen(command, env={**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)}))
except OSError as error:
    print(f"launch_ranks.py: {error}", file=sys.stderr)
    for process in started:
        process.terminate()
    sys.exit(127)
codes = [process.wait() for process in started]
sys.exit(next((code if code > 0 else 128 - code for code in codes if code), 0))
