"""Sends messages to an echo over a WebSocket of aiohttp: with_aiohttp.py PROXY URL CERTIFICATE"""

import asyncio
import random
import ssl
import sys

import aiohttp

proxy, url, certificate = sys.argv[1:]


async def main():
    count = 0
    chance = random.Random(1)
    trust = ssl.create_default_context(cafile=certificate)
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        async with session.ws_connect(url, proxy=proxy, ssl=trust, max_msg_size=0) as connection:
            for size in [*range(0, 100 * 1371, 1371), 65_535, 65_536, 5_000_011]:
                message = chance.randbytes(size)
                await connection.send_bytes(message)
                assert await connection.receive_bytes() == message, size
                count += 1
    print(count, "messages came back")


asyncio.run(main())
