// Sends messages to an echo over a WebSocket of undici: with_undici.js PROXY URL CERTIFICATE
"use strict";

const assert = require("node:assert");
const { randomBytes } = require("node:crypto");
const { once } = require("node:events");
const fs = require("node:fs");
const { ProxyAgent, WebSocket } = require("undici");

const [proxy, url, certificate] = process.argv.slice(2);

async function main() {
  const dispatcher = new ProxyAgent({ uri: proxy, requestTls: { ca: fs.readFileSync(certificate) } });
  const connection = new WebSocket(url, { dispatcher });
  connection.binaryType = "arraybuffer";
  const opened = new Promise((resolve, reject) => {
    connection.addEventListener("open", resolve);
    connection.addEventListener("error", (event) => reject(event.error ?? event));
  });
  await opened;
  const sizes = [...Array.from({ length: 100 }, (_, number) => number * 1371), 65535, 65536, 5000011];
  let count = 0;
  for (const size of sizes) {
    const message = randomBytes(size);
    const echo = once(connection, "message");
    connection.send(message);
    assert.ok(message.equals(Buffer.from((await echo)[0].data)), `${size} bytes`);
    count += 1;
  }
  connection.close(1000);
  await once(connection, "close");
  await dispatcher.close();
  console.log(count, "messages came back");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
