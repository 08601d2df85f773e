// The address holds the moment: reloaded, sent to another page, or gone back to, it shows the same.
import { address, api, assert, becomes, played, run, token } from './lib.mjs';

const { frames } = await played();
const [first] = await api('runs/office/episodes');
const recorded = await api(`runs/office/office?iteration=${first.iteration}&episode=${encodeURIComponent(first.name)}`);
const night = recorded.frames.find((frame) => frame.actor === 'night');

await run(async (open) => {
  const page = await open('/office');
  const slider = page.getByRole('slider', { name: 'Turn', exact: true });
  const hash = () => page.evaluate(() => decodeURIComponent(location.hash.replaceAll('+', ' ')));
  await page.waitForFunction((last) => document.querySelector('.timeline input')?.value === String(last), frames.length - 1);

  // A turn of the live company, a role and a kind of jump.
  await slider.fill('20');
  await page.getByRole('button', { name: 'Pat · HR' }).click();
  await page.getByLabel('What to jump to').selectOption('message');
  const turn = frames[20].turn + 1;
  await becomes(hash, `#/office?turn=${turn}&role=hr&jump=message`);
  await page.reload();
  await becomes(() => slider.inputValue(), '20');
  await page.getByRole('heading', { name: 'Pat · HR' }).waitFor();
  await becomes(() => page.getByLabel('What to jump to').inputValue(), 'message');

  // A jump is a step for the back button; the newest turn has no number in the address, so that it stays the newest.
  await page.getByRole('button', { name: 'Next message' }).click();
  const jumped = await slider.inputValue();
  assert.notEqual(jumped, '20');
  await page.goBack();
  await becomes(() => slider.inputValue(), '20');
  await page.goForward();
  await becomes(() => slider.inputValue(), jumped);
  await page.locator('body').press('End');
  await becomes(hash, '#/office?role=hr&jump=message');

  // An episode of a run at a night, over the link that `y` copies, in a browser that has never been here.
  await page.evaluate(
    (to) => (location.hash = to),
    `/runs/office/episode?iteration=${first.iteration}&episode=${encodeURIComponent(first.name)}`,
  );
  await page.getByRole('link', { name: /Watch in the office/ }).click();
  await page.locator('.timeline .from').getByText(first.name).waitFor();
  await slider.fill(String(night.seq));
  await page.context().grantPermissions(['clipboard-read', 'clipboard-write'], { origin: address });
  await page.locator('body').press('y');
  await page.getByText('The link is copied.').waitFor();
  const copied = await page.evaluate(() => navigator.clipboard.readText());
  assert.ok(!copied.includes(token), 'the link holds the token');
  const other = await open(copied.replace(/.*#/, ''));
  const there = other.getByRole('slider', { name: 'Turn', exact: true });
  await other.locator('.timeline .from').getByText(first.name).waitFor();
  await becomes(() => there.inputValue(), String(night.seq));
  // The dashboard shows the same moment, and back to the live company is a step of its own.
  await other.getByRole('link', { name: 'Dashboard' }).click();
  await other.locator('.timeline .from').getByText(first.name).waitFor();
  await becomes(() => there.inputValue(), String(night.seq));
  await other.getByRole('button', { name: /back to the live company/ }).click();
  await becomes(() => other.locator('.timeline .from').count(), 0);
  await other.goBack();
  await other.locator('.timeline .from').getByText(first.name).waitFor();
  await becomes(() => there.inputValue(), String(night.seq));

  // A race: what runs is shown at its turn; what does not run is only proposed.
  const teams = ['heuristic', 'random'];
  for (const [index, team] of teams.entries()) {
    const seats = Object.fromEntries(['ceo', 'dev', 'marketing', 'sales', 'content', 'hr'].map((role) => [role, team]));
    await api('reset', { world: `race-${index + 1}`, seed: 1010, days: 2, pace_s: 0, playing: true, seats });
  }
  const race = await open('/race?teams=heuristic,random&scenario=baseline&seed=1010&days=2&turn=9');
  await becomes(() => race.getByRole('slider', { name: 'Turn of the race' }).inputValue(), '9');
  await race.getByRole('slider', { name: 'Turn of the race' }).fill('16');
  await race.waitForFunction(() => location.hash.includes('turn=15'));
  await race.reload();
  await becomes(() => race.getByRole('slider', { name: 'Turn of the race' }).inputValue(), '16');
  const proposed = await open('/race?teams=expert,random&scenario=churn&seed=1011&days=3');
  await proposed.getByText('The race of this link is not being played here.').waitFor();
  await becomes(() => proposed.getByRole('textbox', { name: 'seed' }).inputValue(), '1011');
  const worlds = (await api('config')).worlds.filter(({ world }) => world.startsWith('race'));
  assert.deepEqual(
    worlds.map(({ seed }) => seed),
    [1010, 1010],
    'an address started a race',
  );
});
