"""A session of Python's requests through a proxy: session.py PROXY SITE FILE"""

import base64
import random
import sys
import tempfile
import urllib.parse

import requests

proxy, site, file = sys.argv[1:]
content = random.Random(1).randbytes(5_000_011)
count = 0

# Set explicitly where the library omits them: with chunks, before version 2.30.
parts = urllib.parse.urlsplit(proxy)
credentials = base64.b64encode(f"{parts.username}:{parts.password}".encode()).decode()
remembered = {"Proxy-Authorization": f"Basic {credentials}"}


def ask(method, path, status=200, **options):
    global count
    count += 1
    answer = session.request(method, site + path, timeout=60, **options)
    assert answer.status_code == status, (method, path, answer.status_code, answer.text)
    return answer


def pieces():
    """The content in chunks of many sizes."""
    at, size = 0, 1
    while at < len(content):
        yield content[at : at + size]
        at, size = at + size, size * 7 % 70_001 + 1


with requests.Session() as session:
    session.trust_env = False
    session.proxies = {"http": proxy}

    for part in range(1, 40, 2):
        text = ask("GET", f"page/{part}.js").text
        assert text == f'arrived({part}, "{"f" * (part * 997)}".length);\n', text[:40]

    with tempfile.TemporaryFile() as stream:
        stream.write(content)
        stream.seek(0)
        ask("PUT", file, 201, data=stream)
    answer = ask("GET", file, stream=True)
    assert b"".join(answer.iter_content(30_011)) == content
    ask("PUT", file, 204, data=pieces(), headers=remembered)
    answer = ask("POST", "echo", data=pieces(), headers=remembered, stream=True)
    assert answer.headers["Transfer-Encoding"] == "chunked", answer.headers
    assert b"".join(answer.iter_content(None)) == content
    ask("DELETE", file, 204)

print(count, "requests")
