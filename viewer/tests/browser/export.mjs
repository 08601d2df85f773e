// The export opens from disk: no request at all, the same turns, and it can be played.
import { writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { chromium } from 'playwright-core';
import { address, assert, described, FLAGS, PATIENCE, played } from './lib.mjs';

const { frames } = await played();
const save = async (path, name) => {
  const response = await fetch(`${address}/api/${path}`);
  assert.ok(response.ok, `${path}: ${response.status}`);
  const file = join(tmpdir(), name);
  await writeFile(file, await response.text());
  return pathToFileURL(file).href;
};
const episode = await save('export', 'episode.html');
const whole = await save('runs/office/export?groups=6&episodes=3', 'run.html');
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: FLAGS });
const page = await browser.newPage();
page.setDefaultTimeout(PATIENCE);
const problems = [];
page.on('console', (message) => message.type() === 'error' && problems.push(message.text()));
page.on('pageerror', (error) => problems.push(error.message));
page.on('request', (request) => /^(file|data|blob):/.test(request.url()) || problems.push(request.url()));
await page.goto(episode);
await page.locator('.stage[data-ready=true] canvas').waitFor();
const slider = page.getByRole('slider', { name: 'Turn', exact: true });
await slider.fill('50');
const frame = frames[50];
assert.ok((await slider.getAttribute('aria-valuetext')).startsWith(described(frame)[0]));
await page.getByRole('link', { name: 'Dashboard' }).click();
await page.getByRole('heading', { name: 'Deals' }).waitFor();

// A run: overview, curves, a group with its arithmetic, an episode as an office.
await page.goto(whole);
await page.getByRole('heading', { name: /Training \/ office/ }).waitFor();
await page.getByRole('heading', { name: 'Did training help?' }).waitFor();
await page.getByRole('button', { name: 'curves', exact: true }).click();
await page.locator('.plot canvas').first().waitFor();
await page.getByRole('button', { name: 'groups', exact: true }).click();
await page
  .locator('label', { hasText: /^iteration/ })
  .locator('select')
  .selectOption('all');
const links = page.getByRole('region', { name: 'Groups' }).getByRole('link');
await links.first().waitFor();
// Six of them are whole; the list shows its first page.
assert.ok((await links.count()) >= 1 && (await links.count()) <= 6);
await links.first().click();
await page.locator('.reply').first().waitFor();
await page.goBack();
await page.getByRole('button', { name: 'episodes', exact: true }).click();
// Both lists choose an iteration: while the groups' choice is still there, it would lead back to the groups.
await page.locator('label', { hasText: /^role/ }).waitFor({ state: 'detached' });
await page
  .locator('label', { hasText: /^iteration/ })
  .locator('select')
  .selectOption('all');
await page.getByRole('region', { name: 'Episodes' }).getByRole('link').first().click();
await page.getByRole('button', { name: /Watch in the office/ }).click();
await page.locator('.stage[data-ready=true] canvas').waitFor();
await page.locator('.timeline .from').getByText('recorded').waitFor();
await browser.close();
assert.deepEqual(problems, []);
console.log(JSON.stringify({ checked: 1 }));
