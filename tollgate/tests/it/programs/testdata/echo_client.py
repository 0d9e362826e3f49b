"""A WebSocket client with requests to a proxy in absolute form: echo_client.py HOST PORT CREDENTIALS SERVER

The library's own connections would request a tunnel; its protocol does no I/O, so this script does it.
"""

import base64
import socket
import sys

from websockets.client import ClientConnection
from websockets.frames import Opcode
from websockets.uri import parse_uri

host, port, credentials, server = sys.argv[1:]
connection = ClientConnection(parse_uri(f"ws://{server}/echo"), max_size=None)
request = connection.connect()
request.path = f"http://{server}/echo"
request.headers["Proxy-Authorization"] = "Basic " + base64.b64encode(credentials.encode()).decode()
connection.send_request(request)

with socket.create_connection((host, int(port)), timeout=60) as stream:

    def flush():
        for data in connection.data_to_send():
            if data:
                stream.sendall(data)
            else:
                stream.shutdown(socket.SHUT_WR)

    def receive():
        """Waits for more bytes, and returns the events."""
        data = stream.recv(65536)
        if data:
            connection.receive_data(data)
        else:
            connection.receive_eof()
        flush()
        return connection.events_received()

    def receive_frames(opcode):
        """Returns the data of frames until a last one; the first has this opcode."""
        content = b""
        while True:
            for frame in receive():
                assert frame.opcode == (Opcode.CONT if content else opcode), frame
                content += frame.data
                if frame.fin:
                    return content

    flush()
    (answer,) = receive()
    assert answer.status_code == 101, answer
    count = 0
    for size in [*range(0, 500 * 137, 137), 65_535, 65_536, 5_000_011]:
        message = bytes(number % 251 for number in range(size))
        connection.send_binary(message)
        flush()
        assert receive_frames(Opcode.BINARY) == message, size
        count += 1
    connection.send_ping(b"there?")
    flush()
    assert receive_frames(Opcode.PONG) == b"there?"
    connection.send_close(1000)
    flush()
    while connection.state.name != "CLOSED":
        receive()

print(count, "messages came back")
