// The export opens from disk: no request at all, the same turns, and it can be played.
import { writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { chromium } from 'playwright-core';
import { address, assert, FLAGS, PATIENCE, played } from './lib.mjs';

const { frames } = await played();
const file = join(tmpdir(), 'episode.html');
const response = await fetch(`${address}/api/export`);
assert.ok(response.ok, String(response.status));
await writeFile(file, await response.text());
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: FLAGS });
const page = await browser.newPage();
page.setDefaultTimeout(PATIENCE);
const problems = [];
page.on('console', (message) => message.type() === 'error' && problems.push(message.text()));
page.on('pageerror', (error) => problems.push(error.message));
page.on('request', (request) => /^(file|data|blob):/.test(request.url()) || problems.push(request.url()));
await page.goto(pathToFileURL(file).href);
await page.locator('.stage[data-ready=true] canvas').waitFor();
const slider = page.getByRole('slider', { name: 'Turn', exact: true });
await slider.fill('50');
const frame = frames[50];
assert.ok(
  (await slider.getAttribute('aria-valuetext')).startsWith(`Turn ${frame.turn + 1}, day ${frame.day + 1}, ${frame.phase}.`),
);
await page.getByRole('link', { name: 'Dashboard' }).click();
await page.getByRole('heading', { name: 'Deals' }).waitFor();
await browser.close();
assert.deepEqual(problems, []);
console.log(JSON.stringify({ checked: 1 }));
