"""Posts its input by aiohttp, and prints the response: with_aiohttp.py PROXY URL CERTIFICATE"""

import asyncio
import ssl
import sys

import aiohttp

proxy, url, certificate = sys.argv[1:]


async def main():
    trust = ssl.create_default_context(cafile=certificate)
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session:
        async with session.post(url, data=sys.stdin.buffer.read(), proxy=proxy, ssl=trust) as answer:
            sys.stdout.buffer.write(await answer.read())


asyncio.run(main())
