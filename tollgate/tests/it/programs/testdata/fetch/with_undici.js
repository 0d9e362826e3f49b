// Posts its input by undici, and prints the response: with_undici.js PROXY URL CERTIFICATE
"use strict";

const fs = require("node:fs");
const { ProxyAgent, request } = require("undici");

const [proxy, url, certificate] = process.argv.slice(2);

async function main() {
  const requestTls = { ca: fs.readFileSync(certificate) };
  // In absolute form where the URL has no TLS: otherwise undici would request a tunnel here too.
  const dispatcher = new ProxyAgent({ uri: proxy, requestTls, proxyTunnel: url.startsWith("https:") });
  const answer = await request(url, { method: "POST", body: fs.readFileSync(0), dispatcher });
  const content = Buffer.from(await answer.body.arrayBuffer());
  if (answer.statusCode !== 200) {
    throw new Error(`${answer.statusCode}: ${content}`);
  }
  fs.writeSync(1, content);
  await dispatcher.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
