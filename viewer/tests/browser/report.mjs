// report.html opens from disk: no request at all, the comparison with its intervals, and the run behind it.
import { chromium } from 'playwright-core';
import { assert, FLAGS, PATIENCE } from './lib.mjs';

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: FLAGS });
const page = await browser.newPage();
page.setDefaultTimeout(PATIENCE);
const problems = [];
page.on('console', (message) => message.type() === 'error' && problems.push(message.text()));
page.on('pageerror', (error) => problems.push(error.message));
page.on('request', (request) => /^(file|data|blob):/.test(request.url()) || problems.push(request.url()));
await page.goto(process.argv[2]);
await page.getByRole('heading', { name: 'Toy report' }).waitFor();
await page.getByRole('heading', { name: 'Is grpo better than sft?' }).waitFor();
assert.match(await page.locator('.verdict').innerText(), /against sft\s+better\s+\+/);
await page.getByRole('heading', { name: /^company_value: grpo against the others/ }).waitFor();
// One plot is open; what it rests on is folded.
assert.equal(await page.getByRole('region', { name: 'All metrics' }).count(), 0);
await page.getByText('What the teams reached, and all metrics').click();
assert.ok((await page.getByRole('region', { name: 'All metrics' }).getByRole('row').count()) > 3);
const quality = page.getByRole('heading', { name: 'Decision quality, greedy' });
assert.equal(await quality.count(), 0);
await page.locator('summary', { hasText: 'Decision quality, greedy' }).click();
await quality.waitFor();
await page.getByRole('link', { name: /^Run office/ }).click();
await page.getByRole('heading', { name: /Training \/ office/ }).waitFor();
await page.getByRole('heading', { name: 'Groups that show most' }).waitFor();
await page.getByRole('button', { name: 'curves' }).click();
await page.locator('.plot canvas').first().waitFor();
await page.getByRole('link', { name: 'Report', exact: true }).click();
await page.getByRole('heading', { name: 'Toy report' }).waitFor();
assert.deepEqual(problems, []);
await browser.close();
console.log(JSON.stringify({ checked: 8 }));
