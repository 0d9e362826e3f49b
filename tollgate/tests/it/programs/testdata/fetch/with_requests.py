"""Posts its input by Python's requests, and prints the response: with_requests.py PROXY URL CERTIFICATE"""

import sys

import requests

proxy, url, certificate = sys.argv[1:]
with requests.Session() as session:
    session.trust_env = False
    session.proxies = {"http": proxy, "https": proxy}
    answer = session.post(url, data=sys.stdin.buffer.read(), verify=certificate, timeout=60)
    answer.raise_for_status()
    sys.stdout.buffer.write(answer.content)
