// The inspector follows who acts until a person is chosen; `f` lets it follow again, and the address says which of the two it is.
import { assert, becomes, played, run } from './lib.mjs';

const { frames } = await played();
const TITLES = {
  ceo: 'CEO',
  dev: 'Dev',
  marketing: 'Marketing',
  sales: 'Sales',
  content: 'Content',
  hr: 'HR',
  customer: 'Customer',
};

await run(async (open) => {
  const page = await open('/office?turn=3');
  const slider = page.getByRole('slider', { name: 'Turn', exact: true });
  const inspected = () => page.locator('aside h2').filter({ hasText: ' · ' }).first().innerText();
  const who = async (title) => becomes(async () => (await inspected()).includes(title), true);
  const hash = () => page.evaluate(() => location.hash);
  const acts = frames.filter((frame) => TITLES[frame.actor]).slice(3, 40);
  const seen = new Set();
  for (const frame of acts) {
    if (seen.has(frame.actor)) continue;
    seen.add(frame.actor);
    await slider.fill(String(frame.seq));
    await who(`· ${TITLES[frame.actor]}`);
  }
  assert.ok(seen.size >= 5, `only ${[...seen]} act`);
  await becomes(async () => /role=acting/.test(await hash()), true);

  // A choice stays, over a reload too.
  await page.getByRole('button', { name: 'Pat · HR' }).click();
  await slider.fill(String(acts.find((frame) => frame.actor === 'dev').seq));
  await who('· HR');
  await becomes(async () => /role=hr/.test(await hash()), true);
  await page.reload();
  await page.getByRole('button', { name: 'stays with this role' }).waitFor();
  await who('· HR');
  await page.locator('body').press('f');
  await who('· Dev');
  await page.getByRole('button', { name: 'follows who acts' }).waitFor();
  await becomes(async () => /role=acting/.test(await hash()), true);
  await page.reload();
  await page.getByRole('button', { name: 'follows who acts' }).waitFor();
  await who('· Dev');
  if (process.env.PICTURES) await page.screenshot({ path: `${process.env.PICTURES}/action.png` });
  await page.locator('body').press('?');
  await page.getByRole('cell', { name: 'in the office: follow who acts, or stay' }).waitFor();
});
