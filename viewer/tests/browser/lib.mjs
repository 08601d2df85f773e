// What every browser check shares: a page that notes all it should not do, and an address with the token.
import assert from 'node:assert/strict';
import { isDeepStrictEqual } from 'node:util';
import { chromium } from 'playwright-core';

const [address, token] = process.argv.slice(2);
export { address, assert, token };

export const FLAGS = [
  '--no-sandbox',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
  '--use-gl=angle',
  '--use-angle=swiftshader',
  '--enable-unsafe-swiftshader',
];
export const PATIENCE = Number(process.env.PATIENCE ?? 240_000);

/** Run `check(open)`; every page that it opens must log no error and ask nothing of another origin. */
export async function run(check) {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: FLAGS });
  const problems = [];
  let checked = 0;
  const open = async (hash, { width = 1366, height = 900, stage = '2d', ...context } = {}) => {
    const made = await browser.newContext({ viewport: { width, height }, ...context });
    const page = await made.newPage();
    page.setDefaultTimeout(PATIENCE);
    page.on('console', (message) => {
      if (message.type() === 'error') problems.push(`${hash}: ${message.text()}`);
    });
    page.on('pageerror', (error) => problems.push(`${hash}: ${error.message}`));
    page.on('request', (request) => {
      const url = request.url();
      if (!url.startsWith(address) && !/^(data|blob):/.test(url)) problems.push(`${hash} asked ${url}`);
    });
    await page.addInitScript((value) => localStorage.setItem('onthejob-stage', value), stage);
    await page.goto(`${address}/#token=${token}&${hash}`);
    await page.locator('main').waitFor();
    await page.waitForFunction(
      () => ![...document.querySelectorAll('main .empty')].some((one) => /Loading|Waiting/.test(one.textContent)),
    );
    checked += 1;
    return page;
  };
  try {
    await check(open);
  } finally {
    await browser.close();
  }
  assert.deepEqual(problems, []);
  console.log(JSON.stringify({ checked }));
}

export async function api(path, body) {
  const options = body
    ? { method: 'POST', headers: { 'content-type': 'application/json', 'x-onthejob-token': token }, body: JSON.stringify(body) }
    : {};
  const response = await fetch(`${address}/api/${path}`, options);
  assert.ok(response.ok, `${path}: ${response.status} ${await response.clone().text()}`);
  return response.json();
}

/** Wait until `read()` gives what is expected: a page follows what happened, at its own time. */
export async function becomes(read, expected) {
  for (const until = Date.now() + PATIENCE; ;) {
    const found = await read();
    if (isDeepStrictEqual(found, expected)) return;
    if (Date.now() > until) assert.deepEqual(found, expected);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** How the timeline's description of a frame begins and ends. */
export function described(frame) {
  const night = frame.actor === 'night';
  const team = Object.entries(frame.rewards).reduce((sum, [role, value]) => (role === 'customer' ? sum : sum + value), 0);
  return night
    ? [`Night after day ${frame.day + 1}.`, `Team reward ${team.toFixed(2)}.`]
    : [
        `Turn ${frame.turn + 1}, day ${frame.day + 1}, ${frame.phase}.`,
        `Reward ${(frame.rewards[frame.actor] ?? 0).toFixed(2)}.`,
      ];
}

/** Wait until the company has been played to its end. */
export async function played() {
  for (;;) {
    const { worlds } = await api('config');
    if (worlds[0].done) return api('state');
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}
