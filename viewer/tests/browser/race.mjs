// A race: the first start moves, a reopened one is whole, and the form begins with what runs.
import { api, assert, becomes, run } from './lib.mjs';

await run(async (open) => {
  const page = await open('/race');
  const slider = () => page.getByRole('slider', { name: 'Turn of the race' });
  await page.getByRole('textbox', { name: 'seed' }).fill('1007');
  await page.getByRole('textbox', { name: 'days' }).fill('5');
  await page.getByRole('combobox', { name: 'scenario' }).selectOption('churn');
  await page.getByRole('button', { name: 'Start' }).click();
  await slider().waitFor();
  // Started before any frame has arrived, it runs all the same, to the end of both.
  const frames = 5 * 15 + 1;
  await page.waitForFunction((last) => document.querySelector('main input[type=range]')?.value === String(last), frames - 1);
  await page.getByRole('button', { name: 'Play', exact: true }).waitFor();
  const worlds = (await api('config')).worlds.filter(({ world }) => world.startsWith('race'));
  assert.deepEqual(
    worlds.map(({ scenario, seed, days }) => [scenario, seed, days]),
    [
      ['churn', 1007, 5],
      ['churn', 1007, 5],
    ],
  );

  // Longer than one message of the feed, and reopened after its end: the curves end with the newest value.
  const again = await open('/race');
  await becomes(() => again.getByRole('combobox', { name: 'scenario' }).inputValue(), 'churn');
  await becomes(() => again.getByRole('textbox', { name: 'seed' }).inputValue(), '1007');
  await becomes(() => again.getByRole('textbox', { name: 'days' }).inputValue(), '5');
  for (const [index, { world }] of worlds.entries()) {
    const told = await api(`state?world=${world}`);
    assert.equal(told.frames.length, frames);
    const value = Math.round(told.frames.at(-1).kpis.value).toLocaleString('en-US');
    await again.waitForFunction(
      ([place, shown]) =>
        document.querySelectorAll('.lane')[place]?.textContent.length > 0 &&
        document.querySelector('.curves')?.textContent.includes(shown),
      [index, value],
    );
  }
});
