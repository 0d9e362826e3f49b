"""Posts its input over a socket of PySocks, and prints the response: with_pysocks.py PROXY URL CERTIFICATE"""

import http.client
import ssl
import sys
from urllib.parse import urlsplit

import socks

proxy, url, certificate = urlsplit(sys.argv[1]), urlsplit(sys.argv[2]), sys.argv[3]
kind = socks.HTTP if proxy.scheme == "http" else socks.SOCKS5
place = (proxy.hostname, proxy.port)
# Names are resolved by the proxy.
options = {"proxy_rdns": True, "proxy_username": proxy.username, "proxy_password": proxy.password}
connection = http.client.HTTPConnection(url.hostname, url.port)
stream = socks.create_connection((url.hostname, url.port), 60, None, kind, *place, **options)
if url.scheme == "https":
    trust = ssl.create_default_context(cafile=certificate)
    stream = trust.wrap_socket(stream, server_hostname=url.hostname)
connection.sock = stream
connection.request("POST", url.path, sys.stdin.buffer.read())
answer = connection.getresponse()
content = answer.read()
assert answer.status == 200, content
sys.stdout.buffer.write(content)
connection.close()
