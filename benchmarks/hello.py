"""The script that benchmarks/start.py starts: reports the times of its first line and of the finished torch import.

The script sends a datagram to the port in its argument, because under paceline only rank 0 writes files.
"""

import socket
import sys
import time

began = time.time()
import torch  # noqa: E402  after the first line, on purpose

message = f"{began} {time.time()} {torch.__version__}"
socket.socket(type=socket.SOCK_DGRAM).sendto(message.encode(), ("127.0.0.1", int(sys.argv[1])))
