// Node's http client through a proxy: client.js PROXY SITE FILE
"use strict";

const assert = require("node:assert");
const http = require("node:http");
const { createHash } = require("node:crypto");
const { Readable, pipeline } = require("node:stream");

const [proxy, site, file] = [new URL(process.argv[2]), process.argv[3], process.argv[4]];
const credentials = Buffer.from(`${proxy.username}:${proxy.password}`).toString("base64");
const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
// Blocks that differ, about 10 MB together.
const blocks = Array.from({ length: 300 }, (_, number) => Buffer.alloc(33_331, `block ${number}. `));
let count = 0;

// Sends a request; `send` writes its body, and ends it.
function ask(method, path, status, headers = {}, send = (request) => request.end()) {
  const all = { Host: new URL(site).host, "Proxy-Authorization": `Basic ${credentials}`, ...headers };
  const place = { host: proxy.hostname, port: proxy.port, agent };
  return new Promise((resolve, reject) => {
    const request = http.request({ ...place, method, path: site + path, headers: all });
    request.on("error", reject);
    request.on("response", (answer) => {
      count += 1;
      const hash = createHash("sha256");
      answer.on("error", reject);
      answer.on("data", (piece) => hash.update(piece));
      answer.on("end", () => {
        assert.strictEqual(answer.statusCode, status, `${method} ${path}`);
        resolve(hash.digest("hex"));
      });
    });
    send(request, reject);
  });
}

const stream = (request, reject) =>
  pipeline(Readable.from(blocks), request, (error) => error && reject(error));

async function main() {
  const sum = (text) => createHash("sha256").update(text).digest("hex");
  const whole = sum(Buffer.concat(blocks));
  const part = async (number) => {
    const expected = `arrived(${number}, "${"f".repeat(number * 997)}".length);\n`;
    assert.strictEqual(await ask("GET", `page/${number}.js`, 200), sum(expected));
  };
  await Promise.all(Array.from({ length: 50 }, (_, number) => part(2 * number + 1)));

  let told = 0;
  const expecting = { Expect: "100-continue", "Transfer-Encoding": "chunked" };
  await ask("PUT", file, 201, expecting, (request, reject) => {
    request.flushHeaders();
    request.on("continue", () => {
      told += 1;
      stream(request, reject);
    });
  });
  assert.strictEqual(told, 1);
  assert.strictEqual(await ask("GET", file, 200), whole);
  assert.strictEqual(await ask("POST", "echo", 200, {}, stream), whole);
  await ask("DELETE", file, 204);
  agent.destroy();
  console.log(count, "requests");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
