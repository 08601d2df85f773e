// A person takes a seat, submits an action, sees what it paid, takes it back; another player in a seat answers from then on.
import { api, assert, run } from './lib.mjs';

await api('reset', { days: 3, seed: 1001, human: 'ceo', pace_s: 0, playing: true });
await run(async (open) => {
  const page = await open('/play');
  const submit = page.getByTestId('submit');
  await page.waitForFunction(() => !document.querySelector('[data-testid=submit]').disabled);
  const before = (await api('state')).frames.length;
  const reply = await page.getByLabel('The reply that will be sent').textContent();
  await submit.click();
  await page.waitForFunction(() => document.querySelector('[data-testid=outcome]'));
  const { frames } = await api('state');
  const mine = frames[before];
  assert.equal(mine.policy, 'human');
  assert.equal(mine.text, reply);
  const sum = mine.parts.ceo?.reduce((total, part) => total + part, 0) ?? 0;
  const shown = await page.getByTestId('outcome').locator('.waterfall b .pay').textContent();
  assert.equal(Number(shown.replace('−', '-')).toFixed(2), sum.toFixed(2));

  await page.getByRole('button', { name: /Undo/ }).click();
  await page.waitForFunction((length) => Number(document.querySelector('.timeline input').value) === length - 1, before);

  await page.getByRole('button', { name: /^Try (all )?\d+/ }).click();
  await page.getByRole('region', { name: 'Branches' }).locator('li').nth(1).waitFor();

  await page.locator('#seat-dev').selectOption('expert');
  await page.waitForFunction(async () => (await (await fetch('./api/config')).json()).worlds[0].seats.dev === 'expert');
  await page.waitForFunction(() => !document.querySelector('[data-testid=submit]').disabled);
  await submit.click();
  await page.waitForFunction(
    async (length) => (await (await fetch('./api/config')).json()).worlds[0].length > length + 1,
    before,
  );
  const after = (await api('state')).frames.slice(before).find((frame) => frame.actor === 'dev');
  assert.equal(after.policy, 'expert');
});
