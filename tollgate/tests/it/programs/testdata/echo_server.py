"""A WebSocket server that echoes every message, on a port of its own choice, which it prints.

With a certificate and its key it does so over TLS: echo_server.py [CERTIFICATE KEY]
"""

import asyncio
import ssl
import sys

import websockets


async def echo(socket):
    async for message in socket:
        await socket.send(message)


async def main():
    trust = None
    if sys.argv[1:]:
        trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        trust.load_cert_chain(*sys.argv[1:])
    async with websockets.serve(echo, "127.0.0.1", 0, ssl=trust, max_size=None) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.Future()


asyncio.run(main())
