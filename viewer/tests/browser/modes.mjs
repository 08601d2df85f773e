// A seat is put into training mode on the page, in either theme, and what it does is kept in the run.
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { api, assert, becomes, run } from './lib.mjs';

const axe = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const serious = (page) =>
  page.evaluate(async () => {
    const { violations } = await window.axe.run(document, { resultTypes: ['violations'] });
    return violations.filter((one) => ['serious', 'critical'].includes(one.impact)).map((one) => one.id);
  });
const mode = async (role) => (await api('config')).worlds[0].modes[role];

await run(async (open) => {
  for (const [colorScheme, width] of [
    ['dark', 1366],
    ['light', 390],
  ]) {
    const page = await open('/play', { width, colorScheme });
    const sales = page.getByRole('combobox', { name: 'Mode of Sales' });
    await sales.selectOption('training');
    await becomes(() => mode('sales'), 'training');
    assert.equal(await page.getByRole('combobox', { name: 'Mode of CEO' }).count(), 0, 'a scripted player has one mode');
    const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert.ok(over <= 0, `${over} px too wide`);
    await page.evaluate(axe);
    assert.deepEqual(await serious(page), []);
    if (process.env.PICTURES) await page.screenshot({ path: join(process.env.PICTURES, `modes-${colorScheme}.png`) });
    for (let turn = 0; turn < 12; turn++) await api('step', {});
    await becomes(async () => (await api('runs')).filter(({ name }) => name === 'shift').length, 1);
    await sales.selectOption('inference');
    await becomes(() => mode('sales'), 'inference');
    await page.context().close();
  }
  await api('reconfigure', { modes: { sales: 'training' } });
  const page = await open('/office');
  await page.keyboard.press('4');
  await becomes(() => page.getByTestId('mode').textContent(), 'training');
  if (process.env.PICTURES) await page.screenshot({ path: join(process.env.PICTURES, 'modes-office.png') });
});
